"""Packs the data of the page: all cases with their ranks, and whole logs, compressed in one block of the HTML.

The browser unpacks it when it is needed. The page's sections do not need it.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence

from dist_testing.core.ground.error_text import shorten
from dist_testing.core.ground.record import CaseRecord, RankRecord
from dist_testing.report.facts import headline
from dist_testing.report.markup import clean
from dist_testing.report.model import RunRecord

# Bytes of the end of the compressed data.
_END_BYTES = 64
_LEVEL = 6
# Makes zlib use the gzip format, without a time of making: equal results are equal pages.
_GZIP_WINDOW = 31
_MAX_MESSAGE_CHARS = 300
_MAX_NAME_CHARS = 1000
# A damaged file may have any number. Seconds.
_MAX_MARK_S = 1e9
# Ranks of one case with their times; the others are counted.
_MAX_RANKS = 64


class Packer:
    """Collects the data of a page."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        # Outcome, description and phases of a rank -> their numbers.
        self._rank_texts: dict[tuple[str, str, str], list[int]] = {}
        self._cases: list[list[object]] = []
        self._logs: dict[str, int] = {}

    def log(self, text: str) -> int:
        """Add a log, and return its number. Of the logs that do not fit, the page has only what it shows itself."""
        return self._logs.setdefault(text, len(self._logs))

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
        return [self._rank(rank) for rank in case.ranks[:_MAX_RANKS]]

    def _rank(self, rank: RankRecord) -> list[object]:
        # Outcome and phases as texts, because most ranks of most cases have the same; then the ends of the phases, each
        # relative to the one before. Milliseconds.
        first_s = rank.phases[0].begin_s if rank.phases else 0.0
        names = ",".join([name for name, _, _ in rank.phases])
        spans = [first_s, *[end_s - phase_s for _, phase_s, end_s in rank.phases]]
        if -_MAX_MARK_S < min(spans) and max(spans) < _MAX_MARK_S:
            marks = [round(span * 1000) for span in spans]
        else:
            marks = [_millis(span) for span in spans]
        key = (rank.outcome, rank.description, names)
        texts = self._rank_texts.get(key)
        if texts is None:
            texts = [self._text(rank.outcome), self._text(shorten(rank.description, 200)), self._text(names)]
            self._rank_texts[key] = texts
        return [rank.rank, *texts, *marks]

    def _text(self, value: str) -> int:
        return self._texts.setdefault(value, len(self._texts))

    @property
    def case_count(self) -> int:
        """Number of cases."""
        return len(self._cases)

    def packed(self, limit_bytes: int) -> str:
        """Return the data, compressed and in base64.

        Args:
            limit_bytes: Limit of what is returned. The cases are always there; the first logs fill the rest.
        """
        packer = zlib.compressobj(_LEVEL, wbits=_GZIP_WINDOW)
        start = json.dumps({"texts": _shown(list(self._texts)), "cases": self._cases}, separators=(",", ":"))
        parts = [packer.compress(f'{start[:-1]},"logs":['.encode()), packer.flush(zlib.Z_SYNC_FLUSH)]
        # Base64 makes four bytes of three.
        left = limit_bytes * 3 // 4 - sum(map(len, parts)) - _END_BYTES
        for number, text in enumerate(self._logs):
            more = f"{',' if number else ''}{json.dumps(clean(text))}".encode()
            before = packer.copy()
            part = packer.compress(more) + packer.flush(zlib.Z_SYNC_FLUSH)
            if len(part) > left:
                packer = before
                break
            left -= len(part)
            parts.append(part)
        parts.append(packer.compress(b"]}") + packer.flush())
        return base64.b64encode(b"".join(parts)).decode()


def _shown(texts: Sequence[str]) -> list[str]:
    return [clean(value) for value in texts]


def _millis(seconds: float) -> int:
    return round(seconds * 1000) if -_MAX_MARK_S < seconds < _MAX_MARK_S else 0
