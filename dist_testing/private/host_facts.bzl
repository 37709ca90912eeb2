"""The extension that finds out what the machine Bazel runs on has."""

# One device node per GPU of NVIDIA's driver. `nvidiactl`, `nvidia-uvm` and the like have no number.
_NVIDIA_PREFIX = "nvidia"

def count_nvidia_gpus(node_names):
    """Returns how many of the names in a device folder are GPUs of NVIDIA's driver."""
    return len([
        name
        for name in node_names
        if name.startswith(_NVIDIA_PREFIX) and name[len(_NVIDIA_PREFIX):].isdigit()
    ])

def _host_facts_repo_impl(repository_ctx):
    devices = repository_ctx.path("/dev")
    names = [entry.basename for entry in devices.readdir(watch = "no")] if devices.exists else []
    repository_ctx.file("BUILD.bazel", "exports_files([\"facts.bzl\"])\n")
    repository_ctx.file("facts.bzl", "\"\"\"What this machine has.\"\"\"\n\nHOST_GPU_COUNT = {}\n".format(
        count_nvidia_gpus(names),
    ))

_host_facts_repo = repository_rule(
    doc = "Writes `facts.bzl`. Looked at again whenever the Bazel server starts.",
    implementation = _host_facts_repo_impl,
    # Not a function of any file: a GPU may be there after the next boot.
    configure = True,
    local = True,
)

def _host_facts_impl(_module_ctx):
    _host_facts_repo(name = "dist_testing_host")

host_facts = module_extension(
    doc = "Creates `@dist_testing_host`, which knows how many GPUs this machine has.",
    implementation = _host_facts_impl,
)
