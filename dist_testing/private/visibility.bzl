"""The packages that may load the private Starlark of the library."""

LIBRARY = [
    "//backends/...",
    "//dist_testing/...",
    "//tests/...",
    "//wheels/...",
]

visibility(LIBRARY)
