"""Packs the data of the page: all cases with their ranks, and whole logs, compressed in one block of the HTML.

The browser unpacks it when it is needed. The page's sections do not need it.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Sequence

from dist_testing.error_text import shorten
from dist_testing.report.facts import headline
from dist_testing.report.markup import clean
from dist_testing.report.model import CaseRecord, RankRecord, RunRecord

# Compressed logs of one page. Further logs are named by their place. Bytes.
_MAX_LOGS_BYTES = 1_500_000
_MAX_MESSAGE_CHARS = 300
_MAX_NAME_CHARS = 1000
# Ranks of one case with their times; the others are counted.
_MAX_RANKS = 64


class Packer:
    """Collects the data of a page."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._cases: list[list[object]] = []
        self._logs: dict[str, int] = {}
        self._logs_bytes = 0

    def log(self, text: str) -> int | None:
        """Add a log.

        Returns:
            Its number; None if there is no room for it.
        """
        if text in self._logs:
            return self._logs[text]
        # An estimate is enough for a limit.
        bytes_ = len(zlib.compress(text.encode("utf-8", errors="replace"), 1))
        if self._logs_bytes + bytes_ > _MAX_LOGS_BYTES:
            return None
        self._logs_bytes += bytes_
        self._logs[text] = len(self._logs)
        return self._logs[text]

    def case(self, run: RunRecord, case: CaseRecord, anchor: str) -> None:
        """Add a case to the table of all cases.

        Args:
            run: Its run.
            case: The case.
            anchor: Anchor of its failure in the page; "" if it has none.
        """
        self._cases.append(
            [
                self._text(shorten(case.name, _MAX_NAME_CHARS)),
                self._text(shorten(run.target, _MAX_NAME_CHARS)),
                self._text(case.status),
                self._text(shorten(run.backend, 100)),
                min(case.world_size, 1 << 31),
                case.culprit if case.culprit is None else min(case.culprit, 1 << 31),
                _millis(case.duration_s),
                self._text(shorten(headline(run, case), _MAX_MESSAGE_CHARS)),
                self._text(run.part),
                self._text(shorten(case.cause, 100)),
                self._text(anchor),
                self._text("cached" if run.cached else ""),
                self._ranks(case),
            ]
        )

    def _ranks(self, case: CaseRecord) -> list[object]:
        begin = case.began_at_s
        if begin is None:
            return []
        return [self._rank(rank, begin) for rank in case.ranks[:_MAX_RANKS]]

    def _rank(self, rank: RankRecord, begin_s: float) -> list[object]:
        # Outcome and phases as texts, because most ranks of most cases have the same; then the ends of the phases, each
        # relative to the one before. Milliseconds.
        first_s = rank.phases[0].begin_s if rank.phases else begin_s
        names = ",".join([phase.name for phase in rank.phases])
        marks = [_millis(first_s - begin_s), *[_millis(phase.end_s - phase.begin_s) for phase in rank.phases]]
        return [
            rank.rank,
            self._text(rank.outcome),
            self._text(shorten(rank.description, 200)),
            self._text(names),
            *marks,
        ]

    def _text(self, value: str) -> int:
        return self._texts.setdefault(value, len(self._texts))

    @property
    def case_count(self) -> int:
        """Number of cases."""
        return len(self._cases)

    def packed(self) -> str:
        """Return the data, compressed and in base64."""
        data = {
            "texts": _shown(list(self._texts)),
            "cases": self._cases,
            "logs": _shown(list(self._logs)),
        }
        content = json.dumps(data, separators=(",", ":")).encode()
        # Without a time of making, so that equal results are equal pages.
        return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode()


def _shown(texts: Sequence[str]) -> list[str]:
    return [clean(value) for value in texts]


def _millis(seconds: float) -> int:
    return round(seconds * 1000) if -1e9 < seconds < 1e9 else 0
