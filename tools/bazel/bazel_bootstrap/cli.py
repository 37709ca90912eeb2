"""The command line that `bazelw` calls."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from debian_prefix.cache import locked
from debian_prefix.console import say
from debian_prefix.errors import InstallError

from bazel_bootstrap.debian import install_debian
from bazel_bootstrap.doctor import PathBazel, report
from bazel_bootstrap.release import ReleaseUnavailableError, install_release
from bazel_bootstrap.settings import RELEASE_URL_VARIABLE, Settings

# Bazel's own exit code for "the machine is at fault, not the build".
MACHINE_FAULT = 36


def main(arguments: list[str]) -> int:
    """Run one command.

    `install` prints the path of the Bazel to run on stdout; `doctor` prints its report there.

    Returns:
        The exit status: 0, 36 if there is no Bazel, 128 + signal if interrupted.
    """
    parsed = _parser().parse_args(arguments)
    settings = Settings(
        version=parsed.version,
        fits=parsed.fits,
        fits_text=parsed.fits_text,
        system=parsed.system,
        cpu=parsed.cpu,
        release=parsed.release,
        debian=parsed.debian,
        tools=Path(__file__).resolve().parent.parent,
    )
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if parsed.command == "doctor":
            return 0 if report(settings, parsed.path_bazel) else MACHINE_FAULT
        print(install(settings))
    except InstallError as error:
        say(f"error: {error}")
        return MACHINE_FAULT
    except KeyboardInterrupt:
        say("interrupted; nothing half done is left in the cache")
        return 128 + signal.SIGINT
    return 0


def install(settings: Settings) -> Path:
    """Return a Bazel in the cache. If the cache has none, install one first.

    Raises:
        InstallError: If no Bazel can be installed.
    """
    file_name, url = settings.release_file, settings.release_url
    with locked(settings.cache) as lock:
        for done in (settings.release, settings.debian):
            if done.exists():
                return done
        if url:
            try:
                install_release(settings, file_name)
                return settings.release
            except ReleaseUnavailableError as reason:
                say(f"the release server {url} is no help: {reason}")
        else:
            say(f"{RELEASE_URL_VARIABLE} is empty: the release server is not asked")
        install_debian(settings, lock)
        return settings.debian


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    # Unwinds the stack, so that children end and unfinished files are removed.
    sys.exit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("command", choices=("install", "doctor"))
    for name in ("version", "fits", "fits-text", "system", "cpu"):
        parser.add_argument(f"--{name}", required=True)
    for name in ("release", "debian"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    parser.add_argument("--path-bazel", action="append", default=[], type=PathBazel.parse)
    return parser
