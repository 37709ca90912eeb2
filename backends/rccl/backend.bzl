"""RCCL on tensors of AMD's GPUs. torch's builds for ROCm call it "nccl", and the device "cuda"."""

load("//backends:declare.bzl", "declare_backend")

RCCL = declare_backend(
    name = "rccl",
    torch_backend = "nccl",
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
    uses_nccl = True,
    vendor = "amd",
)
