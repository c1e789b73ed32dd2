"""A delivery for tests, with whatever fields matter changed."""

from typing import Any

import msgspec

from ankusa.sinks.contract import Delivery

DELIVERY = Delivery(
    id="01890a5d-ac96-774b-bcce-b302099a8057",
    source_id="github",
    tenant_id="acme",
    received_at=1_700_000_000_000,
    headers=(("user-agent", "GitHub-Hookshot/1"), ("x-github-event", "push")),
    content_type="application/json",
    body=b'{"a":1}',
    idempotency_key="acme:github:evt_1",
    dedupe_key="evt_1",
    replay_id=None,
    attempt=1,
    at=1_700_000_000_123,
)


def delivery(**changes: Any) -> Delivery:
    return msgspec.structs.replace(DELIVERY, **changes)
