"""Check how targets depend on the hardware of machines and pools: `python3 -m tests.starlark.hardware_check`.

The facts of the machines are made up (DIST_TESTING_HOST_ROOT names a folder to use instead of `/`). Tests run as
`true <test>`, so that no wheel is needed: the check is which tests Bazel runs, skips or takes from a cache. Two output
roots that share a disk cache stand for two machines.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.starlark.consumer import FLAG, write_stubs, write_workspace
from tests.support.nested_bazel import Done, NestedBazel, nested_bazel, scratch_folder

_MODULE = """\
bazel_dep(name = "platforms", version = "0.0.10")
host_facts = use_extension("@dist_testing//dist_testing/private:host_facts.bzl", "host_facts")
use_repo(host_facts, "dist_testing_host")
executors = use_extension("@dist_testing//dist_testing:extensions.bzl", "executors")
executors.remote(kind = "buildbuddy")
executors.remote(name = "spare", kind = "nativelink")
executors.pool(name = "cpus", remote = "buildbuddy", properties = {"container-image": "docker://plain"})
executors.pool(name = "pair", remote = "buildbuddy", gpus = 2)
WITH = {"dockerRuntime": "nvidia"}
executors.pool(name = "four", remote = "buildbuddy", gpus = 4, gpu_arch = "sm_80", properties = WITH)
executors.pool(name = "eight", remote = "spare", gpus = 8)
"""

_PACKAGES = {
    "right": """\
dist_py_test(name = "case", srcs = ["a.py"], backends = ["gloo", "nccl"], world_size = 2)
MINE = {"test.Pool": "mine"}
dist_py_test(name = "own", srcs = ["a.py"], backends = ["nccl"], world_size = 3, exec_properties = MINE)
dist_test_suites()
""",
    "archs": """\
dist_py_test(name = "old", srcs = ["a.py"], backends = ["nccl"], world_size = 2, gpu_archs = ["sm_80"])
dist_py_test(name = "new", srcs = ["a.py"], backends = ["nccl"], world_size = 2, gpu_archs = ["sm_90", "sm_100"])
""",
    "large": """\
dist_py_test(name = "case", srcs = ["a.py"], backends = ["gloo", "nccl"], world_size = {"gloo": 2, "nccl": 8})
NOWHERE = ["@platforms//:incompatible"]
dist_py_test(name = "mine", srcs = ["a.py"], backends = ["nccl"], world_size = 8, target_compatible_with = NOWHERE)
""",
}

_NVIDIA_INFORMATION = "Model: \t\t {model}\nIRQ:   \t\t 120\nDevice Minor: \t {minor}\n"
_NVIDIA_VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}.65.06  Release Build\n"


@dataclass(slots=True)
class Checks:
    """The differences that were found."""

    complaints: list[str] = field(default_factory=list)
    count: int = 0

    def expect(self, what: str, expected: object, found: object, shown: str = "") -> None:
        """Compare two values, and record a difference."""
        self.count += 1
        if expected != found:
            self.complaints.append(f"{what}: expected {expected!r}, found {found!r}")
            sys.stderr.write(shown)

    def refused(self, what: str, done: Done, *texts: str) -> None:
        """Check that Bazel has failed with some texts."""
        missing = [text for text in texts if text not in done.output]
        self.expect(what, (True, []), (done.status != 0, missing), done.output)


def _write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def _root(root: Path) -> str:
    return f"--repo_env=DIST_TESTING_HOST_ROOT={root}"


def _nvidia(root: Path, *, models: tuple[str, ...], driver: int) -> str:
    """Create the files of a machine with NVIDIA GPUs."""
    files = {"dev/nvidiactl": "", "proc/driver/nvidia/version": _NVIDIA_VERSION.format(driver=driver)}
    for minor, model in enumerate(models):
        files[f"dev/nvidia{minor}"] = ""
        information = _NVIDIA_INFORMATION.format(model=model, minor=minor)
        files[f"proc/driver/nvidia/gpus/0000:1{minor}:00.0/information"] = information
    # A container also sees the files of GPUs that it was not given.
    files["proc/driver/nvidia/gpus/0000:ff:00.0/information"] = _NVIDIA_INFORMATION.format(model="Not ours", minor=7)
    _write(root, files)
    return _root(root)


def _amd(root: Path) -> str:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    _write(
        root,
        {
            "dev/kfd": "",
            f"{nodes}/0/gpu_id": "0\n",
            f"{nodes}/0/properties": "cpu_cores_count 64\ngfx_target_version 0\n",
            f"{nodes}/1/gpu_id": "51110\n",
            f"{nodes}/1/properties": "simd_count 1216\ngfx_target_version 90402\n",
            "sys/module/amdgpu/version": "6.10.5\n",
        },
    )
    return _root(root)


def _intel(root: Path) -> str:
    """Create the files of a machine with one card beside the processor's own graphics."""
    for number, address in ((128, "0000:00:02.0"), (129, "0000:29:00.0")):
        device = root / "sys" / "devices" / address
        _write(device, {"vendor": "0x8086\n", "device": "0x0bd5\n"})
        (root / "sys/bus/xe").mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(root / "sys/bus/xe")
        render = root / f"sys/class/drm/renderD{number}"
        render.mkdir(parents=True)
        (render / "device").symlink_to(device)
    return _root(root)


