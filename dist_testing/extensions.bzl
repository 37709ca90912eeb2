"""The module extensions by which MODULE.bazel names the library's packages and declares remote executors.

docs/consumers.md and docs/remote.md have examples.
"""

load("//dist_testing/private:executors_repo.bzl", "EXECUTOR_VARIABLE", "chosen_executor", "executors_repo")
load("//dist_testing/private:packages_repo.bzl", "PACKAGES", "chosen_packages", "packages_repo")

def _pool(tag):
    return {
        "gpu_arch": tag.gpu_arch,
        "gpus": tag.gpus,
        "name": tag.name,
        "properties": tag.properties,
        "remote": tag.remote,
        "vendor": (tag.vendor or "nvidia") if tag.gpus else tag.vendor,
    }

def _executors_impl(module_ctx):
    # Only the repository in which Bazel runs knows its executors.
    remotes = []
    pools = []
    for module in module_ctx.modules:
        if module.is_root:
            remotes = [{"kind": tag.kind, "name": tag.name or tag.kind} for tag in module.tags.remote]
            pools = [_pool(tag) for tag in module.tags.pool]
    kind, pools, problems = chosen_executor(remotes, pools, module_ctx.getenv(EXECUTOR_VARIABLE) or "")
    if problems:
        fail("MODULE.bazel: " + "\nand ".join(problems))
    executors_repo(
        name = "dist_testing_executors",
        kind = kind,
        pools = json.encode(pools),
    )
    return module_ctx.extension_metadata(reproducible = True)

executors = module_extension(
    doc = "Declares the remote executors that run the tests, and their pools.",
    implementation = _executors_impl,
    tag_classes = {
        "pool": tag_class(
            doc = "A pool of identical workers.",
            attrs = {
                "gpu_arch": attr.string(doc = "Architecture of the GPUs, such as sm_90 or gfx942. Without it no target with `gpu_archs` goes there."),
                "gpus": attr.int(doc = "GPUs of one worker; 0 (the default) for a pool without GPUs."),
                "name": attr.string(doc = "Name of the pool in the executor.", mandatory = True),
                "properties": attr.string_dict(doc = "More properties that tests in this pool need, without a prefix."),
                "remote": attr.string(doc = "Name of the executor that the pool belongs to. Default: the only one."),
                "vendor": attr.string(doc = "Maker of the GPUs. Default: nvidia, if the pool has GPUs."),
            },
        ),
        "remote": tag_class(
            doc = "An executor. With several, `--repo_env=DIST_TESTING_EXECUTOR=NAME` chooses; the default is the first.",
            attrs = {
                "kind": attr.string(
                    doc = "buildbarn, buildbuddy, buildgrid, engflow or nativelink.",
                    mandatory = True,
                ),
                "name": attr.string(doc = "Name by which pools and an invocation choose it. Default: the kind."),
            },
        ),
    },
)

def _dist_testing_impl(module_ctx):
    # Only the repository in which Bazel runs has the tests.
    tags = [
        {name: getattr(tag, name) for name in ["hub"] + PACKAGES.keys()}
        for module in module_ctx.modules
        for tag in module.tags.packages
        if module.is_root
    ]
    packages, problems = chosen_packages(tags)
    if problems:
        fail("MODULE.bazel: " + "\nand ".join(problems))
    packages_repo(name = "dist_testing_packages", **packages)
    return module_ctx.extension_metadata(reproducible = True)

dist_testing = module_extension(
    doc = "Names the packages that the library imports.",
    implementation = _dist_testing_impl,
    tag_classes = {
        "packages": tag_class(
            doc = "The library's packages: a hub that has them all, or each by its label. Only the tag of the root module counts.",
            attrs = {
                "coverage": attr.label(doc = "The package coverage. Default: that of the hub, if it has it."),
                "hub": attr.label(doc = "The hub, as the module names it: `@pypi`. It is one of //wheels or of rules_python's pip.parse."),
                "jinja2": attr.label(doc = "The package jinja2. Default: that of the hub, if it has it."),
                "psutil": attr.label(doc = "The package psutil. Default: that of the hub."),
                "pytest": attr.label(doc = "The package pytest. Default: that of the hub."),
                "runfiles": attr.label(doc = "The package bazel_runfiles. Default: that of the hub."),
                "torch": attr.label(doc = "The package torch. Default: that of the hub."),
            },
        ),
    },
)
