"""Changes the code of the oracle in one place at a time, and runs the tests that must notice it.

Run it by hand: `python -m tests.conformance.mutate_oracle [MODULE ...]`. It prints each change that no test notices,
and the score. docs/evidence/mutants.md has the last score and explains what is left. `tests.support.mutate` does the
work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.mutate import mutate

_PACKAGE = "dist_testing.conformance"
# Module to the file of tests that must notice each change of it.
TESTS = {
    "on_rank.oracle": "test_oracle.py",
    "on_rank.tensors": "test_tensors.py",
    "axes": "test_oracle.py",
    "judge": "test_judge.py",
}


def main(names: Sequence[str]) -> int:
    """Print the changes that no test notices, and the score of each module. Returns the exit code."""
    here = Path(__file__).parent
    return mutate({f"{_PACKAGE}.{name}": [str(here / TESTS[name])] for name in names or TESTS})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
