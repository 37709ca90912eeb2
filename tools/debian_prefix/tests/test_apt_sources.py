"""The archives that are found in apt's configuration."""

from __future__ import annotations

from pathlib import Path

from debian_prefix.apt_sources import Archive, archives

DEB822 = """\
# A comment.
Types: deb deb-src
URIs: http://mirror.example/debian http://second.example/debian
Suites: bookworm bookworm-updates
# Inside a stanza, too.
Components: main contrib
Architectures: amd64
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc=
 -----END PGP PUBLIC KEY BLOCK-----

Types: deb
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://disabled.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb-src
URIs: http://source.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://flat.example/repo
Suites: ./
"""

ONE_LINE = """\
# deb http://comment.example/debian bookworm main
deb [arch=amd64,arm64 signed-by=/k/a.gpg,/k/b.gpg trusted=yes] http://mirror.example/debian bookworm main # x
deb-src http://source.example/debian bookworm main
deb cdrom:[Debian 12]/ bookworm main
deb http://mirror.example/debian bookworm-updates main
deb\thttp://plain.example/debian/\tbookworm non-free main
deb http://other.example/repo stable contrib
deb http://security.example/ bookworm/security main
nonsense
"""


def test_deb822_files(tmp_path: Path) -> None:
    """Otherwise a current Debian, and every container image of it, would have no archive."""
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d/debian.sources").write_text(DEB822)
    found = archives(tmp_path)
    key = "\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc=\n -----END PGP PUBLIC KEY BLOCK-----"
    assert found == [
        Archive("http://mirror.example/debian", (("signed-by", key),)),
        Archive("http://second.example/debian", (("signed-by", key),)),
    ]


def test_one_line_files(tmp_path: Path) -> None:
    """Otherwise an upgraded machine would have no archive."""
    (tmp_path / "sources.list").write_text(ONE_LINE)
    assert archives(tmp_path) == [
        Archive("http://mirror.example/debian", (("signed-by", "/k/a.gpg /k/b.gpg"), ("trusted", "yes"))),
        Archive("http://plain.example/debian/", ()),
    ]


def test_files_that_apt_ignores_are_ignored(tmp_path: Path) -> None:
    """Otherwise a backup file would bring back an archive that its owner has removed."""
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    for name in ("debian.sources.bak", "x.list.disabled", "README"):
        (folder / name).write_text(DEB822)
    (folder / "odd.sources").mkdir()
    assert archives(tmp_path) == []


def test_a_machine_without_apt_has_no_archives(tmp_path: Path) -> None:
    """Otherwise the user would see a traceback."""
    assert archives(tmp_path / "missing") == []


def test_a_stanza_keeps_how_the_archive_is_trusted() -> None:
    """Otherwise a mirror with a key of its own would be refused, or trusted too much."""
    archive = Archive("http://mirror.example/debian", (("signed-by", "/k/a.gpg"),))
    assert archive.stanza("forky").splitlines() == [
        "Types: deb",
        "URIs: http://mirror.example/debian",
        "Suites: forky",
        "Components: main",
        "Targets: Packages",
        "signed-by: /k/a.gpg",
    ]
