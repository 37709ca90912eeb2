"""The form of error texts and of labels in them.

It is a copy of a few lines of //dist_testing/private: an edit of a file that the repository rules load installs all wheels again.
"""

load(":visibility.bzl", "WHEELS")

visibility(WHEELS)

def problem(observed, cause, way_out):
    """Builds an error text of three lines: what was observed, its cause, and what the user can do."""
    return "{}\n{}\n{}".format(observed, cause, way_out)

def user_label(label):
    """Formats a label as a user types it: without @ for the repository in which Bazel was started."""
    text = str(label)
    return text.lstrip("@") if text.lstrip("@").startswith("//") else text
