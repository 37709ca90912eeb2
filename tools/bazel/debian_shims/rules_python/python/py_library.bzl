"""py_library, with the outputs that it has in rules_python 1.x."""

load("//python:declared_outputs.bzl", "with_declared_outputs")
load("//python/private:util.bzl", "add_migration_tag")  # buildifier: disable=bzl-visibility

def py_library(*, name, **attrs):
    """Declares a py_library.

    Args:
        name: Name of the target.
        **attrs: Attributes of the rule, and those of rules_python 1.x that concern bytecode.
    """

    # buildifier: disable=native-python
    native.py_library(**add_migration_tag(with_declared_outputs(
        name = name,
        attrs = attrs | {"name": name},
        is_program = False,
    )))
