"""One replay over several nodes: a job on each, all under one id (spec 05).

Owns what the command line asks of the nodes' admin APIs and how their answers are judged together. Never shows
anything (`fleet_view.py` does), follows no redirect and uses no proxy: the bearer token goes to the nodes alone.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

In = TypeVar("In")
Out = TypeVar("Out")

TIMEOUT_S = 10.0
"""For one request. A plan reads the dead index, which takes seconds for millions of rows; see `PLAN_TIMEOUT_S`."""

PLAN_TIMEOUT_S = 120.0
MAX_ANSWER_BYTES = 8 << 20
"""A plan lists a count for each source and sink key; ten thousand of them are 1 MB."""

POLL_S = 0.5
GIVE_UP_S = 60.0
"""A node that has not answered for so long while watched counts as failed; its job goes on by itself."""

STARTED = frozenset({"running", "done"})
_TIMES = frozenset({"since", "until", "from", "to"})
_INTEGERS = _TIMES | {"sink"}
_LISTS = frozenset({"tenants"})
_INTEGER_LISTS = frozenset({"sinks"})


class Node(Struct, frozen=True):
    """One node's admin API. `name` is how it was written and is shown."""

    name: str
    host: str
    port: int
    secure: bool
    prefix: str


class Report(Struct, frozen=True):
    """What is known of one node: its `job` (or `plan`) as it last answered, and `trouble` with it, if any.

    `lost` says that the trouble is final, `refused` that the node said no to what it was asked, so that the same again
    is no use. `created` is False for a job that was there already.
    """

    node: Node
    job: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    created: bool = False
    trouble: str | None = None
    lost: bool = False
    refused: bool = False

    @property
    def state(self) -> str:
        """The job's state, `unreachable` while the node does not answer, `failed` where it never will."""
        if self.lost or (self.job is None and self.trouble is not None):
            return "failed"
        return "unreachable" if self.trouble is not None else str(self.job["state"] if self.job else "planned")

    def may_have(self, job_id: str) -> bool:
        """Whether the node may have a job of this id: it says so, or it did not say whether it made one."""
        if self.job is None:
            return not self.refused
        return self.created or self.job["id"] == job_id


class NodeError(Exception):
    """A node did not do what was asked. `final` where asking again cannot help."""

    def __init__(self, message: str, *, final: bool) -> None:
        super().__init__(message)
        self.final = final


def parse_nodes(text: str) -> list[Node]:
    """`http://a:4002,b:4002` as nodes. Raises ValueError saying what is wrong with which."""
    nodes: list[Node] = []
    for name in filter(None, (part.strip() for part in text.split(","))):
        try:
            url = urlsplit(name if "://" in name else f"http://{name}")
            port = url.port
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"{name}: a node is http://host:port or https://host:port")
        if url.username is not None or url.query or url.fragment:
            raise ValueError(f"{url.hostname}: a node is an address alone; the token is given by --token")
        secure = url.scheme == "https"
        node = Node(name.rstrip("/"), url.hostname, port or (443 if secure else 80), secure, url.path.rstrip("/"))
        if any((node.host, node.port, node.prefix) == (other.host, other.port, other.prefix) for other in nodes):
            raise ValueError(f"{name}: is given twice")
        nodes.append(node)
    if not nodes:
        raise ValueError("at least one node is needed")
    return nodes


def parse_filters(pairs: Sequence[str]) -> dict[str, Any]:
    """`k=v` pairs as the keys of a start, times and indexes as numbers. What they may be is the node's to say."""
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key or not value:
            raise ValueError(f"{pair!r}: a filter is key=value")
        if key in found and key not in _LISTS | _INTEGER_LISTS:
            raise ValueError(f"{key}: is given twice")
        try:
            if key in _INTEGERS:
                found[key] = int(value)
            elif key in _INTEGER_LISTS:
                found[key] = [*found.get(key, []), *map(int, value.split(","))]
            elif key in _LISTS:
                found[key] = [*found.get(key, []), *value.split(",")]
            else:
                found[key] = value
        except ValueError:
            unit = " (times are unix milliseconds)" if key in _TIMES else ""
            raise ValueError(f"{key}: must be a whole number{unit}") from None
    return found


