"""Check that a consumer can use the archive of a release: `python3 -m e2e.release_archive ARCHIVE`.

It copies the consumer `e2e/everyday`, takes the library from the archive in place of this checkout, and runs tests of
it. ARCHIVE is the file for Bazel that `tools/release` has built. Exit status 0 when everything is as expected.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

from e2e.problems import problems
from tests.support.nested_bazel import ROOT, nested_bazel, scratch_folder

_OVERRIDE = re.compile(r"^local_path_override\(.*?^\)$", re.MULTILINE | re.DOTALL)
# The README's example, and a file that several packages share.
_TARGETS = ("//readme:all_reduce_gloo", "//one:shapes_gloo")


def archive_override(archive: Path, template: str) -> str:
    """Return the override by which Bazel takes the library from an archive, by the template of Bazel's registry."""
    repository, _, version = archive.name.removesuffix(".tar.gz").rpartition("-v")
    prefix = json.loads(template)["strip_prefix"].replace("{REPO}", repository).replace("{VERSION}", version)
    digest = base64.b64encode(hashlib.sha256(archive.read_bytes()).digest()).decode()
    values = {
        "module_name": "dist_testing",
        "integrity": f"sha256-{digest}",
        "strip_prefix": prefix,
        "urls": [archive.as_uri()],
    }
    return "\n".join(
        ["archive_override(", *(f"    {name} = {json.dumps(value)}," for name, value in values.items()), ")"]
    )


def make_consumer(archive: Path, folder: Path) -> Path:
    """Copy the consumer, with the library from the archive. Return its folder."""
    workspace = folder / "everyday"
    # Its links lead to files of this checkout. Bazel's own links lead to its outputs.
    shutil.copytree(ROOT / "e2e" / "everyday", workspace, ignore=shutil.ignore_patterns("bazel-*"))
    module = workspace / "MODULE.bazel"
    override = archive_override(archive, (ROOT / ".bcr" / "source.template.json").read_text(encoding="utf-8"))
    text, count = _OVERRIDE.subn(lambda _: override, module.read_text(encoding="utf-8"))
    if count != 1:
        raise SystemExit(f"e2e.release_archive: {count} calls of local_path_override in {module}, expected one")
    module.write_text(text, encoding="utf-8")
    return workspace


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("archive", type=Path, metavar="ARCHIVE")
    parser.add_argument("--bazel", default="", help="default: ./bazelw")
    options = parser.parse_args()
    archive = options.archive.absolute()
    if not archive.is_file():
        parser.error(f"{archive} does not exist; `./bazelw run //tools/release` builds it")
    with scratch_folder("e2e.release") as folder:
        workspace = make_consumer(archive, folder)
        with nested_bazel(workspace, folder / "output", bazel=options.bazel) as bazel:
            found = problems(
                f"the archive {archive.name}",
                bazel.run("test", "--test_output=errors", *_TARGETS),
                status=0,
                parts=[rf"^{target} +PASSED" for target in _TARGETS],
            )
    for text in found:
        sys.stderr.write(f"e2e.release_archive: {text}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
