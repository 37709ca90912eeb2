"""Error texts of backend_conformance_test, and values that are nearly wrong and right."""

load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load("//dist_testing:conformance.bzl", "backend_conformance_test")
load("//dist_testing/private:conformance.bzl", "conformance_problems")  # buildifier: disable=bzl-visibility
load(":problem_asserts.bzl", "assert_accepted", "assert_refused")

def _problems(**wrong):
    right = {"expectations": None, "cells": [], "cell_limit": None, "max_world_size": 7, "data": [], "env": {}, "tags": [], "more": {}}
    return conformance_problems(**(right | wrong))

def _conformance_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, _problems())
    assert_accepted(env, _problems(
        cell_limit = 1,
        cells = ["broadcast/*"],
        data = select({"//conditions:default": []}),
        env = {"MINE": "1"},
        expectations = "conformance.json",
        max_world_size = 1,
        more = {"size": "large"},
        tags = ["cpu:4"],
    ))
    assert_accepted(env, _problems(expectations = Label("//:a.json")))
    for wrong in ["", ["a.json"], 3]:
        assert_refused(env, _problems(expectations = wrong), "expectations = ", "label of one JSON file", "or drop it")
    for wrong in ["broadcast/*", [""], ["a b"], [3]]:
        assert_refused(env, _problems(cells = wrong), "cells = ", "no name has a space", "broadcast/*")
    for wrong in [0, -1, "5"]:
        assert_refused(env, _problems(cell_limit = wrong), "cell_limit = ", "number of seconds from 1", "cell_limit = 10")
    for wrong in [0, 8, "2"]:
        assert_refused(env, _problems(max_world_size = wrong), "max_world_size = ", "1, 2, 3, 4, 5, 7", "from 1 to 7")
    assert_refused(env, _problems(env = {"CONFORMANCE_CELLS": "x"}), "env: CONFORMANCE_CELLS\n", "Use the argument")
    for argument in ["srcs", "backends", "world_size", "isolation"]:
        assert_refused(env, _problems(more = {argument: 1}), argument, "its own cases and worlds", "Drop the argument")
    for argument in ["data", "env", "tags"]:
        assert_refused(env, _problems(**{argument: "x"}), argument + " = \"x\"\n")
    asserts.equals(env, 2, len(_problems(cell_limit = 0, max_world_size = 0)))
    return unittest.end(env)

conformance_test = unittest.make(_conformance_test_impl)

def conformance_test_suite(name):
    """Declares the tests.

    Args:
        name: Name of the suite.
    """
    unittest.suite(name, conformance_test)

    # Bazel refuses a label that is there twice, and then loads nothing of this package.
    backend_conformance_test(
        name = "expectations_in_data",
        backend = "gloo",
        data = ["cases.py"],
        expectations = ":cases.py",
        tags = ["manual"],
    )