class Fleet:
    """The nodes, asked side by side."""

    def __init__(self, nodes: Sequence[Node], token: str | None = None) -> None:
        self.nodes = list(nodes)
        self._headers = {"content-type": "application/json", "connection": "close"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"

    def start(self, body: Mapping[str, Any]) -> list[Report]:
        """Start (or, with `dry_run`, plan) on every node; a node in trouble does not keep the others from it."""
        planned = bool(body.get("dry_run"))
        timeout_s = PLAN_TIMEOUT_S if planned else TIMEOUT_S

        def one(node: Node) -> Report:
            try:
                status, answer = self._ask(node, "POST", "/v1/replays", body, timeout_s)
            except NodeError as error:
                return Report(node, trouble=str(error), lost=True, refused=error.final)
            if planned:
                return Report(node, plan=answer)
            return Report(node, job=answer, created=status == 202)

        return self._each(one, self.nodes)

    def watch(
        self,
        reports: Sequence[Report],
        show: Callable[[Sequence[Report]], None],
        poll_s: float = POLL_S,
        give_up_s: float = GIVE_UP_S,
    ) -> list[Report]:
        """Ask after every job until none of them can move by itself any more; `show` sees each turn.

        A paused job ends the watch too, once no other runs: somebody has to look at it first.
        """
        now = list(reports)
        answered = {report.node: time.monotonic() for report in now}

        def again(report: Report) -> Report:
            if report.lost or report.job is None or report.state not in ("running", "paused", "unreachable"):
                return report
            try:
                _, job = self._ask(report.node, "GET", f"/v1/replays/{report.job['id']}", None, TIMEOUT_S)
            except NodeError as error:
                silent_s = time.monotonic() - answered[report.node]
                return replace(report, trouble=str(error), lost=error.final or silent_s > give_up_s)
            answered[report.node] = time.monotonic()
            return replace(report, job=job, trouble=None)

        while True:
            show(now)
            if not any(report.state in ("running", "unreachable") for report in now):
                return now
            time.sleep(poll_s)
            now = self._each(again, now)

    def _each(self, work: Callable[[In], Out], items: Sequence[In]) -> list[Out]:
        with ThreadPoolExecutor(max_workers=min(32, len(items))) as pool:
            return list(pool.map(work, items))

    def _ask(
        self, node: Node, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> tuple[int, dict[str, Any]]:
        """Status and object of a 2xx answer. Raises NodeError for everything else."""
        kind = http.client.HTTPSConnection if node.secure else http.client.HTTPConnection
        connection = kind(node.host, node.port, timeout=timeout_s)
        try:
            connection.request(
                method, node.prefix + path, json.dumps(body) if body is not None else None, self._headers
            )
            response = connection.getresponse()
            raw = response.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NodeError(f"cannot be reached: {reason}", final=False) from error
        finally:
            connection.close()
        try:
            answer = json.loads(raw) if len(raw) <= MAX_ANSWER_BYTES else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise NodeError(f"answered {response.status} with something that is no JSON object", final=False)
        if not 200 <= response.status < 300:
            raise NodeError(refusal(response.status, answer), final=response.status not in (429, 500, 502, 503, 504))
        return response.status, answer


def refusal(status: int, answer: Mapping[str, Any]) -> str:
    """What a node refused with, in one line."""
    words = [f"answered {status}", str(answer.get("error", "without a reason"))]
    if status == 401:
        words.append("(give a token: --token or ANKUSA_TOKEN)")
    if status == 404 and answer.get("error") == "not_found":
        words.append("(no admin API: a node's is on its admin.port, 4002 unless set)")
    named = [str(answer[key]) for key in ("field", "role", "message", "limit") if answer.get(key)]
    return " ".join(words) + (f": {' '.join(named)}" if named else "")


def succeeded(reports: Sequence[Report], *, watched: bool) -> bool:
    """Whether every node has what was asked for: a plan, a job that is started, or (when watched) one that is done."""
    states = {"done"} if watched else STARTED
    return all(report.trouble is None and (report.plan is not None or report.state in states) for report in reports)
