"""The topics of a fleet: their names, partitions, copies and settings (spec 08).

Owns what a topic must be like, with the reasons. Making topics and comparing them with the cluster's is
`topic_admin.py`'s; nothing here connects anywhere.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from ankusa import lifecycle
from schemas.config import Config
from schemas.records import Topic

DAY_MS = 86_400_000
FOR_EVER = -1

HOOK_OVERHEAD_BYTES = 256 << 10
"""What a stored hook weighs beside its body: at most 64 KiB of headers, keys of 512 bytes, and their framing."""

COMMIT_BYTES = 1 << 20
"""Hooks in one commit, but for a single larger one. Records above a megabyte make brokers and consumers hold much
memory for little: from here on larger ones are no cheaper per hook."""

OUTCOMES_BYTES = 8 << 20
"""Ten milliseconds of outcomes: at worst all of `dispatch.max_inflight` fail at once, each with a kilobyte of
reason."""

ARCHIVE_ROLL_BYTES = 16 << 20
ARCHIVE_KEEP_MS = 30 * DAY_MS
"""The defaults of `archive.roll_bytes` and `archive.retention_days`."""

HISTORY_KEEP_MS = 7 * DAY_MS
"""As long as the embedded host keeps the history of attempts."""

TOMBSTONE_KEEP_MS = 7 * DAY_MS
"""A table that was away for less than this catches up from where it was. One away for longer may have missed what was
deleted: it has to be restored from the beginning."""

SMALL_BYTES = 2 << 20
"""For records of operators: a source's specification or a request is at most a megabyte."""

TRIMMED_SEGMENT_BYTES = 128 << 20
"""A broker deletes whole segments that are below all that is needed: smaller ones free the disk sooner."""

CHANGELOG_SEGMENT_BYTES = 64 << 20
"""Only closed segments are compacted: smaller ones keep a changelog of rows that come and go near their number."""


class Rule(Enum):
    """How a setting of the cluster is compared with the one wanted. FOR_EVER is more than any number."""

    EXACTLY = "exactly"
    AT_LEAST = "at least"
    FREE = "anything"


class Setting(Struct, frozen=True):
    """A topic's setting: the value it is made with, and what a topic that is there must have."""

    value: str
    rule: Rule = Rule.EXACTLY

    def holds(self, found: str) -> bool:
        """Whether a topic that has `found` will do."""
        if self.rule is Rule.FREE:
            return True
        if self.rule is Rule.EXACTLY:
            return sorted(found.split(",")) == sorted(self.value.split(","))
        return int(found) == FOR_EVER or (int(self.value) != FOR_EVER and int(found) >= int(self.value))


class TopicSpec(Struct, frozen=True):
    """One topic. `settings` are by Kafka's names."""

    name: str
    partitions: int
    replication: int
    settings: dict[str, Setting]


class TopicNames:
    """The topics of one fleet. `changelog` is that of the tables that workers fold; no edge touches it."""

    def __init__(self, prefix: str) -> None:
        self.hooks = f"{prefix}hooks"
        self.outcomes = f"{prefix}outcomes"
        self.archive = f"{prefix}archive"
        self.quarantine = f"{prefix}quarantine"
        self.audit = f"{prefix}audit"
        self.sources = f"{prefix}sources"
        self.replays = f"{prefix}replays"
        self.dead = f"{prefix}dead"
        self.changelog = f"{prefix}changelog"
        self.folded = {
            Topic.HOOKS: self.hooks,
            Topic.OUTCOMES: self.outcomes,
            Topic.REPLAYS: self.replays,
            Topic.QUARANTINE: self.quarantine,
        }
        """The topics that are folded by partition. `audit` is its own table: nothing is made of it."""


def hook_record_bytes(config: Config) -> int:
    """The most that a record of hooks may weigh: a commit, or one hook with the largest body."""
    return max(config.http.max_body_bytes, COMMIT_BYTES) + HOOK_OVERHEAD_BYTES


def min_insync_replicas(replication: int) -> int:
    """How many copies `acks=all` waits for. More than half: any two such sets share a broker, and one may be away.

    With fewer than three copies one is enough, or no broker could be away at all; then what it alone has can be lost.
    """
    return replication // 2 + 1 if replication >= 3 else 1


def misnumbered(found: int, wanted: int) -> str | None:
    """What is wrong with a topic of `found` partitions."""
    return None if found == wanted else f"has {found} partitions, wanted {wanted}"


def topic_specs(config: Config) -> tuple[TopicSpec, ...]:
    """Every topic of the fleet that `config` describes."""
    kafka, names = config.kafka, TopicNames(config.kafka.prefix)
    hook_bytes = hook_record_bytes(config)

    def topic(
        name: str, max_bytes: int, *settings: dict[str, Setting], partitions: int = kafka.partitions
    ) -> TopicSpec:
        own = {key: value for part in settings for key, value in part.items()}
        return TopicSpec(name, partitions, kafka.replication, {**_durable(kafka.replication, max_bytes), **own})

    return (
        # Kept until no row needs them: no time says when that is. Workers delete what lies below all they need.
        topic(names.hooks, hook_bytes, _kept(FOR_EVER), _segments(TRIMMED_SEGMENT_BYTES)),
        topic(names.outcomes, OUTCOMES_BYTES, _kept(HISTORY_KEEP_MS)),
        topic(names.archive, ARCHIVE_ROLL_BYTES + hook_bytes, _kept(ARCHIVE_KEEP_MS)),
        # What was answered 202 is in the tables and their changelog until it is released or purged.
        topic(names.quarantine, hook_bytes, _kept(FOR_EVER), _segments(TRIMMED_SEGMENT_BYTES)),
        # One partition each: few records, and their order is that of the changes.
        topic(names.audit, SMALL_BYTES, _kept(lifecycle.KEEP_MS), partitions=1),
        topic(names.sources, SMALL_BYTES, _compacted(), partitions=1),
        topic(names.replays, SMALL_BYTES, _compacted()),
        topic(names.dead, hook_bytes, _compacted()),
        # A held hook is part of the tables: the changelog takes what `quarantine` takes.
        topic(names.changelog, hook_bytes, _compacted(), _segments(CHANGELOG_SEGMENT_BYTES)),
    )


def _durable(replication: int, max_bytes: int) -> dict[str, Setting]:
    return {
        "min.insync.replicas": Setting(str(min_insync_replicas(replication)), Rule.AT_LEAST),
        # A copy that missed acknowledged records must never become the partition.
        "unclean.leader.election.enable": Setting("false"),
        "max.message.bytes": Setting(str(max_bytes), Rule.AT_LEAST),
        # The log's time is that of its taking a record, by one clock a partition, whoever wrote it.
        "message.timestamp.type": Setting("LogAppendTime"),
        # Never uncompressed and compressed anew by the broker.
        "compression.type": Setting("producer"),
    }


def _kept(keep_ms: int) -> dict[str, Setting]:
    return {
        "cleanup.policy": Setting("delete"),
        "retention.ms": Setting(str(keep_ms), Rule.AT_LEAST),
        "retention.bytes": Setting(str(FOR_EVER), Rule.AT_LEAST),
    }


def _compacted() -> dict[str, Setting]:
    return {
        "cleanup.policy": Setting("compact"),
        "delete.retention.ms": Setting(str(TOMBSTONE_KEEP_MS), Rule.AT_LEAST),
    }


def _segments(size_bytes: int) -> dict[str, Setting]:
    return {"segment.bytes": Setting(str(size_bytes), Rule.FREE)}
