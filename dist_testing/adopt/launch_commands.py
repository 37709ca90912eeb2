"""Recognises commands that launch ranks: torchrun, `python -m torch.distributed.run`, `accelerate launch`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_ACCELERATE = "accelerate.commands.accelerate_cli"
# A command's name -> the module whose main program it is.
_COMMANDS = {
    "torchrun": "torch.distributed.run",
    "accelerate": _ACCELERATE,
    "accelerate-launch": "accelerate.commands.launch",
}
_MODULES = (*_COMMANDS.values(), "torch.distributed.launch")
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
    module, arguments = _COMMANDS.get(name, ""), (program, *rest)
    if name.startswith("python"):
        while rest and rest[0] in _FLAGS:
            rest = rest[1:]
        if len(rest) > 1 and rest[0] == "-m":
            module, arguments = rest[1], tuple(rest[1:])
    # The launcher of another installation would run another Python.
    if module not in _MODULES or not _is_beside_this_python(program, env):
        return None
    if module == _ACCELERATE and arguments[1:2] != ("launch",):
        return None
    return Launch(module, arguments)


def _is_beside_this_python(program: str, env: Mapping[str, str]) -> bool:
    """Return whether a program belongs to the Python installation or the virtual environment of this process."""
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        return False
    # Not resolved: the Python of a virtual environment is a link to one outside.
    return os.path.abspath(os.path.dirname(found)) == os.path.dirname(os.path.abspath(sys.executable))
