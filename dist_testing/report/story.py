"""Takes the text of a failure apart, so that the page can show the culprit first and fold the rest."""

from __future__ import annotations

import re
from dataclasses import dataclass

# `core.engine.report` separates parts with such a line.
_RULE = re.compile(r"^-{80,}$", re.MULTILINE)
# Titles of parts, in the order in which they matter: the culprit, its output, others that failed, stacks.
_TITLES = (
    re.compile(r"ranks? [\d, ]+ of \d+ (failed first|is what the others wait for):"),
    re.compile(r"output of rank \d+"),
    re.compile(r"ranks? [\d, ]+ of \d+ also failed:"),
    re.compile(r"stacks of rank\(s\) [\d, ]+:"),
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a failure's text."""

    place: int  # index of its title in `_TITLES`; 0 is the culprit
    title: str  # its first line
    text: str  # the rest


@dataclass(frozen=True, slots=True)
class Story:
    """The text of a failure."""

    head: str  # what happened, in sentences
    victims: str  # what became of the victims, in a sentence; "" if there are none
    ledger: tuple[str, ...]  # Lines about collective calls: which rank waits where
    command: str  # the command that runs this case alone; "" if the text gives none
    parts: tuple[Part, ...]  # the parts, the culprit's first

    @property
    def culprits(self) -> list[Part]:
        """The parts about the culprit."""
        return [part for part in self.parts if part.place == 0]

    @property
    def others(self) -> list[Part]:
        """The other parts that have a text."""
        return [part for part in self.parts if part.place and part.text]

    @property
    def is_plain(self) -> bool:
        """Whether the head is a traceback or another text that this library has not written."""
        return not (self.parts or self.command or self.victims or self.ledger)


_COMMAND = "This case alone: "
_VICTIMS = "Victims: "
_LEDGER = re.compile(r"Ledger of ranks? [\d, ]+: ")


def story_of(text: str) -> Story:
    """Take a text apart. A text that this library has not written becomes one head."""
    head, *rest = _RULE.split(text)
    command = victims = ""
    lines: list[str] = []
    ledger: list[str] = []
    for line in head.strip().split("\n"):
        if line.startswith(_COMMAND) and not command:
            command = line.removeprefix(_COMMAND)
        elif line.startswith(_VICTIMS) and not victims:
            victims = line.removeprefix(_VICTIMS)
        elif _LEDGER.match(line):
            ledger.append(line.removeprefix("Ledger of "))
        else:
            lines.append(line)
    parts = [_part(piece.strip("\n")) for piece in rest if piece.strip()]
    parts.sort(key=lambda part: part.place)
    return Story("\n".join(lines).strip(), victims, tuple(ledger), command, tuple(parts))


def _part(piece: str) -> Part:
    title, _, text = piece.partition("\n")
    places = [place for place, pattern in enumerate(_TITLES) if pattern.match(title)]
    return Part(places[0] if places else len(_TITLES), title.removesuffix(":"), text.strip("\n"))
