"""A model of accelerate's `execute_subprocess_async`: a test starts a script, and checks `returncode > 0`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "script.py")


def execute(command: list[str], env: dict[str, str]) -> None:
    """Run a command, and raise if it fails."""
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    if done.returncode > 0:
        raise RuntimeError(f"'{' '.join(command)}' failed with returncode {done.returncode}\n{done.stderr}")


def test_script(tmp_path: Any) -> None:
    """The script passes."""
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MEET": str(tmp_path / "f")}
    # As suites do that test the package of their own checkout.
    env["PYTHONPATH"] = os.path.dirname(_SCRIPT) + os.pathsep + env.get("MODEL_PATH", "")
    execute([sys.executable, _SCRIPT], env)
