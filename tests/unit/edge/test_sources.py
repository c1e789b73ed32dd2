"""The table from catch URL to source."""

from __future__ import annotations

import pytest

from ankusa.edge.sources import EdgeSource, Sources, compile_source
from ankusa.edge.target import Target
from ankusa.verify import VerifySpecError
from schemas.config import Dedupe, Sink, Verify
from tests.support.edge import source


def found(sources: Sources, raw_path: bytes) -> str | None:
    entry = sources.find(raw_path)
    return entry.source_id if isinstance(entry, EdgeSource) else None


def test_a_source_is_found_by_its_one_spelling() -> None:
    sources = Sources("/webhooks", "path", [source("a"), source("b", tenant="acme")])
    for _ in range(2):
        assert found(sources, b"/webhooks/a") == "a"
        assert found(sources, b"/webhooks/b") == "b"
        assert sources.find(b"/webhooks/c") == Target(None, "c")
        assert sources.find(b"/webhooks/a/") is None
        assert sources.find(b"/webhooks/%61") is None


def test_the_tenant_in_the_url_must_own_the_source() -> None:
    sources = Sources("/webhooks", "tenant_path", [source("a"), source("b", tenant="acme")])
    assert found(sources, b"/webhooks/acme/b") == "b"
    assert found(sources, b"/webhooks/default/a") == "a"
    assert sources.find(b"/webhooks/default/b") == Target("default", "b")
    assert sources.resolve(Target("acme", "a")) is None


def test_a_replaced_table_forgets_what_is_gone_and_a_bad_one_changes_nothing() -> None:
    sources = Sources("/webhooks", "path", [source("a")])
    kept = sources.find(b"/webhooks/a")
    sources.replace([source("b")])
    assert sources.find(b"/webhooks/a") == Target(None, "a")
    assert found(sources, b"/webhooks/b") == "b"
    assert isinstance(kept, EdgeSource)
    with pytest.raises(VerifySpecError):
        sources.replace([source("c"), source("d", verify=Verify(type="github"))])
    assert found(sources, b"/webhooks/b") == "b"
    assert sources.find(b"/webhooks/c") == Target(None, "c")


def test_a_source_is_compiled_with_what_its_hooks_need() -> None:
    compiled = compile_source(
        source(
            "a",
            tenant="acme",
            dedupe=Dedupe(preset="stripe", ttl_seconds=60),
            forward_headers=("Stripe-Signature",),
            sinks=(Sink(type="http"), Sink(type="log")),
            on_verify_failure="quarantine",
        )
    )
    assert compiled.sinks == ("http", "log")
    assert compiled.dedupe_ttl_ms == 60_000
    assert compiled.forward == frozenset({"stripe-signature"})
    assert compiled.key_prefix == "acme:a:"
    assert compiled.policy == "quarantine"
    assert compile_source(source("b")).dedupe is None
