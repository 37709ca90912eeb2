"""The macros for BUILD files: `load("@dist_testing//dist_testing:defs.bzl", "dist_py_test")`."""

load("//dist_testing/private:dist_py_test.bzl", _dist_py_test = "dist_py_test")
load("//dist_testing/private:suites.bzl", _dist_test_suites = "dist_test_suites")

dist_py_test = _dist_py_test
dist_test_suites = _dist_test_suites
