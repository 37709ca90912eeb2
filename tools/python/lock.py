#!/usr/bin/env python3
"""Remake the lock files of this repository: `python3 tools/python/lock.py [--upgrade] [name ...]`.

`uv pip compile` resolves each `requirements*.in` with a `.txt` of the same name, for every Python from 3.11
on and every platform at once, with hashes. The machine's own configuration decides where the packages come
from; no index and no path is written into a lock file.

Exit status: 0 when every lock file was written, else 1 with the reason (the lock file that failed and those
after it are unchanged).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CPU_LOCK = "requirements"
LOCKS = (
    CPU_LOCK,
    "requirements_cuda",
    "requirements_docs",
    "requirements_lint",
    "requirements_plugins",
    "requirements_rbe",
    "requirements_release",
    "requirements_report",
    "requirements_trace",
    "requirements_unit",
)

# The oldest Python that the library runs on.
OLDEST_PYTHON = "3.11"

# Digests of torch's CPU wheels, in the format of sha256sum. A resolver lists only the wheels on its indexes, and
# few mirrors have the CPU build for every Python and processor.
TORCH_CPU_DIGESTS = Path(__file__).with_name("torch_cpu.sha256")

# One requirement of a lock file and its hashes.
_BLOCK = re.compile(r"^(?P<pin>\S+==\S+)(?P<marker>[^\\\n]*)(?P<hashes>(?: ?\\\n {4}--hash=\S+)+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class LockError(Exception):
    """A lock file cannot be made; the text has the reason and a way out."""


def find_uv() -> str:
    """Return the path of `uv`."""
    found = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if not found:
        raise LockError(
            "uv was not found on PATH, nor beside this Python.\n"
            "It is the program that resolves the requirements.\n"
            "Install the locked one: python3 -m pip install --require-hashes --no-deps -r requirements_lint.txt"
        )
    return found


def find_links() -> list[str]:
    """Return uv's options for the wheel folders of pip's configuration.

    uv does not read pip's configuration, and only such a folder may have torch's CPU build.
    """
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    configured = [
        value.strip("'\"")
        for key, _, value in (line.partition("=") for line in listed.splitlines())
        if key.rpartition(".")[2] == "find-links"
    ]
    places = dict.fromkeys(" ".join([os.environ.get("PIP_FIND_LINKS", ""), *configured]).split())
    return [option for place in places for option in ("--find-links", place)]


def add_digests(lock: str, digests: str) -> str:
    """Return a lock file with the hashes of more wheels of its pinned versions.

    Args:
        lock: Text of the lock file.
        digests: Lines of `<sha256>  <wheel file name>`.
    """
    missing: dict[str, set[str]] = {}
    for line in digests.splitlines():
        digest, wheel = line.split()
        name, version = wheel.split("-")[:2]
        missing.setdefault(f"{name}=={version}", set()).add(digest)

    def with_more(block: re.Match[str]) -> str:
        known = set(_HASH.findall(block["hashes"])) | missing.pop(block["pin"], set())
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sorted(known))
        return block["pin"] + block["marker"].rstrip() + hashes

    merged = _BLOCK.sub(with_more, lock)
    if missing:
        raise LockError(
            f"{TORCH_CPU_DIGESTS.name} lists wheels of {', '.join(sorted(missing))}, which no requirement pins.\n"
            "Most likely the version in requirements.in was changed, and the digests were not.\n"
            "Write the new wheels' digests into it; PyTorch's index of CPU wheels has them in its links."
        )
    return merged


def make_lock(uv: str, name: str, *, upgrade: bool) -> None:
    """Resolve `<name>.in` into `<name>.txt`, which is replaced in one step."""
    target = ROOT / f"{name}.txt"
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        draft = Path(folder) / target.name
        if target.exists() and not upgrade:
            # uv keeps the versions of its output file if they still fit.
            shutil.copyfile(target, draft)
        command = [uv, "pip", "compile", f"{name}.in", "--output-file", str(draft), "--quiet"]
        command += ["--universal", "--python-version", OLDEST_PYTHON, "--generate-hashes"]
        command += ["--no-emit-index-url", "--no-emit-find-links"]
        command += ["--custom-compile-command", "python3 tools/python/lock.py"]
        if name == CPU_LOCK:
            # Not for the others: where the CPU build is offered, a resolver takes it for the newer one.
            command += find_links()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LockError(
                f"{name}.in: uv ended with exit code {done.returncode}.\n{done.stderr.strip()}\n"
                "If it did not find torch's CPU build: UV_EXTRA_INDEX_URL names PyTorch's index of CPU wheels."
            )
        if name == CPU_LOCK:
            more = TORCH_CPU_DIGESTS.read_text(encoding="utf-8")
            draft.write_text(add_digests(draft.read_text(encoding="utf-8"), more), encoding="utf-8")
        draft.replace(target)


def main() -> int:
    """Remake the lock files named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description="Remake the lock files.")
    parser.add_argument("locks", nargs="*", metavar="name", help=f"of {', '.join(LOCKS)}; default: all")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that fit")
    options = parser.parse_args()
    unknown = sorted(set(options.locks) - set(LOCKS))
    if unknown:
        parser.error(f"no lock file is named {', '.join(unknown)}; there are {', '.join(LOCKS)}")
    try:
        uv = find_uv()
        for name in options.locks or LOCKS:
            make_lock(uv, name, upgrade=options.upgrade)
            sys.stderr.write(f"lock.py: wrote {name}.txt\n")
    except LockError as error:
        sys.stderr.write(f"lock.py: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
