"""Finds out about a backend that a module registers, for runs without a declaration."""

from __future__ import annotations

import json
import subprocess
import sys

from dist_testing.core.ground.backends import Backend
from dist_testing.core.ground.errors import UsageError

# Limit of the process that imports torch and the module. Seconds.
_LIMIT_S = 120.0
_CODE = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
import torch.distributed as dist
name = sys.argv[2].lower()
print("kit:" + json.dumps({
    "registered": name in dist.Backend.backend_list,
    "devices": list(dist.Backend.backend_capability.get(name, [])),
}))
"""


def plug_in(name: str, module: str, device: str | None = None) -> Backend:
    """Return a declaration of the backend that a module registers.

    Another process imports the module, because an import can leave threads or a CUDA context.

    Args:
        name: torch's name of the backend.
        module: The module.
        device: Type of the tensors' device; the first that the backend registers by default.

    Raises:
        UsageError: If the module cannot be imported, does not register the name, or registers no device.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}\n{_CODE}", module, name],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"--import={module}: the import has not ended after {_LIMIT_S:.0f} s.\n"
            "The kit imports the module in a process of its own first.\n"
            f"Correct the module; `python -c 'import {module}'` shows where it waits."
        ) from None
    found = next((line for line in done.stdout.splitlines() if line.startswith("kit:")), None)
    if done.returncode or found is None:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UsageError(
            f"--import={module}: the module cannot be imported: {last}\n"
            "Its import must register the backend with torch.\n"
            f"Correct PYTHONPATH or the module; `python -c 'import {module}'` shows the whole error."
        )
    facts = json.loads(found.removeprefix("kit:"))
    if not facts["registered"]:
        raise UsageError(
            f"--backend={name}: the import of {module} does not register this name.\n"
            "A plug-in calls torch.distributed.Backend.register_backend(name, creator, devices=[...]).\n"
            "Name the backend that it registers, or another module."
        )
    if not facts["devices"]:
        raise UsageError(
            f"--backend={name}: {module} registers no device for it.\n"
            "A group finds the backend of a tensor by the tensor's device.\n"
            'Register it with devices=["cpu"], for example.'
        )
    return Backend(name.lower(), name.lower(), device or facts["devices"][0], register_module=module)
