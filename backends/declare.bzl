"""How a backend is declared. The folders beside this file each hold one declaration."""

load("//dist_testing/private:problems.bzl", "choice_problems", "problem")  # buildifier: disable=bzl-visibility

# What a backend can do beyond moving tensors in collectives, as far as a suite must know it before
# it starts a rank. A suite asks for a feature; it does not compare backend names.
FEATURES = {
    "coalescing": "collectives issued inside a coalescing manager are fused",
    "cpu_tensors": "collectives accept CPU tensors",
    "cuda_tensors": "collectives accept CUDA tensors",
    "monitored_barrier": "monitored_barrier() names the ranks that did not arrive",
    "moves_data": "what one rank sends is what another receives",
    "recv_any_source": "recv() may leave the sender open",
    "shared_gpu": "several ranks may use one GPU, if a target says so",
    "xpu_tensors": "collectives accept XPU tensors",
}

# Vendors of accelerators, as they are named in tags and flags.
VENDORS = ["amd", "intel", "nvidia"]

# How ranks can be made: the launchers of the Python side (`ISOLATIONS` in spec.py).
ISOLATIONS = ["fork", "spawn", "pool", "thread"]

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
        isolations = ["fork", "spawn", "pool"],
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
        isolations: How ranks of this backend can be made, of ISOLATIONS; the first is the one that targets
            get which do not say. "thread" is for a backend whose group lives inside one process.
        env: Variables set on every rank unless the user's environment has them.

    Returns:
        A dict of plain values, ready to be written as JSON.
    """
    problems = [
        problem(
            "feature \"{}\"".format(feature),
            "It is not one of {}.".format(", ".join(sorted(FEATURES))),
            "Add it to FEATURES with its meaning, or correct it.",
        )
        for feature in features
        if feature not in FEATURES
    ]
    problems += choice_problems("device", device, _DEVICES, "It is the type of the tensors that tests use by default.")
    if (gpus_per_rank == 0) != (device == "cpu") or gpus_per_rank < 0:
        problems.append(problem(
            "gpus_per_rank = {} with device \"{}\"".format(gpus_per_rank, device),
            "A CPU backend owns no GPU, any other at least one per rank.",
            "Correct one of the two.",
        ))
    if (vendor == "") != (device == "cpu") or (vendor and vendor not in VENDORS):
        problems.append(problem(
            "vendor = \"{}\" with device \"{}\"".format(vendor, device),
            "It is the maker of the GPUs: a CPU backend has none, any other has one of {}.".format(", ".join(VENDORS)),
            "Correct one of the two.",
        ))
    if timeout_s <= 0:
        problems.append(problem(
            "timeout_s = {}".format(timeout_s),
            "It is the limit of a case that names none, in seconds.",
            "Give a number above 0.",
        ))
    if not isolations or [isolation for isolation in isolations if isolation not in ISOLATIONS]:
        problems.append(problem(
            "isolations = {}".format(repr(isolations)),
            "They are the ways to make the backend's ranks, the default first.",
            "List at least one of {}.".format(", ".join(ISOLATIONS)),
        ))
    if problems:
        fail("//backends/{}: {}".format(name, "\nand ".join(problems)))
    return {
        "device": device,
        "env": env,
        "features": sorted(features),
        "gpus_per_rank": gpus_per_rank,
        "isolations": isolations,
        "name": name,
        "register_module": register_module,
        "timeout_s": timeout_s,
        "torch_backend": torch_backend,
        "vendor": vendor,
    }
