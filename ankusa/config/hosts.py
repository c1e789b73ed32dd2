"""What a configuration may ask of its host: the roles of each, and the cluster that the Kafka host needs.

Owns the rules that follow from `log.type`. What one host has and the other does not is refused here, never left out in
silence.
"""

from __future__ import annotations

from ankusa.config.problems import Problems, at_index, join
from schemas.config import ClaimCheck, Kafka, KafkaSecurity, LogSettings, Node

KAFKA_ROLES = ("edge", "worker", "claim_check")
LOCAL_ROLES = ("edge", "dispatch", "storage", "claim_check")


def has_admin(node: Node, log: LogSettings) -> bool:
    """Whether a node has an admin API and, with the guard on, a listener for routes: all but those on Kafka that are no
    worker, which have nothing to tell."""
    return log.type == "local" or "worker" in node.roles


def check_host(node: Node, log: LogSettings, claim_check: ClaimCheck, problems: Problems) -> None:
    """The roles and features against the kind of log. A rule that reads what is at fault waits."""
    if problems.under("log.type"):
        return
    known = KAFKA_ROLES if log.type == "kafka" else LOCAL_ROLES
    for index, role in enumerate(() if problems.under("node.roles") else node.roles):
        if role not in known:
            where = "the embedded node" if log.type == "kafka" else "`log.type: kafka`"
            message = f"`{role}` is a role of {where}; with `log.type: {log.type}` give {', '.join(known)}"
            problems.add(at_index("node.roles", index), message)
    if log.type == "kafka":
        if node.edges == 0:
            problems.add("node.edges", "0 is for the embedded node: with `log.type: kafka` give at least 1")
        asked_for = claim_check != ClaimCheck() or "claim_check" in node.roles or problems.under("claim_check")
        local = claim_check.store.type == "local" and not problems.under("claim_check.store")
        if asked_for and local and claim_check.store.path is None:
            message = "is required with `log.type: kafka`: a directory that every worker and gateway mounts"
            problems.add("claim_check.store.path", f"{message}; or set type: object")


def check_kafka(kafka: Kafka, path: str, problems: Problems) -> None:
    """The brokers' addresses, and security keys that need each other."""
    for index, address in enumerate(kafka.brokers):
        if not _is_address(address):
            problems.add(at_index(join(path, "brokers"), index), "is not host:port")
    _check_security(kafka.security, join(path, "security"), problems)


def _check_security(security: KafkaSecurity, path: str, problems: Problems) -> None:
    if not security.tls:
        for name in ("ca_file", "certificate_file", "key_file", "key_password"):
            if getattr(security, name) is not None:
                problems.add(join(path, name), "needs `tls: true` beside it")
    if security.certificate_file is not None and security.key_file is None:
        problems.add(join(path, "key_file"), "is required beside certificate_file")
    for name in ("key_file", "key_password"):
        if getattr(security, name) is not None and security.certificate_file is None:
            problems.add(join(path, "certificate_file"), f"is required beside {name}")


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    sound = bool(colon and host) and not any(mark in host for mark in "/@ ,")
    return sound and port.isdecimal() and 1 <= int(port) <= 65_535
