"""The extension that gives this repository's own tests an interpreter.

It is a development dependency of `MODULE.bazel`. Users of the module keep their own toolchain, and never meet it.
"""

load("//tools/python/private:local_python_repo.bzl", "local_python_repo")

def _python_env_impl(_module_ctx):
    # The interpreter of the tests; it also installs the wheels.
    local_python_repo(name = "local_python")

python_env = module_extension(
    doc = "A local interpreter, `@local_python`.",
    implementation = _python_env_impl,
)
