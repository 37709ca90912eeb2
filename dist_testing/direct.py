"""A target that Bazel has built and that a person or another program starts: `bazel-bin/x/y_gloo --rank=1 -k case`.

It has the terminal, and works in a container or on a machine without Bazel. The environment and the arguments that the
build rules give a test are also in a file in the runfiles, `<name>.spec.txt`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from dist_testing.core.bazel.protocol import DEBUG_RANK_VARIABLE
from dist_testing.core.ground.errors import SpecError
from dist_testing.core.ground.spec import SPEC_VARIABLE

_DEBUG_RANK = "--dist-debug-rank="
_SUFFIX = ".runfiles"


def start_directly(environ: MutableMapping[str, str], given: Sequence[str]) -> list[str]:
    """Give this process the environment and the folder of the test, and return its arguments.

    Variables that the environment has stay as they are. `--rank=<n>` on the command line gives the terminal to that
    rank.
    """
    runfiles, file = _own_spec(environ)
    settings, text = file.read_text(encoding="utf-8").splitlines()
    spec: dict[str, Any] = json.loads(settings)
    # $RUNFILES_DIR, $RUNFILES_MANIFEST_FILE (Bazel): runfiles of the program that started this one.
    environ["RUNFILES_DIR"] = environ["TEST_SRCDIR"] = str(runfiles)
    # The manifest leads into the source tree. A test finds its files as under Bazel.
    environ.pop("RUNFILES_MANIFEST_FILE", None)
    for name, value in {**spec["environment"], SPEC_VARIABLE: text}.items():
        environ.setdefault(name, value)
    os.chdir(runfiles / environ["TEST_WORKSPACE"])
    # As Bazel splits them.
    arguments = [word for text in spec["args"] for word in shlex.split(text)]
    if not spec["is_program"]:
        # Live output, because a person reads it.
        return ["-s", *arguments, *(re.sub("^--rank=", _DEBUG_RANK, text) for text in given)]
    # All other arguments are the program's own.
    ranks = [text for text in given if text.startswith(_DEBUG_RANK)]
    for text in ranks:
        environ[DEBUG_RANK_VARIABLE] = text.removeprefix(_DEBUG_RANK)
    return [*arguments, *(text for text in given if text not in ranks)]


def _own_spec(environ: MutableMapping[str, str]) -> tuple[Path, Path]:
    """Return the runfiles of the started target, whose folder has its name with a suffix, and its spec."""
    started = os.path.abspath(sys.argv[0])
    named = environ.get("RUNFILES_DIR") or environ.get("RUNFILES_MANIFEST_FILE", "")
    # A program that starts this one may have left the variables of its own runfiles.
    for path in (Path(started), Path(named)):
        for folder in (path, *path.parents):
            if folder.name.endswith(_SUFFIX) and (file := _spec_file(folder)):
                return folder.resolve(), file.resolve()
    raise SpecError(
        f"{started}: no folder above it has the runfiles of a target with its spec, nor has RUNFILES_DIR={named!r}.\n"
        "This is the main program of dist_py_test targets; it finds its target by that folder.\n"
        "Build the target, and start bazel-bin/<package>/<name>; without Bazel, run the test file with pytest."
    )


def _spec_file(runfiles: Path) -> Path | None:
    name = runfiles.name.removesuffix(_SUFFIX) + ".spec.txt"
    found = sorted(runfiles.glob(f"*/**/{name}"))
    # Another target of that name may be among the data. The folder of a package has the same path in both trees.
    packages = {file: file.relative_to(runfiles).parent.as_posix().partition("/")[2] for file in found}
    # The root package has the shortest path, and every folder could end with it.
    matching = [file for file, package in packages.items() if f"{runfiles.parent.as_posix()}/".endswith(f"/{package}/")]
    own = matching or [file for file, package in packages.items() if not package] or found
    if len(own) > 1:
        raise SpecError(
            f"{runfiles}: {len(own)} files {name} are in the runfiles, expected one.\n"
            "Targets of that name in several repositories are among the data.\n"
            "Give the target another name."
        )
    return own[0] if own else None
