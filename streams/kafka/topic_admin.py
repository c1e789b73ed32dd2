"""Topics made on the cluster, and compared with what they must be like (`topics.py`).

Owns the calls of the admin client and the words for what is wrong, each with the way out, and the check that every
role makes first. `TopicAdmin` blocks: it is for the command line and for threads. It deletes nothing, and never changes
the number of a topic's partitions: that number decides where a row lives.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from msgspec import Struct

from schemas.config import Config
from streams.kafka.clients import client_log, client_settings
from streams.kafka.topics import TopicNames, TopicSpec, hook_record_bytes, misnumbered, topic_specs

REQUEST_S = 30.0
"""For one request to the cluster of somebody who waits. A topic takes a tenth of a second; a cluster that has just
begun may take long for its first."""

CHECK_REQUEST_S = 4.0
"""For one request of a role that begins. It asks again, and a process that is to stop waits for no longer than this."""

REACH_S = 2.5
"""For the first answer of a broker to a person. With the start and the end of a command that is less than 5 s."""

SEEN_S = 2.0
"""A created topic is known to every broker a moment later, and any may be asked."""

LOOK_AGAIN_S = 0.25

CHECK_AGAIN_S = 1.0

log = logging.getLogger("ankusa.kafka")

_UNKNOWN = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})

CREATE = "run `ankusa topics create`"

LARGEST = "max.message.bytes"


class ClusterError(Exception):
    """The cluster did not do what it was asked: it cannot be reached, or it refused. The text says which and why."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


class Wrong(Struct, frozen=True):
    """What is wrong with a topic, and the way out. `key` is the setting that is to be set, where one is."""

    topic: str
    what: str
    way_out: str
    missing: bool = False
    key: str | None = None

    def __str__(self) -> str:
        return f"{self.topic}: {self.what}; {self.way_out}"


class _Heard:
    """Why there is no connection: a request itself only says that its time is over. That all brokers are down is said
    after it, and again and again, and is no reason."""

    reason: str | None = None

    def __call__(self, error: KafkaError) -> None:
        if self.reason is None or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self.reason = error.str()


