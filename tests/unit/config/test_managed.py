"""One source set up through the API: what a file takes, it takes; what is wrong is named from the source on."""

from __future__ import annotations

from typing import Any

import pytest

from ankusa.config import ConfigError
from ankusa.config.managed import MAX_VALUES, managed_source
from schemas.config import Egress, ManagedSource, Retry
from schemas.config_document import source_document

HTTP = {"type": "http", "url": "https://example.com/hooks"}
GUARD = Egress()


def made(spec: dict[str, Any], egress: Egress | None = GUARD) -> ManagedSource:
    return managed_source("acme", "orders", spec, Retry(), egress)


def problems(spec: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigError) as refused:
        made(spec)
    return {problem.field: problem.message for problem in refused.value.problems}


def test_the_least_spec_is_one_sink() -> None:
    source = made({"sinks": [{"type": "log"}]})
    assert (source.source_id, source.tenant, source.name) == ("acme.orders", "acme", "orders")
    assert source.verify.type == "none"
    assert source.on_verify_failure == "reject"
    assert made({"sinks": [{"type": "log"}], "verify": None}) == source


def test_everything_a_file_takes_is_taken_and_comes_back() -> None:
    spec = {
        "verify": {"type": "stripe", "secret": ["whsec_new", "whsec_old"], "tolerance_seconds": 60},
        "on_verify_failure": "quarantine",
        "dedupe": "stripe",
        "forward_headers": ["stripe-signature"],
        "retry": {"max_attempts": 3},
        "sinks": [
            {**HTTP, "headers": {"x-key": "k"}, "timeout_ms": 100, "retry": {"base_ms": 5}},
            {"type": "log", "ordered": True, "ordering_key": {"json": "id"}},
        ],
    }
    source = made(spec)
    assert source.sinks[0].options["timeout_ms"] == 100
    assert source.dedupe is not None and source.dedupe.preset == "stripe"
    assert made(source_document(source)) == source


def test_the_url_names_tenant_and_name_whatever_the_spec_says() -> None:
    assert made({"sinks": [HTTP], "name": "other", "tenant": "globex"}).source_id == "acme.orders"


def test_each_fault_is_named_from_the_source_on() -> None:
    found = problems(
        {
            "verify": {"type": "stripe"},
            "sinks": [{"type": "http"}, {"type": "carrier-pigeon"}, {**HTTP, "timeout": 5}],
            "retries": 3,
            "on_verify_failure": "shrug",
            "forward_headers": ["bad header"],
        }
    )
    assert found.keys() >= {"verify.secret", "sinks[0].url", "sinks[1].type", "sinks[2].timeout", "retries"}
    assert found["on_verify_failure"].startswith("must be one of reject")
    assert "known types" in found["sinks[1].type"]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "sinks"),
        ({"sinks": []}, "sinks"),
        ({"sinks": "log"}, "sinks"),
        ({"sinks": [{}]}, "sinks[0].type"),
        ({"sinks": [5]}, "sinks[0]"),
        ({"sinks": [HTTP], "retry": {"base_ms": 10_000_000}}, "retry.base_ms"),
        ({"sinks": [HTTP], "retry": {"base_ms": 900_000}}, "retry.base_ms"),
        ({"sinks": [{"type": "log", "ordering_key": {"json": "id"}}]}, "sinks[0].ordering_key"),
        ({"sinks": [HTTP], "source_id": "acme.orders"}, "source_id"),
    ],
)
def test_one_fault(spec: dict[str, Any], field: str) -> None:
    assert list(problems(spec)) == [field]


@pytest.mark.parametrize("url", ["http://127.0.0.1/", "http://169.254.169.254/latest", "http://localhost:4002/"])
def test_the_guard_judges_destinations_when_a_source_is_set_up_and_not_when_it_is_loaded(url: str) -> None:
    spec = {"sinks": [{"type": "http", "url": url}]}
    assert problems(spec)["sinks[0].url"].startswith("egress_denied: ")
    assert made(spec, None).sinks[0].options["url"] == url
    assert made(spec, Egress(allow=("127.0.0.0/8", "169.254.0.0/16", "localhost")))


@pytest.mark.parametrize(
    "spec",
    [
        {"sinks": [{**HTTP, "headers": {"x-key": "${AWS_SECRET_ACCESS_KEY}"}}]},
        {"sinks": [{**HTTP, "url": "https://example.com/${HOME}"}]},
        {"sinks": [HTTP], "verify": {"type": "stripe", "secret": ["${A:-b}"]}},
        {"sinks": [HTTP], "verify": {"type": "stripe", "secret": "$${A}"}},
    ],
)
def test_references_to_the_environment_are_refused(spec: dict[str, Any]) -> None:
    (message,) = problems(spec).values()
    assert "not resolved" in message


def test_no_message_holds_a_secret() -> None:
    with pytest.raises(ConfigError) as refused:
        made(
            {
                "verify": {"type": "stripe", "secret": "hunter2hunter2", "scheme": "hunter2hunter2"},
                "sinks": [{**HTTP, "secret": "not-a-whsec-hunter3hunter3"}],
            }
        )
    assert "hunter" not in str(refused.value)


def test_what_is_too_deep_or_too_much_is_refused() -> None:
    deep: Any = "x"
    for _ in range(500):
        deep = [deep]
    assert list(problems({"sinks": [{"type": "log", "level": deep}]})) == ["source"]
    assert list(problems({"sinks": [{"type": "log"}] * MAX_VALUES})) == ["source"]
    assert "half a character" in problems({"sinks": [{"type": "log", "level": "\ud800"}]})["sinks[0].level"]
