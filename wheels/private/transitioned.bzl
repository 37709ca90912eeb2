"""Rules that build a Python library, with all that it depends on, in another configuration."""

load("@rules_python//python:py_info.bzl", "PyInfo")
load(":visibility.bzl", "WHEELS")

visibility(WHEELS)

def _transitioned_impl(ctx):
    # A transition turns a label into a list.
    library = ctx.attr.library[0]
    default = library[DefaultInfo]
    return [
        DefaultInfo(
            files = default.files,
            runfiles = default.default_runfiles,
        ),
        coverage_common.instrumented_files_info(ctx, dependency_attributes = ["library"]),
        library[PyInfo],
    ]

def transitioned_library(*, doc, cfg, attrs):
    """Makes a rule.

    Args:
        doc: Documentation of the rule.
        cfg: The transition. It reads the attributes.
        attrs: Attributes besides `library`.

    Returns:
        The rule: it passes on what `library` provides in the other configuration.
    """
    return rule(
        doc = doc,
        implementation = _transitioned_impl,
        attrs = attrs | {
            "library": attr.label(
                cfg = cfg,
                doc = "The library; a `py_library` with `deps` collects several.",
                mandatory = True,
                providers = [PyInfo],
            ),
            "_allowlist_function_transition": attr.label(
                default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
            ),
        },
        provides = [PyInfo],
    )
