"""The provider's event key: where each preset reads it, what a JSON path yields, and what never raises."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ankusa.edge.dedupe_key import (
    MAX_ARRAY_INDEX,
    MAX_KEY_BYTES,
    MAX_PATH_SEGMENTS,
    DedupeSpecError,
    build_dedupe,
)
from schemas.config import Dedupe, DedupePreset


def at_path(path: str, body: bytes) -> str | None:
    return build_dedupe(Dedupe(json=path)).extract({}, body)


@pytest.mark.parametrize(
    ("preset", "header"),
    [
        ("github", "x-github-delivery"),
        ("standard_webhooks", "webhook-id"),
        ("svix", "svix-id"),
        ("shopify", "x-shopify-webhook-id"),
    ],
)
def test_header_presets(preset: DedupePreset, header: str) -> None:
    key = build_dedupe(Dedupe(preset=preset))
    assert key.extract({header: "evt-1", "other": "x"}, b"{}") == "evt-1"
    assert key.extract({header: ""}, b"{}") is None
    assert key.extract({"other": "x"}, b'{"id": "in the body"}') is None


def test_stripe_preset_reads_the_event_id_of_the_body() -> None:
    key = build_dedupe(Dedupe(preset="stripe"))
    body = b'{"object": "event", "data": {"object": {"id": "ch_1"}}, "id": "evt_1", "type": "charge.succeeded"}'
    assert key.extract({"id": "no"}, body) == "evt_1"


def test_shopify_topics_of_one_merchant_action_are_different_hooks() -> None:
    key = build_dedupe(Dedupe(preset="shopify"))
    created = {"x-shopify-event-id": "action", "x-shopify-webhook-id": "w1", "x-shopify-topic": "orders/create"}
    paid = {"x-shopify-event-id": "action", "x-shopify-webhook-id": "w2", "x-shopify-topic": "orders/paid"}
    assert key.extract(created, b"{}") != key.extract(paid, b"{}")
    assert key.extract({"x-shopify-event-id": "action"}, b"{}") is None


def test_header_of_ones_own_in_any_case() -> None:
    assert build_dedupe(Dedupe(header="X-Event-ID")).extract({"x-event-id": "é 1"}, b"") == "é 1"


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("id", b'{"id": "a"}', "a"),
        ("id", b' \n\t{ "id" : "a" } ', "a"),
        ("id", b'{"\\u0069d": "\\u0061\\n"}', "a\n"),
        ("id", b'{"id": "first", "id": "last"}', "last"),
        ("id", '{"id": "ü😀"}'.encode(), "ü😀"),
        ("id", b'{"id": 0}', "0"),
        ("id", b'{"id": -0}', "0"),
        ("id", b'{"id": -12}', "-12"),
        ("id", b'{"id": 9007199254740993}', "9007199254740993"),
        ("id", b'{"id": 123456789012345678901234567890}', "123456789012345678901234567890"),
        ("id", b'{"id": true}', "true"),
        ("id", b'{"id": false}', "false"),
        ("a.b.0.c", b'{"a": {"b": [{"c": "deep"}, 1]}}', "deep"),
        ("a.b.0.c", b'{"a": {"b": {"0": {"c": "keyed"}}}}', "keyed"),
        ("1", b'["zero", "one"]', "one"),
        ("1", b'{"1": "one"}', "one"),
        ("01", b'{"01": "kept as written"}', "kept as written"),
        (f"{MAX_ARRAY_INDEX}", b"[" + b"0," * MAX_ARRAY_INDEX + b'"last", 1]', "last"),
        ("a b.\u00fc-$", '{"a b": {"ü-$": 1}}'.encode(), "1"),
    ],
)
def test_json_path_yields(path: str, body: bytes, key: str) -> None:
    assert at_path(path, body) == key


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("id", b""),
        ("id", b"{}"),
        ("id", b"[]"),
        ("id", b'"id"'),
        ("id", b"null"),
        ("id", b'{"id": null}'),
        ("id", b'{"id": ""}'),
        ("id", b'{"id": 1.0}'),
        ("id", b'{"id": 1e3}'),
        ("id", b'{"id": ["a"]}'),
        ("id", b'{"id": {"a": 1}}'),
        ("id", b'{"ID": "a"}'),
        ("id", b'{"id": "a"'),
        ("id", b'{"id": "a"} trailing'),
        ("id", b'{"id": "a",}'),
        ("id", b"id=a&b=c"),
        ("id", b'\xef\xbb\xbf{"id": "a"}'),
        ("id", '{"id": "a"}'.encode("utf-16")),
        ("id", b'{"id": "\xff"}'),
        ("id", b'{"id": "a", "other": "\xff"}'),
        ("id", b'{"id": "\\ud800"}'),
        ("id", b'{"id": "\\udc00\\ud800"}'),
        ("id", b'{"id": ' + b"9" * 5000 + b"}"),
        ("a.b", b'{"a": "b"}'),
        ("a.b", b'{"a": null}'),
        ("a.0", b'{"a": []}'),
        ("a.0", b'{"a": 5}'),
        ("a.1", b'{"a": ["x"]}'),
        ("a.-1", b'{"a": ["x"]}'),
        ("a.x", b'{"a": ["x"]}'),
    ],
)
def test_json_path_yields_nothing(path: str, body: bytes) -> None:
    assert at_path(path, body) is None


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'{"id":', b"[[0],"])
@pytest.mark.parametrize("path", ["id", "a.a.a", "0.0.0"])
def test_nesting_without_end_is_no_key(opening: bytes, path: str) -> None:
    """8 MB of nesting, as large as a body may be: neither a crash nor a stack overflow."""
    depth = 8_000_000 // len(opening)
    assert at_path(path, opening * depth) is None
    if opening == b"[":
        assert at_path(path, b"[" * (depth // 2) + b"]" * (depth // 2)) is None


def test_nesting_in_a_skipped_value_is_no_key() -> None:
    deep = b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b', "id": "a"}'
    assert at_path("id", deep) is None


def test_large_bodies() -> None:
    rows = b",".join([b'{"sku": "0123456789", "quantity": 1}'] * 200_000)
    assert at_path("id", b'{"rows": [' + rows + b'], "id": "evt"}') == "evt"
    assert at_path("rows.3.sku", b'{"rows": [' + rows + b"]}") == "0123456789"
    assert at_path("rows", b'{"rows": [' + rows + b"]}") is None
    assert at_path("id", b'{"id": ' + b"9" * 8_000_000 + b"}") is None


def test_a_long_key_is_hashed() -> None:
    key = build_dedupe(Dedupe(header="x-id"))
    kept, long = "k" * MAX_KEY_BYTES, "k" * (MAX_KEY_BYTES + 1)
    assert key.extract({"x-id": kept}, b"") == kept
    assert key.extract({"x-id": long}, b"") == "sha256:" + hashlib.sha256(long.encode()).hexdigest()
    assert key.extract({"x-id": long + "x"}, b"") != key.extract({"x-id": long}, b"")
    wide = "é" * (MAX_KEY_BYTES // 2 + 1)  # the bound is on bytes, because the index key is bytes
    assert key.extract({"x-id": wide}, b"") == "sha256:" + hashlib.sha256(wide.encode()).hexdigest()
    assert at_path("id", json.dumps({"id": "y" * 1_000_000}).encode()) == (
        "sha256:" + hashlib.sha256(b"y" * 1_000_000).hexdigest()
    )


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ({}, "preset"),
        ({"preset": "github", "header": "x"}, "preset"),
        ({"header": "x", "json": "y"}, "preset"),
        ({"header": ""}, "header"),
        ({"header": "x y"}, "header"),
        ({"header": "x-é"}, "header"),
        ({"json": ""}, "json"),
        ({"json": "a..b"}, "json"),
        ({"json": ".a"}, "json"),
        ({"json": "a."}, "json"),
        ({"json": 'a"b'}, "json"),
        ({"json": "a\\b"}, "json"),
        ({"json": f"a.{MAX_ARRAY_INDEX + 1}"}, "json"),
        ({"json": "a." + "9" * 10_000}, "json"),
        ({"json": ".".join("a" * (MAX_PATH_SEGMENTS + 1))}, "json"),
    ],
)
def test_a_wrong_section_names_its_key(keys: dict[str, Any], field: str) -> None:
    with pytest.raises(DedupeSpecError) as caught:
        build_dedupe(Dedupe(**keys))
    assert caught.value.field == field


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab01"), inner, max_size=3),
)


def looked_up(document: Any, path: list[str]) -> str | None:
    """The same path in a document decoded whole by another decoder."""
    for segment in path:
        if isinstance(document, dict):
            document = document.get(segment)
        elif isinstance(document, list) and segment.isdigit() and int(segment) < len(document):
            document = document[int(segment)]
        else:
            return None
    if isinstance(document, bool):
        return "true" if document else "false"
    return str(document) if isinstance(document, int) or (isinstance(document, str) and document) else None


@given(JSON, st.lists(st.sampled_from(["a", "b", "0", "1"]), min_size=1, max_size=4))
def test_agrees_with_a_whole_decode(document: Any, path: list[str]) -> None:
    assert at_path(".".join(path), json.dumps(document).encode()) == looked_up(document, path)


KEYS = [build_dedupe(Dedupe(preset="stripe")), build_dedupe(Dedupe(json="a.0.b")), build_dedupe(Dedupe(header="x"))]


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\ua0btfn1e-. ', max_size=80).map(str.encode), st.text())
def test_arbitrary_hooks_never_raise(body: bytes, value: str) -> None:
    for key in KEYS:
        found = key.extract({"x": value}, body)
        assert found is None or 0 < len(found.encode()) <= MAX_KEY_BYTES