class TopicAdmin:
    """The topics of one fleet on its cluster."""

    def __init__(self, config: Config, request_s: float = REQUEST_S) -> None:
        """Connects when it is first asked."""
        self._request_s = request_s
        self._specs = topic_specs(config)
        self._names = TopicNames(config.kafka.prefix)
        self._hook_bytes = hook_record_bytes(config)
        self.notes: list[str] = []
        """What the last look found that is no fault and good to know: a line each."""
        # Not this object's own: the client ends, and its threads, with the last reference to this.
        self._heard = _Heard()
        settings: dict[str, Any] = {**client_settings(config.kafka, "admin"), "error_cb": self._heard}
        self._admin = AdminClient(settings, logger=client_log)

    def reach(self) -> None:
        """Raises ClusterError within `REACH_S` where no broker answers: nobody at a terminal should wait for
        the time that a request may take."""
        try:
            self._admin.list_topics(timeout=REACH_S)
        except KafkaException as error:
            raise self._error("no broker answers: start them, or correct kafka.brokers", error) from error

    def check(self) -> list[Wrong]:
        """Everything that is missing or wrong. What one broker does not know yet is looked for again for `SEEN_S`.
        Raises ClusterError."""
        deadline_s = time.monotonic() + SEEN_S
        while True:
            wrong = self._look()
            if not any(one.missing for one in wrong) or time.monotonic() > deadline_s:
                return wrong
            time.sleep(LOOK_AGAIN_S)

    def _look(self) -> list[Wrong]:
        found = self._described()
        settings = self._settings([spec for spec in self._specs if spec.name in found])
        wrong: list[Wrong] = []
        for spec in self._specs:
            if spec.name in settings:
                wrong += _shape(spec, *found[spec.name])
                wrong += _settings(spec, settings[spec.name])
            else:
                wrong.append(_missing(spec))
        limits = {name: int(found[LARGEST]) for name, found in settings.items() if LARGEST in found}
        self.notes = self._larger(limits)
        return wrong + self._too_small(limits)

    def _larger(self, limits: dict[str, int]) -> list[str]:
        return [
            f"{name}: takes records of {limits[name]} bytes, where http.max_body_bytes here makes at most "
            f"{self._hook_bytes}: edges with a larger one may send larger hooks"
            for name in (self._names.hooks, self._names.quarantine)
            if limits.get(name, 0) > self._hook_bytes
        ]

    def _too_small(self, limits: dict[str, int]) -> list[Wrong]:
        """Topics that have what this file asks for, and do not take what another one does whose records they are to
        keep."""
        names = self._names
        pairs = (
            (names.changelog, names.quarantine, "larger held hooks are lost"),
            (names.dead, names.hooks, "nothing before a larger hook that dies is ever deleted there"),
        )
        wrong: list[Wrong] = []
        for name, other, what_follows in pairs:
            found, needed = limits.get(name, 0), limits.get(other, 0)
            if self._hook_bytes <= found < needed:
                what = f"takes records of {found} bytes, and {other} of {needed}: {what_follows}"
                way_out = f"raise it to {needed}: kafka-configs.sh --alter --add-config {LARGEST}={needed}"
                wrong.append(Wrong(name, what, way_out))
        return wrong

    def largest_entry(self) -> int:
        """The largest record, in bytes, that the changelog takes now. Raises ClusterError."""
        (spec,) = (spec for spec in self._specs if spec.name == self._names.changelog)
        found = self._settings([spec]).get(spec.name)
        if found is None:
            raise ClusterError(f"{spec.name}: the broker does not know it", refused=False)
        return int(found[LARGEST])

    def create(self) -> list[str]:
        """Make what is missing and set what is set wrongly; a line for each. Again, it does nothing.

        Raises ClusterError. What only a person can mend is left, for `check` to tell.
        """
        by_name = {spec.name: spec for spec in self._specs}
        wrong = self._look()
        done = [made for one in wrong if one.missing and (made := self._make(by_name[one.topic]))]
        keys: dict[str, list[str]] = {}
        for one in wrong:
            if one.key is not None:
                keys.setdefault(one.topic, []).append(one.key)
        done += [self._set(by_name[topic], names) for topic, names in keys.items()]
        if done:
            self.check()  # whoever comes next finds them
        return done

    # -- the calls ----------------------------------------------------------------

    def _described(self) -> dict[str, tuple[int, int]]:
        """By name the partitions of each topic that is there, and the fewest copies one has."""
        futures = self._admin.describe_topics(
            TopicCollection([spec.name for spec in self._specs]), request_timeout=self._request_s
        )
        found: dict[str, tuple[int, int]] = {}
        for name, future in futures.items():
            try:
                partitions = future.result().partitions
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN:
                    raise self._error(f"cannot describe {name}", error) from error
                continue
            found[name] = len(partitions), min(len(partition.replicas) for partition in partitions)
        return found

    def _settings(self, specs: Sequence[TopicSpec]) -> dict[str, dict[str, str]]:
        """By name; without those that the broker asked does not know yet."""
        if not specs:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, spec.name) for spec in specs]
        settings: dict[str, dict[str, str]] = {}
        for resource, future in self._admin.describe_configs(resources, request_timeout=self._request_s).items():
            try:
                entries = future.result()
            except KafkaException as error:
                if error.args[0].code() not in _UNKNOWN:
                    raise self._error(f"cannot read the settings of {resource.name}", error) from error
                continue
            settings[resource.name] = {key: str(entry.value) for key, entry in entries.items()}
        return settings

    def _make(self, spec: TopicSpec) -> str:
        """What was done: nothing, where somebody else made it meanwhile or the broker asked did not know it yet."""
        settings = {key: setting.value for key, setting in spec.settings.items()}
        topic = NewTopic(spec.name, spec.partitions, spec.replication, config=settings)
        (future,) = self._admin.create_topics([topic], request_timeout=self._request_s).values()
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return ""
            raise self._error(_no_topic(spec, error), error) from error
        return f"{spec.name}: made, {spec.partitions} partitions, {spec.replication} copies"

    def _set(self, spec: TopicSpec, keys: Sequence[str]) -> str:
        entries = [
            ConfigEntry(key, spec.settings[key].value, incremental_operation=AlterConfigOpType.SET) for key in keys
        ]
        resource = ConfigResource(ResourceType.TOPIC, spec.name, incremental_configs=entries)
        (future,) = self._admin.incremental_alter_configs([resource], request_timeout=self._request_s).values()
        try:
            future.result()
        except KafkaException as error:
            raise self._error(f"cannot set {', '.join(keys)} of {spec.name}", error) from error
        return f"{spec.name}: set " + ", ".join(f"{key}={spec.settings[key].value}" for key in keys)

    def _error(self, doing: str, error: KafkaException) -> ClusterError:
        cause: KafkaError = error.args[0]
        self._admin.poll(0)  # hears what there is to hear
        away = cause.code() in _AWAY or cause.retriable()
        heard = f" ({self._heard.reason})" if away and self._heard.reason else ""
        return ClusterError(f"{doing}: {cause.str()}{heard}", refused=not away)


