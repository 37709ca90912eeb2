"""The interpreter that wheels are installed for."""

load(":texts.bzl", "user_label")
load(":visibility.bzl", "WHEELS")

visibility(WHEELS)

# Prints what tells interpreters apart whose wheels differ. sys.executable may be a link or a script of a version manager.
_DESCRIBE = """
import json, os, sys
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({
    "executable": os.path.realpath(base),
    "tag": sys.implementation.cache_tag,
    "version": list(sys.version_info[:3]),
}))
"""

# The oldest Python that install.py runs on.
_OLDEST = [3, 11]

# Seconds.
_TIMEOUT_S = 60

def describe_interpreter(repository_ctx, label):
    """Asks an interpreter who it is.

    Fails if it does not answer.

    Args:
        repository_ctx: Context of the repository rule.
        label: Label of the interpreter: a program that runs as Python.

    Returns:
        A struct: `program`, the path to start; `facts`, a dict that describes it.
    """
    program = repository_ctx.path(label)
    repository_ctx.watch(program)
    result = repository_ctx.execute([program, "-I", "-c", _DESCRIBE], timeout = _TIMEOUT_S)
    if result.return_code:
        lines = result.stderr.strip().split("\n")
        fail(("{label}: this interpreter does not run ({reason}).\n" +
              "MODULE.bazel names it for the wheels of a lock file; it was removed, or it is for another machine.\n" +
              "Install it again, or name another one: wheels.lock(interpreter = \"@python_3_11_host//:python\", ...) " +
              "(docs/wheels.md).").format(
            label = user_label(label),
            reason = lines[-1] or "status {}".format(result.return_code),
        ))
    facts = json.decode(result.stdout.strip())
    if facts["version"] < _OLDEST:
        fail(("{label}: Python {found} is too old.\n" +
              "The wheels of a lock file are installed with the interpreter that imports them; 3.11 is the oldest.\n" +
              "Name another one: wheels.lock(interpreter = \"@python_3_11_host//:python\", ...) (docs/wheels.md).").format(
            found = ".".join([str(number) for number in facts["version"]]),
            label = user_label(label),
        ))

    # With another interpreter behind the same link the wheels are installed again.
    repository_ctx.watch(facts["executable"])
    return struct(facts = facts, program = program)
