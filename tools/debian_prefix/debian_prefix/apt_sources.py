"""Reads the archives of the machine's apt: both file formats, with all options."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Fields that say which part of an archive to use. The other fields (Signed-By, Trusted, ...) say how to trust and reach
# it, and are kept.
_REPLACED_FIELDS = frozenset(
    {"types", "uris", "suites", "components", "enabled", "architectures", "languages", "targets"}
)
# The one-line format's names that differ from the field's by more than case.
_OPTION_FIELDS = {"arch": "architectures", "lang": "languages", "target": "targets"}

_ONE_LINE = re.compile(r"deb\s+(?:\[(?P<options>[^]]*)]\s*)?(?P<uri>\S+)\s+(?P<rest>.+)")


@dataclass(frozen=True, slots=True)
class Archive:
    """One archive of the machine's apt."""

    uri: str  # as written in the file
    options: tuple[tuple[str, str], ...]  # further deb822 fields, such as ("signed-by", "/usr/share/keyrings/x.gpg")

    def stanza(self, suite: str) -> str:
        """Return the deb822 text that selects the packages of `suite` from this archive."""
        fields = (
            ("Types", "deb"),
            ("URIs", self.uri),
            ("Suites", suite),
            ("Components", "main"),
            # Apt then leaves out the indexes that other tools have configured.
            ("Targets", "Packages"),
            *self.options,
        )
        return "".join(f"{name}: {value}\n" for name, value in fields)


def archives(etc_apt: Path) -> list[Archive]:
    """Return the archives that may hold Debian's suites, in the order of the files of apt's directory.

    Security archives (they hold no whole suite), archives without a component `main`, and media that must be inserted
    are left out.
    """
    found: dict[str, Archive] = {}
    files = [etc_apt / "sources.list", *sorted((etc_apt / "sources.list.d").glob("*"))]
    for file in files:
        if file.suffix not in (".list", ".sources") or not file.is_file():
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        entries = _deb822_entries(text) if file.suffix == ".sources" else _one_line_entries(text)
        for suites, archive in entries:
            is_security = all("security" in suite for suite in suites)
            if not is_security and not archive.uri.startswith("cdrom:"):
                found.setdefault(archive.uri, archive)
    return list(found.values())


def _one_line_entries(text: str) -> Iterator[tuple[list[str], Archive]]:
    for line in text.splitlines():
        match = _ONE_LINE.fullmatch(line.partition("#")[0].strip())
        if match is None:
            continue
        suite, *components = match["rest"].split()
        options = []
        for option in (match["options"] or "").split():
            name, _, value = option.partition("=")
            options.append((_OPTION_FIELDS.get(name, name), value.replace(",", " ")))
        if "main" in components:
            yield [suite], Archive(match["uri"], _kept(options))


def _deb822_entries(text: str) -> Iterator[tuple[list[str], Archive]]:
    for stanza in re.split(r"\n[ \t]*\n", text):
        fields = _deb822_fields(stanza)
        enabled = fields.get("enabled", "yes").lower() not in ("no", "false", "without", "off")
        if not enabled or "deb" not in fields.get("types", "").split():
            continue
        if "main" in fields.get("components", "").split():
            for uri in fields.get("uris", "").split():
                suites = fields.get("suites", "").split()
                yield suites, Archive(uri, _kept(list(fields.items())))


def _deb822_fields(stanza: str) -> dict[str, str]:
    """Return the fields of one stanza; a value keeps its continuation lines (keys span lines)."""
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1] in (" ", "\t"):
            fields[name] += f"\n{line}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def _kept(options: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(option for option in options if option[0] not in _REPLACED_FIELDS)
