"""The function that declares a backend. Each folder beside this file holds one declaration."""

load("//dist_testing/private:problems.bzl", "choice_problems", "is_int", "problem")  # buildifier: disable=bzl-visibility
load("//dist_testing/private:suggest.bzl", "suggestion")  # buildifier: disable=bzl-visibility

# What a test suite must know about a backend before it starts a rank. A suite asks for a feature
# (`@pytest.mark.distributed(features = [...])`) and never for the name of a backend.
FEATURES = {
    "coalesced_all_reduce": "all_reduce calls inside a coalescing manager work on the device's tensors",
    "coalescing": "a coalescing manager of a device fuses the calls inside it",
    "cpu_tensors": "collectives accept CPU tensors",
    "monitored_barrier": "monitored_barrier() names the ranks that did not arrive",
    "moves_data": "what one rank sends is what another rank receives",
    "needs_no_gloo": "a torch that was built without gloo can make the group",
    "recv_any_source": "recv() may leave the sender open",
    "uneven_gather": "all_gather() takes tensors whose sizes differ by rank",
}

# Vendors of GPUs that the library can count. Tags and flags use these names.
VENDORS = ["amd", "intel", "nvidia"]

# Devices that torch itself knows. A backend for another device names the module that brings the device.
_TORCH_DEVICES = ["cpu", "cuda", "xpu"]

_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"

# Keys of a declaration: how dist_py_test knows a value of declare_backend.
BACKEND_KEYS = [
    "binds_device",
    "deps",
    "device",
    "device_default",
    "ends_with_process",
    "env",
    "features",
    "gpus_per_rank",
    "in_process",
    "name",
    "records_calls",
    "register_module",
    "shares_gpus",
    "timeout_s",
    "torch_backend",
    "uses_nccl",
    "vendor",
]

def declare_backend(
        *,
        name,
        torch_backend,
        device,
        features = [],
        gpus_per_rank = 0,
        vendor = "",
        register_module = "",
        deps = [],
        timeout_s = 300,
        env = {},
        in_process = False,
        binds_device = False,
        ends_with_process = False,
        records_calls = False,
        shares_gpus = False,
        uses_nccl = False,
        device_default = False):
    """Declares one backend. Starlark and Python both read the result.

    Any repository may declare a backend of its own; docs/backends.md explains how. `dist_py_test(backends = [...])` takes
    the result itself, next to names of backends that dist_testing declares. Under plain pytest, Python reads the same call
    from the .bzl file, so its arguments must be literal values.

    Args:
        name: Name of the backend in tags, target names and `--dist-backend`: lower-case letters, digits and "_".
        torch_backend: Argument of `init_process_group(backend = ...)`: one name, or one name for each
            device, such as "cpu:gloo,cuda:nccl".
        device: Type of the tensors that tests use by default: "cpu", "cuda", "xpu", or the device of a
            torch plug-in that `register_module` brings.
        features: Keys of FEATURES: what a test suite may expect.
        gpus_per_rank: GPUs that each rank owns alone, unless a target says otherwise. At least 1 for "cuda" and "xpu", 0 for
            "cpu". A device of a plug-in may have 0: then the library counts and leases nothing, and rank r uses
            device r modulo the number of devices.
        vendor: Maker of the GPUs, one of VENDORS; empty exactly when `gpus_per_rank` is 0.
        register_module: Python module whose import registers the backend (and the device) with torch. Only the tests
            of this backend import it. Empty if torch has the backend built in.
        deps: Labels of the libraries that hold `register_module`. Only the tests of this backend depend on
            them. A label begins with "//" or "@"; `Label("//...")` means the repository of the .bzl file.
        timeout_s: Limit of a case that has none of its own, in seconds. Operations of the default group get a little less.
            torch's default is the same (DISTRIBUTED_TESTS_DEFAULT_TIMEOUT).
        env: Variables that every rank gets unless the user's environment has them.
        in_process: A group lives inside one process, so its ranks are threads.
        binds_device: `init_process_group` gets the rank's device (`device_id`), so the group need not guess it.
        ends_with_process: A group is connections and threads of its process and nothing else, so a process
            that ends need not destroy it first.
        records_calls: torch's flight recorder has each collective of the backend until it has ended, and no other thread of
            the same rank can end it. Then the library can prove that a rank hangs in one (docs/hangs.md).
        shares_gpus: Several ranks may use one GPU if a target says so (`ranks_per_gpu`).
        uses_nccl: NCCL or RCCL moves the data. The library then looks for enough shared memory, and adds the
            version to the report of a failure.
        device_default: Tests that name only a device of this type use this backend. For "cpu" it is also the
            backend of tests that name none.

    Returns:
        A dict of plain values with the keys BACKEND_KEYS.
    """
    backend = {
        "binds_device": binds_device,
        "deps": deps,
        "device": device,
        "device_default": device_default,
        "ends_with_process": ends_with_process,
        "env": env,
        "features": features,
        "gpus_per_rank": gpus_per_rank,
        "in_process": in_process,
        "name": name,
        "records_calls": records_calls,
        "register_module": register_module,
        "shares_gpus": shares_gpus,
        "timeout_s": timeout_s,
        "torch_backend": torch_backend,
        "uses_nccl": uses_nccl,
        "vendor": vendor,
    }
    problems = _type_problems(backend) or _value_problems(backend)
    if problems:
        fail("declare_backend(name = {}): {}".format(repr(name), "\nand ".join(problems)))
    return backend | {"deps": [str(label) for label in deps], "features": sorted(features)}

