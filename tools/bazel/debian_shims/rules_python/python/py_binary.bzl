"""py_binary, with `python_version` as in rules_python 1.x."""

load("//python:one_python.bzl", _py_binary = "py_binary")

def py_binary(**attrs):
    """Declares a py_binary.

    Args:
        **attrs: Attributes of the rule. `python_version` may name a release, such as "3.12".
    """
    _py_binary(attrs)
