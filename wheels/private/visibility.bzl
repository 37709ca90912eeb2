"""The packages that may load the private Starlark of the wheels. Hubs load hub_target.bzl and lock_file.bzl, too."""

WHEELS = [
    "//dist_testing/...",
    "//tests/...",
    "//wheels/...",
]

visibility(WHEELS)
