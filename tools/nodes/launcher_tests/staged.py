"""`python -m launcher_tests.staged STAGE PROGRAM...`: runs a program on a simulated node, with the launchers in /usr.

The stage is a file of JSON: the namespaces of the node, the copy of the launchers, and the names of all nodes.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from dist_testing.nodes.namespaces import enter

# <linux/sched.h>, <sys/mount.h>
_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE, _MS_RDONLY = 0x1000, 0x4000, 0x40000, 1

_libc: Any = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Become the program."""
    stage = json.loads(Path(sys.argv[1]).read_text())
    enter([os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in stage["node"]])
    _call(_libc.unshare, _CLONE_NEWNS)
    _mount("none", "/", "", _MS_REC | _MS_PRIVATE, "")
    for folder in ("usr", "etc"):
        _mount("overlay", f"/{folder}", "overlay", _MS_RDONLY, f"lowerdir={stage['copy']}/{folder}:/{folder}")
    _mount(stage["hosts"], "/etc/hosts", "", _MS_BIND, "")
    os.environ.update(stage["env"])
    os.execvp(sys.argv[2], sys.argv[2:])


def _mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    given = [text.encode() for text in (source, target, kind)]
    _call(_libc.mount, *given, ctypes.c_ulong(flags), options.encode() or None)


def _call(function: Any, *arguments: object) -> None:
    if function(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(arguments))


if __name__ == "__main__":
    main()
