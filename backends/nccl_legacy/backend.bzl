"""NCCL by the engine that torch called "nccl" before 2.15; torch has this name since 2.14."""

load("//backends:declare.bzl", "declare_backend")

NCCL_LEGACY = declare_backend(
    name = "nccl_legacy",
    torch_backend = "nccl-legacy",
    device = "cuda",
    binds_device = True,
    features = [
        "coalesced_all_reduce",
        "coalescing",
        "moves_data",
        "needs_no_gloo",
        "uneven_gather",
    ],
    gpus_per_rank = 1,
    shares_gpus = True,
    uses_nccl = True,
    vendor = "nvidia",
)
