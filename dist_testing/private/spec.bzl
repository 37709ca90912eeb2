"""What a target asks for: told to the runner by an environment variable, and to queries by a rule."""

load("//dist_testing:providers.bzl", "DistTestInfo", "DistTestsInfo")

# Version of the text's format. The runner refuses one that is newer than itself.
SPEC_SCHEMA = 2

def spec_variable(test, *, srcs, nodes):
    """Writes the spec of a target, for the attribute `env` of its test.

    It is text in the environment and no file in the runfiles, as a file needs a rule: one more target for each test
    made load and analysis of them all a third slower (tools/bench/analysis.py).

    Args:
        test: Struct of what is said of one target; the fields of DistTestInfo, but `backend` is the declaration.
        srcs: Labels of the files with the cases.
        nodes: Machines that the ranks are spread over.

    Returns:
        JSON, escaped against the expansion of variables.
    """
    return json.encode({
        "backend": test.backend,
        "gpus_per_rank": test.gpus_per_rank,
        "isolation": test.isolation,
        "nodes": nodes,
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
    doc = "What the targets of one dist_py_test ask for, as DistTestsInfo. Nothing depends on it; it is there for queries.",
    implementation = _dist_test_spec_impl,
    attrs = {
        "backends": attr.string_list(doc = "Names of backends. The other lists have their order.", mandatory = True),
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