def _facts(bazel: NestedBazel, root: str) -> object:
    """Check the facts that the repository rule finds."""
    bazel.run("build", "--nobuild", root, "@dist_testing_host//:hardware.json")
    listed = bazel.run("cquery", "--output=files", root, "@dist_testing_host//:hardware.json").stdout.strip()
    base = bazel.run("info", "output_base").stdout.strip()
    return json.loads((Path(base) / listed).read_text(encoding="utf-8"))


def _found(driver: str, models: list[str], archs: list[str], count: int = 1) -> dict[str, object]:
    return {"archs": archs, "count": count, "driver": driver, "models": models}


def _check_facts(checks: Checks, machine: NestedBazel, scratch: Path) -> None:
    for what, root, expected in (
        ("no GPU", _root(scratch), {}),
        (
            "two NVIDIA GPUs",
            _nvidia(scratch / "nvidia", models=("NVIDIA H200", "NVIDIA A2"), driver=580),
            {"nvidia": _found("580", ["NVIDIA A2", "NVIDIA H200"], ["sm_86", "sm_90"], 2)},
        ),
        ("an AMD GPU", _amd(scratch / "amd"), {"amd": _found("6", ["gfx942"], ["gfx942"])}),
        ("an Intel GPU", _intel(scratch / "intel"), {"intel": _found("xe", ["0x0bd5"], ["unknown"])}),
    ):
        checks.expect(f"facts of a machine with {what}", expected, _facts(machine, root))
    for value in ("relative", "/nowhere/at/all"):
        done = machine.run("build", "--nobuild", f"--repo_env=DIST_TESTING_HOST_ROOT={value}", "//right:case_gloo")
        checks.refused(f"root {value}", done, f"DIST_TESTING_HOST_ROOT={value}: not an absolute path of a folder.")


def _test(bazel: NestedBazel, disk_cache: Path, *arguments: str) -> Done:
    return bazel.run(
        "test",
        f"--disk_cache={disk_cache}",
        "--run_under=/bin/true",
        "--local_resources=gpu=2",
        "--test_output=summary",
        *arguments,
        "//right:case_gloo",
        "//right:all",
    )


def _ends(done: Done) -> dict[str, str]:
    """Return how each target of the package `right` ended: "run", "cached" or "skipped"."""
    words = {"": "run", "(cached) ": "cached"}
    found = re.findall(r"^//right:(\w+) +(?:(\(cached\) )?PASSED|(SKIPPED))", done.output, re.MULTILINE)
    return {name: "skipped" if skipped else words[cached] for name, cached, skipped in found}


def _check_cache(checks: Checks, first: NestedBazel, second: NestedBazel, scratch: Path) -> None:
    here = _nvidia(scratch / "here", models=("NVIDIA H200", "NVIDIA H200"), driver=580)
    same = _nvidia(scratch / "same", models=("NVIDIA H200", "NVIDIA H200"), driver=580)
    other_driver = _nvidia(scratch / "driver", models=("NVIDIA H200", "NVIDIA H200"), driver=590)
    cache = scratch / "cache"
    for what, machine, facts, gloo, nccl in (
        ("a machine's first run", first, here, "run", "run"),
        ("a second machine with the same facts", second, same, "cached", "cached"),
        ("another driver", second, other_driver, "cached", "run"),
        ("another model", second, _nvidia(scratch / "model", models=("NVIDIA A2",) * 2, driver=580), "cached", "run"),
        ("the first facts again", second, same, "cached", "cached"),
        ("too few GPUs", second, _nvidia(scratch / "one", models=("NVIDIA H200",), driver=580), "cached", "skipped"),
    ):
        done = _test(machine, cache, facts)
        expected = {"case_gloo": gloo, "case_nccl": nccl, "own_nccl": "skipped"}
        checks.expect(f"cache, {what}", expected, _ends(done), done.output)
    # With pools, the machine of Bazel itself does not matter: its facts are in no key.
    for what, machine, facts, nccl in (
        ("first run", first, here, "run"),
        ("from a machine without GPUs", second, _root(cache), "cached"),
    ):
        done = _test(machine, cache, facts, "--local_resources=gpu=3", FLAG + "gpus=pools")
        expected = {"case_gloo": "cached", "case_nccl": nccl, "own_nccl": nccl}
        checks.expect(f"pools, {what}", expected, _ends(done), done.output)


