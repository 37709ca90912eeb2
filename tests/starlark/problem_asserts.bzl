"""Assertions about the error texts for wrong arguments."""

load("@bazel_skylib//lib:unittest.bzl", "asserts")

def assert_accepted(env, problems):
    """Asserts that there is no error text."""
    asserts.equals(env, [], problems)

def assert_refused(env, problems, *parts):
    """Asserts that there is exactly one error text, that it has three lines, and that it has every part.

    Args:
        env: Of the test.
        problems: The error texts.
        *parts: Parts of it.
    """
    asserts.equals(env, 1, len(problems), "expected one text, got {}".format(problems))
    text = problems[0] if problems else ""
    asserts.equals(env, 3, len(text.split("\n")), "expected three lines: {}".format(text))
    for part in parts:
        asserts.true(env, part in text, "\"{}\" is not in: {}".format(part, text))
