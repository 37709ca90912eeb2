"""GPUs that a machine has or that a flag promises, and targets that need more of them."""

load("//backends:declare.bzl", "VENDORS")
load("//dist_testing:providers.bzl", "GpuCountInfo")
load("//dist_testing/private:conditions.bzl", "declare_conditions")
load("//dist_testing/private:executors.bzl", "capacity_text", "largest_pools", "pool_for")
load("//dist_testing/private:gpu_archs.bzl", "arch_compatibility", "declare_arch_conditions")
load("//dist_testing/private:labels.bzl", "user_label")
load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

# The most GPUs that one machine can have. Loading fails for a target that needs more.
MAX_GPUS = 16

# The results of tests with GPUs depend on it, and no other results.
GPU_PROMISE = Label("//dist_testing/config:gpu_promise")

def promise_variables(gpus):
    """Returns the variables by which the runner finds the promise: a dict, empty for a target without GPUs."""
    return {"DIST_TESTING_GPU_PROMISE": "$(rlocationpath {})".format(GPU_PROMISE)} if gpus else {}

def gpus_of_world(world_size, gpus_per_rank, ranks_per_gpu):
    """Computes how many GPUs a world needs."""
    return (world_size + ranks_per_gpu - 1) // ranks_per_gpu * gpus_per_rank

# Promise value: as many GPUs as the target asks for. The same as ALL_GPUS in spec.py.
ALL_GPUS = 1 << 30

# Steps of the cumulative tags: a target with 3 GPUs has gpus_ge_1, gpus_ge_2 and gpus_ge_3.
CUMULATIVE_STEPS = [1, 2, 3, 4, 5, 6, 7, 8, 16]

def _machine(available, *, is_promised, archs = {}):
    return GpuCountInfo(archs = archs, available = available, is_promised = is_promised, pools = None)

_MACHINE = "gpus_of_a_machine"

def _gpu_count_flag_impl(ctx):
    value = ctx.build_setting_value
    if value == "auto":
        return _machine(json.decode(ctx.attr.detected), is_promised = False, archs = json.decode(ctx.attr.detected_archs))
    if value == "present":
        detected = json.decode(ctx.attr.detected)
        if any(detected.values()):
            return _machine(detected, is_promised = True, archs = json.decode(ctx.attr.detected_archs))

        # The promise is broken already. Bazel skips no target: each one fails, and says why.
        return _machine({vendor: ALL_GPUS for vendor in VENDORS}, is_promised = True)
    if value == "pools":
        pools = json.decode(ctx.attr.pools)
        if not pools:
            fail(("{}=pools: no pool is declared.\n" +
                  "With this value tests run in the pools of a remote executor, and MODULE.bazel declares them.\n" +
                  "Declare them (docs/remote.md), or use \"auto\", \"present\" or a number.").format(user_label(ctx.label)))
        return GpuCountInfo(archs = {}, available = largest_pools(pools), is_promised = True, pools = pools)
    if not value.isdigit():
        fail(("{}={}: not \"auto\", \"present\", \"pools\" or a number.\n" +
              "A number promises that the machine that runs the tests has that many GPUs; \"present\" that this machine " +
              "has some; \"auto\" counts them; \"pools\" takes them from the declared executors.\n" +
              "Correct the flag, or drop it for \"auto\".").format(user_label(ctx.label), value))
    return _machine({vendor: int(value) for vendor in VENDORS}, is_promised = True)

gpu_count_flag = rule(
    doc = "A flag: `auto`, `present`, `pools`, or a number: the promised GPUs of the machine that runs the tests.",
    implementation = _gpu_count_flag_impl,
    attrs = {
        "detected": attr.string(
            doc = "GPUs of the machine that Bazel runs on, by vendor, as JSON.",
            mandatory = True,
        ),
        "detected_archs": attr.string(
            doc = "Architectures of these GPUs, by vendor, as JSON.",
            mandatory = True,
        ),
        "pools": attr.string(
            doc = "Pools of the remote executor, as JSON.",
            mandatory = True,
        ),
    },
    build_setting = config.string(flag = True),
)

def _gpu_promise_impl(ctx):
    gpus = ctx.attr.flag[GpuCountInfo]
    output = ctx.actions.declare_file(ctx.label.name + ".json")
    ctx.actions.write(output, json.encode({"promised": gpus.available if gpus.is_promised else None, "schema": 1}) + "\n")

    # No test reads the hardware's facts. With them, machines with other GPUs run other actions, so a cache does not mix
    # their results. In a pool, Bazel does not know which machine runs a test.
    facts = [ctx.file.hardware] if gpus.pools == None else []
    return [DefaultInfo(files = depset([output]), runfiles = ctx.runfiles([output] + facts))]

gpu_promise = rule(
    doc = "Writes `<name>.json`: the promised number of GPUs of each vendor, or null. Tests with GPUs depend on it.",
    implementation = _gpu_promise_impl,
    attrs = {
        "flag": attr.label(mandatory = True, providers = [GpuCountInfo]),
        "hardware": attr.label(allow_single_file = True, mandatory = True),
    },
)

