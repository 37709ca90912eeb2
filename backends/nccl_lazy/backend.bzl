"""NCCL that makes a communicator at the first call of a group; torch has this name since 2.14."""

load("//backends:declare.bzl", "declare_backend")

NCCL_LAZY = declare_backend(
    name = "nccl_lazy",
    torch_backend = "nccl-lazy",
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
