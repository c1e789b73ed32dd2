"""A consumer that knows of no broker that is there finds the others by the configured addresses, on a real broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient  # type: ignore[import-untyped]
from aiokafka.structs import BrokerMetadata  # type: ignore[import-untyped]

from streams.kafka.known_brokers import ask_configured
from tests.support.node_process import free_port

GONE = 9


async def _asked(address: str, *, mended: bool) -> tuple[bool, set[Any]]:
    """What a client comes to that was told of one broker alone, which has gone since."""
    client = AIOKafkaClient(bootstrap_servers=address)
    await client.bootstrap()
    try:
        if mended:
            ask_configured(client)
        client.cluster._brokers = {GONE: BrokerMetadata(GONE, "127.0.0.1", free_port(), None)}
        for connection in client._conns.values():
            connection.close()
        updated = await client.force_metadata_update()
        return updated, {broker.nodeId for broker in client.cluster.brokers()}
    finally:
        await client.close()


@pytest.mark.parametrize("mended", [False, True])
def test_the_configured_addresses_are_asked_when_no_known_broker_answers(broker: str, mended: bool) -> None:
    """Without it: the client knows of the broker that has gone, and of no other, for ever."""
    updated, brokers = asyncio.run(_asked(broker, mended=mended))
    assert updated is mended
    assert (GONE in brokers) is not mended
    assert len(brokers) == 1
