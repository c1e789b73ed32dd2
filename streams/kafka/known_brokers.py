"""Which brokers the group's consumer asks about the others, when those it knows of have gone.

aiokafka asks the brokers that the last answer named, and no others ever again. After all were away the first that came
back named itself alone; when that one goes too, the consumer knows of no broker that is there: it finds no coordinator
and fetches nothing until that very broker is back. Owns the way back to the configured addresses.
"""

from __future__ import annotations

from typing import Any

from aiokafka.cluster import ClusterMetadata  # type: ignore[import-untyped]
from aiokafka.structs import BrokerMetadata  # type: ignore[import-untyped]

REFRESH_MS = 30_000
"""How long an answer that named some brokers only may stand where nothing fails; the client's own is five minutes."""


def ask_configured(client: Any) -> None:
    """Have `client`, aiokafka's, ask the configured addresses too, beside the brokers it knows of, once none of those
    answers: until one says which brokers there are."""
    ask_known = client._metadata_update

    async def update(cluster: ClusterMetadata, topics: Any) -> bool:
        if await ask_known(cluster, topics):
            return True
        for number, (host, port, _) in enumerate(client.hosts):
            name = f"configured-{number}"
            cluster._brokers[name] = BrokerMetadata(name, host, port, None)
        return bool(await ask_known(cluster, topics))

    client._metadata_update = update
