"""Repository rule: every wheel of a lock file in one site-packages directory.

It is one directory, because a target per file costs 12,000 links each time a test of torch runs. It is
compiled once, because a test cannot write bytecode into its inputs and would compile torch on every run.
"""

load(":interpreter.bzl", "describe_interpreter")
load(":lock_file.bzl", "read_lock")
load(":texts.bzl", "user_label")
load(":visibility.bzl", "WHEELS")

visibility(WHEELS)

# Seconds. The CUDA lock is several gigabytes, and the network may be slow.
_TIMEOUT_S = 3600

_ROOT_BUILD = """\
load("@rules_python//python:py_library.bzl", "py_library")

package(default_visibility = ["//visibility:public"])

# All wheels together: one directory is one input.
py_library(
    name = "directory",
    data = ["site-packages"],
    imports = ["site-packages"],
)

# The same, for `data` and for rules that know nothing of Python.
filegroup(
    name = "files",
    srcs = ["site-packages"],
)

# A remote worker gets them as one file.
[
    alias(
        name = name,
        actual = select({{
            "{archive_setting}": "{archive}",
            "//conditions:default": directory,
        }}),
    )
    for name, directory in [("site_packages", ":directory"), ("data", ":files")]
]

exports_files(["installed.json"])
"""

_PACKAGE_BUILD = """\
package(default_visibility = ["//visibility:public"])

alias(
    name = "pkg",
    actual = "//:site_packages",
)

alias(
    name = "data",
    actual = "//:data",
)

filegroup(
    name = "dist_info",
    srcs = glob(["dist_info/*"], allow_empty = True),
)
"""

def _check_version(repository_ctx, interpreter):
    """Fails if the interpreter is not of the version that the lock is declared for."""
    version = repository_ctx.attr.python_version
    found = ".".join([str(number) for number in interpreter.facts["version"]])
    if version and not found.startswith(version + "."):
        fail(("{label}: this interpreter is Python {found}, and its lock is for Python {version}.\n" +
              "Targets with Python {version} could not import the wheels that it installs.\n" +
              "Name the interpreter of that version: wheels.lock(interpreter = \"@python_{name}_host//:python\", " +
              "python_version = \"{version}\", ...) (docs/wheels.md).").format(
            found = found,
            label = user_label(repository_ctx.attr.interpreter),
            name = version.replace(".", "_"),
            version = version,
        ))

def _lock_repo_impl(repository_ctx):
    lock = repository_ctx.attr.lock

    # The hub reads it, too, and a lock repository may be asked without its hub.
    locked = read_lock(repository_ctx.read(lock))
    if locked.problems:
        fail("{}: {}".format(user_label(lock), "\nand ".join(locked.problems)))
    interpreter = describe_interpreter(repository_ctx, repository_ctx.attr.interpreter)
    _check_version(repository_ctx, interpreter)
    command = [interpreter.program, "-I", repository_ctx.path(repository_ctx.attr._program)]
    command += ["--lock", repository_ctx.path(lock), "--name", user_label(lock)]
    command += ["--extra-index-url=" + url for url in repository_ctx.attr.extra_index_urls]
    repository_ctx.report_progress("Installing the wheels of {} (the first time takes a minute)".format(lock.name))
    result = repository_ctx.execute(command + ["."], timeout = _TIMEOUT_S)
    if result.return_code:
        fail(result.stderr.strip() or
             ("Installing the wheels of {} took longer than {} s.\n" +
              "The network is slow, or the index does not answer.\n" +
              "Run the command again: pip keeps what it has downloaded.").format(user_label(lock), _TIMEOUT_S))

    repository_ctx.file("BUILD.bazel", _ROOT_BUILD.format(
        archive = repository_ctx.attr.archive,
        archive_setting = str(Label("//wheels:archive")),
    ))

    # Another lock file or interpreter makes another archive.
    repository_ctx.file("installed.json", json.encode({
        "interpreter": interpreter.facts,
        "lock": repository_ctx.read(lock),
    }))
    for name in locked.names:
        # A package that this platform does not install has a label, as in any hub, and no files.
        repository_ctx.file(name + "/BUILD.bazel", _PACKAGE_BUILD)

lock_repo = repository_rule(
    doc = "Installs one lock file with pip and offers it as `//:site_packages`; `//<package>:dist_info` has a package's metadata.",
    implementation = _lock_repo_impl,
    attrs = {
        "archive": attr.string(doc = "Label of the same wheels as an archive.", mandatory = True),
        "extra_index_urls": attr.string_list(doc = "Indexes for wheels that those of pip's configuration do not have."),
        "interpreter": attr.label(doc = "The interpreter that installs and imports them.", mandatory = True),
        "lock": attr.label(doc = "The lock file.", mandatory = True),
        "python_version": attr.string(doc = "The version that the interpreter must have: `3.12`. Default: any."),
        "_program": attr.label(default = "//wheels:install.py"),
    },
)
