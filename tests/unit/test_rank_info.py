"""Rank info: what torchrun's variables say about this process."""

from __future__ import annotations

import pytest

from dist_testing.attach.launchers import rank_info_in
from dist_testing.attach.rank_info import RankInfo
from dist_testing.core.ground.errors import UsageError

_GIVEN = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RUN_ID": "run",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_without_rank_there_is_no_world() -> None:
    """If this fails, the library attaches to a world that does not exist instead of starting its own ranks."""
    assert rank_info_in({name: value for name, value in _GIVEN.items() if name != "RANK"}) is None


def test_torchruns_variables_are_read() -> None:
    """If this fails, a restarted world finds keys in the store that an earlier attempt left there."""
    assert rank_info_in(_GIVEN) == RankInfo(1, 4, "localhost", 29500, is_served=True, attempt="run/2", local_size=4)


def test_variables_set_by_hand_are_enough() -> None:
    """If this fails, a user who sets the four variables of `env://` by hand gets no world. Rank 0 serves the store."""
    by_hand = {name: _GIVEN[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    assert rank_info_in(by_hand) == RankInfo(1, 4, "localhost", 29500, is_served=False, attempt="/0")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"WORLD_SIZE": None}, "RANK=1 is set without WORLD_SIZE."),
        ({"MASTER_ADDR": None, "MASTER_PORT": None}, "RANK=1 is set without MASTER_ADDR, MASTER_PORT."),
        ({"RANK": "4"}, "RANK='4': expected a number from 0 to 3."),
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"RANK": ""}, "RANK=''"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0': expected a number from 1 to"),
        ({"WORLD_SIZE": "four"}, "WORLD_SIZE='four'"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT='65536': expected a number from 1 to 65535."),
    ],
)
def test_contradictory_variables_are_a_clear_error(changed: dict[str, str | None], said: str) -> None:
    """If this fails, contradictory variables cause a traceback or a hang instead of a three-line error."""
    given = {name: value for name, value in {**_GIVEN, **changed}.items() if value is not None}
    with pytest.raises(UsageError) as caught:
        rank_info_in(given)
    text = str(caught.value)
    assert text.startswith(said)
    assert len(text.splitlines()) == 3
