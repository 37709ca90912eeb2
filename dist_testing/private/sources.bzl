"""The sources of a dist_py_test as one library, which the tests of all backends share."""

load("@rules_python//python:py_info.bzl", "PyInfo")
load("@rules_python//python:py_library.bzl", "py_library")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# How the rules compile sources to bytecode is said where the sources are.
_OF_SOURCES = [
    "precompile",
    "precompile_invalidation_mode",
    "precompile_optimize_level",
    "precompile_source_retention",
]

def _test_sources_impl(ctx):
    library = ctx.attr.deps[0]
    instrumented = ["srcs"] if ctx.attr.instruments_tests else []
    return [
        DefaultInfo(files = library[DefaultInfo].files, runfiles = library[DefaultInfo].default_runfiles),
        coverage_common.instrumented_files_info(
            ctx,
            dependency_attributes = ["libraries"],
            extensions = ["py"],
            source_attributes = instrumented,
        ),
        library[PyInfo],
    ]

_test_sources = rule(
    doc = "The sources of tests. A coverage report has them only with --instrument_test_targets, as those of any test.",
    implementation = _test_sources_impl,
    attrs = {
        "deps": attr.label_list(doc = "The py_library with the sources.", mandatory = True, providers = [PyInfo]),
        "instruments_tests": attr.bool(doc = "Whether coverage reports have the sources of tests.", mandatory = True),
        "libraries": attr.label_list(doc = "What the sources import. A coverage report has their sources."),
        "srcs": attr.label_list(allow_files = True),
    },
)

def expands_labels(value):
    """Says whether Bazel expands labels in an argument, such as `$(location data.txt)`; the text of a select() has its values."""
    return "$(" in repr(value)

def test_sources(*, name, srcs, deps, attributes):
    """Declares the library with the sources of a dist_py_test.

    Its tags say nothing about scheduling: Bazel copies such tags to the actions of a target, and an action that compiles a
    source needs no GPU.

    Args:
        name: Name of the dist_py_test.
        srcs: As in dist_py_test.
        deps: As in dist_py_test.
        attributes: More attributes of the call; those that concern sources are used.

    Returns:
        The label of the library.
    """
    py_library(
        name = name + ".library",
        testonly = True,
        srcs = srcs,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = deps,
        **{key: attributes[key] for key in _OF_SOURCES if key in attributes}
    )
    _test_sources(
        name = name + ".sources",
        testonly = True,
        srcs = srcs,
        instruments_tests = select({
            Label("//dist_testing/config:instruments_tests"): True,
            "//conditions:default": False,
        }),
        libraries = deps,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = [":{}.library".format(name)],
    )
    return ":" + name + ".sources"
