"""Repository rule: installed wheels as one file.

Bazel does not bring an input directory to the runfiles of a remote test, and 20,000 single files cost each run more than
the test itself.
"""

load(":interpreter.bzl", "describe_interpreter")
load(":visibility.bzl", "WHEELS")

visibility(WHEELS)

_BUILD = """\
load("@rules_python//python:py_library.bzl", "py_library")

py_library(
    name = "archive",
    srcs = glob(["stubs/**/*.py"]),
    data = ["site.json", "site.tar"],
    imports = ["stubs"],
    visibility = ["//visibility:public"],
)
"""

# Seconds. It reads and writes all installed files.
_TIMEOUT_S = 900

def _archive_repo_impl(repository_ctx):
    installed = repository_ctx.path(repository_ctx.attr.installed)
    repository_ctx.watch(installed)
    interpreter = describe_interpreter(repository_ctx, repository_ctx.attr.interpreter)
    repository_ctx.path(repository_ctx.attr._loader)
    command = [
        str(interpreter.program),
        "-I",
        str(repository_ctx.path(repository_ctx.attr._program)),
        str(installed.dirname.get_child("site-packages")),
        ".",
    ]
    repository_ctx.report_progress("Archiving the wheels")
    result = repository_ctx.execute(command, timeout = _TIMEOUT_S)
    if result.return_code:
        fail(("The wheels could not be archived. `{}` said:\n{}\n" +
              "Most likely the disk of Bazel's output base is full: the archive is as large as the wheels, 1 GB for " +
              "the CPU and 5 GB for CUDA.\n" +
              "Make room, or move the output base with --output_user_root.").format(
            " ".join(command),
            result.stderr.strip()[-2000:],
        ))
    repository_ctx.file("BUILD.bazel", _BUILD)

archive_repo = repository_rule(
    doc = "The wheels of a lock_repo as one file, for workers on other machines. Fetched only if the archive is chosen.",
    implementation = _archive_repo_impl,
    attrs = {
        "installed": attr.label(doc = "`installed.json` of the lock_repo.", mandatory = True),
        "interpreter": attr.label(mandatory = True),
        "_loader": attr.label(default = "//wheels:archive_loader.py"),
        "_program": attr.label(default = "//wheels:make_archive.py"),
    },
)
