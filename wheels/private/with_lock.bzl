"""The rule with_lock."""

load(":transitioned.bzl", "transitioned_library")

_LOCK = str(Label("//wheels:lock"))

def _choose_impl(_settings, attr):
    return {_LOCK: attr.lock}

_choose = transition(
    implementation = _choose_impl,
    inputs = [],
    outputs = [_LOCK],
)

with_lock = transitioned_library(
    doc = """A Python library with the wheels of one lock, whatever the command line says.

    A test depends on it alone: a package beside it would come from the lock of the command line, and two torches in one
    process do not work. `dist_py_test` has the argument `lock` instead.""",
    attrs = {"lock": attr.string(
        doc = "Name of the lock, in every hub that has it.",
        mandatory = True,
    )},
    cfg = _choose,
)
