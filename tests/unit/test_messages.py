"""Every message between the processes of a run: what is written can be read, and nothing else can."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from dist_testing.attach import attach_messages
from dist_testing.core.ground.codec import MAX_MESSAGE_BYTES, Family
from dist_testing.core.ground.error_text import MAX_TEXT_CHARS, shorten
from dist_testing.core.ground.errors import FrameError, MessageError
from dist_testing.core.ground.outcomes import Kind, RankOutcome, ReportDetails
from dist_testing.core.process import launcher_messages, rank_messages
from dist_testing.core.process.rank_messages import MAX_FRAME_BYTES, RANK_MESSAGES, RankReport
from dist_testing.core.unittest.unittest_messages import UNITTEST_CASES

SETTINGS = settings(
    derandomize=True, database=None, deadline=None, max_examples=25, suppress_health_check=list(HealthCheck)
)
FAMILIES: tuple[Family[Any], ...] = (
    *(
        value
        for module in (launcher_messages, rank_messages, attach_messages)
        for value in vars(module).values()
        if isinstance(value, Family)
    ),
    UNITTEST_CASES,
)
# Every message of the library, by the way that it travels.
MESSAGES = [pytest.param(family, cls, id=cls.__name__) for family in FAMILIES for cls in family.messages]
# Every code point, surrogates too: a test may raise whatever it reads from somewhere.
TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=10)
WRONG: dict[str, Any] = {
    "null": None,
    "bool": True,
    "float": 1.5,
    "not a number": math.nan,
    "infinite": math.inf,
    "huge": 10**400,
    "negative": -(1 << 62),
    "text": "what",
    "list": [[]],
    "object": {"": []},
    # Python's own text of it, for the error, would need as many calls as it is deep.
    "deep": json.loads("[" * 500 + "]" * 500),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that fit an annotation: this is not how the codec reads annotations, but what they mean."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return st.integers(arguments[1].start, arguments[1].stop - 1)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([values_of(argument) for argument in arguments])
    if origin is tuple and arguments[-1] is not ...:
        return st.tuples(*map(values_of, arguments))
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=3).map(tuple)
    if origin in (dict, Mapping):
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=3)
    if dataclasses.is_dataclass(annotation):
        return instances_of(annotation)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: TEXT,
        bool: st.booleans(),
        int: st.integers(-(1 << 63), (1 << 63) - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
        types.NoneType: st.none(),
    }
    return simple[annotation]


def instances_of(cls: Any) -> st.SearchStrategy[Any]:
    """Instances of a dataclass, with anything in every field that its annotation allows."""
    hints = get_type_hints(cls, include_extras=True)
    fields = {field.name: values_of(hints[field.name]) for field in dataclasses.fields(cls)}

    return st.fixed_dictionaries(fields).map(lambda values: _consistent(cls, values))


@functools.cache
def sample(cls: Any) -> Any:
    """A message of this class."""
    return find(instances_of(cls), lambda _: True, settings=settings(SETTINGS, phases=[Phase.generate]))


def _consistent(cls: Any, values: dict[str, Any]) -> Any:
    if cls is RankReport:
        values["exit_code"] = (values["exit_code"] or 0) if values["kind"] is Kind.EXITED else None
    return cls(**values)


def fits(annotation: Any, value: Any) -> bool:
    """Whether a JSON value is one that the annotation allows."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return type(value) is int and arguments[1].start <= value < arguments[1].stop
    if origin is Literal:
        return value in [one.value if isinstance(one, enum.Enum) else one for one in arguments]
    if origin in (Union, types.UnionType):
        return any(fits(argument, value) for argument in arguments)
    if origin is tuple and arguments[-1] is not ...:
        return type(value) is list and len(value) == len(arguments) and all(map(fits, arguments, value))
    if origin is tuple:
        return type(value) is list and all(fits(arguments[0], one) for one in value)
    if origin in (dict, Mapping):
        return type(value) is dict and all(fits(arguments[1], one) for one in value.values())
    if annotation is float:
        return type(value) in (int, float) and abs(value) < 2**1000
    if annotation is int:
        return type(value) is int and abs(value) < 2**63
    return not dataclasses.is_dataclass(annotation) and type(value) is annotation