def _type_problems(backend):
    """Checks the types of a declaration.

    Args:
        backend: The declaration.

    Returns:
        A list of texts.
    """
    wanted = {
        "dict": ["env"],
        "int": ["gpus_per_rank", "timeout_s"],
        "list": ["deps", "features"],
        "string": ["device", "name", "register_module", "torch_backend", "vendor"],
    }
    types = {key: kind for kind, keys in wanted.items() for key in keys}
    return [
        problem(
            "{} = {}".format(key, repr(value)),
            "Its type is {}, and a backend needs {}.".format(type(value), types.get(key, "bool")),
            "Correct it, or drop it for the default.",
        )
        for key, value in backend.items()
        if type(value) != types.get(key, "bool")
    ]

def _value_problems(backend):
    """Checks the values of a declaration whose types are right.

    Args:
        backend: The declaration.

    Returns:
        A list of texts.
    """
    name = backend["name"]
    problems = []
    if not name or name[0].isdigit() or not _has_only(name, _NAME_CHARACTERS):
        problems.append(problem(
            "name = {}".format(repr(name)),
            "It is part of tags and of the names of targets.",
            "Use lower-case letters, digits and \"_\", beginning with a letter.",
        ))
    for feature in backend["features"]:
        if feature not in FEATURES:
            near = suggestion(feature, FEATURES) if type(feature) == "string" else ""
            problems.append(problem(
                "feature {} is not known.{}".format(repr(feature), near),
                "A feature tells a test suite what it may expect, so both must know its name.",
                "Use: {}.".format(", ".join(sorted(FEATURES))),
            ))
    problems += _torch_backend_problems(backend["torch_backend"], backend["device"])
    problems += _device_problems(backend)
    if backend["timeout_s"] <= 0:
        problems.append(problem(
            "timeout_s = {}".format(backend["timeout_s"]),
            "It is the limit of a case that has none of its own, in seconds.",
            "Use a number above 0.",
        ))
    for variable, value in backend["env"].items():
        if type(variable) != "string" or type(value) != "string":
            problems.append(problem(
                "env: {} = {}".format(repr(variable), repr(value)),
                "The name of a variable and its value are strings.",
                "Put both in quotes.",
            ))
    for label in backend["deps"]:
        if type(label) != "Label" and not (type(label) == "string" and (label.startswith("//") or label.startswith("@"))):
            problems.append(problem(
                "deps: {}".format(repr(label)),
                "Tests of several packages use the declaration, so a label must not be relative to one of them.",
                "Write \"//folder:library\", or Label(\"//folder:library\") if other repositories load this file.",
            ))
    return problems

def _torch_backend_problems(text, device):
    """Checks a torch backend string.

    Args:
        text: The string.
        device: Device of the backend.

    Returns:
        A list of texts.
    """
    pairs = [part.split(":") for part in text.split(",")]
    devices = [pair[0] for pair in pairs if len(pair) == 2]
    is_single = len(pairs) == 1 and len(pairs[0]) == 1
    is_mixed = len(devices) == len(pairs) and len({d: None for d in devices}) == len(pairs)
    if not (is_single or is_mixed) or "" in [word.strip() for pair in pairs for word in pair] or " " in text:
        return [problem(
            "torch_backend = {}".format(repr(text)),
            "torch takes one name, or one name for each device.",
            "Write, for example, \"gloo\" or \"cpu:gloo,cuda:nccl\".",
        )]
    if is_mixed and device not in devices:
        return [problem(
            "torch_backend = {} with device {}".format(repr(text), repr(device)),
            "Tests use tensors of that device, and torch would have no backend for them.",
            "Add \"{}:<name>\" to torch_backend, or use one of its devices.".format(device),
        )]
    return []

def _device_problems(backend):
    """Checks the device of a declaration, its GPUs and their vendor.

    Args:
        backend: The declaration.

    Returns:
        A list of texts.
    """
    device, gpus, vendor = backend["device"], backend["gpus_per_rank"], backend["vendor"]
    problems = []
    if device not in _TORCH_DEVICES and not (device and backend["register_module"]):
        problems.append(problem(
            "device = {} without register_module.{}".format(repr(device), suggestion(device, _TORCH_DEVICES)),
            "torch itself knows {}; it learns of any other device from a module.".format(", ".join(_TORCH_DEVICES)),
            "Correct the device, or name the module that brings it in register_module.",
        ))
    elif not is_int(gpus) or gpus < 0 or (gpus == 0) != (device == "cpu") and device in _TORCH_DEVICES:
        problems.append(problem(
            "gpus_per_rank = {} with device {}".format(gpus, repr(device)),
            "A rank on the CPU owns no GPU; a rank on \"cuda\" or \"xpu\" owns at least one.",
            "Correct one of the two.",
        ))
    if (vendor == "") != (gpus == 0):
        problems.append(problem(
            "vendor = {} with gpus_per_rank = {}".format(repr(vendor), gpus),
            "The vendor is the maker of the GPUs that ranks own: one of {}, or empty if they own none.".format(", ".join(VENDORS)),
            "Correct one of the two. The library cannot lease accelerators of other makers: declare gpus_per_rank = 0.",
        ))
    elif vendor:
        problems += choice_problems("vendor", vendor, VENDORS, "It is the maker of the GPUs.")
    if backend["shares_gpus"] and not gpus:
        problems.append(problem(
            "shares_gpus = True with gpus_per_rank = 0",
            "Ranks that own no GPU have none to share.",
            "Drop one of the two.",
        ))
    return problems

def _has_only(text, characters):
    return all([character in characters for character in text.elems()])
