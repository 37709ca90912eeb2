"""Checks what a select() hides from the macro: it is known only when a target is analysed."""

load("//dist_testing/private:problems.bzl", "fail_on")
load("//dist_testing/private:validate_environment.bzl", "env_inherit_problems", "env_problems")
load("//dist_testing/private:validate_names.bzl", "srcs_problems")
load("//dist_testing/private:validate_targets.bzl", "exec_properties_problems")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

def _select_check_impl(ctx):
    problems = env_problems(ctx.attr.env)
    problems += env_inherit_problems(ctx.attr.env_inherit)
    problems += exec_properties_problems(ctx.attr.exec_properties_)
    if ctx.attr.has_srcs:
        problems += srcs_problems([file.basename for file in ctx.files.srcs])
    fail_on("dist_py_test " + ctx.attr.suite, problems)
    return [DefaultInfo()]

_select_check = rule(
    doc = "Fails if a select() of a dist_py_test chose something that the macro would have refused.",
    implementation = _select_check_impl,
    attrs = {
        "env": attr.string_dict(),
        "env_inherit": attr.string_list(),
        "exec_properties_": attr.string_dict(),
        "has_srcs": attr.bool(),
        "srcs": attr.label_list(allow_files = True),
        "suite": attr.string(doc = "Label of the suite, as a user writes it.", mandatory = True),
    },
)

def select_check(*, name, suite, env, env_inherit, exec_properties, srcs):
    """Declares the check, if one of the arguments is a select().

    Args:
        name: Name of the check.
        suite: Label of the suite, as a user writes it.
        env: Argument of dist_py_test; so are the others.
        env_inherit: See env.
        exec_properties: See env.
        srcs: See env.

    Returns:
        What the tests add to `data`: the check, or nothing.
    """
    hidden = {
        key: value
        for key, value in {
            "env": env,
            "env_inherit": env_inherit,
            "exec_properties_": exec_properties,
            "srcs": srcs,
        }.items()
        if type(value) == "select"
    }
    if not hidden:
        return []
    _select_check(
        name = name,
        testonly = True,
        has_srcs = "srcs" in hidden,
        suite = suite,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        **hidden
    )
    return [":" + name]
