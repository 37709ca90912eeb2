"""Uses a wheel of the hub, under the interpreter that the toolchain names."""

from __future__ import annotations

import platform
import sys

import iniconfig

if __name__ == "__main__":
    print(f"python {platform.python_version()} at {sys.executable}")
    print(f"iniconfig from {iniconfig.__file__}")
    assert "pypi_iniconfig" in iniconfig.__file__, "the wheel must come from the hub"
