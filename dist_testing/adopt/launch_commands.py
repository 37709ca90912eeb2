"""Recognises commands that launch ranks: torchrun, `python -m torch.distributed.run`, `accelerate launch`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# A command's name, or a module that Python runs, to the module whose main program it is.
_TORCHRUN = "torch.distributed.run"
_ACCELERATE = "accelerate.commands.accelerate_cli"
_MODULES = {
    _TORCHRUN: _TORCHRUN,
    "torch.distributed.launch": "torch.distributed.launch",
    "accelerate.commands.launch": "accelerate.commands.launch",
    _ACCELERATE: _ACCELERATE,
}
_NAMES = {
    "torchrun": _TORCHRUN,
    "accelerate": _ACCELERATE,
    "accelerate-launch": "accelerate.commands.launch",
}
# Flags of the interpreter that change nothing for ranks: their output has no buffer in any case.
_FLAGS = ("-u",)


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that launches ranks."""

    module: str  # the module of the launcher
    arguments: tuple[str, ...]  # its `sys.argv`


def launch_in(command: Sequence[str], env: Mapping[str, str]) -> Launch | None:
    """Return the launch that a command line means; None for any other command. The PATH of `env` finds programs."""
    if not command:
        return None
    program, *rest = command
    name = os.path.basename(program)
    if name in _NAMES:
        # The launcher of another installation would run another Python.
        if not _is_beside_this_python(program, env) or (name == "accelerate" and rest[:1] != ["launch"]):
            return None
        return Launch(_NAMES[name], (program, *rest))
    if not name.startswith("python") or not _is_beside_this_python(program, env):
        return None
    while rest and rest[0] in _FLAGS:
        rest = rest[1:]
    if len(rest) < 2 or rest[0] != "-m" or rest[1] not in _MODULES:
        return None
    if rest[1] == _ACCELERATE and rest[2:3] != ["launch"]:
        return None
    return Launch(_MODULES[rest[1]], (rest[1], *rest[2:]))


def _is_beside_this_python(program: str, env: Mapping[str, str]) -> bool:
    """Return whether a program belongs to the Python installation or the virtual environment of this process."""
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        return False
    # Not resolved: the Python of a virtual environment is a link to one outside.
    return os.path.abspath(os.path.dirname(found)) == os.path.dirname(os.path.abspath(sys.executable))
