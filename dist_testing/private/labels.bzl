"""Labels as users write them, and files as runfiles name them."""

def user_label(label):
    """Returns a label as a string that can be typed: `//a:b` in the repository Bazel was started in.

    A target of another repository keeps that repository's canonical name, which is typed with two @.
    """
    text = str(label)

    # With modules a label of the main repository starts with two @, without them with one.
    return text.lstrip("@") if text.lstrip("@").startswith("//") else text

def path_fault(path):
    """Says why Bazel takes a text for no target's name.

    Args:
        path: The text.

    Returns:
        What it has and may not have, or None if it is right.
    """
    if not path:
        return "nothing in it"
    if [character for character in path.elems() if character < " " or character == "\177"]:
        return "a control character"
    for part in [":", "\\", "//"]:
        if part in path:
            return repr(part)
    if path.startswith("/") or path.endswith("/"):
        return "a slash at an end"
    for part in path.split("/"):
        if part in (".", ".."):
            return "a part {}".format(repr(part))
    return None

# Of a repository's name.
_REPOSITORY_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.+~"

def label_fault(text):
    """Says why a text is no label. Bazel's own functions for labels end with a traceback over it.

    Args:
        text: The text.

    Returns:
        What it has and may not have, or None if it is right.
    """
    repository, package, target = "", "", text.removeprefix(":")
    if text.startswith("@") or text.startswith("//"):
        repository, slashes, rest = text.partition("//")
        package, colon, target = rest.partition(":")
        if not slashes:
            target = repository.lstrip("@")
        elif not colon:
            target = package.split("/")[-1]
    name = repository.removeprefix("@").removeprefix("@")
    if name in (".", "..") or [character for character in name.elems() if character not in _REPOSITORY_CHARACTERS]:
        return "a repository {}".format(repr(name))
    fault = path_fault(package) if package else None
    if fault:
        return fault
    if [part for part in package.split("/") if part and not part.strip(".")]:
        return "a package of dots"
    if [character for character in package.elems() if character > "~"]:
        return "a package with letters beyond ASCII"
    return path_fault(target)

def has_label(labels, wanted, resolve):
    """Looks for a label, however both are written.

    Args:
        labels: A list of what may be labels.
        wanted: The label.
        resolve: The function native.package_relative_label.

    Returns:
        Whether it is there.
    """
    wanted = resolve(wanted)
    for label in labels:
        is_label = type(label) == "Label" or (type(label) == "string" and not label_fault(label))
        if is_label and resolve(label) == wanted:
            return True
    return False

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
