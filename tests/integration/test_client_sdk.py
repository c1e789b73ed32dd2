"""The published client (PyPI `ankusa` 0.5.0) against this server, unmodified, from a virtual environment of its own.

Its import name is the server's, so the two never share an interpreter: the client runs as a script and answers in JSON.
The environment is made once, in pytest's cache directory, by our pip from the index that this machine uses.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.config import Config
from schemas.config import Node as NodeConfig
from tests.unit.api.node import TOKENS, Node, tokens

CLIENT = "ankusa==0.5.0"
UUID = "11111111-1111-7111-8111-111111111111"

# Runs `calls`, a list of [method, arguments], and prints what each answered or raised.
SCRIPT = """
import json, sys
from ankusa.admin import client as module
from ankusa.admin import errors

url, token, calls = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
found = []
with module.AdminClient(url, headers={"Authorization": "Bearer " + token} if token else None) as client:
    for name, arguments in calls:
        try:
            found.append({"answer": getattr(client, name)(*arguments)})
        except errors.AdminError as error:
            found.append({
                "raised": type(error).__name__,
                "status": getattr(error, "status", None),
                "code": getattr(error, "code", None),
                "role": getattr(error, "role", None),
                "retryable": error.retryable,
            })
methods = [name for name in vars(module.AdminClient) if not name.startswith("_") and name != "close"]
print(json.dumps({"found": found, "methods": methods}))
"""


@pytest.fixture(scope="session")
def python(request: pytest.FixtureRequest) -> Path:
    """The interpreter of an environment that holds the client and nothing of ours."""
    cache = request.config.cache
    assert cache is not None
    home = cache.mkdir(f"{CLIENT.replace('==', '-')}-py{sys.version_info.major}.{sys.version_info.minor}")
    python, done = home / "env" / "bin" / "python", home / "env" / "installed"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of two processes that run tests one makes it
        if not done.exists():
            venv = [sys.executable, "-m", "venv", "--clear", "--without-pip", str(home / "env")]
            subprocess.run(venv, check=True, timeout=120)
            pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "install", CLIENT], check=True, timeout=240)
            done.write_text(CLIENT)
    return python


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with Node(tmp_path, tokens=tokens()) as made:
        yield made


def run(python: Path, node: Node, calls: list[Any], token: str = TOKENS["admin"]) -> tuple[list[Any], list[str]]:
    """What the client's methods answered, and the names of all it has."""
    command = [str(python), "-I", "-c", SCRIPT, f"http://127.0.0.1:{node.port}", token, json.dumps(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    return printed["found"], printed["methods"]


def test_every_method_of_the_admin_client(python: Path, node: Node) -> None:
    first, second = node.dead(source="orders"), node.dead(source="bills")
    held = node.hold()
    calls: list[Any] = [
        ["health", []],
        ["metrics", []],
        ["config", []],
        ["list_dead_letters", []],
        ["list_dead_letters", [{"source_id": "orders", "since": None, "limit": 5}]],
        ["list_dead_letters", [{"limit": 1, "since": 0}]],
        ["create_replay", [{"kind": "dlq", "job_id": UUID, "rate": 100, "max_lag_ms": 500}]],
        ["create_replay", [{"kind": "dlq", "job_id": UUID}]],
        ["get_replay", [UUID]],
        ["list_replays", []],
        ["update_replay", [UUID, {"state": "paused", "rate": 7}]],
        ["list_quarantined", []],
        ["list_quarantined", [{"limit": None}]],
        ["list_quarantined", [{"limit": 0}]],
    ]
    found, methods = run(python, node, calls)
    assert {name for name, _ in calls} == set(methods)
    answers = [one["answer"] for one in found]
    assert {key: answers[0][key] for key in ("status", "instance", "roles")} == {
        "status": "ok",
        "instance": "default",
        "roles": ["edge", "dispatch", "storage"],
    }
    assert 'ankusa_rows{state="dead"} 2.0' in answers[1]
    assert answers[2]["node"]["instance"] == "default"
    assert [entry["id"] for entry in answers[3]["entries"]] == [second, first]
    assert [entry["id"] for entry in answers[4]["entries"]] == [first]
    assert [entry["id"] for entry in answers[5]["entries"]] == [second]
    assert answers[6]["id"] == answers[7]["id"] == UUID
    assert (answers[6]["state"], answers[6]["rate"], answers[6]["max_lag_ms"]) == ("running", 100, 500)
    assert answers[8] == answers[6]
    assert answers[9] == {"replays": [answers[6]]}
    assert (answers[10]["state"], answers[10]["rate"]) == ("paused", 7)
    assert [entry["id"] for entry in answers[11]["entries"]] == [held]
    assert answers[12]["entries"] == answers[11]["entries"]
    assert answers[13]["entries"] == []


def test_refusals_become_the_clients_own_errors(python: Path, node: Node) -> None:
    found, _ = run(
        python,
        node,
        [
            ["create_replay", [{"kind": "dlq", "rate": 0}]],
            ["get_replay", ["no such/job"]],
            ["get_replay", [UUID]],
            ["update_replay", [UUID, {"rate": 5}]],
            ["list_dead_letters", [{"limit": "many"}]],
        ],
    )
    assert [one["raised"] for one in found] == ["AdminRejectedError"] * 5
    assert [(one["status"], one["code"]) for one in found] == [
        (400, "invalid_filter"),
        (404, "not_found"),
        (404, "replay_not_found"),
        (404, "replay_not_found"),
        (400, "invalid_query"),
    ]
    without, _ = run(python, node, [["health", []], ["config", []]], token="")
    assert without[0]["answer"]["status"] == "ok"
    assert (without[1]["status"], without[1]["code"], without[1]["retryable"]) == (401, "unauthorized", False)


def test_a_missing_role_and_a_store_that_is_away_are_told_apart(python: Path, tmp_path: Path) -> None:
    with Node(tmp_path / "edge", config=Config(node=NodeConfig(roles=("edge", "storage")))) as node:
        (found,), _ = run(python, node, [["create_replay", [{"kind": "dlq"}]]], token="")
        assert (found["raised"], found["role"], found["retryable"]) == ("RoleNotEnabledError", "dispatch", False)
    with Node(tmp_path / "away") as node:

        async def close() -> None:
            node.parts.log.fail("away")
            node.parts.log.tables.close()

        node.run(close)
        found_all, _ = run(python, node, [["list_dead_letters", []], ["list_replays", []]], token="")
        assert [(one["raised"], one["retryable"]) for one in found_all] == [("AdminUnavailableError", True)] * 2
