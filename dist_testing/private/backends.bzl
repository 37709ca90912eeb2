"""The argument `backends` of the macros: names of declared backends, and values of declare_backend."""

load("//backends:declare.bzl", "BACKEND_KEYS")
load("//dist_testing/private:problems.bzl", "problem", "shown")
load("//dist_testing/private:suggest.bzl", "suggestion")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

def resolve_backends(backends, known):
    """Looks up the backends of a target.

    Args:
        backends: The argument: a list of names and of values of declare_backend.
        known: The backends of dist_testing: name -> declaration.

    Returns:
        The names in their order, a dict from names to declarations with those of `known`, and a list of error texts.
    """
    if type(backends) != "list" or not backends:
        return [], known, [problem(
            "backends = {}".format(shown(backends)),
            "A list of at least one backend is needed: there is one target per backend.",
            "Use, for example, backends = [\"gloo\"]. Known: {}.".format(", ".join(sorted(known))),
        )]
    table = dict(known)
    names = []
    problems = []
    readable = [backend["name"] if _is_declaration(backend) else backend for backend in backends]
    for backend, name in zip(backends, readable):
        if _is_declaration(backend):
            if table.setdefault(name, backend) != backend:
                problems.append(problem(
                    "backends = {}: \"{}\" is declared twice.".format(repr(readable), name),
                    "dist_testing declares a backend of that name." if name in known else "Two values of declare_backend in this list have that name.",
                    "Give one of them another name.",
                ))
        elif type(name) != "string" or name not in known:
            problems.append(problem(
                "backends = {}: {} is not a backend.{}".format(
                    repr(readable),
                    repr(name),
                    suggestion(name, known) if type(name) == "string" else "",
                ),
                "dist_testing declares these: {}.".format(", ".join(sorted(known))),
                "Use one of them, or the value of declare_backend(...) itself (docs/backends.md).",
            ))
        if name in names:
            problems.append(problem(
                "backends = {}: \"{}\" is there twice.".format(repr(readable), name),
                "There is one target per backend, so both would have the same name.",
                "Drop one.",
            ))
        names.append(name)
    return names, table, problems

def _is_declaration(value):
    return type(value) == "dict" and sorted(value) == BACKEND_KEYS
