"""`python.toolchain(...)` as rules_python 1.x spells it, over interpreters of the machine.

Each version is a toolchain for targets that ask for it (`python_version`, or the flag of that name). The root module's default
version, or the machine's `python3` if the root module asks for none, is the toolchain of all others. As in rules_python 1.x, each
version has a repository with its interpreter for repository rules, `@python_3_11_host//:python`.
"""

load("@rules_python//python/extensions:local_python.bzl", "find_local_python")

_RUNTIME = """\
load("@rules_python//python:py_runtime.bzl", "py_runtime")
load("@rules_python//python:py_runtime_pair.bzl", "py_runtime_pair")

py_runtime(
    name = "runtime",
    interpreter_path = "{interpreter}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
    visibility = ["//visibility:public"],
)
"""

_TOOLCHAIN = """
toolchain(
    name = "toolchain_{name}",
    target_settings = ["@rules_python//python/config_settings:{condition}"],
    toolchain = "{runtime}",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

def _hub_repo_impl(rctx):
    text = _RUNTIME.format(interpreter = rctx.attr.interpreter)
    text += _TOOLCHAIN.format(
        name = "default",
        condition = "is_python_version_unset",
        runtime = ":runtime_pair",
    )
    for version in rctx.attr.versions:
        name = version.replace(".", "_")

        # In the version's own repository, which looks for the interpreter only when a target asks for it.
        text += _TOOLCHAIN.format(
            name = name,
            condition = "is_python_" + version,
            runtime = "@python_{}_host//:runtime_pair".format(name),
        )
    rctx.file("BUILD.bazel", text)

    # Read by Debian's interpreter.bzl, which looks downloaded interpreters up in it.
    rctx.file("interpreters.bzl", "INTERPRETER_LABELS = {}\n")

_hub_repo = repository_rule(
    implementation = _hub_repo_impl,
    attrs = {
        "interpreter": attr.string(
            doc = "Path of the default interpreter.",
            mandatory = True,
        ),
        "versions": attr.string_list(doc = "Minor versions with a toolchain of their own."),
    },
)

def _host_repo_impl(rctx):
    interpreter = find_local_python(rctx, rctx.attr.python_version, asked_by = "python.toolchain()")
    rctx.file("BUILD.bazel", _RUNTIME.format(interpreter = interpreter) + "\nexports_files([\"python\"])\n")

    # Not a link: Python takes a link for an installation of its own, and may not find its packages.
    rctx.file("python", "#!/bin/sh\nexec '{}' \"$@\"\n".format(interpreter))

_host_repo = repository_rule(
    implementation = _host_repo_impl,
    attrs = {"python_version": attr.string(mandatory = True)},
)

def _default_version(mctx):
    """Returns the version of the root module's default toolchain, "" if it names none."""
    for mod in mctx.modules:
        if not mod.is_root:
            continue
        tags = mod.tags.toolchain
        defaults = [tag for tag in tags if tag.is_default] or (tags if len(tags) == 1 else [])
        if tags and len(defaults) != 1:
            fail(("module {module}: {count} of {total} python.toolchain() tags have is_default = True.\n" +
                  "Exactly one Python can be the default.\n" +
                  "Set is_default = True on one of them.").format(
                count = len(defaults),
                module = mod.name,
                total = len(tags),
            ))
        if defaults:
            return defaults[0].python_version
    return ""

def _python_impl(mctx):
    versions = {
        ".".join(tag.python_version.split(".")[:2]): None
        for mod in mctx.modules
        for tag in mod.tags.toolchain
    }.keys()
    _hub_repo(
        name = "pythons_hub",
        interpreter = find_local_python(
            mctx,
            _default_version(mctx),
            asked_by = "python.toolchain()",
        ),
        versions = versions,
    )
    for version in versions:
        _host_repo(
            name = "python_{}_host".format(version.replace(".", "_")),
            python_version = version,
        )

python = module_extension(
    implementation = _python_impl,
    tag_classes = {
        "toolchain": tag_class(
            attrs = {
                "configure_coverage_tool": attr.bool(doc = "Without effect: no tool is downloaded."),
                "ignore_root_user_error": attr.bool(doc = "Without effect: there is no such error."),
                "is_default": attr.bool(),
                "python_version": attr.string(mandatory = True),
            },
        ),
    },
)
