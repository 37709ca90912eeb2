"""Providers of dist_testing. Other rules can load this file without the rest of the library."""

DistTestInfo = provider(
    doc = "What a distributed test target needs. DistTestsInfo holds it; the test itself does not provide it.",
    fields = {
        "backend": "string: name of the backend, as tags and targets have it.",
        "gpu_archs": "list of string: architectures of GPUs that the tests can run on; empty for any.",
        "gpus": "int: GPUs that the largest world of the target needs on one machine.",
        "gpus_per_rank": "int: GPUs that each rank needs.",
        "isolation": "string: how the library makes ranks: \"fork\", \"spawn\", \"pool\" or \"thread\".",
        "nodes": "int: nodes that the ranks are spread over.",
        "ranks_per_gpu": "int: ranks that share a GPU; 1 if each has its own.",
        "target": "string: label of the test.",
        "world_sizes": "list of int: ranks per case; each case runs once per entry.",
    },
)

DistTestsInfo = provider(
    doc = "The targets of one dist_py_test. `<name>.spec` provides it, with the visibility of the tests (docs/selection.md).",
    fields = {"tests": "list of DistTestInfo: one for each backend."},
)

GpuCountInfo = provider(
    doc = "Value of //dist_testing/config:gpus.",
    fields = {
        "archs": "dict of vendor to list of string: architectures of the counted GPUs; no entry where they are not known.",
        "available": "dict of vendor to int: GPUs of one machine: the counted ones, the promised ones, or those of the largest pool.",
        "is_promised": "bool: whether they are a promise, so a missing GPU is a failure.",
        "pools": "list of dict or None: the declared pools, if tests run there; None if they run on a known machine.",
    },
)
