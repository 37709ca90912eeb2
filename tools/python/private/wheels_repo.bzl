"""Repository rule: every wheel of a lock file in one site-packages directory.

It is one directory, because a target per file costs 12,000 links each time a test of torch runs. It is
compiled once, because a test cannot write bytecode into its inputs and would compile torch on every run.
"""

load(":lock_file.bzl", "locked_names")

# Chooses the lock file: `--repo_env=DIST_TESTING_LOCK=cuda`.
_LOCK_VARIABLE = "DIST_TESTING_LOCK"

# Seconds. The CUDA lock is several gigabytes, and the network may be slow.
_INSTALL_TIMEOUT_S = 3600
_COMPILE_TIMEOUT_S = 900

# pip's message for a requirement that no index has, or has only for other Pythons.
_NOT_FOUND = "No matching distribution found"

_ROOT_BUILD = """\
load("@rules_python//python:py_library.bzl", "py_library")

package(default_visibility = ["//visibility:public"])

# All wheels together: one directory is one input.
py_library(
    name = "directory",
    data = ["site-packages"],
    imports = ["site-packages"],
)

# A remote worker gets them as one file.
alias(
    name = "site_packages",
    actual = select({{
        "{archive_setting}": "{archive}",
        "//conditions:default": ":directory",
    }}),
)

exports_files(["installed.json"])
"""

_PACKAGE_BUILD = """\
alias(
    name = "{name}",
    actual = "//:site_packages",
    visibility = ["//visibility:public"],
)
"""

def _chosen_lock(repository_ctx):
    by_name = {name: label for label, name in repository_ctx.attr.locks.items()}
    chosen = repository_ctx.getenv(_LOCK_VARIABLE, "") if len(by_name) > 1 else ""
    wanted = chosen or repository_ctx.attr.default
    if wanted not in by_name:
        fail(("{}={}: no lock file has that name.\n" +
              "The names are {}.\n" +
              "Correct the variable, or drop it for \"{}\".").format(
            _LOCK_VARIABLE,
            wanted,
            ", ".join(sorted(by_name)),
            repository_ctx.attr.default,
        ))
    return by_name[wanted]

def _find_pip(repository_ctx, interpreter):
    for python in [interpreter["executable"], interpreter["found"]]:
        if repository_ctx.execute([python, "-m", "pip", "--version"], timeout = 60).return_code == 0:
            return python
    fail(("{python}: this interpreter has no pip.\n" +
          "The wheels of the tests are installed with the interpreter that runs them.\n" +
          "Install it (Debian and Ubuntu: apt-get install python3-pip; elsewhere: {python} -m ensurepip), or choose " +
          "another interpreter with --repo_env=DIST_TESTING_PYTHON=/path/to/python3.").format(
        python = interpreter["executable"],
    ))

def _is_unreachable(output):
    """Returns whether pip had to try an index again, which it reports only for an index that does not answer."""
    return "Retrying (" in output

def _explain(output):
    """Returns the likely cause of pip's failure and the way out, as two lines."""
    if "DO NOT MATCH THE HASHES" in output:
        return ("A wheel is not the file that was locked: another build, a rebuilt mirror, or a tampered file.\n" +
                "If the mirror is trusted, remake the lock file: python3 tools/python/lock.py")
    if _NOT_FOUND in output:
        if _is_unreachable(output):
            return ("The package index could not be reached.\n" +
                    "Check the network, or pip's configuration (pip config list) for the mirror of this machine.")
        return ("No index that pip knows has that version for this Python and this processor.\n" +
                "Choose another interpreter (--repo_env=DIST_TESTING_PYTHON=python3.12), point pip at an index or a " +
                "wheel folder that has it (pip config set global.find-links), or remake the lock file: python3 " +
                "tools/python/lock.py")
    if "No space left" in output:
        return ("The disk of Bazel's output base is full.\n" +
                "The CPU wheels take 1 GB, the CUDA ones 5 GB; --output_user_root moves them to another disk.")
    return "pip's own words are above.\nTo repeat it by hand, use the command in the first line."

