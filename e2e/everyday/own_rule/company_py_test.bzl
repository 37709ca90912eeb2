"""What a company has in place of py_test."""

load("@rules_python//python:py_test.bzl", "py_test")

def company_py_test(*, name, tags, **kwargs):
    """Declares a py_test with the tag of the company."""
    py_test(name = name, tags = tags + ["company"], **kwargs)
