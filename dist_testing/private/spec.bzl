"""The spec of a target: an environment variable for the runner, and a rule for queries."""

load("//dist_testing:providers.bzl", "DistTestInfo", "DistTestsInfo")

# Version of the format. A runner refuses a newer one than its own.
SPEC_SCHEMA = 5

def spec_variable(test, *, backends, srcs, nodes, program_exits):
    """Writes the spec of a target, for the attribute `env` of its test.

    The spec is a variable and not a file in the runfiles, because a file needs a rule: one more target for each test
    made loading and analysis a third slower (tools/bench/analysis.py).

    Args:
        test: Struct with the fields of DistTestInfo for one target; `backend` is the declaration.
        backends: Names of all backends of the call, so that a test may name each of them.
        srcs: Labels of the files with the cases.
        nodes: Nodes that the ranks are spread over.
        program_exits: For a program, a list of pairs of a rank and its expected exit code; None for tests.

    Returns:
        JSON, with "$" doubled against Bazel's expansion of variables.
    """
    return json.encode({
        # Only the build needs the labels of a backend's libraries.
        "backend": {key: value for key, value in test.backend.items() if key != "deps"},
        "backends": backends,
        "gpu_archs": test.gpu_archs,
        "gpus_per_rank": test.gpus_per_rank,
        "isolation": test.isolation,
        "nodes": nodes,
        "program_exits": program_exits,
        "ranks_per_gpu": test.ranks_per_gpu,
        "schema": SPEC_SCHEMA,
        "srcs": srcs,
        "target": test.target,
        "world_sizes": test.world_sizes,
    }).replace("$", "$$")

def _dist_test_spec_impl(ctx):
    attr = ctx.attr
    return [DistTestsInfo(tests = [
        DistTestInfo(
            backend = backend,
            gpu_archs = json.decode(attr.gpu_archs[index]),
            gpus = attr.gpus[index],
            gpus_per_rank = attr.gpus_per_rank[index],
            isolation = attr.isolations[index],
            nodes = attr.nodes,
            ranks_per_gpu = attr.ranks_per_gpu[index],
            target = attr.targets[index],
            world_sizes = json.decode(attr.world_sizes[index]),
        )
        for index, backend in enumerate(attr.backends)
    ])]

dist_test_spec = rule(
    doc = "Provides what the targets of one dist_py_test need, as DistTestsInfo. Only queries read it; no target depends on it.",
    implementation = _dist_test_spec_impl,
    attrs = {
        "backends": attr.string_list(doc = "Names of backends. The other lists are in the same order.", mandatory = True),
        "gpu_archs": attr.string_list(doc = "For each backend a list of names, as JSON.", mandatory = True),
        "gpus": attr.int_list(doc = "GPUs of the largest world.", mandatory = True),
        "gpus_per_rank": attr.int_list(mandatory = True),
        "isolations": attr.string_list(mandatory = True),
        "nodes": attr.int(mandatory = True),
        "ranks_per_gpu": attr.int_list(mandatory = True),
        "targets": attr.string_list(doc = "Labels of the tests, as a user writes them.", mandatory = True),
        "world_sizes": attr.string_list(doc = "For each backend a list of numbers, as JSON.", mandatory = True),
    },
    provides = [DistTestsInfo],
)
