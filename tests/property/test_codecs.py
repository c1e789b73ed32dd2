"""Every record's bytes: what is written reads back the same, and what is not ours is refused in one known way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import records
from schemas.append import Answer, AnswerStatus, Submission, decode_answers, encode_answers
from schemas.records import (
    Attempt,
    Envelope,
    ErrorClass,
    Held,
    Job,
    JobDrop,
    JobPatch,
    JobStart,
    JobState,
    LimitChange,
    Outcome,
    OutcomeBatch,
    OutcomeKind,
    Page,
    PenEntry,
    Purge,
    Revival,
    Row,
    RowState,
    SinkTally,
)
from streams.local.frames import append_payload, read_append

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBER = st.integers(0, 2**63 - 1)
HEADERS = st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple)
ERROR = st.one_of(st.none(), TEXT)
CLASS = st.one_of(st.none(), st.sampled_from(ErrorClass))
BODY = st.binary(max_size=300)

ENVELOPE = st.builds(
    Envelope,
    id=TEXT,
    source_id=TEXT,
    tenant_id=TEXT,
    received_at=NUMBER,
    sinks=st.lists(TEXT, max_size=3).map(tuple),
    headers=HEADERS,
    content_type=st.one_of(st.none(), TEXT),
    idempotency_key=TEXT,
    dedupe_key=st.one_of(st.none(), TEXT),
    dedupe_ttl_ms=NUMBER,
    flagged=st.booleans(),
)
HELD = st.builds(
    Held,
    id=TEXT,
    source_id=TEXT,
    tenant_id=TEXT,
    received_at=NUMBER,
    method=TEXT,
    path=TEXT,
    headers=HEADERS,
    reason=TEXT,
    size_bytes=NUMBER,
)
ROW = st.builds(
    Row,
    state=st.sampled_from(RowState),
    tenant_id=TEXT,
    source_id=TEXT,
    sink_type=TEXT,
    at=NUMBER,
    size_bytes=NUMBER,
    attempts=NUMBER,
    generation=NUMBER,
    first_at=NUMBER,
    error=ERROR,
    error_class=CLASS,
    replay_id=ERROR,
)
OUTCOME = st.builds(
    Outcome,
    seq=NUMBER,
    sink=NUMBER,
    generation=NUMBER,
    kind=st.sampled_from(OutcomeKind),
    at=NUMBER,
    started_at=NUMBER,
    attempt=NUMBER,
    due_at=NUMBER,
    error=ERROR,
    error_class=CLASS,
    detail=ERROR,
)
TALLY = st.builds(SinkTally, moved=NUMBER, delivered=NUMBER, failed=NUMBER)
JOB = st.builds(
    Job,
    id=TEXT,
    kind=TEXT,
    state=st.sampled_from(JobState),
    filter=st.dictionaries(TEXT, st.one_of(TEXT, NUMBER, st.lists(TEXT, max_size=2)), max_size=3),
    rate=NUMBER,
    max_lag_ms=NUMBER,
    created_at=NUMBER,
    updated_at=NUMBER,
    sequence=NUMBER,
    finished_at=st.one_of(st.none(), NUMBER),
    cursor=st.one_of(st.none(), BODY),
    total=st.one_of(st.none(), NUMBER),
    tallies=st.dictionaries(TEXT, TALLY, max_size=2),
    held=st.lists(TEXT, max_size=2).map(tuple),
    error=ERROR,
    throttled=st.dictionaries(TEXT, NUMBER, max_size=2),
)
JOB_RECORD = st.one_of(
    st.builds(JobStart, job=JOB),
    st.builds(JobPatch, id=TEXT, at=NUMBER, state=st.one_of(st.none(), st.sampled_from(JobState)), error=ERROR),
    st.builds(JobDrop, id=TEXT, at=NUMBER),
)
OUTCOME_RECORD = st.one_of(
    st.builds(OutcomeBatch, items=st.lists(OUTCOME, max_size=3).map(tuple)),
    st.builds(
        Page,
        job_id=TEXT,
        at=NUMBER,
        cursor=BODY,
        scanned=NUMBER,
        skipped=NUMBER,
        revivals=st.lists(st.builds(Revival, seq=NUMBER, sink=NUMBER, generation=NUMBER), max_size=3).map(tuple),
        finished=st.booleans(),
        throttled=st.dictionaries(TEXT, NUMBER, max_size=2),
    ),
)
PURGE = st.builds(
    Purge,
    at=NUMBER,
    entries=st.lists(st.builds(PenEntry, received_at=NUMBER, id=TEXT, stored_bytes=NUMBER), max_size=3).map(tuple),
)
LIMIT = st.builds(
    LimitChange,
    tenant_id=TEXT,
    at=NUMBER,
    rate=st.one_of(st.none(), st.floats(allow_nan=False)),
    burst=st.one_of(st.none(), NUMBER),
)
ATTEMPT = st.builds(
    Attempt,
    kind=st.sampled_from(OutcomeKind),
    at=NUMBER,
    started_at=NUMBER,
    attempt=NUMBER,
    source_id=TEXT,
    sink_type=TEXT,
    error=ERROR,
    error_class=CLASS,
    detail=ERROR,
    replay_id=ERROR,
)

CODECS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "envelope": (records.decode_envelope, ENVELOPE),
    "held": (records.decode_held, HELD),
    "row": (records.decode_row, ROW),
    "job": (records.decode_job, JOB),
    "job record": (records.decode_job_record, JOB_RECORD),
    "outcome record": (records.decode_outcome_record, OUTCOME_RECORD),
    "purge": (records.decode_purge, PURGE),
    "limit": (records.decode_limit_change, LIMIT),
    "attempt": (records.decode_attempt, ATTEMPT),
}


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_what_is_written_reads_back_the_same(name: str, data: st.DataObject) -> None:
    decode, values = CODECS[name]
    value = data.draw(values)
    assert decode(records.encode(value)) == value


@pytest.mark.parametrize("name", CODECS)
@given(data=st.data())
def test_bytes_that_are_not_ours_are_refused_in_one_known_way(name: str, data: st.DataObject) -> None:
    """Any bytes, a record cut, and a record with one byte changed. Either it reads, or it is a DecodeError."""
    decode, values = CODECS[name]
    whole = records.encode(data.draw(values))
    place = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[place] ^= data.draw(st.integers(1, 255))
    for spoiled in (data.draw(st.binary(max_size=60)), whole[:place], bytes(changed)):
        try:
            decode(spoiled)
        except records.DecodeError:
            continue


@pytest.mark.parametrize("name", CODECS)
def test_nesting_without_end_is_refused_in_the_same_way(name: str) -> None:
    decode, values = CODECS[name]
    del values
    for spoiled in (b"\x91" * 100_000, b"\xdc\xff\xff" + b"\x91" * 100_000, b"\x81\xa6filter" + b"\x81\xa1a" * 100_000):
        with pytest.raises(records.DecodeError):
            decode(spoiled)


def test_an_envelope_with_a_nested_field_of_a_later_release_is_refused_in_the_same_way() -> None:
    """An array may be longer than this release knows; what is behind is passed over, but not down to any depth."""
    fields = [*msgspec.structs.astuple(Envelope("a", "b", "c", 1, (), (), None, "k")), 1, 2, 3]
    longer = bytearray(records.encode(fields))
    assert records.decode_envelope(bytes(longer)).id == "a"
    with pytest.raises(records.DecodeError):
        records.decode_envelope(bytes(longer[:-1]) + b"\x91" * 100_000)


HOOKS = st.lists(st.tuples(BODY, BODY), max_size=10)


@given(st.integers(0, 2**63), HOOKS)
def test_a_commit_reads_back_the_same(at: int, hooks: list[tuple[bytes, bytes]]) -> None:
    assert records.decode_commit(records.encode_commit(at, hooks)) == (at, hooks)


@given(st.binary(max_size=200), HOOKS, st.data())
def test_a_commit_that_is_not_one_is_refused(
    noise: bytes, hooks: list[tuple[bytes, bytes]], data: st.DataObject
) -> None:
    whole = records.encode_commit(1, hooks)
    for spoiled in (noise, whole[: data.draw(st.integers(0, len(whole) - 1))]):
        try:
            records.decode_commit(spoiled)
        except records.DecodeError:
            continue
        assert spoiled is noise


def test_a_commit_of_another_version_is_refused() -> None:
    record = records.encode_commit(1, [(b"a", b"b")])
    with pytest.raises(records.DecodeError, match="version 2"):
        records.decode_commit(b"\x02" + record[1:])


@given(BODY, BODY)
def test_a_stored_hook_reads_back_the_same(envelope: bytes, body: bytes) -> None:
    assert records.unframe_hook(records.frame_hook(envelope, body)) == (envelope, body)


@given(st.binary(max_size=60))
def test_a_stored_hook_that_is_not_one_is_refused(noise: bytes) -> None:
    try:
        envelope, body = records.unframe_hook(noise)
    except records.DecodeError:
        return
    assert records.frame_hook(envelope, body) == noise


@given(st.integers(0, 2**50), st.integers(0, 2**records.INDEX_BITS - 1), st.integers(0, 2**50), st.data())
def test_seqs_order_as_offset_and_place(offset: int, index: int, other: int, data: st.DataObject) -> None:
    second = data.draw(st.integers(0, 2**records.INDEX_BITS - 1))
    assert (records.seq_of(offset, index) < records.seq_of(other, second)) == ((offset, index) < (other, second))
    assert records.seq_of(offset, index) >> records.INDEX_BITS == offset


SUBMISSIONS = st.lists(st.builds(Submission, entry=st.one_of(ENVELOPE, HELD), body=BODY), max_size=4)


@given(SUBMISSIONS, st.integers(0, 2**63), st.booleans())
def test_an_append_reads_back_the_same(submissions: list[Submission], deadline_at: int, again: bool) -> None:
    found_at, found_again, found = read_append(append_payload(submissions, deadline_at, again=again))
    assert (found_at, found_again) == (deadline_at, again)
    assert [submission for submission, _ in found] == submissions
    assert [entry for _, entry in found] == [records.encode(submission.entry) for submission in submissions]


@given(st.binary(max_size=200), SUBMISSIONS, st.data())
def test_an_append_that_is_not_one_is_refused(noise: bytes, submissions: list[Submission], data: st.DataObject) -> None:
    whole = append_payload(submissions, 1, again=False)
    for spoiled in (noise, whole[: data.draw(st.integers(0, len(whole) - 1))]):
        try:
            read_append(spoiled)
        except records.DecodeError:
            continue
        assert spoiled is noise


@given(
    st.lists(
        st.builds(Answer, status=st.sampled_from(AnswerStatus), id=TEXT, retry_after_ms=NUMBER, reason=TEXT), max_size=5
    )
)
def test_answers_read_back_the_same(answers: list[Answer]) -> None:
    assert decode_answers(encode_answers(answers)) == answers
