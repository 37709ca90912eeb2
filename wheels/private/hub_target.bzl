"""A target of a hub: that of the chosen lock.

The labels of the locks are strings, and a flag that a transition sets has the chosen one. So only a build that needs a lock
installs it: `bazel query` follows every label, also all those of a select(), and would install all locks.
"""

load("@bazel_skylib//rules:common_settings.bzl", "BuildSettingInfo")
load("@rules_python//python:py_info.bzl", "PyInfo")

_LOCK = str(Label("//wheels:lock"))
_PYTHON = str(Label("@rules_python//python/config_settings:python_version"))
_CHOSEN = str(Label("//wheels/private:chosen"))
_NOTHING = Label("//wheels/private:nothing")

def _quoted(names):
    return ", ".join(["\"{}\"".format(name) for name in names])

def chosen_target(targets, lock, python):
    """Chooses the target of a lock.

    Args:
        targets: A dict: "<lock> <Python>" -> label, "" if that lock lacks the package. The first lock is the default; the
            Python is missing if the lock has only one.
        lock: Value of the flag //wheels:lock.
        python: Value of rules_python's flag for the version.

    Returns:
        A struct: `label`, None if there is none; `lock` and `versions`, the lock and the Pythons for which it has the package.
    """
    by_lock = {}
    for key, label in targets.items():
        name, _, version = key.partition(" ")
        by_lock.setdefault(name, {}).update({version: label} if label else {})
    lock = lock if lock in by_lock else by_lock.keys()[0]
    versions = by_lock[lock]
    minor = ".".join(python.split(".")[:2])
    label = versions.get("") or versions.get(minor)
    if not label and not python and versions:
        label = versions.values()[0]
    return struct(label = label, lock = lock, versions = versions.keys())

def _choose_impl(settings, attr):
    chosen = chosen_target(attr.targets, settings[_LOCK], settings[_PYTHON])
    return {_CHOSEN: Label(chosen.label) if chosen.label else _NOTHING}

_choose = transition(
    implementation = _choose_impl,
    inputs = [
        _LOCK,
        _PYTHON,
    ],
    outputs = [_CHOSEN],
)

def _fail_without_package(ctx, chosen):
    others = {key.partition(" ")[0]: None for key, label in ctx.attr.targets.items() if label}.keys()
    fail(("The lock \"{lock}\" of the hub \"{hub}\" has no package \"{package}\".\n" +
          "Only {others} it; with that lock's copy beside the packages of this one, two torches could meet in one test.\n" +
          "Add it to the lock file of \"{lock}\", or choose another lock (docs/wheels.md).").format(
        hub = ctx.attr.hub,
        lock = chosen.lock,
        others = "{} {}".format(_quoted(sorted(others)), "has" if len(others) == 1 else "have"),
        package = ctx.attr.package,
    ))

def _fail_without_python(ctx, chosen, python):
    fail(("The lock \"{lock}\" of the hub \"{hub}\" has \"{package}\" for Python {has}, and not for Python {asked}.\n" +
          "`python_version` of the target, or rules_python's flag of that name, chooses the Python; it cannot import the " +
          "wheels of another one.\n" +
          "Declare wheels.lock(hub = \"{hub}\", name = \"{lock}\", python_version = \"{asked}\", ...) with that package in " +
          "MODULE.bazel, or choose another Python (docs/wheels.md).").format(
        asked = python,
        has = " and ".join(chosen.versions),
        hub = ctx.attr.hub,
        lock = chosen.lock,
        package = ctx.attr.package,
    ))

def _hub_target_impl(ctx):
    python = ctx.attr._python[BuildSettingInfo].value
    chosen = chosen_target(ctx.attr.targets, ctx.attr._lock[BuildSettingInfo].value, python)
    if not chosen.versions:
        _fail_without_package(ctx, chosen)
    if not chosen.label:
        _fail_without_python(ctx, chosen, python)

    # A transition turns a label into a list.
    actual = ctx.attr._chosen[0]
    default = actual[DefaultInfo]
    return [
        DefaultInfo(
            files = default.files,
            runfiles = default.default_runfiles.merge(ctx.runfiles(ctx.files.named)),
        ),
    ] + ([actual[PyInfo]] if PyInfo in actual else [])

hub_target = rule(
    doc = "The target of the lock that //wheels:lock chooses, for the Python of the build.",
    implementation = _hub_target_impl,
    attrs = {
        "hub": attr.string(mandatory = True),
        "named": attr.label_list(
            allow_files = True,
            doc = "Files by which a test sees that its deps name the package.",
        ),
        "package": attr.string(mandatory = True),
        "targets": attr.string_dict(
            doc = "See chosen_target.",
            mandatory = True,
        ),
        "_allowlist_function_transition": attr.label(
            default = "@bazel_tools//tools/allowlists/function_transition_allowlist",
        ),
        "_chosen": attr.label(cfg = _choose, default = _CHOSEN),
        "_lock": attr.label(default = _LOCK, providers = [BuildSettingInfo]),
        "_python": attr.label(default = _PYTHON, providers = [BuildSettingInfo]),
    },
)
