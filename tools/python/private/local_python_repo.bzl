"""Repository rule: the toolchain of an interpreter that is installed on this machine."""

# An interpreter to use instead of searching, as a path or as a name on PATH. Set it in
# user.bazelrc: `common --repo_env=DIST_TESTING_PYTHON=python3.12`.
_OVERRIDE = "DIST_TESTING_PYTHON"

# The absolute path of the interpreter on remote workers, if it differs from the path on this machine.
_REMOTE = "DIST_TESTING_REMOTE_PYTHON"

# The form of the wheels in the configuration, and so the place where tests run.
_DIRECTORY = str(Label("//wheels:directory"))
_ARCHIVE = str(Label("//wheels:archive"))

# Searched on PATH in this order. Plain `python3` is first, because the user's own pip belongs to it.
_CANDIDATES = ["python3", "python3.13", "python3.12", "python3.11", "python3.14"]

# The oldest Python the library runs on.
_OLDEST = (3, 11)

# Folder of the virtual environment whose interpreter the tests run on.
_ENVIRONMENT = "environment"

# Prints the path of the real interpreter, because PATH may have a version manager's shell script or a
# virtual environment, and tests must not see its packages. It also prints the interpreter found on
# PATH, which may have a pip that the underlying installation lacks.
_DESCRIBE = """
import json, os, sys
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({
    "executable": os.path.realpath(base),
    "found": sys.executable,
    "implementation": sys.implementation.name,
    "version": list(sys.version_info[:3]),
}))
"""

_BUILD = """\
load("@rules_python//python:py_runtime.bzl", "py_runtime")
load("@rules_python//python:py_runtime_pair.bzl", "py_runtime_pair")

exports_files(["python3"])
"""

# One for each value of //wheels:form.
_TOOLCHAIN = """\

py_runtime(
    name = "{name}_runtime",
    interpreter_path = "{executable}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "{name}_runtime_pair",
    py3_runtime = ":{name}_runtime",
    # A toolchain is visible to those whose rules use it.
    visibility = ["//visibility:public"],
)

toolchain(
    name = "{name}",
    target_settings = ["{setting}"],
    toolchain = ":{name}_runtime_pair",
    toolchain_type = "@rules_python//python:toolchain_type",
)
"""

def _describe(repository_ctx, path):
    """Asks an interpreter for its version and implementation.

    Returns:
        A pair: the decoded answer or None, and the reason why it cannot be used or None.
    """
    result = repository_ctx.execute([path, "-I", "-c", _DESCRIBE], timeout = 60)
    if result.return_code:
        lines = result.stderr.strip().split("\n")
        return None, "it does not run: {}".format(lines[-1])
    facts = json.decode(result.stdout.strip())
    version = facts["version"]
    if (version[0], version[1]) < _OLDEST:
        return None, "it is Python {}.{}.{}".format(*version)
    if facts["implementation"] != "cpython":
        return None, "it is {}, and torch exists for CPython only".format(facts["implementation"])
    return facts, None

def _make_environment(repository_ctx, facts):
    """Makes an empty virtual environment: the interpreter without its installed packages.

    Tests see only the packages of their deps. Otherwise pytest would load every plugin that is
    installed on this machine.
    """
    executable = facts["executable"]
    repository_ctx.symlink(executable, _ENVIRONMENT + "/bin/python3")
    repository_ctx.file(_ENVIRONMENT + "/pyvenv.cfg", "home = {}\ninclude-system-site-packages = false\n".format(
        executable.rpartition("/")[0],
    ))

def _fail_without_interpreter(override, tried):
    oldest = "{}.{}".format(*_OLDEST)
    if override:
        fail(("{name}={override}: not a CPython {oldest} or newer ({tried}).\n" +
              "The tests of this repository run on that interpreter.\n" +
              "Correct {name} (an absolute path, or a name on PATH), or drop it to have PATH searched.").format(
            name = _OVERRIDE,
            oldest = oldest,
            override = override,
            tried = "; ".join(tried),
        ))
    fail(("No CPython {oldest} or newer on PATH ({tried}).\n" +
          "The tests of this repository run on an interpreter of this machine; none is downloaded.\n" +
          "Install python3, or name one with --repo_env={name}=/path/to/python3 (in user.bazelrc).").format(
        name = _OVERRIDE,
        oldest = oldest,
        tried = "; ".join(tried),
    ))

def _local_python_repo_impl(repository_ctx):
    override = repository_ctx.getenv(_OVERRIDE, "")

    # After a change of PATH, Bazel searches again. Dependent repositories are fetched again only if it
    # finds another interpreter.
    repository_ctx.getenv("PATH")
    tried = []
    for candidate in [override] if override else _CANDIDATES:
        path = candidate if candidate.startswith("/") else repository_ctx.which(candidate)
        if not path:
            tried.append("{} is not there".format(candidate))
            continue
        facts, problem = _describe(repository_ctx, path)
        if problem:
            tried.append("{}: {}".format(path, problem))
            continue
        repository_ctx.watch(facts["executable"])
        _make_environment(repository_ctx, facts)
        toolchain = _TOOLCHAIN.format(
            name = "toolchain",
            executable = repository_ctx.path(_ENVIRONMENT + "/bin/python3"),
            setting = _DIRECTORY,
        )

        # Other machines do not have the environment, and another output base has it at another path, which would change
        # the cache key. Workers have the interpreter itself.
        remote_toolchain = _TOOLCHAIN.format(
            name = "remote_toolchain",
            executable = repository_ctx.getenv(_REMOTE, "") or facts["executable"],
            setting = _ARCHIVE,
        )
        repository_ctx.file("BUILD.bazel", _BUILD + toolchain + remote_toolchain)

        # What installs the wheels. Not a link: Python takes a link for an installation of its own, and may not find its pip.
        repository_ctx.file("python3", "#!/bin/sh\nexec '{}' \"$@\"\n".format(facts["found"]))
        return
    _fail_without_interpreter(override, tried)

local_python_repo = repository_rule(
    doc = "Finds CPython and registers it; `//:python3` starts it, for other repositories.",
    implementation = _local_python_repo_impl,
)
