"""Flags that name the torch, pytest, ... of the repository whose tests run."""

load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

def _unset_library_impl(ctx):
    # ctx.label is private to us; the user writes the flag's label as the user's repository sees it.
    flag = "@{}//{}:{}".format(ctx.attr.module, ctx.label.package, ctx.attr.flag)
    fail(("{flag} is not set, so dist_testing does not know your {package}.\n" +
          "It uses the packages of the repository whose tests it runs, and has none of its own: two copies of torch in one " +
          "test do not work.\n" +
          "Add to MODULE.bazel, with your own hub's name: dist_testing.packages(hub = \"@pypi\") (docs/consumers.md); or to " +
          ".bazelrc: build --{flag}=@pypi//{package}").format(
        flag = flag,
        package = ctx.attr.package,
    ))

unset_library = rule(
    doc = "Takes the place of a library that is not named. A build that needs it fails and says how to name it.",
    implementation = _unset_library_impl,
    attrs = {
        "flag": attr.string(mandatory = True),
        "module": attr.string(mandatory = True),
        "package": attr.string(mandatory = True),
    },
)

def library_flag(*, name, package):
    """Declares the flag `name`. Its value is the py_library of a package that dist_testing needs; MODULE.bazel gives the default.

    Args:
        name: The flag.
        package: Name under which hubs offer the package.
    """
    unset_library(
        name = name + ".unset",
        flag = name,
        # None without modules; WORKSPACE then names the repository as MODULE.bazel does.
        module = native.module_name() or "dist_testing",
        package = package,
        # Not in `//...`, because it can only fail.
        tags = ["manual"],
        # Of @dist_testing_packages.
        visibility = ["//visibility:public"],
    )
    native.label_flag(
        name = name,
        build_setting_default = "@dist_testing_packages//:" + name,
        visibility = ["//visibility:public"],
    )
