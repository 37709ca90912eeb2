"""The extension that gives this repository's own tests an interpreter and their wheels.

It is a development dependency of `MODULE.bazel`. Users of the module keep their own toolchain and
their own packages, and never meet it.
"""

load("//tools/python/private:local_python_repo.bzl", "local_python_repo")
load("//tools/python/private:wheels_archive_repo.bzl", "wheels_archive_repo")
load("//tools/python/private:wheels_repo.bzl", "wheels_repo")

# The interpreter of the tests; it also installs the wheels.
_INTERPRETER_REPO = "local_python"

_wheels = tag_class(
    doc = "One repository with every wheel of a lock file.",
    attrs = {
        "default": attr.string(
            doc = "The name in `locks` that is used if DIST_TESTING_LOCK is not set.",
            mandatory = True,
        ),
        "extra_index_url": attr.string(
            doc = "An index for wheels that the machine's own pip configuration did not find.",
        ),
        "locks": attr.label_keyed_string_dict(
            doc = "Lock file -> its name for `--repo_env=DIST_TESTING_LOCK=<name>`. A repository with one lock file " +
                  "ignores the variable.",
            mandatory = True,
        ),
        "name": attr.string(
            doc = "Name of the repository: `@<name>//<package>`.",
            mandatory = True,
        ),
    },
)

def _python_env_impl(module_ctx):
    local_python_repo(name = _INTERPRETER_REPO)
    for module in module_ctx.modules:
        for wheels in module.tags.wheels:
            archive = wheels.name + "_archive"
            wheels_archive_repo(
                name = archive,
                installed = "@{}//:installed.json".format(wheels.name),
                interpreter = "@{}//:interpreter.json".format(_INTERPRETER_REPO),
            )
            wheels_repo(
                name = wheels.name,
                archive = "@{}//:archive".format(archive),
                default = wheels.default,
                extra_index_url = wheels.extra_index_url,
                interpreter = "@{}//:interpreter.json".format(_INTERPRETER_REPO),
                locks = wheels.locks,
            )

python_env = module_extension(
    doc = "A local interpreter (`@local_python`) and the wheels of a lock file, installed with it.",
    implementation = _python_env_impl,
    tag_classes = {"wheels": _wheels},
)
