"""What accepting is measured against: the same ASGI server, an app that reads the body and answers an empty 201.

`python -m tests.bench.empty_server PORT [uvicorn]`: with the protocol of our listeners, or with uvicorn's own.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from api.edge_protocol import EdgeProtocol
from api.serving import bind, serve


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def main(port: int, http: type[HttpToolsProtocol]) -> None:
    listener = await serve(app, bind("127.0.0.1", port), http)
    print(listener.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), HttpToolsProtocol if sys.argv[2:] == ["uvicorn"] else EdgeProtocol))
