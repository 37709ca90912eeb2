"""The rule that tells the runner what a target asks for."""

load("//dist_testing:providers.bzl", "DistTestInfo", "GpuCountInfo")
load("//dist_testing/private:executors.bzl", "capacity_text", "pool_for")
load("//dist_testing/private:gpus.bzl", "gpus_of_world")
load("//dist_testing/private:labels.bzl", "rlocation_path")

# Version of the file's format. The runner refuses one that is newer than itself.
SPEC_SCHEMA = 1

def _dist_test_spec_impl(ctx):
    backend = json.decode(ctx.attr.backend)
    vendor = backend["vendor"]
    gpus = gpus_of_world(max(ctx.attr.world_sizes), ctx.attr.gpus_per_rank, ctx.attr.ranks_per_gpu)
    inputs = []

    # Targets without GPUs record neither the promise nor the hardware: their results are the same under any, and cached.
    promised = None
    if gpus:
        machine = ctx.attr._gpus[GpuCountInfo]
        if machine.pools == None:
            # Nobody reads it. It makes the results of machines with other GPUs those of other actions.
            inputs.append(ctx.file._hardware)
        elif pool_for(machine.pools, vendor, gpus) == None:
            fail(capacity_text(ctx.attr.target, vendor, gpus, machine.pools))
        if machine.is_promised:
            promised = machine.available.get(vendor, 0)
    spec = {
        "backend": backend,
        "gpus_per_rank": ctx.attr.gpus_per_rank,
        "isolation": ctx.attr.isolation,
        "nodes": ctx.attr.nodes,
        "promised_gpus": promised,
        "ranks_per_gpu": ctx.attr.ranks_per_gpu,
        "schema": SPEC_SCHEMA,
        "srcs": [rlocation_path(ctx, file) for file in ctx.files.srcs],
        "target": ctx.attr.target,
        "timings": rlocation_path(ctx, ctx.file.timings) if ctx.file.timings else None,
        "world_sizes": ctx.attr.world_sizes,
    }
    if ctx.file.timings:
        inputs.append(ctx.file.timings)
    output = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(output, json.encode_indent(spec, indent = "  ") + "\n")
    return [
        DefaultInfo(files = depset([output]), runfiles = ctx.runfiles([output] + inputs)),
        DistTestInfo(
            backend = backend["name"],
            gpus = gpus,
            isolation = ctx.attr.isolation,
            nodes = ctx.attr.nodes,
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
        "nodes": attr.int(mandatory = True),
        "ranks_per_gpu": attr.int(mandatory = True),
        "srcs": attr.label_list(allow_files = [".py"], mandatory = True),
        "target": attr.string(doc = "Label of the test, as a user writes it.", mandatory = True),
        "timings": attr.label(allow_single_file = [".json"]),
        "world_sizes": attr.int_list(mandatory = True),
        "_gpus": attr.label(default = "//dist_testing/config:gpus", providers = [GpuCountInfo]),
        "_hardware": attr.label(allow_single_file = True, default = "@dist_testing_host//:hardware.json"),
    },
    provides = [DistTestInfo],
)
