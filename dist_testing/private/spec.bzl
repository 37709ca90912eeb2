"""The rule that tells the runner what a target asks for."""

load("//dist_testing:providers.bzl", "DistTestInfo", "GpuCountInfo")

# Version of the file's format. The runner refuses one that is newer than itself.
SPEC_SCHEMA = 1

def _rlocation_path(ctx, file):
    if file.short_path.startswith("../"):
        return file.short_path[len("../"):]
    return ctx.workspace_name + "/" + file.short_path

def _dist_test_spec_impl(ctx):
    backend = json.decode(ctx.attr.backend)

    # Targets without GPUs do not record the promise: their results are the same under any, and cached.
    promised = ctx.attr._gpus[GpuCountInfo].promised if ctx.attr.gpus_per_rank else None
    spec = {
        "backend": backend,
        "gpus_per_rank": ctx.attr.gpus_per_rank,
        "isolation": ctx.attr.isolation,
        "nodes": 1,
        "promised_gpus": promised,
        "schema": SPEC_SCHEMA,
        "srcs": [_rlocation_path(ctx, file) for file in ctx.files.srcs],
        "target": ctx.attr.target,
        "world_sizes": ctx.attr.world_sizes,
    }
    output = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(output, json.encode_indent(spec, indent = "  ") + "\n")
    return [
        DefaultInfo(files = depset([output]), runfiles = ctx.runfiles([output])),
        DistTestInfo(
            backend = backend["name"],
            gpus = max(ctx.attr.world_sizes) * ctx.attr.gpus_per_rank,
            isolation = ctx.attr.isolation,
            nodes = 1,
            target = ctx.attr.target,
            world_sizes = ctx.attr.world_sizes,
        ),
    ]

dist_test_spec = rule(
    doc = "Writes `<name>.json`, which the runner reads, and provides the same as DistTestInfo.",
    implementation = _dist_test_spec_impl,
    attrs = {
        "backend": attr.string(doc = "Declaration of the backend, as JSON.", mandatory = True),
        "gpus_per_rank": attr.int(mandatory = True),
        "isolation": attr.string(mandatory = True),
        "srcs": attr.label_list(allow_files = [".py"], mandatory = True),
        "target": attr.string(doc = "Label of the test, as a user writes it.", mandatory = True),
        "world_sizes": attr.int_list(mandatory = True),
        "_gpus": attr.label(default = "//dist_testing/config:gpus", providers = [GpuCountInfo]),
    },
    provides = [DistTestInfo],
)
