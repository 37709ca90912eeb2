"""Finds the nearest known word, for error texts."""

load("//dist_testing/private:visibility.bzl", "LIBRARY")

visibility(LIBRARY)

def edit_distance(a, b):
    """Counts the letters that must be inserted, removed or changed to turn one word into another.

    Args:
        a: One word.
        b: The other.

    Returns:
        The smallest such number.
    """
    previous = range(len(b) + 1)
    for i in range(len(a)):
        current = [i + 1]
        for j in range(len(b)):
            changed = previous[j] + (0 if a[i] == b[j] else 1)
            current.append(min(changed, previous[j + 1] + 1, current[j] + 1))
        previous = current
    return previous[len(b)]

def suggestion(word, known):
    """Writes a question that suggests the nearest known word.

    Args:
        word: The unknown word.
        known: The known words.

    Returns:
        ' Did you mean "<word>"?', or the empty string if no known word is near. A near word differs in at most two
        letters, or one of the two is a part of the other.
    """
    best = None
    for candidate in sorted(known):
        distance = edit_distance(word.lower(), candidate)
        if word and (word.lower() in candidate or candidate in word.lower()):
            distance = min(distance, 2)
        if distance <= 2 and (best == None or distance < best[0]):
            best = (distance, candidate)
    return " Did you mean \"{}\"?".format(best[1]) if best else ""
