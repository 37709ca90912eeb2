"""The repository with the packages that MODULE.bazel gives to the library, and the checks of the declaration."""

load("//dist_testing/private:problems.bzl", "problem")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# Flag of //dist_testing/config -> name under which hubs offer the package.
PACKAGES = {
    "coverage": "coverage",
    "jinja2": "jinja2",
    "psutil": "psutil",
    "pytest": "pytest",
    "runfiles": "bazel_runfiles",
    "torch": "torch",
}

# Without it a coverage run warns, or a report says that it is missing.
_OPTIONAL = ["coverage", "jinja2"]

_BUILD = """\
package(default_visibility = ["//visibility:public"])

config_setting(
    name = "collects_coverage",
    values = {"collect_code_coverage": "true"},
)
"""

_ALIAS = """
alias(
    name = "{name}",
    actual = {actual},
)
"""

def _packages_repo_impl(repository_ctx):
    hub = repository_ctx.attr.hub
    text = _BUILD
    for name, package in PACKAGES.items():
        default = Label("//dist_testing/config:" + ("no_" + name if name in _OPTIONAL else name + ".unset"))
        actual = getattr(repository_ctx.attr, name)
        if not actual and hub and (name not in _OPTIONAL or repository_ctx.path(hub).dirname.get_child(package).exists):
            actual = "@@{}//{}".format(hub.repo_name, package)
        actual = repr(str(actual or default))
        if name == "coverage":
            # No other command needs or loads it.
            actual = "select({{\":collects_coverage\": {}, \"//conditions:default\": {}}})".format(actual, repr(str(default)))
        text += _ALIAS.format(actual = actual, name = name)
    repository_ctx.file("BUILD.bazel", text)

packages_repo = repository_rule(
    doc = "An alias for each package. Without attributes, each says that it is not set.",
    implementation = _packages_repo_impl,
    attrs = {
        "hub": attr.label(doc = "A file in the root of the hub."),
    } | {
        name: attr.label()
        for name in PACKAGES
    },
)

def chosen_packages(tags):
    """Checks the tags of the root module.

    Args:
        tags: A list of dicts: hub and the names of PACKAGES, to a label or None.

    Returns:
        The attributes of packages_repo, and a list of error texts (see problems.bzl).
    """
    if len(tags) > 1:
        return {}, [problem(
            "dist_testing.packages() is there {} times.".format(len(tags)),
            "The library has one set of packages; a test may have its own torch or its own lock.",
            "Join the tags.",
        )]
    if not tags:
        return {}, []
    hub = tags[0]["hub"]
    if hub and not hub.repo_name:
        return {}, [problem(
            "dist_testing.packages(hub = \"{}\"): that is no other repository.".format(hub.name),
            "Bazel finds a hub by its label; without \"@\" it is a target of this repository.",
            "Write hub = \"@{}\", below the use_repo() of the hub.".format(hub.name),
        )]
    return tags[0] | {"hub": hub and hub.same_package_label("BUILD.bazel")}, []
