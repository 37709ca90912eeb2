"""Labels as users write them."""

load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

def user_label(label):
    """Formats a label as a user types it.

    Returns:
        `//a:b` for a target of the repository in which Bazel was started. A target of another repository keeps that
        repository's canonical name, which begins with two @.
    """
    text = str(label)

    # With modules a label of the main repository begins with two @, without modules with one.
    return text.lstrip("@") if text.lstrip("@").startswith("//") else text

def add_labels(labels, more):
    """Adds labels to an attribute, except those that it has: Bazel refuses a label that is there twice.

    The attribute is a list, or a select() of lists, which hides what it holds. Each label may be written in any way.
    """
    resolve = native.package_relative_label
    present = [resolve(label) for label in labels] if type(labels) == "list" else []
    return labels + [label for label in more if resolve(label) not in present]
