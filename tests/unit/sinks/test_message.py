"""The queue message: its bytes, whatever a hook holds, and the metadata beside it."""

import base64
import hashlib
import json
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.message import VERSION, deduplication_id, encode, metadata
from tests.unit.sinks.deliveries import delivery

CLAIM = "urn:ankusa:claim:v1:acme:01M39VMD8RA3C5HR4RBV67Y002"


def test_version_1_byte_for_byte() -> None:
    body = b'{"a":1}'
    sha256 = hashlib.sha256(body).hexdigest()
    assert encode(delivery(body=body)) == (
        b'{"v":1,"id":"01890a5d-ac96-774b-bcce-b302099a8057","source_id":"github","tenant_id":"acme",'
        b'"received_at":1700000000000,"content_type":"application/json","size":7,"dedupe_key":"evt_1","replay_id":null,'
        b'"idempotency_key":"acme:github:evt_1","headers":{"user-agent":"GitHub-Hookshot/1","x-github-event":"push"},'
        b'"sha256":"' + sha256.encode() + b'","body_base64":"eyJhIjoxfQ=="}'
    )


def test_with_a_claim_byte_for_byte() -> None:
    message = encode(delivery(), CLAIM)
    plain = encode(delivery())
    shared = plain[: plain.index(b',"body_base64"')]
    assert message == shared + b',"claim":"' + CLAIM.encode() + b'"}'


def test_what_is_absent_is_null() -> None:
    bare = delivery(content_type=None, dedupe_key=None, replay_id=None, headers=(), body=b"")
    message = json.loads(encode(bare))
    assert list(message) == [
        *("v", "id", "source_id", "tenant_id", "received_at", "content_type", "size", "dedupe_key", "replay_id"),
        *("idempotency_key", "headers", "sha256", "body_base64"),
    ]
    assert (message["content_type"], message["dedupe_key"], message["replay_id"]) == (None, None, None)
    assert (message["headers"], message["size"], message["body_base64"]) == ({}, 0, "")
    assert message["sha256"] == hashlib.sha256(b"").hexdigest()


def test_a_repeated_header_is_one_value() -> None:
    headers = (("x-b", "1"), ("x-a", "é"), ("x-b", "2"))
    assert json.loads(encode(delivery(headers=headers)))["headers"] == {"x-b": "1, 2", "x-a": "é"}


TEXT = st.text(st.characters(), max_size=30)


@given(body=st.binary(max_size=300), key=TEXT, value=TEXT, dedupe=st.none() | TEXT, kind=st.none() | TEXT)
def test_whatever_a_hook_holds_comes_back_and_is_ascii(
    body: bytes, key: str, value: str, dedupe: str | None, kind: str | None
) -> None:
    sent = delivery(body=body, idempotency_key=key, headers=(("x-h", value),), dedupe_key=dedupe, content_type=kind)
    raw = encode(sent)
    assert raw.isascii() and not any(byte < 0x20 for byte in raw)
    message = json.loads(raw)
    assert base64.b64decode(message["body_base64"], validate=True) == body
    assert (message["size"], message["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    assert (message["idempotency_key"], message["headers"]["x-h"]) == (key, value)
    assert (message["dedupe_key"], message["content_type"]) == (dedupe, kind)
    assert message["v"] == VERSION
    beside = dict(metadata(sent))
    assert all(text.isascii() and text.isprintable() for text in beside.values())
    assert unquote(beside["ankusa_idempotency_key"], errors="surrogatepass") == key
    assert ("ankusa_dedupe_key" in beside) == (dedupe is not None)


@given(st.text(max_size=10), st.text(max_size=10))
def test_two_keys_never_become_one(one: str, other: str) -> None:
    beside = [dict(metadata(delivery(idempotency_key=key)))["ankusa_idempotency_key"] for key in (one, other)]
    assert (beside[0] == beside[1]) == (one == other)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, "ankusa_dedupe_key"),
        ({"replay_id": "job-1"}, "ankusa_dedupe_key ankusa_replay_id"),
        ({"dedupe_key": None}, ""),
    ],
)
def test_the_names_of_the_metadata(changes: dict[str, Any], names: str) -> None:
    always = "ankusa_id ankusa_source_id ankusa_tenant_id ankusa_message_version ankusa_idempotency_key content_type"
    assert [name for name, _ in metadata(delivery(**changes))] == [*always.split(), *names.split()]


def test_a_content_type_is_kept_readable() -> None:
    found = dict(metadata(delivery(content_type="text/plain; charset=utf-8; x=100%")))
    assert found["content_type"] == "text/plain; charset=utf-8; x=100%"
    assert "content_type" not in dict(metadata(delivery(content_type=None)))
    assert dict(metadata(delivery(content_type="a\r\nb")))["content_type"] == "a%0D%0Ab"


def test_a_replay_has_a_deduplication_id_of_its_own() -> None:
    assert deduplication_id(delivery()) == delivery().id
    assert deduplication_id(delivery(replay_id="job-1")) == f"{delivery().id}:replay:job-1"
