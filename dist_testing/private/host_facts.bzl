"""Finds the GPUs, their models and their driver on the machine that Bazel runs on.

It reads device nodes and the kernel's files, so it runs no GPU program, and the machine needs none.
"""

load("//dist_testing/private:gpu_archs.bzl", "UNKNOWN_ARCH", "nvidia_arch")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# $DIST_TESTING_HOST_ROOT (user): with --repo_env: directory in place of `/` when Bazel looks for GPUs, to build for
# another machine (default: /).
ROOT_VARIABLE = "DIST_TESTING_HOST_ROOT"

# One device node per GPU of NVIDIA's driver. `nvidiactl`, `nvidia-uvm` and the like have no number.
_NVIDIA_NODE = "nvidia"

_INTEL_PCI_VENDOR = "0x8086"

# A GPU inside the processor is on the first bus. A test that asks for a GPU does not mean it.
_INTEGRATED_PCI_PREFIX = "0000:00:"

def nvidia_minors(node_names):
    """Lists the numbers of the device nodes of NVIDIA's GPUs among the names of files in a device folder."""
    suffixes = [name[len(_NVIDIA_NODE):] for name in node_names if name.startswith(_NVIDIA_NODE)]
    return [int(suffix) for suffix in suffixes if suffix.isdigit()]

def nvidia_information(text):
    """Reads /proc/driver/nvidia/gpus/<address>/information.

    Args:
        text: The file's content.

    Returns:
        The number of the device node or None, and the model or "unknown".
    """
    fields = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    minor = fields.get("Device Minor", "")
    return int(minor) if minor.isdigit() else None, fields.get("Model") or "unknown"

def nvidia_models(minors, informations):
    """Finds the models of the GPUs that are here.

    Args:
        minors: The numbers of the device nodes.
        informations: What `nvidia_information` read for each GPU of the driver; empty where containers hide the files.

    Returns:
        A dict of a number to a model, or "unknown".
    """
    listed = {minor: model for minor, model in informations if minor != None}

    # A node stays when its GPU is taken out. A GPU without readable information may be any of the nodes: all count, and
    # the lease tells which one is lost. A container may see GPUs for which it has no node.
    knows_all = len(listed) > 0 and len(listed) == len(informations)
    return {minor: listed.get(minor, "unknown") for minor in minors if minor in listed or not knows_all}

def driver_major(text):
    """Finds the version of a driver.

    Args:
        text: The driver's description of itself.

    Returns:
        The first part of the first version number in the text, or "unknown".
    """
    for word in text.replace("\n", " ").split(" "):
        major, dot, rest = word.partition(".")
        if major.isdigit() and dot and rest[:1].isdigit():
            return major
    return "unknown"

