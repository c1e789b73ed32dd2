"""Ordering keys at the edge: which lane a hook joins at each sink of its source."""

from __future__ import annotations

from ankusa.edge.sources import compile_source, ordering_keys
from schemas.config import OrderingKey, Sink, Source, Verify

BODY = b'{"data": {"customer": "cus_1"}}'


def source(*sinks: Sink) -> Source:
    return Source(name="orders", verify=Verify(type="none"), sinks=sinks)


def test_a_source_without_an_ordered_sink_has_no_keys() -> None:
    assert compile_source(source(Sink(type="log"))).ordering == ()


def test_each_sink_has_its_own_key() -> None:
    compiled = compile_source(
        source(
            Sink(type="log"),
            Sink(type="log", ordered=True),
            Sink(type="log", ordered=True, ordering_key=OrderingKey(json="data.customer")),
            Sink(type="log", ordered=True, ordering_key=OrderingKey(header="X-Shard")),
        )
    )
    assert ordering_keys(compiled, {"x-shard": "7"}, BODY) == (None, "", "cus_1", "7")


def test_hooks_without_the_key_share_a_lane() -> None:
    compiled = compile_source(source(Sink(type="log", ordered=True, ordering_key=OrderingKey(json="data.customer"))))
    assert ordering_keys(compiled, {}, b"\xff not json") == ("",)
