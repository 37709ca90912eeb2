"""py_test, with `python_version` as in rules_python 1.x."""

load("//python:one_python.bzl", _py_test = "py_test")

def py_test(**attrs):
    """Declares a py_test.

    Args:
        **attrs: Attributes of the rule. `python_version` may name a release, such as "3.12".
    """
    _py_test(attrs)
