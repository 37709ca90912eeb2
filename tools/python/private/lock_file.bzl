"""Functions that read a lock file, for repository rules."""

_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"

def normalized_name(name):
    """Spells a package's name as hubs do: lower case, words joined by one underscore.

    Args:
        name: The name as the package itself or a lock file spells it.

    Returns:
        The normalised name.
    """
    out = ""
    for character in name.lower().elems():
        if character in "-._":
            if not out.endswith("_"):
                out += "_"
        else:
            out += character
    return out

def locked_names(text):
    """Returns the normalised names of the packages in a lock file, sorted, each once.

    A package that is pinned twice, for different Pythons, is one name. Options, comments and hashes
    are ignored.

    Args:
        text: A requirements file in which every requirement is `name==version`.

    Returns:
        A list of strings.
    """
    names = {}
    for line in text.split("\n"):
        if not line or line[0] in " #-":
            continue
        name = line.split("==")[0].split("[")[0].strip()
        normalized = normalized_name(name)
        for character in normalized.elems():
            if character not in _NAME_CHARACTERS:
                fail(("\"{}\" is not a pinned requirement.\n" +
                      "The lock file was changed by hand or by another tool.\n" +
                      "Remake it: python3 tools/python/lock.py").format(line))
        names[normalized] = None
    return sorted(names)
