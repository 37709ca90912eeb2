"""`python_version` of py_test and py_binary, over rules of Bazel that cannot change their own configuration.

A rule with the name of the target chooses the Python for itself and for the target of Bazel's rule, which it shows as its own.
"""

load("@bazel_skylib//lib:dicts.bzl", "dicts")
load("//python:declared_outputs.bzl", "with_declared_outputs")
load("//python/private:util.bzl", "add_migration_tag")  # buildifier: disable=bzl-visibility

_FLAG = str(Label("//python/config_settings:python_version"))

# What `python_version` was before it named releases.
_UNSPECIFIED = [None, "", "PY3"]

# Attributes that mean the same for both targets.
_SHARED = [
    "compatible_with",
    "deprecation",
    "exec_compatible_with",
    "exec_properties",
    "features",
    "restricted_to",
    "target_compatible_with",
    "testonly",
    "toolchains",
]

# Attributes of the target that is run.
_OF_TESTS = ["flaky", "local", "shard_count", "size", "timeout"]

def _choose_impl(settings, attr):
    return {_FLAG: attr.python_version or settings[_FLAG]}

_choose = transition(
    implementation = _choose_impl,
    inputs = [_FLAG],
    outputs = [_FLAG],
)

def _one_python_impl(ctx):
    target = ctx.attr.target
    default = target[DefaultInfo]
    executable = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.symlink(
        is_executable = True,
        output = executable,
        target_file = default.files_to_run.executable,
    )
    return [
        DefaultInfo(
            executable = executable,
            files = depset([executable], transitive = [default.files]),
            runfiles = ctx.runfiles([executable]).merge(default.default_runfiles),
        ),
        coverage_common.instrumented_files_info(ctx, dependency_attributes = ["target"]),
        target[PyInfo],
        target[PyRuntimeInfo],
        target[RunEnvironmentInfo],
    ]

_ATTRS = {
    # What `args` may name with $(location).
    "data": attr.label_list(allow_files = True),
    "python_version": attr.string(mandatory = True),
    "target": attr.label(
        executable = True,
        cfg = "target",
        mandatory = True,
        providers = [PyInfo, RunEnvironmentInfo],
    ),
    "_allowlist_function_transition": attr.label(
        default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
    ),
}

_py_binary = rule(
    attrs = _ATTRS,
    cfg = _choose,
    executable = True,
    implementation = _one_python_impl,
)

_py_test = rule(
    attrs = _ATTRS,
    cfg = _choose,
    implementation = _one_python_impl,
    test = True,
)

def _declare(rule, chooser, attrs, *, is_test):
    """Declares a target with Bazel's own rule, and around it one with its name if it has a Python of its own."""
    attrs = dict(attrs)
    python_version = attrs.pop("python_version", None)
    if python_version == "PY2" or attrs.get("srcs_version") in ("PY2", "PY2ONLY"):
        fail("{}: Python 2 is not supported.\nNo toolchain has it.\nRemove the attribute.".format(attrs.get("name")))
    if python_version in _UNSPECIFIED:
        # buildifier: disable=native-python
        rule(**add_migration_tag(with_declared_outputs(name = attrs["name"], attrs = attrs, is_program = True, is_test = is_test)))
        return
    name = attrs.pop("name")
    args = attrs.pop("args", None)
    visibility = attrs.pop("visibility", None)
    tags = attrs.pop("tags", None)
    outer = {key: attrs[key] for key in _SHARED + _OF_TESTS if key in attrs}
    if args:
        outer["data"] = (attrs.get("srcs") or []) + (attrs.get("data") or []) + (attrs.get("deps") or [])
    if "main" not in attrs:
        attrs["main"] = name + ".py"
    inner = dicts.add(attrs, {
        "name": name + ".program",
        # Those of the user are for the target that runs.
        "tags": ["manual"],
        "visibility": ["//visibility:private"],
    })

    # buildifier: disable=native-python
    rule(**add_migration_tag(with_declared_outputs(name = inner["name"], attrs = inner, is_program = True, is_test = is_test)))
    chooser(
        name = name,
        args = args,
        python_version = python_version,
        tags = tags,
        target = ":" + name + ".program",
        visibility = visibility,
        **outer
    )

def py_binary(attrs):
    """Declares a py_binary.

    Args:
        attrs: A dict with its attributes. `python_version` may name a release, such as "3.12".
    """
    _declare(native.py_binary, _py_binary, attrs, is_test = False)

def py_test(attrs):
    """Declares a py_test.

    Args:
        attrs: A dict with its attributes. `python_version` may name a release, such as "3.12".
    """
    _declare(native.py_test, _py_test, attrs, is_test = True)
