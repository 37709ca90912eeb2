"""dist_py_test with a program: error texts, and what its targets are made of."""

load("@bazel_skylib//lib:unittest.bzl", "analysistest", "asserts", "unittest")
load("//backends:table.bzl", "BACKENDS")
load("//dist_testing:defs.bzl", "dist_py_test")
load(
    "//dist_testing/private:validate_program.bzl",  # buildifier: disable=bzl-visibility
    "expected_exits_problems",
    "program_backend_problems",
    "program_problems",
)
load(":problem_asserts.bzl", "assert_accepted", "assert_refused")
load(":targets_tests.bzl", "program_test")

_NOTHING = {"shard_count": None, "timings": None}

def _arguments_test_impl(ctx):
    env = unittest.begin(ctx)
    srcs = ["a.py", "b.py"]
    for isolation in [None, "fork", "spawn", {"gloo": "spawn"}]:
        assert_accepted(env, program_problems("a.py", srcs, isolation, ["gloo"], _NOTHING, str))
    assert_accepted(env, program_problems(None, srcs, "pool", ["gloo"], {"shard_count": 2}, str))
    for wrong in ["a", "", 3, [], ["a.py"]]:
        assert_refused(env, program_problems(wrong, srcs, None, ["gloo"], _NOTHING, str), "program = {}".format(repr(wrong)))
    assert_refused(env, program_problems("c.py", srcs, None, ["gloo"], _NOTHING, str), "it is not in srcs", "Add it to srcs.")
    for isolation in ["pool", "thread", {"gloo": "pool"}]:
        assert_refused(env, program_problems("a.py", srcs, isolation, ["gloo"], _NOTHING, str), "with a program", "fork, spawn")
    for argument in ["ranks_per_gpu", "shard_count", "timings"]:
        assert_refused(
            env,
            program_problems("a.py", srcs, None, ["gloo"], {argument: 2}, str),
            argument + " = 2 with a program",
        )
    assert_accepted(env, program_backend_problems("a.py", ["gloo", "nccl"], BACKENDS))
    assert_accepted(env, program_backend_problems(None, ["threaded"], BACKENDS))
    assert_refused(env, program_backend_problems("a.py", ["gloo", "threaded"], BACKENDS), "backend \"threaded\" with a program")
    return unittest.end(env)

_arguments_test = unittest.make(_arguments_test_impl)

def _expected_exits_test_impl(ctx):
    env = unittest.begin(ctx)
    for right in [None, {}, {1: -9}, {0: 255, 1: 0}]:
        assert_accepted(env, expected_exits_problems("a.py", right, [4, 2]))
    assert_accepted(env, expected_exits_problems(None, None, [2]))
    assert_refused(env, expected_exits_problems(None, {1: 3}, [2]), "without a program", "the test's marker")
    for wrong in [3, "1", {"1": 3}, {1: "3"}, {-1: 3}, {1: 256}, {1: -65}, {True: 1}]:
        assert_refused(env, expected_exits_problems("a.py", wrong, [4]), "expected_exits = {}".format(repr(wrong)))
    assert_refused(env, expected_exits_problems("a.py", {2: 3}, [4, 2]), "there is no rank 2 in a world of 2.")
    return unittest.end(env)

_expected_exits_test = unittest.make(_expected_exits_test_impl)

def _spec_test_impl(ctx):
    env = analysistest.begin(ctx)
    spec = json.decode(analysistest.target_under_test(env)[RunEnvironmentInfo].environment["DIST_TESTING_SPEC"])
    asserts.equals(env, ["//tests/starlark:cases.py"], spec["srcs"])
    asserts.equals(env, [[1, -9]], spec["settings"]["programs"])
    return analysistest.end(env)

_spec_test = analysistest.make(_spec_test_impl)

def programs_test_suite(*, name):
    """Declares the targets that the tests of this file examine, the tests, and a suite of them.

    Args:
        name: Name of the suite.
    """
    for subject, srcs in {
        "program": ["cases.py", "consumer.py"],
        # As a symbolic macro passes them.
        "program_of_macro": select({"//conditions:default": [Label(":cases.py")]}),
    }.items():
        dist_py_test(
            name = subject,
            size = "small",
            srcs = srcs,
            backends = ["gloo"],
            expected_exits = {1: -9},
            program = Label(":cases.py"),
            tags = ["manual"],
            world_size = 2,
        )
        _spec_test(name = subject + "_test", size = "small", target_under_test = ":{}_gloo".format(subject))
    program_test(
        name = "program_run_test",
        size = "small",
        file = "program_gloo.spec.txt",
        is_program = True,
        target_under_test = ":program.spec",
    )
    unittest.suite(name + "_texts", _arguments_test, _expected_exits_test)
    native.test_suite(
        name = name,
        tests = [
            ":program_of_macro_test",
            ":program_run_test",
            ":program_test",
            ":{}_texts".format(name),
        ],
    )
