"""Providers of dist_testing, alone in a file so that other rules can use them and load nothing else."""

DistTestInfo = provider(
    doc = "What a distributed test target asks for. Found in DistTestsInfo; the test itself does not provide it.",
    fields = {
        "backend": "string: name of the backend in the table of backends.",
        "gpus": "int: GPUs that the largest world of the target needs on one machine.",
        "gpus_per_rank": "int: GPUs that each rank needs.",
        "isolation": "string: how ranks are made: \"fork\", \"spawn\", \"pool\" or \"thread\".",
        "nodes": "int: simulated machines that the ranks are spread over.",
        "ranks_per_gpu": "int: ranks that share a GPU; 1 if each has its own.",
        "target": "string: label of the test.",
        "world_sizes": "list of int: ranks per case; each case runs once per entry.",
    },
)

DistTestsInfo = provider(
    doc = "The targets of one dist_py_test. `<name>.spec` provides it, with the visibility of the tests (docs/queries.md).",
    fields = {"tests": "list of DistTestInfo: one for each backend."},
)

GpuCountInfo = provider(
    doc = "Value of //dist_testing/config:gpus.",
    fields = {
        "available": "dict of vendor to int: GPUs that tests can have on one machine: counted, promised, or those of the largest pool.",
        "is_promised": "bool: they are a promise, so a GPU that is missing is a failure.",
        "pools": "list of dict or None: the declared pools, if tests run there and not on a machine that is known.",
    },
)
