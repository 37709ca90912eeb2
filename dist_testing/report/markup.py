"""Builds HTML and SVG. Every text is escaped, unless this module has made it."""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable, Sequence

_VOID = frozenset({"br", "circle", "input", "line", "link", "meta", "path", "polygon", "rect", "wbr"})
# A browser shows none of these, or lets them change the direction of the text around them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ud800-\udfff\ufeff]"
)
# Colours and moves of a terminal.
_TERMINAL = re.compile("\x1b\\[[0-9;:?]*[A-Za-z]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)")
# Short texts, such as classes and places in pictures, occur again and again.
_OFTEN_CHARS = 24


class Markup(str):
    """A text that is HTML: `tag` does not escape it."""

    __slots__ = ()


def clean(value: str) -> str:
    """Return a text with visible marks in place of characters that show nothing or turn the text around.

    Colours of a terminal are left out. A line feed and a tab stay, and other line ends become a line feed.
    """
    plain = _TERMINAL.sub("", value).replace("\r\n", "\n")
    return _INVISIBLE.sub(lambda match: _visible(match[0]), plain)


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        # Unicode has a picture for each.
        return chr(0x2400 + code)
    return "\N{SYMBOL FOR DELETE}" if code == 0x7F else f"\u2039U+{code:04X}\u203a"


def text(value: object) -> Markup:
    """Return a text as HTML; HTML itself stays as it is."""
    if isinstance(value, Markup):
        return value
    plain = str(value)
    return _escaped_often(plain) if len(plain) <= _OFTEN_CHARS else _escaped(plain)


def _escaped(plain: str) -> Markup:
    # Most texts have nothing to clean, and these two calls are fast.
    shown = plain if plain.isascii() and plain.isprintable() else clean(plain)
    return Markup(html.escape(shown, quote=True))


_escaped_often = functools.lru_cache(maxsize=4096)(_escaped)


def join(parts: Iterable[object], between: str = "") -> Markup:
    """Return all parts as HTML."""
    return Markup(between.join(map(text, parts)))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """Return an element.

    Args:
        name: Its name.
        *children: Its content: HTML, or anything else as text.
        **attributes: Its attributes. An underscore stands for a hyphen, and one at the end is left out (`class_`). An
            attribute that is None or False is left out; one that is True has no value.
    """
    given = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        written = _attribute(key)
        given.append(f" {written}" if value is True else f' {written}="{text(value)}"')
    start = f"<{name}{''.join(given)}>"
    if name in _VOID and not children:
        return Markup(start[:-1] + "/>")
    return Markup(f"{start}{join(children)}</{name}>")


@functools.cache
def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


def table(names: Sequence[str], rows: Sequence[Markup], label: str, *, rows_id: str | None = None) -> Markup:
    """Return a table that scrolls sideways where it is too wide, also by keyboard.

    Args:
        names: Heads of the columns; "" for a column without one.
        rows: Its rows.
        label: What it shows, for people who do not see it.
        rows_id: Anchor of its body, into which a script puts rows.
    """
    head = tag("tr", *[tag("th", name, scope="col") if name else tag("td") for name in names])
    made = tag("table", tag("thead", head), tag("tbody", *rows, id=rows_id))
    return tag("div", made, class_="wide", tabindex="0", role="group", aria_label=label)
