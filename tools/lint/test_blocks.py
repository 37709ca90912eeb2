"""The check of the pages' code, on pages of a small repository."""

from __future__ import annotations

from pathlib import Path

import blocks
import pytest

_FILES = {
    "docs/reference.md": "| `--dist-jobs=N` | `DIST_TESTING_LIVE` |",
    "docs/api/starlark.md": "```starlark\nmake(\n    name,\n    size = None,\n    **kwargs,\n)\n```\n",
    "dist_testing.bazelrc": "build:gpu --jobs=1\n",
    "dist_testing/private/gpus.bzl": 'NAME = "has_{}_gpus"\n',
    "dist_testing/audit/__main__.py": 'OPTION = "--faults"\n',
    "tools/ci/BUILD.bazel": 'py_binary(name = "ci")\n',
    "tools/ci/ci.py": 'OPTION = "--page"\n',
    "wheels/empty.bzl": "",
    "e2e/one.py": "OPTION\nMORE\n",
}
_GOOD = """\
`--dist-jobs=2` and `DIST_TESTING_LIVE`, `--config=gpu`, `@dist_testing//tools/ci:has_2_gpus`

```sh
python -m dist_testing.audit --faults=kill -- python -m pytest --dist-jobs=2 --mine   # `--what`
bazel run @dist_testing//tools/ci:ci -- --config=gpu --page=a
```

```starlark
make(
    size = 1,
    ...
)
```

<!-- e2e/one.py -->
```python
OPTION
```

<!-- not run: a part of a file -->
```python
    def inside(self): ...
```

```toml
a = 1
```
"""


def _complaints(tmp_path: Path, page: str) -> list[str]:
    for name, text in {**_FILES, "page.md": page}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return blocks.wrong_blocks(["page.md"], tmp_path)


def test_code_that_exists_is_no_complaint(tmp_path: Path) -> None:
    """Otherwise authors would switch the check off."""
    assert not _complaints(tmp_path, _GOOD)


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("--dist-jobs=2`", "--dist-job=2`", "there is no option --dist-job"),
        ("_LIVE", "_LIFE", "there is no variable DIST_TESTING_LIFE"),
        ("--config=gpu`", "--config=cpu`", "there is no configuration cpu"),
        ("ci:ci", "ci:cd", "there is no label @dist_testing//tools/ci:cd"),
        ("testing.audit", "testing.auditor", "there is no module dist_testing.auditor"),
        ("--faults", "--fault", "python -m dist_testing.audit has no option --fault"),
        ("--page=a", "--pages=a", "has no option --pages"),
        ("size = 1", "sizes = 1", "make has no argument sizes"),
        ("e2e/one.py", "e2e/two.py", "e2e/two.py has no line 'OPTION'"),
        ("\nOPTION\n", "\nOPTIONS\n", "e2e/one.py has no line 'OPTIONS'"),
        ("not run: a part of a file", "test_x.py", "no test makes a file or a step of 'test_x.py'"),
        ("self): ...", "self) ...", "the block 'def inside(self) ...'"),
        ("a = 1", "a =", "Invalid value"),
        ("```toml", "```", "has no language"),
    ],
)
def test_code_that_does_not_exist_is_a_complaint(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    """Otherwise a page could show a command or an argument that was renamed long ago."""
    assert right in _GOOD
    assert any(said in text for text in _complaints(tmp_path, _GOOD.replace(right, wrong)))
