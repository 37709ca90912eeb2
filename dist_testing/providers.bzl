"""Providers of dist_testing, alone in a file so that other rules can use them and load nothing else."""

DistTestInfo = provider(
    doc = "What a distributed test target asks for. `cquery` prints a table of them.",
    fields = {
        "backend": "string: name of the backend in the table of backends.",
        "gpus": "int: GPUs that the largest world of the target needs on one machine.",
        "isolation": "string: how ranks are made; \"fork\".",
        "nodes": "int: simulated machines that the ranks are spread over.",
        "target": "string: label of the test.",
        "world_sizes": "list of int: ranks per case; each case runs once per entry.",
    },
)

GpuCountInfo = provider(
    doc = "Value of //dist_testing/config:gpus.",
    fields = {
        "detected": "dict of vendor to int: GPUs counted on the machine that Bazel runs on; empty under a promise.",
        "promised": "int or None: GPUs that the machine running the tests is promised to have.",
    },
)
