"""Lock files and the locks that MODULE.bazel declares (//wheels)."""

load("@bazel_skylib//lib:partial.bzl", "partial")
load("@bazel_skylib//lib:unittest.bzl", "asserts", "unittest")
load("//wheels/private:hub_target.bzl", "chosen_target")  # buildifier: disable=bzl-visibility
load("//wheels/private:lock_file.bzl", "normalized_name", "read_lock")  # buildifier: disable=bzl-visibility
load("//wheels/private:locks.bzl", "declared_locks_problems", "lock_repo_name")  # buildifier: disable=bzl-visibility

_LOCK = """\
# A comment.
--index-url https://example.org/simple
--no-binary :none:
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:00
    # via -r requirements.in
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:01
Jinja2[i18n]==3.1.6 \\
    --hash=sha256:02 \\
    --hash=sha256:03
torch==2.13.0+cpu ; sys_platform == 'linux' --hash=sha256:04  # one line

my.wheel @ https://example.org/my_wheel-1-py3-none-any.whl#sha256=05 \\
    --hash=sha256:05
"""

def _right_lock_test_impl(ctx):
    env = unittest.begin(ctx)
    asserts.equals(env, "bazel_runfiles_2", normalized_name("Bazel.-Runfiles_2"))
    found = read_lock(_LOCK)
    asserts.equals(env, [], found.problems)
    asserts.equals(env, ["jinja2", "my_wheel", "numpy", "torch"], found.names)
    asserts.equals(env, found.names, read_lock(_LOCK.replace("\n", "\r\n")).names)
    return unittest.end(env)

right_lock_test = unittest.make(_right_lock_test_impl)

_WRONG_LOCKS = {
    "": ["There is no requirement.", "The file is empty"],
    "# only a comment\n": ["There is no requirement."],
    "-e . --hash=sha256:00\n": ["\"-e . --hash=sha256:00\" brings packages from another place.", "Lock it again: uv pip compile"],
    "--requirement=other.txt\n": ["\"--requirement=other.txt\" brings packages from another place."],
    "a==1 --hash=sha256:00\na==2 --hash=sha256:01\n": ["A package is there twice: a==1, a==2.", "Keep one."],
    "a==1 ; x == 'y' --hash=sha256:00\nA==2 ; x == 'y' --hash=sha256:01\n": ["twice: A==2 ; x == 'y', a==1 ; x == 'y'."],
    "a==1 ; x == 'y' --hash=sha256:00\na==2 --hash=sha256:01\n": ["A package is there twice"],
    "a==1\nb==2 \\\n    --hash=sha256:00\nc==3\n": ["There is no hash for a, c.", "--generate-hashes"],
    "torch >= 2 --hash=sha256:00\n": ["\"torch >= 2\" is not a pinned requirement.", "the list of requirements"],
    "torch\n": ["\"torch\" is not a pinned requirement."],
    "this is not a requirement\n": ["\"this is not a requirement\" is not a pinned requirement."],
}

def _wrong_locks_test_impl(ctx):
    env = unittest.begin(ctx)
    for text, expected in _WRONG_LOCKS.items():
        problems = read_lock(text).problems
        asserts.equals(env, 1, len(problems), "problems of " + repr(text))
        asserts.equals(env, 3, len(problems[0].split("\n")), "lines of " + problems[0])
        for part in expected:
            asserts.true(env, part in problems[0], "{} is not in: {}".format(repr(part), problems[0]))
    many = "".join(["p{}==1\n".format(number) for number in range(12)])
    asserts.true(env, ", and 2 more." in read_lock(many).problems[0], "a long list is cut")
    return unittest.end(env)

wrong_locks_test = unittest.make(_wrong_locks_test_impl)

def _lock(hub = "pypi", name = "default", python_version = "", file = "//:a.txt", module = "mine"):
    return {"file": file, "hub": hub, "module": module, "name": name, "python_version": python_version}

def _declared_locks_test_impl(ctx):
    env = unittest.begin(ctx)
    right = [_lock(name = "cpu"), _lock(name = "cuda"), _lock(hub = "other"), _lock(hub = "other", name = "rocm")]
    right += [_lock(hub = "two", python_version = "3.11"), _lock(hub = "two", python_version = "3.12")]
    asserts.equals(env, [], declared_locks_problems(right))
    asserts.equals(env, [], declared_locks_problems([]))
    asserts.equals(
        env,
        ["pypi.cpu", "pypi.cuda", "other.default", "other.rocm", "two.default_3_11", "two.default_3_12"],
        [lock_repo_name(lock) for lock in right],
    )
    for locks, expected in [
        ([_lock(), _lock(file = "//:b.txt")], "is there twice: //:a.txt and //:b.txt."),
        ([_lock(python_version = "3.11")] * 2, "python_version = \"3.11\") is there twice"),
        ([_lock(python_version = "3.11"), _lock()], "another lock of that name has no python_version."),
        ([_lock(), _lock(name = "cuda", module = "theirs")], "the module \"mine\" has a hub of that name, and \"theirs\", too."),
        ([_lock(python_version = "3.11.7")], "\"3.11.7\" is no minor version of Python."),
        ([_lock(python_version = "three")], "\"three\" is no minor version of Python."),
        ([_lock(name = "cu da")], "name = \"cu da\"."),
        ([_lock(name = "")], "name = \"\"."),
        ([_lock(hub = "my.hub")], "hub = \"my.hub\"."),
        ([_lock(hub = "dist_testing_wheels")], "hub = \"dist_testing_wheels\"."),
    ]:
        problems = declared_locks_problems(locks)
        asserts.equals(env, 1, len(problems), "problems of " + repr(locks))
        asserts.equals(env, 3, len(problems[0].split("\n")), "lines of " + problems[0])
        asserts.true(env, expected in problems[0], "{} is not in: {}".format(repr(expected), problems[0]))
    return unittest.end(env)

declared_locks_test = unittest.make(_declared_locks_test_impl)

def _chosen_target_test_impl(ctx):
    env = unittest.begin(ctx)
    one = {"cpu": "//a", "cuda": "//b", "rocm": ""}
    two = {"cpu 3.11": "//a", "cpu 3.12": "//b", "cuda 3.12": "//c"}
    for targets, lock, python, expected in [
        (one, "", "", ("//a", "cpu", [""])),
        (one, "cuda", "3.12", ("//b", "cuda", [""])),
        # Of another hub.
        (one, "other", "", ("//a", "cpu", [""])),
        (one, "rocm", "", (None, "rocm", [])),
        (two, "", "", ("//a", "cpu", ["3.11", "3.12"])),
        (two, "cpu", "3.12.4", ("//b", "cpu", ["3.11", "3.12"])),
        (two, "", "3.13", (None, "cpu", ["3.11", "3.12"])),
        (two, "cuda", "", ("//c", "cuda", ["3.12"])),
    ]:
        found = chosen_target(targets, lock, python)
        asserts.equals(env, expected, (found.label, found.lock, found.versions))
    return unittest.end(env)

chosen_target_test = unittest.make(_chosen_target_test_impl)

def wheels_test_suite(*, name):
    """Declares the tests of this file and a suite of them.

    Args:
        name: Name of the suite.
    """
    tests = [chosen_target_test, declared_locks_test, right_lock_test, wrong_locks_test]
    unittest.suite(name, *[partial.make(test, size = "small") for test in tests])
