"""The published client (PyPI `ankusa`) decodes the queue message, from a virtual environment of its own."""

import json
import subprocess
from pathlib import Path
from typing import Any

from schemas.message import encode
from tests.integration.test_client_sdk import python  # noqa: F401 - the environment that holds the published client
from tests.unit.sinks.deliveries import delivery

CLAIM = "urn:ankusa:claim:v1:acme:01M39VMD8RA3C5HR4RBV67Y002"
SCRIPT = """
import dataclasses, json, sys
from ankusa.message import decode_message, idempotency_key

for line in sys.stdin.buffer:
    message = decode_message(line.rstrip(b"\\n"))
    keys = [idempotency_key(message), idempotency_key(message, include_replay=True)]
    print(json.dumps([dataclasses.asdict(message), *keys]))
"""


def decoded(python: Path, *messages: bytes) -> list[Any]:  # noqa: F811
    command = [str(python), "-I", "-c", SCRIPT]
    done = subprocess.run(command, input=b"\n".join(messages) + b"\n", capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_client_decodes_every_form(python: Path) -> None:  # noqa: F811
    sent = [
        (delivery(body=bytes(range(256)), headers=(("x-a", "é"), ("x-a", "\x7f"))), None),
        (delivery(body=b"", content_type=None, dedupe_key=None, headers=(), replay_id="job-1"), None),
        (delivery(dedupe_key="k\ud800é\n", idempotency_key="acme:github:k\ud800é\n"), CLAIM),
        (delivery(tenant_id=""), None),
    ]
    found = decoded(python, *(encode(hook, claim) for hook, claim in sent))
    for (hook, claim), (message, key, replay_key) in zip(sent, found, strict=True):
        again = json.loads(encode(hook, claim))
        assert message == {**again, "body_base64": again.get("body_base64"), "claim": claim}
        assert key == hook.idempotency_key
        assert replay_key == key + (f"#replay:{hook.replay_id}" if hook.replay_id else "")
