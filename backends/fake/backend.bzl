"""Fake: every collective returns at once and moves nothing. For tests of what is called, not of values."""

load("//backends:declare.bzl", "declare_backend")

FAKE = declare_backend(
    name = "fake",
    torch_backend = "fake",
    device = "cpu",
    features = ["cpu_tensors"],
    register_module = "torch.testing._internal.distributed.fake_pg",
)
