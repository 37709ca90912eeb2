"""Finds the machine's own interpreters, which replace downloaded ones."""

_PROBE = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.executable)"

def find_local_python(ctx, python_version, *, asked_by):
    """Returns the absolute path of an interpreter on PATH.

    Fails if there is none of that version. Otherwise wheels and tests would run with another Python
    than the one that the module file names.

    Args:
        ctx: A `module_ctx`.
        python_version: "3.11" or "3.11.7", of which the first two numbers count; "" takes `python3`.
        asked_by: The caller, for the error message.

    Returns:
        A string.
    """
    wanted = ".".join(python_version.split(".")[:2])
    seen = []
    for name in ["python" + wanted, "python3"] if wanted else ["python3"]:
        path = ctx.which(name)
        if not path:
            continue

        # pyenv's commands start the versions that are switched on, unless this variable names another installed one.
        result = ctx.execute([path, "-c", _PROBE], environment = {"PYENV_VERSION": wanted} if wanted else {})
        if result.return_code:
            # Other version managers put commands on PATH that only report a missing version, and so does pyenv.
            continue
        found, executable = result.stdout.splitlines()
        if wanted in ("", found):
            return executable
        seen.append("%s is %s" % (path, found))
    fail(("{asked_by}: Python {wanted} was not found on PATH (seen: {seen}).\n" +
          "With Debian's rules_python no interpreter is downloaded; the machine's own is used.\n" +
          "Install python{wanted}, or name a version that is there.").format(
        asked_by = asked_by,
        seen = ", ".join(seen) or "none",
        wanted = wanted or "3",
    ))
