"""Labels as users write them, and files as runfiles name them."""

def user_label(label):
    """Formats a label as a user types it.

    Args:
        label: The label.

    Returns:
        `//a:b` for a target of the repository in which Bazel was started. A target of another repository keeps that
        repository's canonical name, which begins with two @.
    """
    text = str(label)

    # With modules a label of the main repository begins with two @, without modules with one.
    return text.lstrip("@") if text.lstrip("@").startswith("//") else text

def add_labels(labels, more):
    """Adds labels to an attribute, because Bazel refuses a label that is there twice.

    Args:
        labels: A list, or a select() of lists; each label may be written in any way.
        more: A list of labels.

    Returns:
        All of `labels`, and those of `more` that are not in a list. A select() hides what it holds.
    """
    resolve = native.package_relative_label
    present = [resolve(label) for label in labels] if type(labels) == "list" else []
    return labels + [label for label in more if resolve(label) not in present]

def rlocation_path(ctx, file):
    """Computes the path of a file in the runfiles.

    Args:
        ctx: Context of the rule that has the runfiles.
        file: The file.

    Returns:
        The path, which begins with the name of the file's repository.
    """
    if file.short_path.startswith("../"):
        return file.short_path[len("../"):]
    return ctx.workspace_name + "/" + file.short_path
