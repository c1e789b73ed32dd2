"""No fault of a file hides another: what is wrong with it is told in one go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.config.files import fields_of

ON_A_FLEET: dict[str, Any] = {
    "log": {"type": "kafka"},
    "node": {"roles": ["edge", "worker", "claim_check"]},
    "kafka": {"brokers": ["a:9092"]},
    "claim_check": {"store": {"path": "/claims"}},
    "routes": {"enabled": True},
    "sources": {"a": {"verify": {"type": "none"}, "sinks": [{"type": "log"}]}},
}

FAULTS: list[tuple[str, Any, str]] = [
    ("node.roles", ["edge", "worker", "claim_check", "dispatch"], "node.roles[3]"),
    ("node.edges", 0, "node.edges"),
    ("node.edges", -1, "node.edges"),
    ("node.edge", 1, "node.edge"),
    ("log.level", "loud", "log.level"),
    ("kafka.partitions", 0, "kafka.partitions"),
    ("kafka.brokers", ["a:9092", "b"], "kafka.brokers[1]"),
    ("kafka.security", {"ca_file": "/ca"}, "kafka.security.ca_file"),
    ("http.ip", "1.2.3", "http.ip"),
    ("http.prefix", "hooks", "http.prefix"),
    ("admin.port", 4001, "claim_check.port"),
    ("admin.ip", "0.0.0.0", "admin.tokens"),
    ("admin.instance", 1, "admin.instance"),
    ("claim_check.store.path", None, "claim_check.store.path"),
    ("claim_check.retention_days", 0, "claim_check.retention_days"),
    ("claim_check.pack_max_bytes", "many", "claim_check.pack_max_bytes"),
    ("routes.max_routes", 0, "routes.max_routes"),
    ("routes.trusted_proxies", ["127.0.0.1", "10.0.0.0/99"], "routes.trusted_proxies[1]"),
    ("routes.seed", [{"path": "webhooks"}], "routes.seed[0].path"),
    ("dispatch.batch", 0, "dispatch.batch"),
    ("sources.a.retry", {"base_ms": 400_000}, "sources.a.retry.base_ms"),
    ("sources.a.sinks", [], "sources.a.sinks"),
    ("sources.a.forward_headers", ["no header"], "sources.a.forward_headers[0]"),
    ("sources.a.dedupe", {"header": "x", "json": "y"}, "sources.a.dedupe.preset"),
    ("source_store.secret_key", "short", "source_store.secret_key"),
    ("archive", {"roll_ms": 1}, "archive"),
]


def changed(*faults: tuple[str, Any, str]) -> str:
    document = json.loads(json.dumps(ON_A_FLEET))
    for path, value, _ in faults:
        *outer, last = path.split(".")
        section = document
        for key in outer:
            section = section.setdefault(key, {})
        section[last] = value
    return json.dumps(document)


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{path}-{value}" for path, value, _ in FAULTS])
def test_no_fault_of_a_file_hides_another(tmp_path: Path, fault: tuple[str, Any, str]) -> None:
    """Alone and beside each other one it is named, and nothing but them: a file is mended in one go."""
    assert fields_of(tmp_path, changed(fault)) == [fault[2]]
    for other in FAULTS:
        if other[0] != fault[0]:
            assert sorted(fields_of(tmp_path, changed(fault, other))) == sorted({fault[2], other[2]}), other[0]
