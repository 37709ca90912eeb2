"""Generated files that are checked in: a test that compares them, and the command that updates them."""

load("@bazel_skylib//rules:diff_test.bzl", "diff_test")
load("@rules_python//python:py_binary.bzl", "py_binary")

def golden_file(*, name, generated, checked_in):
    """Declares `name`, which updates a checked-in file, and `name.test`, which fails when it differs.

    Args:
        name: `bazel run` it to write the checked-in file anew.
        generated: Label of the one file that a rule makes.
        checked_in: Label of the source file that must be equal to it.
    """
    update = native.package_relative_label(":" + name)
    diff_test(
        name = name + ".test",
        size = "small",
        failure_message = "It is generated. Write it anew: ./bazelw run //{}:{}".format(update.package, update.name),
        file1 = checked_in,
        file2 = generated,
    )
    py_binary(
        name = name,
        srcs = ["//tools/golden:copy_over.py"],
        args = [
            "$(rootpath {})".format(generated),
            "$(rootpath {})".format(checked_in),
        ],
        data = [
            checked_in,
            generated,
        ],
        main = "//tools/golden:copy_over.py",
        tags = ["manual"],
    )
