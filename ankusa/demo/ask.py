"""One JSON request to a server on this machine, for the demo's control and its questions."""

from __future__ import annotations

import http.client
import json
from typing import Any

TIMEOUT_S = 10.0


def ask(port: int, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """Status and object of the answer of 127.0.0.1:`port`. Raises OSError while nobody answers there."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        headers = {"content-type": "application/json", "connection": "close"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        raw = response.read()
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP from port {port}: {type(error).__name__}") from error
    finally:
        connection.close()
    try:
        answer = json.loads(raw)
    except ValueError:
        answer = None
    return response.status, answer if isinstance(answer, dict) else {}
