"""Labels as users write them."""

def user_label(label):
    """Returns a label as a string that can be typed: `//a:b` in the repository Bazel was started in.

    A target of another repository keeps that repository's canonical name, which is typed with two @.
    """
    text = str(label)
    return text.removeprefix("@@") if text.startswith("@@//") else text
