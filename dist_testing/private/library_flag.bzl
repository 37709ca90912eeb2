"""Flags by which a repository tells dist_testing which torch, pytest, ... its tests use."""

def _unset_library_impl(ctx):
    # ctx.label is private to us; what the user has to write is the flag's label, as they see it.
    flag = "@{}//{}:{}".format(ctx.attr.module, ctx.label.package, ctx.attr.flag)
    fail(("{flag} is not set, so dist_testing does not know your {package}.\n" +
          "It uses the packages of the repository whose tests it runs and brings none: two copies of torch in one " +
          "test do not work.\n" +
          "Add to .bazelrc, with your own hub's name: build --{flag}=@pypi//{package}").format(
        flag = flag,
        package = ctx.attr.package,
    ))

unset_library = rule(
    doc = "Stands for a library that was not named. Building anything that needs it says how to name it.",
    implementation = _unset_library_impl,
    attrs = {
        "flag": attr.string(mandatory = True),
        "module": attr.string(mandatory = True),
        "package": attr.string(mandatory = True),
    },
)

def library_flag(*, name, package):
    """Declares the flag `name`, whose value is the py_library of a package the library needs.

    Args:
        name: The flag.
        package: Name under which hubs offer the package.
    """
    unset_library(
        name = name + ".unset",
        flag = name,
        # None without modules, where WORKSPACE has to name the repository as MODULE.bazel does.
        module = native.module_name() or "dist_testing",
        package = package,
        # Not part of `//...`: it can only fail.
        tags = ["manual"],
        visibility = ["//visibility:private"],
    )
    native.label_flag(
        name = name,
        build_setting_default = ":{}.unset".format(name),
        visibility = ["//visibility:public"],
    )