def content_of(family: Family[Any], cls: Any) -> dict[str, Any]:
    """A message of this class, as parsed JSON."""
    content: dict[str, Any] = json.loads(family.to_wire(sample(cls)))
    return content


def read(family: Family[Any], content: object) -> Any:
    """What the other process makes of this JSON."""
    return family.from_wire(json.dumps(content).encode())


def test_every_family_has_a_name_of_its_own() -> None:
    """An error names the family; and a list that misses one would leave it untested."""
    assert len({family.name for family in FAMILIES}) == len(FAMILIES) >= 7


@pytest.mark.parametrize(("family", "cls"), MESSAGES)
@SETTINGS
@given(st.data())
def test_every_message_arrives_as_it_was_sent(family: Family[Any], cls: Any, data: st.DataObject) -> None:
    """Every field of it: the other process knows nothing else."""
    message = data.draw(instances_of(cls))
    received = family.from_wire(family.to_wire(message))
    assert type(received) is cls
    assert received == message


@pytest.mark.parametrize(("family", "cls"), MESSAGES)
def test_other_fields_than_those_of_the_message_are_refused_by_name(family: Family[Any], cls: Any) -> None:
    """The sender meant something by a field that the reader does not know, and half a message is no message."""
    content = content_of(family, cls)
    subject = f"^{family.name}: {cls.__name__}:"
    with pytest.raises(MessageError, match=f"{subject} unknown field .*'extra'"):
        read(family, {**content, "extra": 1})
    names = content.keys() - {"schema", "message"}
    assert names == {field.name for field in dataclasses.fields(cls)}
    for name in names:
        with pytest.raises(MessageError, match=f"{subject} missing field .*'{name}'"):
            read(family, {key: value for key, value in content.items() if key != name})


@pytest.mark.parametrize(("family", "cls"), MESSAGES)
@pytest.mark.parametrize("wrong", WRONG)
def test_a_value_of_another_type_is_refused(family: Family[Any], cls: Any, wrong: str) -> None:
    """Everything behind the reader relies on the annotations."""
    hints = get_type_hints(cls, include_extras=True)
    content, value = content_of(family, cls), WRONG[wrong]
    for field in dataclasses.fields(cls):
        changed = {**content, field.name: value}
        if fits(hints[field.name], value):
            assert getattr(read(family, changed), field.name) == (value if type(value) is not list else (value,))
        else:
            with pytest.raises(MessageError, match=f"^{family.name}: {cls.__name__}: {field.name} = ") as caught:
                read(family, changed)
            assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(("family", "cls"), MESSAGES)
@pytest.mark.parametrize("step", [1, -1, 10**9])
def test_another_schema_is_refused_with_both_numbers_and_the_way_out(family: Family[Any], cls: Any, step: int) -> None:
    """Whatever else is different: two versions may mean different things by the same field."""
    other = family.schema + step
    expected = (
        rf"^{family.name}: .*schema {other} .*schema {family.schema}\.\n.*\nRun every process of the run in the same"
    )
    for content in (content_of(family, cls), {"message": "of the future", "field": []}):
        with pytest.raises(MessageError, match=expected):
            read(family, {**content, "schema": other})


@pytest.mark.parametrize(("family", "cls"), MESSAGES)
def test_a_message_beyond_the_limit_is_neither_sent_nor_read(family: Family[Any], cls: Any) -> None:
    """A process that went mad does not fill the memory of another one."""
    payload = family.to_wire(sample(cls))
    exact: Family[Any] = Family("it", family.schema, family.messages, max_bytes=len(payload))
    assert exact.from_wire(exact.to_wire(sample(cls))) == sample(cls)
    small: Family[Any] = Family("it", family.schema, family.messages, max_bytes=len(payload) - 1)
    expected = f"it: a message of {len(payload)} bytes; the limit is {len(payload) - 1}"
    with pytest.raises(MessageError, match=expected):
        small.to_wire(sample(cls))
    with pytest.raises(MessageError, match=expected):
        small.from_wire(payload)