def _install(repository_ctx, python, lock):
    command = [python, "-m", "pip", "install"]
    command += ["--require-hashes", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--no-warn-script-location"]
    command += ["--target", "site-packages", "-r", str(lock)]
    attempts = [[]]
    if repository_ctx.attr.extra_index_url:
        # In a second attempt, because pip asks every index for every package. With few retries, because for an index
        # that this machine cannot reach, pip waits for all of them once per package.
        attempts.append(["--extra-index-url", repository_ctx.attr.extra_index_url, "--retries", "1"])
    environment = {
        # The user's settings for another installation must not change this one.
        "PIP_PREFIX": "",
        "PIP_TARGET": "",
        "PIP_USER": "",
        "PYTHONPATH": "",
        # pip unpacks here and then moves the files; a move between file systems would be a second copy.
        "TMPDIR": str(repository_ctx.path("tmp")),
    }
    telling = ""
    for extra in attempts:
        repository_ctx.file("tmp/.keep", "")
        result = repository_ctx.execute(command + extra, environment = environment, timeout = _INSTALL_TIMEOUT_S)
        repository_ctx.delete("tmp")
        if result.return_code == 0:
            return
        output = result.stdout + result.stderr

        # If the extra index cannot be reached, the reason of the first attempt is the useful one.
        if not telling or not _is_unreachable(output):
            telling = output
        if _NOT_FOUND not in output:
            break
    fail("The wheels of {} could not be installed. `{}` said:\n{}\n{}".format(
        lock.basename,
        " ".join(command),
        telling.strip()[-4000:],
        _explain(telling),
    ))

def _compile(repository_ctx, python):
    # The directory is an input of tests and never changes, so Python need not compare bytecode with its source.
    command = [python, "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "site-packages"]
    result = repository_ctx.execute(
        command,
        environment = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONOPTIMIZE": ""},
        timeout = _COMPILE_TIMEOUT_S,
    )

    # Status 1 means that some file does not compile: wheels have templates and sources for other Pythons.
    # As in any installation, Python compiles such a file when it is imported.
    if result.return_code not in (0, 1):
        fail("compileall ended with status {}.\n{}\nTo repeat it by hand: {}".format(
            result.return_code,
            result.stderr.strip()[-2000:],
            " ".join(command),
        ))

def _wheels_repo_impl(repository_ctx):
    lock = repository_ctx.path(_chosen_lock(repository_ctx))
    repository_ctx.watch(lock)
    interpreter = json.decode(repository_ctx.read(repository_ctx.attr.interpreter))
    python = _find_pip(repository_ctx, interpreter)

    repository_ctx.report_progress("Installing the wheels of {} (the first time takes a minute)".format(lock.basename))
    _install(repository_ctx, python, lock)
    repository_ctx.report_progress("Compiling the wheels of {}".format(lock.basename))
    _compile(repository_ctx, interpreter["executable"])

    repository_ctx.file("BUILD.bazel", _ROOT_BUILD.format(
        archive = repository_ctx.attr.archive,
        archive_setting = str(Label("//tools/python:archive")),
    ))

    # Another lock file or interpreter makes another archive.
    repository_ctx.file("installed.json", json.encode({
        "interpreter": interpreter,
        "lock": repository_ctx.read(lock),
    }))
    for name in locked_names(repository_ctx.read(lock)):
        repository_ctx.file("{}/BUILD.bazel".format(name), _PACKAGE_BUILD.format(name = name))

wheels_repo = repository_rule(
    doc = """Installs one lock file with pip and offers it as `@<name>//<normalised package name>`.

    pip's own configuration decides where the wheels come from; only wheels with the locked hashes are accepted.""",
    implementation = _wheels_repo_impl,
    attrs = {
        "archive": attr.string(doc = "Label of the same wheels as an archive.", mandatory = True),
        "default": attr.string(mandatory = True),
        "extra_index_url": attr.string(),
        "interpreter": attr.label(mandatory = True),
        "locks": attr.label_keyed_string_dict(mandatory = True),
    },
)
