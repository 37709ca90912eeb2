"""The module extension by which MODULE.bazel declares remote executors. docs/executors.md has examples."""

load("//dist_testing/private:executors_repo.bzl", "declared_executors_problems", "executors_repo")

def _pool(tag):
    return {
        "gpu_arch": tag.gpu_arch,
        "gpus": tag.gpus,
        "name": tag.name,
        "properties": tag.properties,
        "vendor": (tag.vendor or "nvidia") if tag.gpus else tag.vendor,
    }

def _executors_impl(module_ctx):
    # Only the repository in which Bazel runs knows its executors.
    kinds = []
    pools = []
    for module in module_ctx.modules:
        if module.is_root:
            kinds = [tag.kind for tag in module.tags.remote]
            pools = [_pool(tag) for tag in module.tags.pool]
    problems = declared_executors_problems(kinds, pools)
    if problems:
        fail("MODULE.bazel: " + "\nand ".join(problems))
    executors_repo(
        name = "dist_testing_executors",
        kind = kinds[0] if kinds else "",
        pools = json.encode(pools),
    )
    return module_ctx.extension_metadata(reproducible = True)

executors = module_extension(
    doc = "Declares the kind of remote executor that runs the tests, and its pools.",
    implementation = _executors_impl,
    tag_classes = {
        "pool": tag_class(
            doc = "A pool of identical workers.",
            attrs = {
                "gpu_arch": attr.string(doc = "Architecture of the GPUs, such as sm_90 or gfx942. Without it no target with `gpu_archs` goes there."),
                "gpus": attr.int(doc = "GPUs of one worker; 0 (the default) for a pool without GPUs."),
                "name": attr.string(doc = "Name of the pool in the executor.", mandatory = True),
                "properties": attr.string_dict(doc = "More properties that tests in this pool need, without a prefix."),
                "vendor": attr.string(doc = "Maker of the GPUs. Default: nvidia, if the pool has GPUs."),
            },
        ),
        "remote": tag_class(
            doc = "The kind of executor.",
            attrs = {
                "kind": attr.string(
                    doc = "buildbarn, buildbuddy, buildgrid, engflow or nativelink.",
                    mandatory = True,
                ),
            },
        ),
    },
)
