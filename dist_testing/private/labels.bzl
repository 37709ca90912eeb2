"""Labels as users write them, and files as runfiles name them."""

def user_label(label):
    """Returns a label as a string that can be typed: `//a:b` in the repository Bazel was started in.

    A target of another repository keeps that repository's canonical name, which is typed with two @.
    """
    text = str(label)

    # With modules a label of the main repository starts with two @, without them with one.
    return text.lstrip("@") if text.lstrip("@").startswith("//") else text

def rlocation_path(ctx, file):
    """Returns the path by which a file is found in runfiles.

    Args:
        ctx: Of the rule that has the runfiles.
        file: The file.

    Returns:
        The path, which begins with the name of the file's repository.
    """
    if file.short_path.startswith("../"):
        return file.short_path[len("../"):]
    return ctx.workspace_name + "/" + file.short_path
