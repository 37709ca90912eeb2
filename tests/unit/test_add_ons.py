"""Which add-ons a run has, and what happens if one of them is wrong."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dist_testing import built_in, ext
from dist_testing.core.ground import add_ons as add_ons_module
from dist_testing.core.ground.add_ons import EXT_VERSION, AddOn, add_on_named, add_ons, blaming, call_parts
from dist_testing.core.ground.errors import AddOnError, UsageError
from dist_testing.core.ground.world import World
from dist_testing.core.launch import isolation
from dist_testing.core.launch.isolation import isolation_named, isolation_names
from dist_testing.core.session import front_ends, offered_session, session
from dist_testing.core.session.front_ends import make_front_end, register_front_end
from dist_testing.ext import event_stream

_DECLARED = """
from dist_testing.ext import AddOn

ADD_ON = AddOn(name="redis", ext_version={version}, order=-9, idle_work="{work}")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Install a package that declares an add-on."""

    def install(source: str, value: str = "redis_declared:ADD_ON") -> None:
        folder = tmp_path / "redis_add_on-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: redis-add-on\nVersion: 1.0\n", encoding="utf-8")
        (folder / "entry_points.txt").write_text(f"[dist_testing]\nredis = {value}\n", encoding="utf-8")
        (tmp_path / "redis_declared.py").write_text(source, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)

    add_ons.cache_clear()
    yield install
    add_ons.cache_clear()
    sys.modules.pop("redis_declared", None)


def test_an_installed_add_on_takes_part_in_its_order(install: Callable[..., None]) -> None:
    """If this fails, a package has to change this library to add something to its worlds."""
    install(_DECLARED.format(version=EXT_VERSION, work="redis_declared:AddOn"))
    assert [add_on.name for add_on in add_ons()] == ["redis", *(add_on.name for add_on in sorted_built_in())]
    assert add_on_named("redis", "test_x").load("idle_work") is AddOn


def sorted_built_in() -> list[AddOn]:
    """The library's own add-ons in their order."""
    return sorted(built_in.ADD_ONS, key=lambda add_on: (add_on.order, add_on.name))


@pytest.mark.parametrize(
    ("source", "value", "texts"),
    [
        (_DECLARED.format(version=99, work=""), "redis_declared:ADD_ON", ["'redis' has ext_version = 99", "fit"]),
        ("ADD_ON = 3", "redis_declared:ADD_ON", ["'redis'", "it is 3", "Update or uninstall"]),
        ("1 / 0", "redis_declared:ADD_ON", ["'redis'", "ZeroDivisionError"]),
        ("", "missing_module:ADD_ON", ["'redis'", "'missing_module:ADD_ON'", "No module named 'missing_module'"]),
        (
            'from dist_testing.ext import AddOn\nADD_ON = AddOn(name="huge_pages", ext_version=1)',
            "redis_declared:ADD_ON",
            ["'huge_pages' exists twice", "Uninstall one"],
        ),
    ],
)
def test_a_wrong_declaration_is_an_error_that_names_the_add_on(
    install: Callable[..., None], source: str, value: str, texts: list[str]
) -> None:
    """If this fails, a broken package changes what a run does, and the user does not learn which one."""
    install(source, value)
    with pytest.raises(AddOnError) as caught:
        add_ons()
    told = str(caught.value)
    assert all(text in told for text in texts), told


@pytest.mark.parametrize("work", ["missing_module:Work", "redis_declared:Work"])
def test_an_add_on_that_is_not_complete_is_named(install: Callable[..., None], work: str) -> None:
    """If this fails, a module that an add-on forgot to ship, or a deleted folder, looks like a test's error."""
    install(_DECLARED.format(version=EXT_VERSION, work=work))
    with pytest.raises(AddOnError, match=f"Add-on 'redis': the import of '{work}' raised "):
        add_on_named("redis", "test_x").load("idle_work")


_ISOLATION = """
from dist_testing.core.launch.fork import ForkServerLauncher
from dist_testing.ext import AddOn, Isolation

ADD_ON = AddOn(name="redis", ext_version=1, isolations={"cell": "redis_declared:CELL"})
CELL = Isolation(NAME, ForkServerLauncher)
"""


