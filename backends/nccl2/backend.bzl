"""NCCL by the engine of torchcomms, which torch has since 2.14 and calls "nccl" since 2.15."""

load("//backends:declare.bzl", "declare_backend")

NCCL2 = declare_backend(
    name = "nccl2",
    torch_backend = "nccl2",
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
