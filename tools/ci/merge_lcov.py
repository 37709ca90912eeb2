"""Merge LCOV files into one. Bazel runs this after each test of `bazel coverage`, and for `--combined_report=lcov`.

It replaces Bazel's own programs, which are written in Java and fetched from a server of their own. It takes the options
that Bazel passes. It does not merge C++ reports in gcov's own format.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Source:
    """The coverage of one source file. Counts of several reports add up."""

    lines: dict[int, int] = field(default_factory=dict)  # line number -> number of executions
    # Line, block and branch in LCOV's form -> number of times it was taken; None for a branch of a line that was never
    # reached.
    branches: dict[str, int | None] = field(default_factory=dict)
    # Name -> the rest of its record: its first line, and its last line if the report has it.
    functions: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)  # name -> number of calls

    def add(self, kind: str, value: str) -> None:
        """Add a record. Totals are ignored, because they are counted again.

        Raises:
            ValueError: If it is not a record of LCOV.
        """
        if kind == "DA":
            line, count, *_ = value.split(",")
            self.lines[int(line)] = self.lines.get(int(line), 0) + int(count)
        elif kind == "BRDA":
            branch, _, taken = value.rpartition(",")
            known = self.branches.get(branch)
            self.branches[branch] = known if taken == "-" else (known or 0) + int(taken)
        elif kind == "FN":
            place, _, name = value.rpartition(",")
            self.functions[name] = place
        elif kind == "FNDA":
            count_text, _, name = value.partition(",")
            self.calls[name] = self.calls.get(name, 0) + int(count_text)

    def records(self, name: str) -> Iterable[str]:
        """Yield the section of this file in a report."""
        yield f"SF:{name}"
        yield from (f"FN:{place},{function}" for function, place in self.functions.items())
        yield from (f"FNDA:{count},{function}" for function, count in self.calls.items())
        if self.functions:
            yield f"FNF:{len(self.functions)}"
            yield f"FNH:{sum(count > 0 for count in self.calls.values())}"
        yield from (f"BRDA:{key},{'-' if taken is None else taken}" for key, taken in self.branches.items())
        if self.branches:
            yield f"BRF:{len(self.branches)}"
            yield f"BRH:{sum(bool(taken) for taken in self.branches.values())}"
        yield from (f"DA:{line},{count}" for line, count in sorted(self.lines.items()))
        yield f"LH:{sum(count > 0 for count in self.lines.values())}"
        yield f"LF:{len(self.lines)}"
        yield "end_of_record"


def merge(reports: Iterable[str], actual: Mapping[str, str]) -> dict[str, Source]:
    """Read reports, and add up their counts for each source. `actual` has other names of sources.

    Raises:
        ValueError: If a report is not LCOV.
    """
    sources: dict[str, Source] = {}
    for report in reports:
        source = Source()
        for line in report.splitlines():
            kind, _, value = line.partition(":")
            if kind == "SF":
                source = sources.setdefault(actual.get(value, value), Source())
            else:
                source.add(kind, value)
    return sources


def main() -> int:
    """Merge the reports. Write the file that Bazel expects, even if it is empty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--coverage_dir", type=Path, help="every *.dat in it is a report")
    where.add_argument("--reports_file", type=Path, help="lists the reports, one per line")
    parser.add_argument("--output_file", type=Path, required=True)
    parser.add_argument(
        "--filter_sources", action="append", default=[], help="regular expressions of sources to leave out"
    )
    parser.add_argument("--sources_to_replace_file", type=Path, help="other names of sources: REPORTED:ACTUAL")
    parser.add_argument("--source_file_manifest", type=Path, help="lists the sources to include")
    given = parser.parse_args()
    files: list[Path] = []
    try:
        if given.reports_file is not None:
            files = [Path(line) for line in given.reports_file.read_text(encoding="utf-8").splitlines()]
        else:
            files = sorted(path for path in given.coverage_dir.rglob("*.dat") if path != given.output_file)
        actual: dict[str, str] = {}
        if given.sources_to_replace_file is not None:
            lines = given.sources_to_replace_file.read_text(encoding="utf-8").splitlines()
            actual = {reported: name for reported, _, name in (line.partition(":") for line in lines)}
        sources = merge((path.read_text(encoding="utf-8") for path in files), actual)
        if given.source_file_manifest is not None:
            wanted = set(given.source_file_manifest.read_text(encoding="utf-8").split("\n"))
            sources = {name: source for name, source in sources.items() if name in wanted}
        for pattern in given.filter_sources:
            sources = {name: source for name, source in sources.items() if not re.fullmatch(pattern, name)}
        lines = [record for name, source in sorted(sources.items()) for record in source.records(name)]
        given.output_file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except (OSError, ValueError) as error:
        sys.stderr.write(
            f"merge_lcov: {', '.join(str(path) for path in files)}: {error}\n"
            "A report is incomplete or has another format, or the disk is full.\n"
            "Run the target again; VERBOSE_COVERAGE=1 shows what it writes.\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
