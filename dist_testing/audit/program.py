"""What the commands `dist_testing.audit` and `dist_testing.adopt` share: how they begin, and how they end."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from dist_testing.core.ground.budget import MAX_TIMEOUT_S, timeout_in
from dist_testing.core.ground.errors import ReportError, UsageError
from dist_testing.core.process.lifetime import become_subreaper, check_platform
from dist_testing.report.pipe import into_pipe
from dist_testing.report.words import printable

_WRONG_COMMAND = 2
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# As a shell tells of an interrupt.
_INTERRUPTED = 130


def parser_for(program: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for a program, such as "audit", whose test command follows `--`. It has the option --json."""
    name = f"python -m dist_testing.{program}"
    parser = argparse.ArgumentParser(
        prog=name,
        usage=f"{name} [OPTIONS] -- TEST COMMAND",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the findings as JSON")
    return parser


def run_program(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    run: Callable[[argparse.Namespace, list[str], Path], int],
) -> int:
    """Run a program, and return its exit status. `arguments` are its command line; None for that of this process.

    `run` gets the options, the test command, and a folder for the files of runs.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    command = words[end + 1 :]
    given, others = parser.parse_known_args(words[:end])
    if others:
        way_out = "" if command else "; put -- before the test command"
        parser.error(f"unrecognized arguments: {' '.join(others)}{way_out}")
    name = parser.prog.rpartition(".")[2]
    previous, folder = {number: signal.getsignal(number) for number in _ENDING}, ""
    try:
        if not command:
            raise UsageError(
                "no test command is given.\n"
                "The tests run by the command that runs them now, after `--`.\n"
                f"Write {parser.prog} -- python -m pytest tests/, for example."
            )
        for path in filter(None, (given.json, vars(given).get("page"))):
            _check_writable(path)
        check_platform()
        # Processes whose parents have died come to this process, which ends them.
        become_subreaper()
        for number, handler in previous.items():
            # `nohup` has the program ignore SIGHUP.
            if handler != signal.SIG_IGN:
                signal.signal(number, _interrupt)
        # Short, because harnesses put sockets below TMPDIR, and the kernel limits their paths.
        folder = tempfile.mkdtemp(prefix="da-")
        return into_pipe(lambda: run(given, command, Path(folder)))
    except KeyboardInterrupt:
        print(f"{name}: interrupted; all processes of the suite have been ended", file=sys.stderr)
        return _INTERRUPTED
    except (ReportError, UsageError) as error:
        print(f"{name}: {error}", file=sys.stderr)
    except OSError as error:
        print(
            f"{name}: {error.filename or 'a file of the program'}: cannot be written: {error.strerror or error}.\n"
            "The program writes logs and its findings.\n"
            "Give other places by its options, or another TMPDIR.",
            file=sys.stderr,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for number, handler in previous.items():
            signal.signal(number, handler)
    return _WRONG_COMMAND


def _interrupt(*_: object) -> NoReturn:
    # A second signal must not stop the clean-up.
    for number in _ENDING:
        signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def tell(program: str, line: str) -> None:
    """Print what a program does now."""
    print(f"{program}: {line}", file=sys.stderr, flush=True)


def show(lines: Iterable[str]) -> None:
    """Print the lines of a result. Control characters of a suite's own texts are made visible."""
    for line in lines:
        print(printable(line), flush=True)


def _check_writable(path: Path) -> None:
    # The runs take minutes, and the file is written after them.
    if path.is_dir() or not os.access(path.absolute().parent, os.W_OK):
        raise UsageError(
            f"{path}: cannot be written.\n"
            "Its folder does not exist or is read-only, or it is a folder.\n"
            "Give another file."
        )


def seconds_in(option: str, text: str) -> float:
    """Return the seconds of an option; raise UsageError for another text."""
    if (value := timeout_in(text)) is None:
        raise UsageError(
            f"{option}={text}: expected a number of seconds above 0, up to {MAX_TIMEOUT_S}.\n"
            "It limits how long the command waits.\n"
            f"Write {option}=60, for example."
        )
    return value
