"""Lets interpreters that a test starts import what the test can import."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import MutableMapping, Sequence


def export_search_path(environ: MutableMapping[str, str], search_path: Sequence[str]) -> None:
    """Put the entries of `sys.path` that a new interpreter would not have into PYTHONPATH.

    Older rules_python exports them before this process starts. From 1.7 on it changes `sys.path` of this process alone.
    A test that starts `sys.executable`, such as one that runs `python -m torch.distributed.run`, then finds no package.

    Args:
        environ: The environment of this process.
        search_path: Its `sys.path`.
    """
    own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    own |= {os.path.join(path, "lib-dynload") for path in own}
    given = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    main_folder = os.path.dirname(os.path.abspath(sys.argv[0]))
    more = [
        path
        for path in search_path
        if os.path.isdir(path) and os.path.realpath(path) not in own and path not in given and path != main_folder
    ]
    if more:
        environ["PYTHONPATH"] = os.pathsep.join([*more, *given])
