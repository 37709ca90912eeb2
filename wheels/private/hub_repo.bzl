"""Repository rule: the labels of a hub, `@pypi//torch`, over one lock file or several."""

load(":lock_file.bzl", "read_lock")
load(":texts.bzl", "user_label")
load(":visibility.bzl", "WHEELS")

visibility(WHEELS)

_REQUIREMENTS = """\
\"\"\"Labels of this hub's packages, under the names that hubs of rules_python have.\"\"\"

load("{functions}", "normalized_name")

_NAMES = {names}

def _label(name, target):
    normalized = normalized_name(name.split("[")[0])
    if normalized not in _NAMES:
        fail(("requirement(\\"{{}}\\"): no lock file of this hub has that package.\\n" +
              "It is spelled in another way, or the lock files are older than their requirements.\\n" +
              "The packages are: {{}}.").format(name, ", ".join(_NAMES)))
    return str(Label("//{{}}:{{}}".format(normalized, target)))

def requirement(name):
    return _label(name, "pkg")

def data_requirement(name):
    return _label(name, "data")

def dist_info_requirement(name):
    return _label(name, "dist_info")

all_requirements = [requirement(name) for name in _NAMES]
all_data_requirements = [data_requirement(name) for name in _NAMES]
"""

_LOCK_CONDITION = """\
config_setting(
    name = "is_{name}",
    flag_values = {{"{flag}": "{name}"}},
)
"""

# A hub's rules have labels of the locks as strings, which name repositories as the hub does not.
_LOCKS = """\
\"\"\"The repositories of this hub's locks.\"\"\"

LOCKS = {{
{}}}

def targets(locks, target):
    \"\"\"Returns the labels of a target in the locks that have it, for hub_target.\"\"\"
    return {{
        lock: "@@{{}}{{}}".format(repository.repo_name, target) if lock in locks else ""
        for lock, repository in LOCKS.items()
    }}
"""

_PACKAGE = """\
load("@rules_python//python:py_library.bzl", "py_library")
load("{rule}", "hub_target")
load("//:locks.bzl", "targets")

package(default_visibility = ["//visibility:public"])

_LOCKS = {locks}

alias(
    name = "{package}",
    actual = ":pkg",
)

# A library provides what each kind of Python rule asks for, those that Bazel 7 brings included.
py_library(
    name = "pkg",
    deps = [":pkg.chosen"],
)

[
    hub_target(
        name = name,
        hub = "{hub}",
        named = ["//_named:{package}", "//_named:packages.txt"] if name == "pkg.chosen" else [],
        package = "{package}",
        targets = targets(_LOCKS, target),
    )
    for name, target in [
        ("pkg.chosen", "//:site_packages"),
        ("data", "//:data"),
        ("dist_info", "//{package}:dist_info"),
    ]
]
"""

_VISIBLE = "package(default_visibility = [\"//visibility:public\"])\n\n"

def _key(lock):
    """Names a lock in the hub's files, as chosen_target reads it."""
    return "{} {}".format(lock["name"], lock["python_version"]).strip()

def _hub_repo_impl(repository_ctx):
    locks = json.decode(repository_ctx.attr.locks)
    packages = {}
    files = {str(file): file for file in repository_ctx.attr.files}
    for lock in locks:
        file = files[lock["file"]]
        locked = read_lock(repository_ctx.read(file))
        if locked.problems:
            fail("{}: {}".format(user_label(file), "\nand ".join(locked.problems)))
        for name in locked.names:
            packages.setdefault(name, []).append(_key(lock))
    flag = Label("//wheels:lock")
    names = {lock["name"]: None for lock in locks}.keys()
    repository_ctx.file("BUILD.bazel", _VISIBLE + "\n".join([
        _LOCK_CONDITION.format(flag = flag, name = name)
        for name in names[1:]
    ]))
    repository_ctx.file("locks.bzl", _LOCKS.format("".join([
        "    \"{}\": Label(\"@{}//:all\"),\n".format(_key(lock), lock["repo"])
        for lock in locks
    ])))
    for package, found in packages.items():
        repository_ctx.file(package + "/BUILD.bazel", _PACKAGE.format(
            hub = repository_ctx.attr.hub,
            locks = repr(found),
            package = package,
            rule = Label(":hub_target.bzl"),
        ))

    # Which packages the deps of a test name; dist_testing/core/bazel/named_plugins.py reads it.
    repository_ctx.file("_named/BUILD.bazel", "exports_files(glob([\"*\"]))\n")
    repository_ctx.file("_named/packages.txt", "\n".join(sorted(packages)) + "\n")
    for package in packages:
        repository_ctx.file("_named/" + package, "")
    repository_ctx.file("requirements.bzl", _REQUIREMENTS.format(
        functions = Label(":lock_file.bzl"),
        names = repr(sorted(packages)),
    ))

hub_repo = repository_rule(
    doc = "The labels of a hub. They choose the lock by //wheels:lock, and the Python by the flag of rules_python.",
    implementation = _hub_repo_impl,
    attrs = {
        "files": attr.label_list(doc = "The lock files, each once.", mandatory = True),
        "hub": attr.string(
            doc = "Name of the hub in error texts.",
            mandatory = True,
        ),
        "locks": attr.string(
            doc = "JSON: a list of {file, name, python_version, repo}. The first name is the default.",
            mandatory = True,
        ),
    },
)

def _names_repo_impl(repository_ctx):
    repository_ctx.file("BUILD.bazel", "")
    repository_ctx.file("locks.bzl", "\"\"\"Names of the locks of all hubs.\"\"\"\n\nLOCKS = {}\n".format(repr(repository_ctx.attr.names)))

names_repo = repository_rule(
    doc = "`locks.bzl`: the values that the flag //wheels:lock may have.",
    implementation = _names_repo_impl,
    attrs = {"names": attr.string_list(default = [])},
)