def test_an_add_on_brings_an_isolation(install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, each repository that uses the package needs a conftest.py for it."""
    monkeypatch.setattr(isolation, "_registered", dict(isolation._registered))
    install(_ISOLATION.replace("NAME", '"cell"'))
    assert "cell" in isolation_names()
    assert isolation_named("cell") is sys.modules["redis_declared"].CELL


def test_an_isolation_of_another_name_is_the_add_ons_fault(install: Callable[..., None]) -> None:
    """If this fails, a name that the help shows cannot be used."""
    install(_ISOLATION.replace("NAME", '"box"'))
    with pytest.raises(AddOnError, match=r"Add-on 'redis': the import of its isolation 'cell' .*the name 'box'"):
        isolation_named("cell")


def test_a_missing_add_on_is_named() -> None:
    """If this fails, a case that needs a folder which was deleted fails somewhere inside the core."""
    with pytest.raises(AddOnError, match=r"^nodes = 2: the add-on 'absent' is missing.\nThis dist_testing has .*huge"):
        add_on_named("absent", "nodes = 2")


def test_names_that_users_write() -> None:
    """If this fails, the documented interface cannot be imported, or `world.world_size` asks for an add-on."""
    assert all(getattr(ext, name) is not None for name in ext.__all__)
    with pytest.raises(AttributeError, match=r"^world\.world_size: .*\n.*\nUse world\.size\.$"):
        assert World.__new__(World).world_size  # type: ignore[attr-defined]


def test_only_unexpected_errors_are_blamed() -> None:
    """If this fails, a skip or an error that was written for the user is told as a bug of an add-on."""
    with pytest.raises(UsageError, match="planted"), blaming("redis", "its watcher"):
        raise UsageError("planted")
    said = "Add-on 'redis': its watcher raised ValueError: planted"
    with pytest.raises(AddOnError, match=said) as caught, blaming("redis", "its watcher"):
        raise ValueError("planted")
    assert isinstance(caught.value.__cause__, ValueError)


def test_part_that_raises_names_its_add_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the traceback of a stranger's add-on looks like a bug of this library."""
    broken = AddOn(name="broken", ext_version=EXT_VERSION, more={"room": "math:sqrt"})
    monkeypatch.setattr(add_ons_module, "add_ons", lambda: (broken,))
    assert list(call_parts("other", -1)) == []
    assert list(call_parts("room", 4)) == [(broken, 2.0)]
    with pytest.raises(AddOnError, match="Add-on 'broken': its part 'room' raised ValueError"):
        list(call_parts("room", -1))


def test_a_sink_without_a_session_is_told_when_to_subscribe(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a conftest that subscribes too early ends in an AttributeError of ours."""
    monkeypatch.setattr(session, "_sessions", [])
    monkeypatch.setattr(session, "open_offered_session", lambda: None)
    with pytest.raises(UsageError, match="trylast=True"):
        event_stream()


def test_a_session_in_a_session_takes_back_only_its_own_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a test that runs pytest in its process costs later classes the session's options and records."""
    monkeypatch.setattr(offered_session, "_offered", {})
    opened: list[str] = []
    for name in ("outer", "inner"):
        offered_session.offer_session(name, functools.partial(opened.append, name))
    offered_session.withdraw_session("inner")
    offered_session.open_offered_session()
    assert opened == ["outer"]


class _FrontEnd:
    def __init__(self, config: object, items: object) -> None:
        self.made_of = config, items


def test_a_case_gets_the_front_end_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, a stranger's kind of test runs by another front end, or by none."""
    monkeypatch.setattr(front_ends, "_registered", {})
    register_front_end("own", f"{__name__}:_FrontEnd")
    # The module can be imported twice, as in a fresh interpreter.
    register_front_end("own", f"{__name__}:_FrontEnd")
    made = make_front_end("own", "config", {})
    assert isinstance(made, _FrontEnd)
    assert made.made_of == ("config", {})
    # Not by the order of imports, and not with a traceback.
    with pytest.raises(UsageError, match=f"registered twice: by {__name__}:_FrontEnd and by other:Maker"):
        register_front_end("own", "other:Maker")
    with pytest.raises(UsageError, match="has the front end 'other', and this rank knows own"):
        make_front_end("other", None, {})
