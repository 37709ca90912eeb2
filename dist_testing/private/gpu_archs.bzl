"""Architectures of GPUs, by the names that compilers have for them."""

load("//dist_testing:providers.bzl", "GpuCountInfo")
load("//dist_testing/private:conditions.bzl", "declare_conditions")
load("//dist_testing/private:problems.bzl", "by_backend", "problem")
load("//dist_testing/private:suggest.bzl", "suggestion")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# Architecture -> words of the models' names that have it. The kernel's files name only the model of an NVIDIA GPU
# (developer.nvidia.com/cuda-gpus). A model without such a word has an unknown architecture; then the runner, which asks
# the driver, decides alone. AMD's files name the architecture itself.
_NVIDIA_MODELS = {
    "sm_70": ["V100", "GV100"],
    "sm_75": ["T4", "T1000"],
    "sm_80": ["A100", "A30", "A800"],
    "sm_86": ["A10", "A10G", "A10M", "A16", "A2", "A40", "A4000", "A4500", "A5000", "A5500", "A6000", "3080", "3090"],
    "sm_89": ["Ada", "L2", "L20", "L4", "L40", "L40S", "4080", "4090"],
    "sm_90": ["GH200", "H100", "H20", "H200", "H800"],
    "sm_100": ["B100", "B200", "GB200"],
    "sm_103": ["B300", "GB300"],
    "sm_120": ["5080", "5090", "Blackwell"],
}

GPU_ARCHS = {
    "amd": ["gfx908", "gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1101", "gfx1200", "gfx1201"],
    "intel": [],
    "nvidia": list(_NVIDIA_MODELS),
}

UNKNOWN_ARCH = "unknown"

def nvidia_arch(model):
    """Finds the architecture of an NVIDIA GPU.

    Args:
        model: The driver's name for the model, such as "NVIDIA A100-SXM4-80GB".

    Returns:
        A name such as "sm_80", or UNKNOWN_ARCH.
    """
    words = model.replace("-", " ").split(" ")
    for arch, models in _NVIDIA_MODELS.items():
        if any([word in models for word in words]):
            return arch
    return UNKNOWN_ARCH

def gpu_archs_problems(gpu_archs, backends, known):
    """Checks the argument `gpu_archs`: None, a list of names, or a dict of lists by backend.

    Args:
        gpu_archs: The argument.
        backends: Names of the target's backends.
        known: All backends: name -> declaration.

    Returns:
        A list of error texts.
    """
    values, problems = by_backend("gpu_archs", gpu_archs, backends)
    for argument, archs, backend in values:
        vendor = known[backend]["vendor"]
        if type(archs) != "list" or not archs:
            problems.append(problem(
                "{} = {}".format(argument, repr(archs)),
                "It lists the architectures of GPUs that the tests can run on.",
                "Use a list such as [\"sm_90\"], or drop it: then any GPU will do.",
            ))
        elif not vendor:
            problems.append(problem(
                "{} = {} with backend \"{}\"".format(argument, repr(archs), backend),
                "Ranks of that backend own no GPU.",
                "Drop it, or use a dict that names the GPU backends only.",
            ))
        else:
            problems += [
                _unknown_arch(argument, arch, vendor)
                for arch in archs
                if arch not in GPU_ARCHS[vendor]
            ]
    return problems

def _unknown_arch(argument, arch, vendor):
    archs = GPU_ARCHS[vendor]
    return problem(
        "{}: {} is no architecture of {} that this library knows.{}".format(
            argument,
            repr(arch),
            vendor,
            suggestion(arch, archs) if type(arch) == "string" else "",
        ),
        "Bazel compares the names with the GPUs of the machine and of the pools, so both sides must know them.",
        "Use: {}.".format(", ".join(archs)) if archs else "Drop it: the models of that vendor cannot be told apart.",
    )

def _has_gpu_arch_impl(ctx):
    gpus = ctx.attr.flag[GpuCountInfo]
    archs = gpus.archs.get(ctx.attr.vendor, [UNKNOWN_ARCH])
    is_possible = ctx.attr.arch in archs or UNKNOWN_ARCH in archs
    return config_common.FeatureFlagInfo(value = "yes" if is_possible else "no")

_has_gpu_arch = rule(
    doc = "Value for config_setting: \"no\" if no GPU of `vendor` can have the architecture, else \"yes\".",
    implementation = _has_gpu_arch_impl,
    attrs = {
        "arch": attr.string(mandatory = True),
        "flag": attr.label(mandatory = True, providers = [GpuCountInfo]),
        "vendor": attr.string(mandatory = True),
    },
)

def _arch_name(arch):
    return "may_have_{}_gpus".format(arch)

def _lacking_archs_name(vendor):
    return "needs_other_{}_gpus_than_this_machine_has".format(vendor)

def declare_arch_conditions(*, name, flag, vendor):
    """Declares a condition for every architecture, and a constraint that is unmet without any of a target's.

    Args:
        name: Name of the constraint's setting.
        flag: Label of the gpu_count_flag.
        vendor: Maker of the GPUs.
    """
    native.constraint_value(
        name = _lacking_archs_name(vendor),
        constraint_setting = ":" + name,
        visibility = ["//visibility:public"],
    )
    for arch in GPU_ARCHS[vendor]:
        declare_conditions(_has_gpu_arch, {_arch_name(arch): "yes"}, arch = arch, flag = flag, vendor = vendor)

def arch_compatibility(vendor, archs):
    """Computes the value for `target_compatible_with` of a target that needs certain GPUs.

    Args:
        vendor: Maker of the GPUs.
        archs: Architectures that the target can use; empty for any.

    Returns:
        A list, or a select() of lists.
    """
    if not archs:
        return []
    possible = {_condition(_arch_name(arch)): [] for arch in archs}
    return select(possible | {"//conditions:default": [_condition(_lacking_archs_name(vendor))]})

def _condition(name):
    return Label("//dist_testing/config:" + name)
