"""The table of known tags: Bazel's, and those that dist_py_test sets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# Bazel's own (bazel.build/reference/be/common-definitions#common.tags). `<n>` stands for a number, `<word>` for any
# text without a colon.
BAZEL = (
    "block-network",
    "cpu:<n>",
    "exclusive",
    "exclusive-if-local",
    "external",
    "local",
    "manual",
    "no-cache",
    "no-remote",
    "no-remote-cache",
    "no-remote-cache-upload",
    "no-remote-exec",
    "no-sandbox",
    "requires-fakeroot",
    "requires-network",
    "resources:<word>:<n>",
    # Set by rules_python on every target: the rule was loaded, and is not the built-in one.
    "__PYTHON_RULES_MIGRATION_DO_NOT_USE_WILL_BREAK__",
)

# Set by dist_py_test; docs/selection.md explains them.
OURS = (
    "backend:<word>",
    "dist",
    "gpu",
    "gpu_arch:<word>",
    "gpus:<n>",
    "gpus_ge_<n>",
    "multi_gpu",
    "nodes:<n>",
    "requires-gpu-<word>",
    "requires-gpu-<word>:<n>",
    "requires-netns",
    "world_size:<n>",
)

_PLACEHOLDERS = {"<n>": "[0-9]+", "<word>": "[^:]+"}


class TagTable:
    """Knows Bazel's tags, ours, and the tags that a repository documents itself.

    Args:
        documented: The repository's own tags, in the form of `BAZEL`.
    """

    def __init__(self, documented: Iterable[str] = ()) -> None:
        self._forms = (*BAZEL, *OURS, *documented)
        self._patterns = [re.compile(_pattern(form)) for form in self._forms]

    def knows(self, tag: str) -> bool:
        """Return whether the tag has one of the known forms."""
        return any(pattern.fullmatch(tag) for pattern in self._patterns)

    def suggestion(self, tag: str) -> str:
        """Return the nearest known tag, as a question; "" if none is near."""
        near = difflib.get_close_matches(tag, self._forms, n=1, cutoff=0.7)
        return f" Did you mean {near[0]!r}?" if near else ""


def _pattern(form: str) -> str:
    parts = re.split("(<n>|<word>)", form)
    return "".join(_PLACEHOLDERS.get(part, re.escape(part)) for part in parts)
