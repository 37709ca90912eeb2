"""Error texts of dist_py_test about the environment, and values that are nearly wrong and right."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "unittest")
load(
    "//dist_testing/private:validate_environment.bzl",  # buildifier: disable=bzl-visibility
    "MAX_VARIABLE_BYTES",
    "env_inherit_problems",
    "env_problems",
    "spec_problems",
)
load(":problem_asserts.bzl", "assert_accepted", "assert_refused")

def _env_test_impl(ctx):
    env = unittest.begin(ctx)
    assert_accepted(env, env_problems({"MY_RANK": "1", "NCCL_DEBUG": "INFO", "TEST_DATA_DIR": "x", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}))
    for reserved in [
        "COVERAGE_DIR",
        "DIST_TESTING_SPEC",
        "MASTER_PORT",
        "RANK",
        "RUNFILES_DIR",
        # With a filter in a BUILD file, cases would never run, and a target without cases would be green.
        "TESTBRIDGE_TEST_ONLY",
        "TEST_SHARD_INDEX",
        "WORLD_SIZE",
        "XML_OUTPUT_FILE",
    ]:
        assert_refused(env, env_problems({reserved: "x"}), "env: {} = \"x\"".format(reserved), "Drop it")
    for wrong in ["A=B", "=", ""]:
        assert_refused(env, env_problems({wrong: "x"}), "env: {} = \"x\"\n".format(wrong or "\"\""), "has no \"=\"", "Correct the name")
    assert_refused(env, env_problems(["A=1"]), "env = [\"A=1\"]\n")
    assert_accepted(env, env_problems(select({"//conditions:default": {"RANK": "checked later"}})))
    return unittest.end(env)

env_test = unittest.make(_env_test_impl)

def _env_inherit_test_impl(ctx):
    env = unittest.begin(ctx)
    for right in [[], ["HOME", "MY_RANK"], select({"//conditions:default": ["HOME"]})]:
        assert_accepted(env, env_inherit_problems(right))
    for wrong in ["RANK", "DIST_TESTING_SPEC", "TEST_TMPDIR"]:
        assert_refused(env, env_inherit_problems(["HOME", wrong]), "env_inherit: \"{}\"\n".format(wrong), "Drop it")
    for wrong in ["A=B", ""]:
        assert_refused(env, env_inherit_problems([wrong]), "env_inherit: ", "Correct the name")
    return unittest.end(env)

env_inherit_test = unittest.make(_env_inherit_test_impl)

def _spec_test_impl(ctx):
    env = unittest.begin(ctx)
    room = MAX_VARIABLE_BYTES - len("DIST_TESTING_SPEC=") - 1

    # Bazel reads two "$" as one.
    assert_accepted(env, spec_problems("$$" * room, ["a.py"]))
    assert_refused(
        env,
        spec_problems("x" * (room + 1), ["a.py", "b.py"]),
        "srcs has 2 files; DIST_TESTING_SPEC, which names them to the runner, has 131073 bytes.\n",
        "could not start",
        "Split the target",
    )
    return unittest.end(env)

spec_test = unittest.make(_spec_test_impl)

def validate_environment_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [
        env_inherit_test,
        env_test,
        spec_test,
    ]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
