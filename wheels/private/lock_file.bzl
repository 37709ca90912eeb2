"""Functions that read a lock file, for repository rules."""

load(":texts.bzl", "problem")

_NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789_"

_LOCK_AGAIN = "Lock it again: uv pip compile --generate-hashes requirements.in -o requirements.txt (or pip-compile --generate-hashes)."

# Options that bring requirements from another file or folder, which the lock file's hashes do not cover.
_OTHER_SOURCES = ["-c", "-e", "-r", "--constraint", "--editable", "--requirement"]

# Names that a problem lists, at most.
_LISTED = 10

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

def _logical_lines(text):
    """Joins lines that end in a backslash, and drops comments and empty lines."""
    lines = []
    joined = ""
    for line in text.replace("\r", "").split("\n"):
        if line.strip().startswith("#"):
            line = ""
        line = line.split(" #")[0].strip()
        joined += " " + line.removesuffix("\\").strip()
        if not line.endswith("\\"):
            if joined.strip():
                lines.append(joined.strip())
            joined = ""
    return lines + ([joined.strip()] if joined.strip() else [])

def _requirement(line):
    """Reads a requirement.

    Args:
        line: A logical line that is no option.

    Returns:
        A struct (name, pin, marker, has_hash); `name` is None if the line is no locked requirement.
    """
    pin = line.split(" --hash")[0].strip()

    # An address may have a semicolon, and its marker stands behind a space.
    marker = pin.partition(" ;")[2] or (pin.partition(";")[2] if "@" not in pin else "")
    end = len(pin)
    for character in "=[@;<>!~ ".elems():
        position = pin.find(character)
        end = position if position != -1 and position < end else end
    name = normalized_name(pin[:end].strip())
    is_locked = bool(name) and ("==" in pin or "@" in pin[end:])
    for character in name.elems():
        is_locked = is_locked and character in _NAME_CHARACTERS
    return struct(
        has_hash = " --hash=" in line,
        marker = marker.strip(),
        name = name if is_locked else None,
        pin = pin,
    )

def _listed(names):
    names = sorted({name: None for name in names})
    return ", ".join(names[:_LISTED]) + (", and {} more".format(len(names) - _LISTED) if len(names) > _LISTED else "")

def _twice(requirements):
    """Returns the pins of packages that are there more than once for one platform."""
    by_name = {}
    for requirement in requirements:
        by_name.setdefault(requirement.name, []).append(requirement)
    pins = []
    for same in by_name.values():
        markers = {requirement.marker: None for requirement in same}
        if len(same) > 1 and ("" in markers or len(markers) < len(same)):
            pins += [requirement.pin for requirement in same]
    return pins

def read_lock(text):
    """Reads a lock file.

    Args:
        text: A requirements file in which every requirement is pinned and has hashes.

    Returns:
        A struct: `names`, the normalised names of its packages, sorted, each once (a package that is pinned twice, for different
        Pythons, is one name); `problems`, error texts (see problems.bzl), none if the file is right.
    """
    problems = []
    requirements = []
    for line in _logical_lines(text):
        if line.startswith("-"):
            if line.replace("=", " ").split(" ")[0] in _OTHER_SOURCES:
                problems.append(problem(
                    "\"{}\" brings packages from another place.".format(line),
                    "The hashes of a lock file cover only its own lines.",
                    _LOCK_AGAIN,
                ))
            continue
        requirement = _requirement(line)
        if not requirement.name:
            problems.append(problem(
                "\"{}\" is not a pinned requirement.".format(requirement.pin),
                "It was written by hand, or it is the list of requirements that a lock file is made from.",
                _LOCK_AGAIN,
            ))
        else:
            requirements.append(requirement)
    without_hash = [requirement.name for requirement in requirements if not requirement.has_hash]
    if without_hash:
        problems.append(problem(
            "There is no hash for {}.".format(_listed(without_hash)),
            "Without hashes any file of that name and version would be installed, and another one tomorrow.",
            _LOCK_AGAIN,
        ))
    twice = _twice(requirements)
    if twice:
        problems.append(problem(
            "A package is there twice: {}.".format(_listed(twice)),
            "One folder has room for one version of it; two lock files were joined, or one was changed by hand.",
            "Keep one. Different locks for CPU and CUDA are two lock files (docs/wheels.md).",
        ))
    if not requirements and not problems:
        problems.append(problem("There is no requirement.", "The file is empty, or has only comments.", _LOCK_AGAIN))
    return struct(
        names = sorted({requirement.name: None for requirement in requirements}),
        problems = problems,
    )
