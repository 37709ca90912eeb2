"""Fake: every collective returns at once and moves nothing. For tests of calls, not of values."""

load("//backends:declare.bzl", "declare_backend")

FAKE = declare_backend(
    name = "fake",
    torch_backend = "fake",
    device = "cpu",
    ends_with_process = True,
    features = [
        "cpu_tensors",
        "needs_no_gloo",
    ],
    register_module = "torch.testing._internal.distributed.fake_pg",
)
