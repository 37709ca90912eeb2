"""Repository rule: the labels of a hub, `@pypi//torch`, over one lock file or several."""

load(":lock_file.bzl", "read_lock")
load(":texts.bzl", "user_label")

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

# What a package offers.
_TARGETS = ["pkg", "data", "dist_info"]

_LOCK_CONDITION = """\
config_setting(
    name = "is_{name}",
    flag_values = {{"{flag}": "{name}"}},
)
"""

_ALIAS = """\
alias(
    name = "{name}",
    actual = {actual},
)
"""

_MISSING = """\
missing_package(
    name = "{name}",
    hub = {hub},
    lock = {lock},
    others = {others},
    package = {package},
    tags = ["manual"],
)
"""

_UNNAMED_PYTHON = """\
unnamed_python(
    name = "{name}",
    actual = {actual},
    hub = {hub},
    lock = {lock},
    package = {package},
    tags = ["manual"],
    versions = {versions},
)
"""

_VISIBLE = "package(default_visibility = [\"//visibility:public\"])\n\n"

def _select(conditions):
    """Formats a value that depends on the configuration: condition -> label."""
    if list(conditions) == ["//conditions:default"]:
        return repr(conditions["//conditions:default"])
    return "select({})".format(repr(conditions))

def _condition(version):
    return str(Label("@rules_python//python/config_settings:is_python_" + version))

def _wheels_of_lock(*, hub, lock, package, target, name, repos):
    """Writes the target `name`: a target of the lock's repositories, of which there is one for each Python.

    Args:
        hub: Name of the hub.
        lock: Name of the lock.
        package: The package in those repositories.
        target: The target in that package.
        name: Name of the new target.
        repos: A dict: version of Python -> name of the repository.

    Returns:
        The text of a BUILD file.
    """
    label = "//{}:{}".format(package, target)
    if list(repos) == [""]:
        return _ALIAS.format(actual = repr("@{}{}".format(repos[""], label)), name = name)
    unnamed = name + ".unnamed_python"
    conditions = {_condition(version): "@{}{}".format(repo, label) for version, repo in repos.items()}
    return _ALIAS.format(
        actual = _select(conditions | {"//conditions:default": ":" + unnamed}),
        name = name,
    ) + "\n" + _UNNAMED_PYTHON.format(
        actual = repr("@{}{}".format(repos.values()[0], label)),
        hub = repr(hub),
        lock = repr(lock),
        name = unnamed,
        package = repr(package),
        versions = repr(list(repos)),
    )

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
            packages.setdefault(name, {}).setdefault(lock["name"], {})[lock["python_version"]] = lock["repo"]
    default = locks[0]["name"]
    flag = Label("//wheels:lock")
    names = {lock["name"]: None for lock in locks}
    repository_ctx.file("BUILD.bazel", _VISIBLE + "\n".join([
        _LOCK_CONDITION.format(flag = flag, name = name)
        for name in names
        if name != default
    ]))
    for package, found in packages.items():
        text = _VISIBLE + _ALIAS.format(name = package, actual = repr(":pkg"))
        for name in names:
            if name not in found:
                text += "\n" + _MISSING.format(
                    hub = repr(repository_ctx.attr.hub),
                    lock = repr(name),
                    name = "missing." + name,
                    others = repr(sorted(found)),
                    package = repr(package),
                )
        for target in _TARGETS:
            conditions = {}
            for name in names:
                # Two steps, because a select() knows no "and".
                step = "{}.{}".format(target, name) if name in found else "missing." + name
                if name in found:
                    text += "\n" + _wheels_of_lock(
                        hub = repository_ctx.attr.hub,
                        lock = name,
                        name = step,
                        package = package,
                        repos = found[name],
                        target = target,
                    )
                conditions["//conditions:default" if name == default else "//:is_" + name] = ":" + step
            text += "\n" + _ALIAS.format(name = target, actual = _select(conditions))
        for rule, file in [("missing_package", ":missing.bzl"), ("unnamed_python", ":unnamed_python.bzl")]:
            if rule + "(" in text:
                text = "load(\"{}\", \"{}\")\n\n".format(Label(file), rule) + text
        repository_ctx.file(package + "/BUILD.bazel", text)
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
