"""The producer of an edge: idempotent, acknowledged by every in-sync copy, and quick to give up.

Owns its settings and what an edge asks of it beside sending: to take back what was never sent, and which partitions a
record could be written to. What a record means, and when to give up on the cluster, is the edge log's.
"""

from __future__ import annotations

from confluent_kafka import KafkaException, Producer

from schemas.config import Config
from streams.kafka.clients import LARGEST_BYTES, Settings, client_log, client_settings
from streams.kafka.log_producer import LogProducer
from streams.kafka.topics import hook_record_bytes, min_insync_replicas

DELIVERY_TIMEOUT_MS = 3000
"""From handing a record over to giving it up, retries included: a broker that restarts in order, or a leader that
moves, is back before. With the five seconds that a hook may wait for its commit to begin a provider waits eight at
worst, and most give up after ten."""

OVERHEAD_BYTES = 64 << 10
"""What a record may weigh beyond its value, in the library's own check."""

BATCH_BYTES = 1_000_000


def producer_settings(config: Config) -> Settings:
    """For librdkafka. The queue takes what the batcher may hold, so that only the batcher refuses for being full."""
    return client_settings(config.kafka, "edge") | {
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 0,  # a commit has gathered already
        "message.timeout.ms": DELIVERY_TIMEOUT_MS,
        "message.max.bytes": min(hook_record_bytes(config) + OVERHEAD_BYTES, LARGEST_BYTES),
        "batch.size": BATCH_BYTES,
        "queue.buffering.max.kbytes": min((config.batcher.max_queue_bytes >> 10) + (1 << 16), 2_147_483_647),
        "socket.nagle.disable": True,
    }


class EdgeProducer(LogProducer):
    """The producer of one edge process, in the event loop that makes it."""

    def __init__(self, config: Config) -> None:
        """Connects by itself, and again after every loss."""
        super().__init__(lambda: Producer(producer_settings(config), logger=client_log))
        self._copies = min_insync_replicas(config.kafka.replication)

    def take_back(self) -> None:
        """Fail every record that waits to be sent. What a broker may have is left, to be told by its answer or by
        `DELIVERY_TIMEOUT_MS`."""
        self._producer.purge(in_queue=True, in_flight=False, blocking=False)

    def writable(self, topic: str, timeout_s: float) -> list[int] | str:
        """The partitions with a leader and enough copies in sync to acknowledge a record, or why that cannot be told.
        Blocks: for a thread."""
        try:
            told = self._producer.list_topics(topic, timeout=timeout_s).topics[topic]
        except KafkaException as error:
            return f"the brokers do not answer: {error.args[0].str()}"
        if told.error is not None:
            return f"{topic}: {told.error.str()}"
        return [
            number
            for number, partition in told.partitions.items()
            if partition.leader >= 0 and len(partition.isrs) >= self._copies
        ]
