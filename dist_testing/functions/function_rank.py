"""Calls the function of `dist_testing.run` on a rank, and brings what it returns to the caller as data.

The caller runs no code that a rank has sent.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from dist_testing.core.ground.case import CaseBody
from dist_testing.core.ground.error_text import message_of, summarise
from dist_testing.core.ground.errors import UsageError
from dist_testing.core.launch.fresh import ThenBe
from dist_testing.core.process.launcher_messages import RankStart
from dist_testing.core.rank.rank_world import RankWorld
from dist_testing.core.rank.reporter import Reporter
from dist_testing.core.unittest.plain import import_main
from dist_testing.core.unittest.unittest_rank import pytest_skip_class

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Call = Callable[[], Any]
# The file with the call, in its folder, for ranks that are fresh interpreters.
CALL_FILE = "call"
# The folder of this library.
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
# Values in containers are searched to this depth for the one that cannot travel.
_MAX_DEPTH = 20
# Types of values that can travel in any case.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CAUSE = (
    "Values come back as data: tensors, numbers, strings, bytes, None, and lists, tuples, dicts and sets of them. "
    "Objects of other classes would need code of the rank."
)


class CallRankContext:
    """The rank context of a call: the function itself, where ranks are forked from its process; else its file."""

    def __init__(self, call: Call | None = None) -> None:
        """Make the context. Without `call` the ranks are fresh interpreters, and read the call from a file."""
        self._call = call

    def prepare(self) -> None:
        """Load torch, so that each rank need not."""
        importlib.import_module("torch.distributed")

    def front_end(self, body: CaseBody) -> CallRankFrontEnd:
        """Return the only front end there is."""
        return CallRankFrontEnd(self._call)

    def in_process_front_ends(self, body: CaseBody, world_size: int) -> Sequence[CallRankFrontEnd]:
        """Return one for each rank; they share the store."""
        from torch._C._distributed_c10d import HashStore

        store = HashStore()
        return [CallRankFrontEnd(self._call, store) for _ in range(world_size)]


class CallRankFrontEnd:
    """Calls one function, once."""

    def __init__(self, call: Call | None, store: Store | None = None) -> None:
        self._call = call
        self._store = store
        self._rank = -1
        self._world: RankWorld | None = None

    def open(self, start: RankStart, reporter: Reporter) -> None:
        """Make the default group."""
        reporter.phase("init")
        self._rank = start.rank
        self._world = RankWorld.of(start, self._store, runner=reporter.runner)
        self._world.prepare()

    def run(self, body: CaseBody, reporter: Reporter) -> None:
        """Call the function, and write its value."""
        reporter.phase("call")
        given = json.loads(body.content)
        # The caller has written it, for its own ranks.
        call = pickle.loads(Path(given["folder"], CALL_FILE).read_bytes()) if self._call is None else self._call
        try:
            value = call()
        except BaseException as error:
            if isinstance(error, pytest_skip_class()):
                reporter.skipped(message_of(error))
                return
            reporter.ended_by(error.with_traceback(_own_part(error.__traceback__)))
            return
        # A process that the function has forked has no value of the rank.
        if not reporter.is_forked:
            write_value(value, given["name"], given["folder"], self._rank)

    def finish(self) -> None:
        """Destroy the groups."""
        assert self._world is not None
        self._world.finish()


def _own_part(where: TracebackType | None) -> TracebackType | None:
    """Return a traceback without its first entries, of this library, if others follow them."""
    rest = where
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        rest = rest.tb_next
    return where if rest is None else rest


def load(state: str, then: ThenBe, test: str | None) -> NoReturn:
    """Import the caller's main module, which `state` names; reading the call imports the module of its function."""
    import_main(state)
    then(CallRankContext())


def value_file(folder: str | Path, rank: int) -> Path:
    """Return the file that takes the value of a rank."""
    return Path(folder, f"value-{rank}")


def write_value(value: object, name: str, folder: str, rank: int) -> None:
    """Write what the function `name` has returned on this rank, for the caller; refuse what cannot travel as data."""
    # Most functions return nothing, and no file says so.
    if value is None:
        return
    try:
        content = _packed(value)
    except Exception as error:
        place, found = _culprit("", value, _MAX_DEPTH)
        # torch's text about its own files would mislead.
        why = "" if isinstance(error, pickle.UnpicklingError) else f": {' '.join(summarise(error).split())}"
        raise UsageError(
            f"run({name}): rank {rank} has returned a value{f' with {place}' if place else ''} of type "
            f"{_type_name(found)}, which cannot travel to the caller{why or '.'}\n{_CAUSE}\n{_advice(found)}"
        ) from None
    value_file(folder, rank).write_bytes(content)


def read_value(folder: str | Path, rank: int) -> Any:
    """Return the value of a rank that has passed; its tensors are on the CPU. A damaged file raises any exception."""
    path = value_file(folder, rank)
    return _read(path) if path.exists() else None


def _packed(value: object) -> memoryview:
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    # What fails in the caller fails here, on the rank that is to blame.
    _read(buffer)
    return buffer.getbuffer()


def _read(file: Path | io.BytesIO) -> Any:
    import torch

    return torch.load(file, weights_only=True, map_location="cpu")


def _culprit(place: str, value: object, depth: int) -> tuple[str, object]:
    """Return the place and the object that cannot travel: the first one inside containers, else the whole value."""
    for inner_place, inner in _items(place, value) if depth else ():
        # An attempt takes some 100 us, and a list may have a million numbers.
        if type(inner) not in _PLAIN:
            try:
                _packed(inner)
            except Exception:
                return _culprit(inner_place, inner, depth - 1)
    return place, value


def _items(place: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield what is in a container, with its place."""
    if isinstance(value, dict) and type(value) in (dict, OrderedDict):
        for key, inner in value.items():
            yield f"{place} key {key!r:.60}".strip(), key
            yield f"{place}[{key!r:.60}]", inner
    elif isinstance(value, set) and type(value) is set:
        for inner in value:
            yield f"{place} member".strip(), inner
    elif isinstance(value, list | tuple) and type(value) in (list, tuple):
        for index, inner in enumerate(value):
            yield f"{place}[{index}]", inner


def _type_name(value: object) -> str:
    cls = type(value)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _advice(value: object) -> str:
    if type(value).__module__.partition(".")[0] == "numpy":
        return "Return torch.from_numpy(array) for an array, or value.item() for a number of numpy."
    if hasattr(value, "state_dict"):
        return "Return value.state_dict() in its place."
    if isinstance(value, Mapping):
        return "Return dict(value) in its place."
    return "Return its parts that are data, or write it to a file of the rank."