def _missing(spec: TopicSpec) -> Wrong:
    return Wrong(spec.name, "is missing", CREATE, missing=True)


def _shape(spec: TopicSpec, partitions: int, copies: int) -> list[Wrong]:
    wrong: list[Wrong] = []
    if (misnumber := misnumbered(partitions, spec.partitions)) is not None:
        way_out = (
            f"give every topic that goes by it as many and set kafka.partitions to {partitions} on every node, or "
            'another kafka.prefix (see "More partitions" in docs/kafka.md)'
        )
        wrong.append(Wrong(spec.name, misnumber, way_out))
    if copies < spec.replication:
        way_out = (
            f"give it more with kafka-reassign-partitions.sh, or set kafka.replication to {copies}, "
            "which says that a loss of brokers may lose hooks"
        )
        wrong.append(Wrong(spec.name, f"has {copies} copies of a partition, wanted {spec.replication}", way_out))
    return wrong


def _settings(spec: TopicSpec, found: dict[str, str]) -> list[Wrong]:
    return [
        Wrong(spec.name, f"{key} is {found.get(key)}, wanted {setting.rule.value} {setting.value}", CREATE, key=key)
        for key, setting in spec.settings.items()
        if key not in found or not setting.holds(found[key])
    ]


def _no_topic(spec: TopicSpec, error: KafkaException) -> str:
    if error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR:
        return (
            f"kafka.replication: the cluster has fewer brokers than the {spec.replication} copies wanted of {spec.name}"
        )
    return f"cannot make {spec.name}"


_AWAY = frozenset(
    {
        *(KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE),
        *(KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER, KafkaError.BROKER_NOT_AVAILABLE),
        *(KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION),
        KafkaError._DESTROY_BROKER,  # the client has just learnt which broker it is that it was told of
    }
)


async def topics_fit(config: Config) -> bool:
    """What every role asks before it begins: whether the topics are as they must be. What is wrong is logged, each with
    the way out. Waits for a cluster that is away."""
    admin, told = await asyncio.to_thread(TopicAdmin, config, CHECK_REQUEST_S), ""
    while True:
        try:
            wrong = await asyncio.to_thread(admin.check)
            break
        except ClusterError as error:
            if str(error) != told:
                log.warning("event=topics_unchecked reason=%s", error)
                told = str(error)
            if error.refused:
                return False
        await asyncio.sleep(CHECK_AGAIN_S)
    if "worker" in config.node.roles:
        for note in admin.notes:
            log.warning("event=body_limit_below reason=%s", note)
    for one in wrong:
        log.critical("event=topic_wrong topic=%s reason=%s; %s", one.topic, one.what, one.way_out)
    return not wrong
