"""What ranks of a unittest class see: a fresh import of the file, and what the class's own `setUpClass` has bound."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.children import Target, assert_no_folder_left, run_pytest, write_file
from tests.support.starter import Starter

_NATIVE = "from dist_testing import MultiProcessTestCase"
_TORCH = "from torch.testing._internal.common_distributed import MultiProcessTestCase"

# Whichever class is first, the plain test has run before it.
_CASES = """
    import json
    import threading
    import unittest
    from pathlib import Path

    {base}

    LOG = []
    FOUND = None

    def note(case):
        if case.rank == 0:
            seen = [LOG, FOUND, getattr(case, "seen", None)]
            print("a line of", type(case).__name__, flush=True)
            Path({folder!r}, type(case).__name__).write_text(json.dumps(seen))

    class TestPlain(unittest.TestCase):
        def test_it(self):
            LOG.append("plain")

    class Ranks(MultiProcessTestCase):
        @property
        def world_size(self):
            return 1

        def setUp(self):
            super().setUp()
            self._spawn_processes()

    class TestSets(Ranks):
        @classmethod
        def setUpClass(cls):
            global FOUND
            super().setUpClass()
            cls.seen, FOUND = 5, "a port"
            cls.lock = threading.Lock()
            LOG.append("setUpClass")

        def test_it(self):
            note(self)
            with self.assertRaisesRegex(AttributeError, "TestSets.lock is not on the rank: .*cannot pickle"):
                self.lock

    class TestSetsNot(Ranks):
        def test_it(self):
            note(self)

    if __name__ == "__main__":
        unittest.main()
"""

_PYTEST = ("-m", "pytest")
_COMPAT = (*_PYTEST, "-p", "dist_testing.compat.pytest_install")


@pytest.mark.parametrize(
    ("base", "command"),
    [
        pytest.param(_NATIVE, ("test_cases.py", "NAMES"), id="file"),
        pytest.param(_NATIVE, ("-m", "unittest", "test_cases.NAMES"), id="unittest"),
        pytest.param(_TORCH, ("-m", "dist_testing.compat", "test_cases.py", "NAMES"), id="compat"),
        pytest.param(_NATIVE, (*_PYTEST, "test_cases.py::NAMES"), id="pytest"),
        pytest.param(_TORCH, (*_COMPAT, "test_cases.py::NAMES"), id="pytest-compat"),
        pytest.param(_NATIVE, ("bazel",), id="bazel"),
    ],
)
@pytest.mark.parametrize("order", [("TestSets", "TestSetsNot"), ("TestSetsNot", "TestSets")], ids=["sets", "sets_not"])
def test_ranks_see_a_fresh_import_and_their_own_set_up_class(
    starter: Starter, tmp_path: Path, base: str, command: Sequence[str], order: Sequence[str]
) -> None:
    """If this fails, an earlier test or another class decides what a test's ranks see, so the order of tests does."""
    source = _CASES.format(base=base, folder=str(tmp_path))
    names = ["TestPlain", *order]
    if command == ("bazel",):
        code = Target(tmp_path, {"test_cases.py": source}).run(starter).code
    else:
        write_file(tmp_path, "test_cases.py", source)
        *options, pattern = command
        arguments = [*options, *(pattern.replace("NAMES", name) for name in names)]
        if "pytest" in options:
            ended = run_pytest(starter, tmp_path, *arguments[2:])
            code, log = ended.code, ended.log
        else:
            child = starter.start(arguments, tmp_path, env={"DIST_TESTING_LIVE": "1"})
            code, log = child.wait(), child.log
            assert all(f"[rank 0] a line of {name}\n" in log for name in order), log
            assert_no_folder_left(tmp_path)
        assert code == 0, log
    assert code == 0
    seen = {name: json.loads((tmp_path / name).read_text()) for name in order}
    assert seen == {"TestSets": [[], "a port", 5], "TestSetsNot": [[], None, None]}