@pytest.mark.parametrize(("family", "cls"), MESSAGES)
def test_a_message_that_is_cut_off_anywhere_is_refused(family: Family[Any], cls: Any) -> None:
    """Half a message is never another message."""
    payload = family.to_wire(sample(cls))
    for length in range(len(payload)):
        with pytest.raises(MessageError, match="not JSON"):
            family.from_wire(payload[:length])


@pytest.mark.parametrize(("family", "cls"), MESSAGES)
@SETTINGS
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_a_damaged_message_is_a_message_or_an_error(family: Family[Any], cls: Any, position: int, byte: int) -> None:
    """Any other exception would be a traceback of ours."""
    payload = bytearray(family.to_wire(sample(cls)))
    payload[position % len(payload)] = byte
    try:
        message = family.from_wire(payload)
    except MessageError:
        return
    assert type(message) in family.messages


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"\x80\x04K\x01.", "not JSON"),
        (b"{} {}", "not JSON"),
        # A family that anyone can send to has a limit below the length of these.
        (b"[" * 200_000, r"not JSON|the limit is 4096"),
        (b"9" * 5000 + b".", r"not JSON|the limit is 4096"),
        *((payload, "no message: ") for payload in (b"null", b"3", b'"Ready"', b"[]", b'["Ready"]', b"{}")),
        (b'{"schema":null}', "no message: "),
        (b'{"schema":true}', "no message: "),
    ],
    ids=lambda value: repr(value[:20]),
)
def test_what_is_no_message_is_refused(family: Family[Any], payload: bytes, said: str) -> None:
    """Whatever the parser makes of it, there is one error for it: a subject, a cause and a way out, one line each."""
    with pytest.raises(MessageError, match=f"^{family.name}: .*({said})") as caught:
        family.from_wire(payload)
    assert len(str(caught.value)) < 1000
    assert len(str(caught.value).splitlines()) == 3
    assert isinstance(caught.value, FrameError) is (family is RANK_MESSAGES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("name", [None, 3, ["Ready"], {"Ready": 1}, "ready", "Family", "__class__"], ids=repr)
def test_an_unknown_message_is_refused(family: Family[Any], name: object) -> None:
    """A message that is not understood could have meant a failure."""
    with pytest.raises(MessageError, match=f"^{family.name}: unknown message "):
        read(family, {"schema": family.schema, "message": name})


def test_a_number_that_json_does_not_have_is_not_sent() -> None:
    """It would be read as an error of the other process."""
    request = sample(launcher_messages.WorldRequest)
    endless = dataclasses.replace(request, settings=dataclasses.replace(request.settings, timeout_s=math.inf))
    with pytest.raises(MessageError, match=r"^order to the fork server: WorldRequest cannot be sent: .*not JSON"):
        launcher_messages.FORK_SERVER_ORDERS.to_wire(endless)


def test_the_longest_texts_fit_a_report_in_any_script() -> None:
    """A report that cannot be sent would be a crash; characters beyond 16 bits take twelve bytes in JSON."""
    text = shorten("\N{PILE OF POO}" * (MAX_TEXT_CHARS + 1))
    report = RankReport(Kind.RAISED, "call", reason=text, text=text)
    payload = RANK_MESSAGES.to_wire(report)
    assert len(payload) < MAX_FRAME_BYTES < MAX_MESSAGE_BYTES
    assert RANK_MESSAGES.from_wire(payload) == report


def test_what_a_rank_tells_is_what_the_runner_keeps() -> None:
    """A field of a report that the outcome drops would be missing in every verdict."""
    details = {field.name: object() for field in dataclasses.fields(ReportDetails)}
    outcome = RankOutcome.of(3, Kind.RAISED, 1.5, "call", ReportDetails(**details))  # type: ignore[arg-type]  # any values
    assert {name: getattr(outcome, name) for name in details} == details
    assert (outcome.rank, outcome.kind, outcome.at_s, outcome.phase) == (3, Kind.RAISED, 1.5, "call")
    assert issubclass(RankReport, ReportDetails)


@dataclasses.dataclass
class _Unreadable:
    value: set[int]


def test_a_dataclass_that_has_no_meaning_in_json_is_refused_at_once() -> None:
    """When its module is imported, and not when the first message is sent."""
    with pytest.raises(TypeError, match="messages do not support the annotation"):
        Family("it", 1, (_Unreadable,))
