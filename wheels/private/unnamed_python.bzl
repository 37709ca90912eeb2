"""What a hub has for a build that names none of the Pythons of its locks."""

load("@bazel_skylib//rules:common_settings.bzl", "BuildSettingInfo")
load("@rules_python//python:py_info.bzl", "PyInfo")

def _unnamed_python_impl(ctx):
    asked = ctx.attr._python_version[BuildSettingInfo].value
    if asked:
        fail(("The lock \"{lock}\" of the hub \"{hub}\" has \"{package}\" for Python {has}, and not for Python {asked}.\n" +
              "`python_version` of the target, or rules_python's flag of that name, chooses the Python; it cannot import the " +
              "wheels of another one.\n" +
              "Declare wheels.lock(hub = \"{hub}\", name = \"{lock}\", python_version = \"{asked}\", ...) with that package in " +
              "MODULE.bazel, or choose another Python (docs/wheels.md).").format(
            asked = asked,
            has = " and ".join(ctx.attr.versions),
            hub = ctx.attr.hub,
            lock = ctx.attr.lock,
            package = ctx.attr.package,
        ))
    actual = ctx.attr.actual
    default = actual[DefaultInfo]
    providers = [
        DefaultInfo(
            files = default.files,
            runfiles = default.default_runfiles,
        ),
    ]
    return providers + ([actual[PyInfo]] if PyInfo in actual else [])

unnamed_python = rule(
    doc = "The wheels of the first Python, unless the build names another one.",
    implementation = _unnamed_python_impl,
    attrs = {
        "actual": attr.label(
            doc = "A target of the first Python's wheels.",
            mandatory = True,
        ),
        "hub": attr.string(mandatory = True),
        "lock": attr.string(mandatory = True),
        "package": attr.string(mandatory = True),
        "versions": attr.string_list(mandatory = True),
        "_python_version": attr.label(
            default = "@rules_python//python/config_settings:python_version",
            providers = [BuildSettingInfo],
        ),
    },
)
