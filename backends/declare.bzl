"""How a backend is declared. The folders beside this file each hold one declaration."""

# What a backend can do beyond moving tensors in collectives, as far as a suite must know it before
# it starts a rank. A suite asks for a feature; it does not compare backend names.
FEATURES = {
    "coalescing": "collectives issued inside a coalescing manager are fused",
    "cpu_tensors": "collectives accept CPU tensors",
    "cuda_tensors": "collectives accept CUDA tensors",
    "monitored_barrier": "monitored_barrier() names the ranks that did not arrive",
    "moves_data": "what one rank sends is what another receives",
    "recv_any_source": "recv() may leave the sender open",
    "xpu_tensors": "collectives accept XPU tensors",
}

# Vendors of accelerators, as they are named in tags and flags.
VENDORS = ["intel", "nvidia"]

_DEVICES = ["cpu", "cuda", "xpu"]

def declare_backend(
        *,
        name,
        torch_backend,
        device,
        features,
        gpus_per_rank = 0,
        vendor = "",
        register_module = "",
        timeout_s = 300,
        env = {}):
    """Declares one backend; Starlark and Python both read the result.

    Args:
        name: The backend's name in `backends = [...]`, in tags and in target names; its folder's
            name too.
        torch_backend: What `init_process_group(backend = ...)` is given.
        device: Type of the tensors that tests use by default: "cpu", "cuda" or "xpu".
        features: Keys of FEATURES.
        gpus_per_rank: GPUs each rank owns alone unless a target says otherwise. Zero exactly when
            `device` is "cpu".
        vendor: Maker of the GPUs, one of VENDORS; empty exactly when `device` is "cpu".
        register_module: Python module whose import registers the backend, imported on the ranks of
            this backend's targets only. Empty if torch has the backend built in.
        timeout_s: Limit of a case that names none, in seconds; operations of the default group get
            a little less. torch's default is the same (DISTRIBUTED_TESTS_DEFAULT_TIMEOUT).
        env: Variables set on every rank unless the user's environment has them.

    Returns:
        A dict of plain values, ready to be written as JSON.
    """
    subject = "//backends/{}: ".format(name)
    for feature in features:
        if feature not in FEATURES:
            fail(subject + "feature \"{}\" is not one of {}. Add it to FEATURES with its meaning, or correct it.".format(
                feature,
                ", ".join(sorted(FEATURES)),
            ))
    if device not in _DEVICES:
        fail(subject + "device \"{}\" is not one of {}.".format(device, ", ".join(_DEVICES)))
    if (gpus_per_rank == 0) != (device == "cpu") or gpus_per_rank < 0:
        fail(subject + "gpus_per_rank = {} with device \"{}\". A CPU backend owns no GPU, any other at least one per rank.".format(
            gpus_per_rank,
            device,
        ))
    if (vendor == "") != (device == "cpu") or (vendor and vendor not in VENDORS):
        fail(subject + "vendor \"{}\" with device \"{}\". A CPU backend has none, any other has one of {}.".format(
            vendor,
            device,
            ", ".join(VENDORS),
        ))
    if timeout_s <= 0:
        fail(subject + "timeout_s = {}. It is a positive number of seconds.".format(timeout_s))
    return {
        "device": device,
        "env": env,
        "features": sorted(features),
        "gpus_per_rank": gpus_per_rank,
        "name": name,
        "register_module": register_module,
        "timeout_s": timeout_s,
        "torch_backend": torch_backend,
        "vendor": vendor,
    }
