"""The libraries of a test, under the packages that the test chooses."""

load("@rules_python//python:py_library.bzl", "py_library")
load("//dist_testing/private:visibility.bzl", "LIBRARY")
load("//wheels/private:transitioned.bzl", "transitioned_library")  # buildifier: disable=bzl-visibility

visibility(LIBRARY)

_LOCK = str(Label("//wheels:lock"))
_TORCH = str(Label("//dist_testing/config:torch"))

def _choose_impl(settings, attr):
    return {
        _LOCK: attr.lock or settings[_LOCK],
        _TORCH: Label(attr.torch) if attr.torch else settings[_TORCH],
    }

_choose = transition(
    implementation = _choose_impl,
    inputs = [
        _LOCK,
        _TORCH,
    ],
    outputs = [
        _LOCK,
        _TORCH,
    ],
)

_chosen_libraries = transitioned_library(
    doc = "The libraries of a test, with its own lock or its own torch.",
    attrs = {
        "lock": attr.string(doc = "Name of a lock of //wheels. Default: that of the command line."),
        "torch": attr.string(doc = "Label of torch, in canonical form. Default: the flag //dist_testing/config:torch."),
    },
    cfg = _choose,
)

def chosen_libraries(*, name, deps, lock, torch):
    """Declares the libraries of a test, if it does not take its packages from the command line.

    Args:
        name: First part of the names of the targets.
        deps: The libraries: a list, or a select() of lists.
        lock: Name of a lock, or None.
        torch: Label of torch, or None.

    Returns:
        The `deps` of the test.
    """
    if not lock and not torch:
        return deps
    py_library(
        name = name + ".deps",
        testonly = True,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = deps,
    )
    _chosen_libraries(
        name = name + ".libraries",
        testonly = True,
        library = ":" + name + ".deps",
        lock = lock or "",
        tags = ["manual"],
        torch = str(native.package_relative_label(torch)) if torch else "",
        visibility = ["//visibility:private"],
    )
    return [":" + name + ".libraries"]
