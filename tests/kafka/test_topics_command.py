"""`ankusa topics create | check` on a real broker."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from ankusa import cli
from tests.kafka import cluster


def file(directory: Path, broker: str, **kafka: object) -> str:
    path = directory / "ankusa.yaml"
    section = {"brokers": broker, "prefix": cluster.new_prefix(), "partitions": 2, "replication": 1, **kafka}
    source = {"verify": {"type": "none"}, "sinks": [{"type": "log"}]}
    document = {"log": {"type": "kafka"}, "node": {"roles": ["edge"]}, "kafka": section, "sources": {"a": source}}
    path.write_text(json.dumps(document))
    return str(path)


def test_check_create_check(tmp_path: Path, broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, broker)
    assert cli.main(["topics", "check", "--config", path]) == cli.FAILED
    told = capsys.readouterr()
    assert len(told.err.splitlines()) == 9
    assert "hooks: is missing; run `ankusa topics create`" in told.err
    assert cli.main(["topics", "create", "--config", path]) == cli.OK
    assert "hooks: made, 2 partitions, 1 copies" in capsys.readouterr().out
    assert cli.main(["topics", "check", "--config", path]) == cli.OK
    assert cli.main(["topics", "create", "--config", path]) == cli.OK
    assert "made" not in capsys.readouterr().out


def test_a_cluster_that_cannot_do_it_is_named(tmp_path: Path, broker: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = file(tmp_path, broker, replication=3)
    assert cli.main(["topics", "create", "--config", path]) == cli.FAILED
    assert "kafka.replication" in capsys.readouterr().err


def test_an_embedded_node_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ankusa.yaml"
    path.write_text("sources: {a: {verify: {type: none}, sinks: [{type: log}]}}")
    assert cli.main(["topics", "check", "--config", str(path)]) == cli.CONFIG_EXIT
    assert "log.type: is local" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["check", "create"])
def test_brokers_that_are_away_are_named_within_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], action: str
) -> None:
    path = file(tmp_path, "127.0.0.1:1")
    began = time.monotonic()
    assert cli.main(["topics", action, "--config", path]) == cli.FAILED
    assert time.monotonic() - began < 10  # seconds, on a machine that does other things too
    told = capsys.readouterr().err
    assert told.startswith("kafka.brokers 127.0.0.1:1: no broker answers: start them, or correct kafka.brokers")