def _has_gpus_impl(ctx):
    gpus = ctx.attr.flag[GpuCountInfo]
    if gpus.available.get(ctx.attr.vendor, 0) >= ctx.attr.count:
        value = "yes"
    else:
        value = "no" if gpus.pools == None else "no pool"
    return config_common.FeatureFlagInfo(value = value)

_has_gpus = rule(
    doc = "Value for config_setting: \"yes\" with at least `count` GPUs of `vendor`, else \"no\" or \"no pool\".",
    implementation = _has_gpus_impl,
    attrs = {
        "count": attr.int(mandatory = True),
        "flag": attr.label(mandatory = True, providers = [GpuCountInfo]),
        "vendor": attr.string(mandatory = True),
    },
)

def _place_impl(ctx):
    gpus = ctx.attr.flag[GpuCountInfo]
    return config_common.FeatureFlagInfo(value = "machine" if gpus.pools == None else "pools")

_place = rule(
    doc = "Value for config_setting: \"machine\" if the GPUs are of a known machine, \"pools\" if they are of pools.",
    implementation = _place_impl,
    attrs = {"flag": attr.label(mandatory = True, providers = [GpuCountInfo])},
)

def _enough_name(vendor, count):
    return "has_{}_{}_gpus".format(count, vendor)

def _too_few_name(vendor, count):
    return "has_too_few_for_{}_{}_gpus".format(count, vendor)

def _lacking_name(vendor, count):
    # When a command names a target that cannot run, Bazel prints this name and no other text of ours.
    return "needs_{}_{}_gpu{}_but_this_machine_has_fewer".format(count, vendor, "" if count == 1 else "s")

def declare_gpu_conditions(*, name, flag, vendors):
    """Declares a condition for every vendor, count and architecture, and constraints that are unmet without them.

    Args:
        name: Name of the constraint setting of all these constraints.
        flag: Label of the gpu_count_flag.
        vendors: Names of vendors.
    """
    native.constraint_setting(name = name)
    declare_conditions(_place, {_MACHINE: "machine"}, flag = flag)
    for vendor in vendors:
        declare_arch_conditions(name = name, flag = flag, vendor = vendor)
        for count in range(1, MAX_GPUS + 1):
            declare_conditions(
                _has_gpus,
                {_enough_name(vendor, count): "yes", _too_few_name(vendor, count): "no"},
                count = count,
                flag = flag,
                vendor = vendor,
            )

            # No platform has this constraint, so Bazel skips every target that needs it.
            native.constraint_value(
                name = _lacking_name(vendor, count),
                constraint_setting = ":" + name,
                visibility = ["//visibility:public"],
            )

# Variables by which a scheduler or a person selects the GPUs of a process, for each vendor.
_VISIBLE_DEVICES = {
    "amd": ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"],
    "intel": ["ZE_AFFINITY_MASK"],
    "nvidia": ["CUDA_VISIBLE_DEVICES"],
}

def inherited_variables(vendor):
    """Lists the variables that a test with GPUs inherits from the environment of Bazel's client.

    Returns:
        A select() of lists, empty for pools: their machines know their own GPUs.
    """
    return select({
        Label("//dist_testing/config:gpus_of_pools"): [],
        "//conditions:default": _VISIBLE_DEVICES[vendor],
    })

def gpu_compatibility(vendor, count, archs, pools):
    """Computes the value for `target_compatible_with` of a target that needs GPUs.

    Bazel skips the target on a machine with too few GPUs.

    Args:
        vendor: One of the vendors given to declare_gpu_conditions.
        count: GPUs that it needs, 0 to MAX_GPUS.
        archs: Architectures that it can use; empty for any.
        pools: Declared pools.

    Returns:
        A list, or a select() of lists.
    """
    if count == 0:
        return []
    return _count_compatibility(vendor, count, archs, pools) + arch_compatibility(vendor, archs)

def _count_compatibility(vendor, count, archs, pools):
    lacking = [_condition(_lacking_name(vendor, count))]
    if _runs_nowhere(vendor, count, archs, pools):
        # With pools the target is not skipped; pools_check() makes it an error.
        return select({_condition(_too_few_name(vendor, count)): lacking, "//conditions:default": []})
    return select({_condition(_enough_name(vendor, count)): [], "//conditions:default": lacking})

def pools_check(target, vendor, count, archs, pools):
    """Refuses a target that no pool can run. If tests run in pools and Bazel skipped it, it would never run.

    Returns:
        An empty list, or a select() of empty lists, for an attribute other than `target_compatible_with`: Bazel does not
        evaluate it for a target that the user's own condition excludes.
    """
    if not _runs_nowhere(vendor, count, archs, pools):
        return []
    return select(
        {_condition(_MACHINE): []},
        no_match_error = capacity_text(target, vendor, count, archs, pools),
    )

def _runs_nowhere(vendor, count, archs, pools):
    return bool(pools) and pool_for(pools, vendor, count, archs) == None

def _condition(name):
    return Label("//dist_testing/config:" + name)
