"""The session of a unittest class: the pytest plugin's, or, under plain unittest, one that is made at first use."""

from __future__ import annotations

import atexit
import os

from dist_testing.attach.rank_info import RankInfo, rank_info_in
from dist_testing.backends import default_backend
from dist_testing.budget import Budget
from dist_testing.engine.engine import Engine
from dist_testing.errors import UsageError
from dist_testing.frontends import session
from dist_testing.frontends.session import Session, open_session
from dist_testing.frontends.unittest.fresh import unittest_loader
from dist_testing.frontends.unittest.on_rank import UnittestRankContext
from dist_testing.launch.isolation import default_isolation
from dist_testing.spec import DEFAULT_WORLD_SIZE, Spec

__all__ = ["current_session"]


def current_session() -> Session:
    """Return the current session; under plain unittest, one with the defaults of the command line."""
    if (current := session.current_session()) is None:
        backend = default_backend()
        spec = Spec("", backend, (DEFAULT_WORLD_SIZE,), backend.gpus_per_rank, default_isolation(backend).name)
        engine = Engine(spec, Budget(), UnittestRankContext(), unittest_loader())
        atexit.register(engine.close)
        current = Session(engine, float(backend.timeout_s), ignored_rank_info=_rank_info())
        open_session(current)
    return current


def _rank_info() -> RankInfo | None:
    try:
        return rank_info_in(os.environ)
    except UsageError:
        # RANK without the other variables, or an impossible one: there is no world.
        return None
