"""What a start and a patch may say."""

from __future__ import annotations

from typing import Any

import pytest

from ankusa.replay.answers import Invalid
from ankusa.replay.spec import PatchSpec, StartSpec, parse_patch, parse_start
from schemas.records import JobState

UUID = "0190f5fe-7a3c-7cde-8b1a-0123456789ab"


def test_defaults() -> None:
    assert parse_start({"kind": "dlq"}) == StartSpec("dlq", {}, 1_000, 2_000, None, False)


def test_everything_a_dlq_replay_takes() -> None:
    chosen = {
        "source_id": "acme.orders",
        "id": UUID,
        "since": 0,
        "until": 5,
        "sink": 0,
        "error_class": "retry_after",
        "tenants": ["acme"],
    }
    body = {"kind": "dlq", "rate": 1, "max_lag_ms": 100, "job_id": UUID, "dry_run": True} | chosen
    assert parse_start(body) == StartSpec("dlq", chosen, 1, 100, UUID, True)


def test_equal_tenants_make_equal_filters() -> None:
    first = parse_start({"kind": "dlq", "tenants": ["b", "a", "b"]})
    assert first == parse_start({"kind": "dlq", "tenants": ["a", "b"]})


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"rate": 0}, "rate"),
        ({"rate": 100_001}, "rate"),
        ({"rate": True}, "rate"),
        ({"rate": 10.0}, "rate"),
        ({"rate": "10"}, "rate"),
        ({"rate": None}, "rate"),
        ({"max_lag_ms": 99}, "max_lag_ms"),
        ({"max_lag_ms": 600_001}, "max_lag_ms"),
        ({"job_id": UUID.upper()}, "job_id"),
        ({"job_id": UUID + "\n"}, "job_id"),
        ({"job_id": UUID.replace("-", "")}, "job_id"),
        ({"job_id": 7}, "job_id"),
        ({"dry_run": 1}, "dry_run"),
        ({"dry_run": "true"}, "dry_run"),
        ({"source_id": ""}, "source_id"),
        ({"source_id": "a.b.c"}, "source_id"),
        ({"source_id": "a/b"}, "source_id"),
        ({"source_id": None}, "source_id"),
        ({"id": "not-an-id"}, "id"),
        ({"since": -1}, "since"),
        ({"since": False}, "since"),
        ({"since": "2024-01-01T00:00:00Z"}, "since"),
        ({"since": 1.5}, "since"),
        ({"until": 1 << 60}, "until"),
        ({"since": 6, "until": 5}, "until"),
        ({"sink": -1}, "sink"),
        ({"sink": 65_536}, "sink"),
        ({"sink": True}, "sink"),
        ({"error_class": "TRANSIENT"}, "error_class"),
        ({"error_class": "other"}, "error_class"),
        ({"error_class": 3}, "error_class"),
        ({"error_class": ["transient"]}, "error_class"),
        ({"tenants": []}, "tenants"),
        ({"tenants": "acme"}, "tenants"),
        ({"tenants": ["a/b"]}, "tenants"),
        ({"tenants": [1]}, "tenants"),
        ({"tenants": ["t"] * 1_001}, "tenants"),
        ({"from": 1}, "from"),
        ({"sinks": [0]}, "sinks"),
        ({"filter": {}}, "filter"),
        ({"soruce_id": "acme"}, "soruce_id"),
        ({"kind": "dql"}, "kind"),
        ({"kind": None}, "kind"),
        ({"kind": ["dlq"]}, "kind"),
    ],
)
def test_the_refused_field_is_named(given: dict[str, Any], field: str) -> None:
    refused = parse_start({"kind": "dlq"} | given)
    assert isinstance(refused, Invalid)
    assert refused.field == field
    assert refused.message


@pytest.mark.parametrize("kind", ["archive", "quarantine", "lifecycle"])
def test_a_kind_to_come_says_so(kind: str) -> None:
    refused = parse_start({"kind": kind, "from": 1, "to": 2})
    assert isinstance(refused, Invalid)
    assert refused.field == "kind"
    assert "not built yet" in refused.message


@pytest.mark.parametrize("body", [None, [], "dlq", 3])
def test_a_body_is_an_object(body: object) -> None:
    for refused in (parse_start(body), parse_patch(body)):
        assert isinstance(refused, Invalid)
        assert refused.field == "body"


def test_patches() -> None:
    assert parse_patch({"state": "paused"}) == PatchSpec(JobState.PAUSED, None, None)
    assert parse_patch({"rate": 5, "max_lag_ms": 100}) == PatchSpec(None, 5, 100)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ({"state": "done"}, "state"),
        ({"state": "failed"}, "state"),
        ({"state": None}, "state"),
        ({"rate": 0}, "rate"),
        ({"max_lag_ms": True}, "max_lag_ms"),
        ({"error": "x"}, "error"),
        ({"state": "paused", "cursor": ""}, "cursor"),
    ],
)
def test_a_bad_patch_names_its_field(body: dict[str, Any], field: str) -> None:
    refused = parse_patch(body)
    assert isinstance(refused, Invalid)
    assert refused.field == field
