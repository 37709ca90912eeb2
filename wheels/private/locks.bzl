"""Checks the locks that MODULE.bazel files declare."""

load(":texts.bzl", "problem")
load(":visibility.bzl", "WHEELS")

visibility(WHEELS)

_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

# The repository with the names of all locks.
_OWN = "dist_testing_wheels"

def lock_repo_name(lock):
    """Names the repository of a lock.

    Args:
        lock: A dict: hub, name, python_version.

    Returns:
        A string. No hub has that name: hubs' names have no dot.
    """
    version = lock["python_version"]
    return "{}.{}{}".format(lock["hub"], lock["name"], "_" + version.replace(".", "_") if version else "")

def _is_name(text):
    return bool(text) and not [character for character in text.elems() if character not in _NAME_CHARACTERS]

def _shown(lock):
    version = ", python_version = \"{}\"".format(lock["python_version"]) if lock["python_version"] else ""
    return "wheels.lock(hub = \"{}\", name = \"{}\"{})".format(lock["hub"], lock["name"], version)

def _spelling_problems(lock):
    problems = []
    for argument in ["hub", "name"]:
        if not _is_name(lock[argument]) or lock[argument] == _OWN:
            problems.append(problem(
                "{}: {} = \"{}\".".format(_shown(lock), argument, lock[argument]),
                "It is a part of labels and of a flag's value: letters, digits, \"-\" and \"_\".",
                "Choose another name.",
            ))
    version = lock["python_version"].split(".")
    if lock["python_version"] and (len(version) != 2 or [part for part in version if not part.isdigit()]):
        problems.append(problem(
            "{}: \"{}\" is no minor version of Python.".format(_shown(lock), lock["python_version"]),
            "Wheels are for a minor version, and rules_python chooses it by that name.",
            "Write, for example, python_version = \"3.12\".",
        ))
    return problems

def declared_locks_problems(locks):
    """Checks all locks of all modules.

    Args:
        locks: A list of dicts: hub, name, python_version, file, module.

    Returns:
        A list of error texts (see problems.bzl).
    """
    problems = []
    seen = {}
    for lock in locks:
        problems += _spelling_problems(lock)
        owner = seen.setdefault(lock["hub"], lock)["module"]
        if owner != lock["module"]:
            problems.append(problem(
                "{}: the module \"{}\" has a hub of that name, and \"{}\", too.".format(_shown(lock), owner, lock["module"]),
                "Both would be the repository @{}.".format(lock["hub"]),
                "Give one of them another name.",
            ))
        key = (lock["hub"], lock["name"], lock["python_version"])
        if key in seen:
            problems.append(problem(
                "{} is there twice: {} and {}.".format(_shown(lock), seen[key]["file"], lock["file"]),
                "They are for one configuration, and it can have one set of packages.",
                "Give one of them another name, such as \"cuda\", or the Python it is for (python_version), or drop it.",
            ))
        seen[key] = lock
    for lock in locks:
        # With and without a version: which of them has the build that names no Python?
        if lock["python_version"] and (lock["hub"], lock["name"], "") in seen:
            problems.append(problem(
                "{}: another lock of that name has no python_version.".format(_shown(lock)),
                "Both would be for Python {}.".format(lock["python_version"]),
                "Give the other one its python_version, too.",
            ))
    return problems
