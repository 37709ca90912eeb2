"""Reads the errors of torch's debug wrapper of a process group back into values.

The wrapper reports two kinds of misuse. It finds a rank that does not arrive by a barrier before the collective.
It finds ranks with different collectives by comparing *fingerprints*: sequence number, operation, and the compared
tensors' shapes, dtypes and device types. The functions here turn both texts into values, so that a test can check a
whole message.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

# The wrapper prints C++ names of dtypes.
_DTYPE_NAMES = {torch.float32: "Float", torch.int64: "Long"}

_MISMATCH = re.compile(
    r"Detected mismatch between collectives on ranks\. "
    r"Rank (?P<rank>\d+) is running collective: (?P<own>CollectiveFingerPrint\(.+?\)), "
    r"but Rank (?P<peer>\d+) is running collective: (?P<theirs>CollectiveFingerPrint\(.+?\))\."
    r"(?:Collectives differ in the following aspects:(?P<differences>[^\n]*))?"
)

# Without tensors torch leaves out the comma between number and operation.
_FINGERPRINT = re.compile(
    r"CollectiveFingerPrint\(SequenceNumber=(?P<sequence>\d+)(?:, )?OpType=(?P<op>\w+)"
    r"(?:, TensorShape=\[(?P<shape>[\d, ]*)\]"
    r", TensorDtypes=(?P<dtypes>.+?), TensorDeviceTypes=(?P<devices>.+))?\)"
)

# A value may touch the "vs" after it; two spaces or a tab separate the aspects.
_DIFFERENCE = re.compile(
    r"(?P<aspect>Sequence number|Op type|shapes|dtypes|devices): "
    r"(?P<own>.*?)\s*vs (?P<theirs>.*?)(?=\s{2}|\t|$)"
)

_MISSING = re.compile(
    r"\[Rank 0\]: Ranks? (?P<ranks>\d+(?:, ?\d+)*) failed to pass monitoredBarrier "
    r"in (?P<timeout>\d+) ms"
)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """One rank's collective, as the wrapper names it."""

    sequence: int  # how many collectives the group ran before this one
    op: str  # in torch's upper-case spelling, for example `ALLREDUCE`
    shape: tuple[int, ...] | None  # of the first compared tensor; None where no tensor is compared
    dtypes: tuple[str, ...]  # C++ name of the dtype of each compared tensor
    device_types: tuple[str, ...]  # of each compared tensor, without an index

    @classmethod
    def of(cls, sequence: int, op: str, tensors: tuple[torch.Tensor, ...]) -> Fingerprint:
        """Return the fingerprint that the wrapper must print for a collective that compares these tensors.

        The dtypes are float32 and int64.
        """
        return cls(
            sequence=sequence,
            op=op,
            shape=tuple(tensors[0].shape) if tensors else None,
            dtypes=tuple(_DTYPE_NAMES[tensor.dtype] for tensor in tensors),
            device_types=tuple(tensor.device.type for tensor in tensors),
        )

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Read a printed fingerprint; raise AssertionError for another text."""
        match = _FINGERPRINT.fullmatch(text)
        assert match, f"not a fingerprint of a collective:\n{text}"
        shape = match["shape"]
        return cls(
            sequence=int(match["sequence"]),
            op=match["op"],
            shape=None if shape is None else tuple(int(n) for n in re.findall(r"\d+", shape)),
            dtypes=tuple(re.findall(r"\w+", match["dtypes"] or "")),
            device_types=tuple(name.lower() for name in re.findall(r"\b(?i:cpu|cuda)\b", match["devices"] or "")),
        )


@dataclass(frozen=True, slots=True)
class MismatchReport:
    """The wrapper's error on one rank about collectives that differ."""

    rank: int  # the rank that reports the error
    own: Fingerprint  # the collective of that rank
    peer: int  # a rank with another collective
    theirs: Fingerprint  # that of the peer; only correct if `descriptions_are_comparable` holds for the two
    differences: dict[str, tuple[str, str]]  # aspect -> (own value, the peer's value), in torch's words

    @classmethod
    def parse(cls, message: str) -> MismatchReport:
        """Read an error message of the wrapper; raise AssertionError for another text."""
        match = _MISMATCH.search(message)
        assert match, f"not a report of mismatched collectives:\n{message}"
        return cls(
            rank=int(match["rank"]),
            own=Fingerprint.parse(match["own"]),
            peer=int(match["peer"]),
            theirs=Fingerprint.parse(match["theirs"]),
            differences={
                found["aspect"]: (found["own"], found["theirs"])
                for found in _DIFFERENCE.finditer(match["differences"] or "")
            },
        )


def descriptions_are_comparable(mine: tuple[torch.Tensor, ...], theirs: tuple[torch.Tensor, ...]) -> bool:
    """Return whether torch can describe the other rank's collective, by the compared tensors of both.

    The ranks exchange the lengths of their serialized fingerprints before the fingerprints. Where the lengths differ,
    torch stops there and prints the peer's length decoded as if it were a fingerprint. Only the peer's rank number is
    then correct.
    """
    return _serialized_length(mine) == _serialized_length(theirs)


def expected_differences(mine: Fingerprint, theirs: Fingerprint) -> dict[str, tuple[str, str]]:
    """Return the aspects that torch must name for two comparable collectives, with both values.

    Empty if they differ in nothing that torch prints, for example in the shape of a second tensor.
    """
    values = {
        "Op type": (mine.op, theirs.op),
        "shapes": (_spaced(mine.shape or ()), _spaced(theirs.shape or ())),
        "dtypes": (_spaced(mine.dtypes), _spaced(theirs.dtypes)),
    }
    return {aspect: pair for aspect, pair in values.items() if pair[0] != pair[1]}


def assert_names_missing_ranks(message: str, missing: list[int], *, timeout_s: float) -> None:
    """Check that rank 0's error names exactly the ranks that did not arrive, and the wrapper's limit in seconds."""
    match = _MISSING.search(message)
    assert match, f"rank 0 does not say which ranks failed to pass monitoredBarrier:\n{message}"
    named = [int(rank) for rank in match["ranks"].split(",")]
    assert_same("the ranks that did not come", missing, named, message)
    assert_same("the limit in ms", timeout_s * 1000, int(match["timeout"]), message)


def assert_points_to_rank_0(message: str, rank: int) -> None:
    """Check the error of a rank that arrived while others did not.

    Only rank 0 knows which ranks are missing. The other ranks get a reference to rank 0, unless rank 0 gave up first,
    which closes their connections to it.
    """
    to_rank_0 = (
        f"Rank {rank} successfully reached monitoredBarrier, but received errors while waiting "
        "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
    )
    accepted = (to_rank_0, "Connection closed by peer", "Connection reset by peer")
    assert any(text in message for text in accepted), (
        f"rank {rank} neither points to rank 0 nor reports a closed connection:\n{message}"
    )


def assert_same(what: str, expected: object, actual: object, message: str) -> None:
    """Check one statement of a message, in words. pytest explains no comparison outside test files."""
    assert expected == actual, f"{what}: expected {expected}, got {actual}, from\n{message}"


def _serialized_length(tensors: tuple[torch.Tensor, ...]) -> int:
    """Return how many numbers describe the tensors: dtype, device type and dimension count each, and the sizes."""
    return sum(3 + tensor.dim() for tensor in tensors)


def _spaced(values: tuple[int, ...] | tuple[str, ...]) -> str:
    return " ".join(str(value) for value in values)