def _check_configurations(checks: Checks, machine: NestedBazel, scratch: Path) -> None:
    """Check each named configuration of dist_testing.bazelrc on a machine with two GPUs."""
    facts = _nvidia(scratch / "configurations", models=("NVIDIA H200",) * 2, driver=580)
    for name, expected in (
        ("gpu", {"case_gloo": "cached", "case_nccl": "run", "own_nccl": "skipped"}),
        ("multi_gpu", {"case_nccl": "cached", "own_nccl": "skipped"}),
        ("ci", {"case_gloo": "cached", "case_nccl": "run", "own_nccl": "skipped"}),
        ("remote", {"case_gloo": "cached", "case_nccl": "skipped", "own_nccl": "skipped"}),
        ("remote_gpu", {"case_gloo": "cached", "case_nccl": "run", "own_nccl": "cached"}),
        ("debug", {"case_gloo": "run", "case_nccl": "run", "own_nccl": "skipped"}),
        ("stress", {"case_gloo": "run", "case_nccl": "run", "own_nccl": "skipped"}),
    ):
        done = _test(machine, scratch / "configurations.cache", facts, f"--config={name}", "--local_resources=gpu=3")
        checks.expect(f"--config={name}", (0, expected), (done.status, _ends(done)), done.output)
        checks.expect(f"--config={name} repeats", name == "stress", "Stats over 25 runs" in done.output, done.output)
    # A promise that fails before any test runs hides no result.
    (scratch / "bare").mkdir()
    done = _test(machine, scratch / "bare.cache", _root(scratch / "bare"), "--config=gpu", "--local_resources=gpu=3")
    expected = {"case_gloo": "run", "case_nccl": "run", "own_nccl": "run"}
    checks.expect("--config=gpu on a machine without GPUs", expected, _ends(done), done.output)
    # Nothing listens at that port, so the error shows that Bazel connects to it.
    done = machine.run("test", "--config=rbe_local", "--remote_retries=0", "//right:case_gloo")
    refused = "Failed to query remote execution capabilities" in done.output
    checks.expect("--config=rbe_local asks this machine", True, refused, done.output)


def _exec_properties(bazel: NestedBazel, target: str, *options: str) -> object:
    done = bazel.run("query", "--output=streamed_jsonproto", *options, target)
    attributes = json.loads(done.stdout)["rule"]["attribute"]
    found = next(one for one in attributes if one["name"] == "exec_properties")
    return {entry["key"]: entry["value"] for entry in found.get("stringDictValue", ())}


