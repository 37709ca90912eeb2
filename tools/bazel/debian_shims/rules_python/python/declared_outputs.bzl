"""The outputs that targets of released rules_python declare, for targets of rules that do not declare them.

Released rules declare, whether a build asks for it or not, the bytecode of each source in the package of the target, and a few
files of each program. Two targets that declare one file by unlike actions are an error of the analysis, and Bazel copies tags
such as `cpu:4` from a target to its actions. With these outputs, such an error is found here, too.
"""

# Attributes of released rules that say how sources are compiled. Here nothing is compiled.
_OF_BYTECODE = [
    "precompile",
    "precompile_invalidation_mode",
    "precompile_optimize_level",
    "precompile_source_retention",
]

_COMPILE = "import py_compile, sys; py_compile.compile(sys.argv[1], cfile = sys.argv[2], dfile = sys.argv[3], doraise = True)"

def _declared_outputs_impl(ctx):
    for src in ctx.files.srcs:
        # A target cannot declare files in another package.
        if src.extension != "py" or src.owner.package != ctx.label.package or src.owner.repo_name != ctx.label.repo_name:
            continue
        bytecode = ctx.actions.declare_file("__pycache__/{}.cpython-3.pyc".format(src.basename[:-3]), sibling = src)
        ctx.actions.run_shell(
            arguments = [_COMPILE, src.path, bytecode.path, src.short_path],
            command = "python3 -c \"$@\"",
            inputs = [src],
            mnemonic = "PyCompile",
            outputs = [bytecode],
            use_default_shell_env = True,
        )
    for name in ["{}_stage2_bootstrap.py", "_{}.venv/pyvenv.cfg"] if ctx.attr.program else []:
        ctx.actions.write(ctx.actions.declare_file(name.format(ctx.attr.program)), "")

    # No build needs them.
    return [DefaultInfo(files = depset())]

_declared_outputs = rule(
    implementation = _declared_outputs_impl,
    attrs = {
        "program": attr.string(doc = "Name of the program; empty for a library."),
        "srcs": attr.label_list(allow_files = True),
    },
)

def with_declared_outputs(*, name, attrs, is_program, is_test = False):
    """Declares the outputs of a target.

    Args:
        name: Name of the target.
        attrs: A dict with its attributes.
        is_program: Whether it is a program or a test.
        is_test: Whether it is a test.

    Returns:
        The attributes for Bazel's own rule, with the outputs in `data`.
    """
    attrs = {key: value for key, value in attrs.items() if key not in _OF_BYTECODE}
    if not is_program and not attrs.get("srcs"):
        return attrs
    outputs = name + ".outputs"
    _declared_outputs(
        name = outputs,
        srcs = attrs.get("srcs"),
        program = name if is_program else "",
        # Those from which Bazel takes the execution requirements of actions.
        tags = (attrs.get("tags") or []) + ["manual"],
        testonly = is_test or attrs.get("testonly"),
        visibility = ["//visibility:private"],
    )
    return attrs | {"data": (attrs.get("data") or []) + [":" + outputs]}