def amd_model(properties):
    """Reads /sys/class/kfd/kfd/topology/nodes/<n>/properties.

    Args:
        properties: The file's content.

    Returns:
        The architecture in the form of compilers, such as "gfx942", or UNKNOWN_ARCH.
    """
    for line in properties.splitlines():
        key, _, value = line.strip().partition(" ")
        if key == "gfx_target_version" and value.isdigit() and int(value):
            version = int(value)
            return "gfx{}{}{}".format(version // 10000, version // 100 % 100, "%x" % (version % 100))
    return UNKNOWN_ARCH

def _names(folder):
    return sorted([entry.basename for entry in folder.readdir(watch = "no")]) if folder.exists else []

def _text(repository_ctx, file):
    # ctx.read() would end the build at a file that this user may not read.
    done = repository_ctx.execute(["cat", str(file)])
    return done.stdout if done.return_code == 0 else ""

def _nvidia(repository_ctx, root):
    minors = nvidia_minors(_names(root.get_child("dev")))
    if not minors:
        return None
    proc = root.get_child("proc", "driver", "nvidia")
    informations = [
        nvidia_information(_text(repository_ctx, proc.get_child("gpus", address, "information")))
        for address in _names(proc.get_child("gpus"))
    ]
    models = nvidia_models(minors, informations)
    if not models:
        return None
    archs = [nvidia_arch(model) for model in models.values()]
    return _facts(models.values(), archs, driver_major(_text(repository_ctx, proc.get_child("version"))))

def _amd(repository_ctx, root):
    if "kfd" not in _names(root.get_child("dev")):
        return None
    nodes = root.get_child("sys", "class", "kfd", "kfd", "topology", "nodes")
    models = [
        amd_model(_text(repository_ctx, nodes.get_child(name, "properties")))
        for name in _names(nodes)
        # Processors are nodes, too, with number 0.
        if _text(repository_ctx, nodes.get_child(name, "gpu_id")).strip() not in ("", "0")
    ]
    version = _text(repository_ctx, root.get_child("sys", "module", "amdgpu", "version"))
    return _facts(models, models, driver_major(version)) if models else None

def _intel(repository_ctx, root):
    devices = root.get_child("sys", "class", "drm")
    models = []
    drivers = {}
    for name in _names(devices):
        device = devices.get_child(name, "device")
        if not name.startswith("renderD") or _text(repository_ctx, device.get_child("vendor")).strip() != _INTEL_PCI_VENDOR:
            continue
        if device.realpath.basename.startswith(_INTEGRATED_PCI_PREFIX):
            continue
        models.append(_text(repository_ctx, device.get_child("device")).strip() or "unknown")
        drivers[device.get_child("driver").realpath.basename] = None

    # The driver is a part of the kernel and has no version of its own, so its name takes the place: "i915" or "xe".
    return _facts(models, [UNKNOWN_ARCH], "+".join(sorted(drivers))) if models else None

def _facts(models, archs, driver):
    return {"archs": sorted({arch: None for arch in archs}), "count": len(models), "driver": driver, "models": sorted(models)}

def _root(repository_ctx):
    value = repository_ctx.getenv(ROOT_VARIABLE)
    if not value:
        return repository_ctx.path("/")
    if not value.startswith("/") or not repository_ctx.path(value).is_dir:
        fail(("{}={}: not an absolute path of a folder.\n" +
              "It replaces / for the search of GPUs; the folder holds dev, proc and sys.\n" +
              "Correct it, or drop it for the machine's own facts.").format(ROOT_VARIABLE, value))
    return repository_ctx.path(value)

_FACTS_BZL = """\
\"\"\"GPUs of this machine by vendor, and their architectures.\"\"\"

HOST_GPUS = {counts}
HOST_GPU_ARCHS = {archs}
"""

def _host_facts_repo_impl(repository_ctx):
    root = _root(repository_ctx)
    found = {
        vendor: facts
        for vendor, facts in [
            ("amd", _amd(repository_ctx, root)),
            ("intel", _intel(repository_ctx, root)),
            ("nvidia", _nvidia(repository_ctx, root)),
        ]
        if facts
    }
    repository_ctx.file("BUILD.bazel", """exports_files(["facts.bzl", "hardware.json"], visibility = ["//visibility:public"])\n""")
    repository_ctx.file("facts.bzl", _FACTS_BZL.format(
        archs = repr({vendor: facts["archs"] for vendor, facts in found.items()}),
        counts = repr({vendor: facts["count"] for vendor, facts in found.items()}),
    ))
    repository_ctx.file("hardware.json", json.encode_indent(found, indent = "  ") + "\n")

host_facts_repo = repository_rule(
    doc = "Writes `facts.bzl` and `hardware.json`, again whenever the Bazel server starts.",
    implementation = _host_facts_repo_impl,
    # No file determines the facts: a GPU may be there after the next boot.
    configure = True,
    local = True,
)

def _host_facts_impl(module_ctx):
    host_facts_repo(name = "dist_testing_host")
    return module_ctx.extension_metadata(reproducible = True)

host_facts = module_extension(
    doc = "Creates `@dist_testing_host` with the facts about the GPUs of this machine.",
    implementation = _host_facts_impl,
)
