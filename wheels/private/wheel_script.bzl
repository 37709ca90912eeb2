"""The macro wheel_script."""

load("@rules_python//python:py_binary.bzl", "py_binary")
load(":visibility.bzl", "WHEELS")

visibility(WHEELS)

_TEMPLATE = Label("//wheels:run_script.py")

def _script_main_impl(ctx):
    ctx.actions.expand_template(
        output = ctx.outputs.main,
        substitutions = {"{SCRIPT}": ctx.attr.script},
        template = ctx.file.template,
    )
    return [DefaultInfo(files = depset([ctx.outputs.main]))]

_script_main = rule(
    doc = "Writes the main file of a wheel_script.",
    implementation = _script_main_impl,
    attrs = {
        "main": attr.output(mandatory = True),
        "script": attr.string(mandatory = True),
        "template": attr.label(
            allow_single_file = True,
            mandatory = True,
        ),
    },
)

def wheel_script(*, name, script = None, deps, **kwargs):
    """Declares a program of a package as a `py_binary`: `bazel run //tools:ruff -- check`.

    It finds the program by the metadata of the installed packages when it starts, so one target works with every lock of a
    hub. `py_console_script_binary` of rules_python works on these hubs, too.

    Args:
        name: Name of the target.
        script: Name of the program. Default: `name`.
        deps: The package, and plugins that the program shall find: `["@pypi//ruff"]`.
        **kwargs: More attributes, which go to `py_binary` unchanged.
    """

    # In a folder of its own, which Python puts on sys.path.
    main = name + ".script/_run_script_of_a_wheel.py"
    _script_main(
        name = name + ".script",
        main = main,
        script = script or name,
        tags = ["manual"],
        template = _TEMPLATE,
        visibility = ["//visibility:private"],
    )
    py_binary(
        name = name,
        srcs = [main],
        main = main,
        deps = deps,
        **kwargs
    )