def _check_pools(checks: Checks, machine: NestedBazel) -> None:
    for target, expected in (
        ("//right:case_gloo", {"test.Pool": "cpus", "test.container-image": "docker://plain"}),
        ("//right:case_nccl", {"test.Pool": "pair", "test.resources:gpu": "2"}),
        # A target's own properties replace those of its pool.
        ("//right:own_nccl", {"test.Pool": "mine", "test.dockerRuntime": "nvidia", "test.resources:gpu": "3"}),
        ("//large:case_nccl", {}),
        # The smaller pool has GPUs of an unknown architecture.
        ("//archs:old_nccl", {"test.Pool": "four", "test.dockerRuntime": "nvidia", "test.resources:gpu": "2"}),
        ("//archs:new_nccl", {}),
    ):
        checks.expect(f"exec_properties of {target}", expected, _exec_properties(machine, target))
    spare = "--repo_env=DIST_TESTING_EXECUTOR=spare"
    found = _exec_properties(machine, "//large:case_nccl", spare)
    checks.expect("exec_properties for another executor", {"test.gpu_count": "8"}, found)
    done = machine.run("build", "--nobuild", FLAG + "gpus=pools", spare, "//large:case_nccl")
    checks.expect("a target that fits a pool of another executor", 0, done.status, done.output)
    done = machine.run("build", "--nobuild", FLAG + "gpus=pools", "//large:case_nccl")
    needs = "//large:case_nccl: needs 8 GPU(s) of nvidia, and no declared pool has them."
    declared = 'Declared in MODULE.bazel: "pair" (2 nvidia), "four" (4 nvidia sm_80).'
    checks.refused("a target that fits no pool", done, needs, declared)
    done = machine.run("build", "--nobuild", FLAG + "gpus=pools", "//archs:new_nccl")
    needs = "//archs:new_nccl: needs 2 GPU(s) of nvidia with architecture sm_90 or sm_100"
    checks.refused("no pool has the architecture", done, f"{needs}, and no declared pool has them.")
    fitting = ("//large:case_gloo", "//right:all", "//archs:old_nccl")
    done = machine.run("build", "--nobuild", FLAG + "gpus=pools", *fitting)
    checks.expect("targets that fit are analysed", 0, done.status, done.output)
    # With its user's condition it is skipped, as on every other machine. A wildcard pattern ignores such targets.
    done = machine.run("cquery", "--config=skipped", FLAG + "gpus=pools", "tests(//large:mine_nccl)")
    checks.expect(
        "what a user excludes needs no pool", (0, "//large:mine_nccl"), (done.status, done.stdout.strip()), done.output
    )
    for promise, skipped in (("4", ["//large:case_nccl", "//large:mine_nccl"]), ("8", ["//large:mine_nccl"])):
        done = machine.run("cquery", "--config=skipped", f"{FLAG}gpus={promise}", "tests(//large:all)")
        checks.expect(
            f"what a machine with {promise} GPUs skips", skipped, sorted(set(done.stdout.split())), done.output
        )


def _check_archs(checks: Checks, machine: NestedBazel, scratch: Path) -> None:
    for model, skipped in (
        ("NVIDIA H200", ["//archs:old_nccl"]),
        ("NVIDIA A100-SXM4-80GB", ["//archs:new_nccl"]),
        ("Tesla T4", ["//archs:new_nccl", "//archs:old_nccl"]),
        # The runner asks the driver.
        ("NVIDIA Nameless", []),
    ):
        facts = _nvidia(scratch / model.replace(" ", "_"), models=(model,) * 2, driver=580)
        done = machine.run("cquery", "--config=skipped", facts, "tests(//archs:all)")
        checks.expect(f"what a machine with {model} skips", skipped, sorted(set(done.stdout.split())), done.output)


def _check_suites(checks: Checks, machine: NestedBazel) -> None:
    for suite, expected in (
        ("all_gloo", ["//right:case_gloo"]),
        ("all_nccl", ["//right:case_nccl", "//right:own_nccl"]),
        ("case", ["//right:case_gloo", "//right:case_nccl"]),
    ):
        done = machine.run("query", f"tests(//right:{suite})")
        checks.expect(f"tests of the suite {suite}", expected, sorted(done.stdout.split()), done.output)


def _check_declaration(checks: Checks, machine: NestedBazel) -> None:
    """Check an unknown kind of executor. Run this last: it breaks MODULE.bazel."""
    module = machine.workspace / "MODULE.bazel"
    text = module.read_text(encoding="utf-8")
    module.write_text(text.replace('"buildbuddy"', '"bildbuddy"'), encoding="utf-8")
    done = machine.run("query", "//right:all")
    text = 'executors.remote(name = "bildbuddy"): kind = "bildbuddy". Did you mean "buildbuddy"?'
    checks.refused("an unknown kind of executor", done, text)


def main() -> int:
    """Run all checks, and report on stderr."""
    checks = Checks()
    with scratch_folder("hardware_check") as scratch:
        workspace = scratch / "consumer"
        workspace.mkdir()
        write_workspace(workspace, _PACKAGES, module=_MODULE)
        write_stubs(workspace)
        with (
            nested_bazel(workspace, scratch / "first") as first,
            nested_bazel(workspace, scratch / "second") as second,
        ):
            _check_facts(checks, first, scratch)
            _check_suites(checks, first)
            _check_pools(checks, first)
            _check_archs(checks, first, scratch)
            _check_cache(checks, first, second, scratch)
            _check_configurations(checks, first, scratch)
            _check_declaration(checks, first)
    for complaint in checks.complaints:
        sys.stderr.write(f"hardware_check.py: {complaint}\n")
    sys.stderr.write(f"hardware_check.py: {checks.count} expectations, {len(checks.complaints)} complaints\n")
    return 1 if checks.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
