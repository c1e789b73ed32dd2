"""The command line: exit statuses and what is said, in this process where nothing has to run on."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ankusa import cli
from ankusa.config import load
from tests.support.fake_node import JOB, FakeNode, serving

SOUND = "sources: {a: {verify: {type: none}, sinks: [{type: log}]}}\n"

BROKEN = [
    ("unknown key", SOUND + "http: {prot: 1}", "http.prot"),
    ("unknown section", SOUND + "htpp: {}", "htpp"),
    (
        "empty secret",
        "sources: {a: {verify: {type: github, secret: ''}, sinks: [{type: log}]}}",
        "sources.a.verify.secret",
    ),
    ("no secret", "sources: {a: {verify: {type: stripe}, sinks: [{type: log}]}}", "sources.a.verify.secret"),
    (
        "missing variable",
        "sources: {a: {verify: {type: github, secret: '${ANKUSA_TEST_NOT_SET}'}, sinks: [{type: log}]}}",
        "sources.a.verify.secret",
    ),
    ("bad number", SOUND + "dispatch: {concurrency: many}", "dispatch.concurrency"),
    ("number out of range", SOUND + "http: {port: 70000}", "http.port"),
    ("no sources", "http: {port: 0}", "sources"),
    ("no sinks", "sources: {a: {verify: {type: none}, sinks: []}}", "sources.a.sinks"),
    ("unknown sink", "sources: {a: {verify: {type: none}, sinks: [{type: pigeon}]}}", "sources.a.sinks[0].type"),
    (
        "sink to a private address",
        "sources: {a: {verify: {type: none}, sinks: [{type: http, url: 'http://192.168.0.7/'}]}}",
        "sources.a.sinks[0].url",
    ),
    (
        "sink to the metadata address",
        "sources: {a: {verify: {type: none}, sinks: [{type: http, url: 'http://169.254.169.254/'}]}}",
        "sources.a.sinks[0].url",
    ),
    (
        "sink without a url",
        "sources: {a: {verify: {type: none}, sinks: [{type: http}]}}",
        "sources.a.sinks[0].url",
    ),
    ("unknown verifier", "sources: {a: {verify: {type: rsa}, sinks: [{type: log}]}}", "sources.a.verify.type"),
    ("bad tenant", "sources: {a: {tenant: 'a b', verify: {type: none}, sinks: [{type: log}]}}", "sources.a.tenant"),
    ("bad source name", "sources: {'a b': {verify: {type: none}, sinks: [{type: log}]}}", "sources.a b"),
    ("open admin without tokens", SOUND + "admin: {ip: 0.0.0.0}", "admin.tokens"),
    ("two listeners on one port", SOUND + "http: {port: 4100}\nadmin: {port: 4100}", "admin.port"),
    ("bad network", SOUND + "egress: {allow: [10.0.0.0/33]}", "egress.allow[0]"),
    ("retry upside down", SOUND + "dispatch: {retry: {base_ms: 20, max_ms: 10}}", "dispatch.retry.base_ms"),
    ("a rate of zero", SOUND + "rate_limits: {default: {rate: 0, burst: 1}}", "rate_limits.default.rate"),
    ("not built yet", SOUND + "archive: {roll_ms: 30000}", "archive"),
    ("not YAML", "sources: {a: [", "file"),
    ("not a mapping", "- a\n- b\n", "file"),
]


def write(directory: Path, text: str) -> str:
    path = directory / "ankusa.yaml"
    path.write_text(text)
    return str(path)


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have one."""
    for name in ("ANKUSA_CONFIG", "ANKUSA_TOKEN", "PORT", "ANKUSA_HTTP_PORT", "ANKUSA_ADMIN_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("text", "field"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_check_config_names_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, field: str
) -> None:
    assert cli.main(["check-config", write(tmp_path, text)]) == 78
    said = capsys.readouterr()
    assert said.out == ""
    assert f"\n  {field}: " in said.err


def test_check_config_says_all_that_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-config", write(tmp_path, SOUND + "http: {port: no}\nadmin: {prot: 1}")]) == 78
    said = capsys.readouterr().err
    assert "http.port: " in said
    assert "admin.prot: " in said


def test_check_config_of_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check-config", str(tmp_path / "none.yaml")]) == 78
    assert "none.yaml" in capsys.readouterr().err


def test_check_config_of_a_sound_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, SOUND)
    assert cli.main(["check-config", path]) == 0
    said = capsys.readouterr()
    assert said.out.startswith(f"{path}: ok. sources 1, sinks 1, hooks on 127.0.0.1:4000/webhooks")
    assert said.out.count("\n") == 1
    assert said.err == ""


def test_check_config_as_a_command(tmp_path: Path) -> None:
    path = write(tmp_path, "sources: {a: {verify: {type: github, secret: ''}, sinks: [{type: log}]}}")
    ended = subprocess.run([sys.executable, "-m", "ankusa.cli", "check-config", path], capture_output=True, text=True)
    assert ended.returncode == 78
    assert "sources.a.verify.secret: " in ended.stderr
    assert "Traceback" not in ended.stderr


SECRETS = """
admin: {tokens: [{name: ops, token: adm1n-t0ken-value, scopes: [admin]}]}
sources:
  a:
    verify: {type: github, secret: [hunter22-first, hunter22-second]}
    sinks:
      - {type: http, url: 'https://example.com/hook?key=hunter22-query', secret: hunter22-signing}
"""


@pytest.mark.parametrize("option", [[], ["--config"]])
def test_print_config_hides_secrets(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    assert cli.main(["print-config", *option, write(tmp_path, SECRETS)]) == 0
    shown = capsys.readouterr().out
    assert "hunter22" not in shown
    assert "adm1n" not in shown
    document = yaml.safe_load(shown)
    assert document["sources"]["a"]["verify"]["type"] == "github"
    assert document["dispatch"]["retry"]["max_attempts"] == 84  # defaults are filled in


def test_print_config_without_a_file_shows_the_demo_source(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["print-config"]) == 0
    assert list(yaml.safe_load(capsys.readouterr().out)["sources"]) == ["demo"]


def test_print_config_of_a_broken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["print-config", write(tmp_path, "sources: {}")]) == 78
    assert "sources: " in capsys.readouterr().err


def test_what_print_config_shows_loads_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, SOUND)
    cli.main(["print-config", path])
    again = tmp_path / "again.yaml"
    again.write_text(capsys.readouterr().out)
    assert load(str(again), {}) == load(path, {})


def test_version() -> None:
    ended = subprocess.run([sys.executable, "-m", "ankusa.cli", "version"], capture_output=True, text=True, check=True)
    name, number = ended.stdout.split()
    assert name == "ankusa"
    assert number[0].isdigit()


def test_help_and_version_import_nothing_heavy() -> None:
    code = "import sys; from ankusa import cli; cli.main(['version']); print([m for m in sys.modules if m in %r])"
    heavy = ("rocksdict", "fastapi", "uvicorn", "pyreqwest", "msgspec", "yaml", "rich", "asyncio")
    ended = subprocess.run([sys.executable, "-c", code % (heavy,)], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_serve_refuses_a_bad_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "http: {port: x}\nsources: {a: {verify: {type: none}}}\n")
    assert cli.main(["serve", "--config", path]) == 78
    said = capsys.readouterr().err
    assert "http.port: " in said
    assert "sources.a.sinks: " in said
    assert list(tmp_path.iterdir()) == [Path(path)]  # and starts nothing


def test_serve_says_which_port_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        config = SOUND + f"http: {{port: {port}}}\nadmin: {{port: 0}}\nnode: {{data_dir: {tmp_path / 'data'}}}\n"
        assert cli.main(["serve", "--config", write(tmp_path, config)]) == 1
    said = capsys.readouterr().err
    assert f"http.port: cannot listen on 127.0.0.1:{port}: " in said
    assert "end what listens there, or set another port" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kind", "dlq"], "--nodes"),
        (["--nodes", "a:1"], "--kind"),
        (["--nodes", "a:1", "--kind", "dlq", "--rate", "fast"], "--rate"),
        (["--nodes", "ftp://a", "--kind", "dlq"], "--nodes: ftp://a"),
        (["--nodes", "", "--kind", "dlq"], "--nodes: at least one"),
        (["--nodes", "a:1,a:1", "--kind", "dlq"], "twice"),
        (["--nodes", "a:1", "--kind", "dlq", "--filter", "source_id"], "--filter: 'source_id'"),
        (["--nodes", "a:1", "--kind", "dlq", "--filter", "since=now"], "--filter: since"),
        (["--nodes", "a:1", "--kind", "dlq", "--filter", "max_lag_ms=1"], "--max-lag-ms"),
    ],
)
def test_replay_arguments_that_are_wrong(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    try:
        status = cli.main(["replay", *arguments])
    except SystemExit as ended:  # argparse ends by itself
        status = int(ended.code or 0)
    assert status == 2
    assert words in capsys.readouterr().err


def test_replay_starts_one_job_on_all_nodes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANKUSA_TOKEN", "t0ken")
    first, second = FakeNode((202, JOB)), FakeNode((202, JOB))
    with serving(first) as a, serving(second) as b:
        arguments = ["replay", "--nodes", f"{a.name},{b.name}", "--kind", "dlq", "--filter", "source_id=x", "sink=1"]
        arguments += ["--rate", "5", "--max-lag-ms", "200"]
        assert cli.main(arguments) == 0
    bodies = [node.asked[0][3] for node in (first, second)]
    assert bodies[0] == bodies[1]
    job_id = bodies[0].pop("job_id")
    assert bodies[0] == {"kind": "dlq", "source_id": "x", "sink": 1, "rate": 5, "max_lag_ms": 200}
    assert first.asked[0][2] == "Bearer t0ken"
    said = capsys.readouterr().out
    assert f"job {job_id}" in said
    assert "2 nodes: 2 running" in said
    assert "t0ken" not in said


def test_replay_goes_on_with_an_earlier_try(capsys: pytest.CaptureFixture[str]) -> None:
    node = FakeNode((200, {**JOB, "state": "done"}))
    with serving(node) as address:
        arguments = ["replay", "--nodes", address.name, "--kind", "dlq", "--job-id", JOB["id"], "--watch"]
        assert cli.main(arguments) == 0
    assert node.asked[0][3]["job_id"] == JOB["id"]
    assert "1 done" in capsys.readouterr().out


def test_replay_fails_when_one_node_does_and_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeNode((503, {"error": "store_unavailable"}))) as bad, serving(FakeNode((202, JOB))) as good:
        assert cli.main(["replay", "--nodes", f"{bad.name},{good.name}", "--kind", "dlq"]) == 1
    said = capsys.readouterr()
    assert "store_unavailable" in said.out
    assert "1 failed, 1 running" in said.out
    assert "--job-id" in said.err


def test_replay_names_the_job_that_a_node_has_already(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeNode((200, {**JOB, "rate": 7}))) as address:
        assert cli.main(["replay", "--nodes", address.name, "--kind", "dlq", "--rate", "50"]) == 0
    said = capsys.readouterr().out
    assert f"{address.name}  has this replay already: job {JOB['id']} at 7 a second" in said
    assert not any(line.startswith("job ") for line in said.splitlines())  # no node has the id that was sent


def test_replay_that_every_node_refuses_advises_no_job_id(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = {"error": "invalid_filter", "field": "kind", "message": "must be one of dlq"}
    with serving(FakeNode((400, refusal))) as a, serving(FakeNode((404, {"error": "not_found"}))) as b:
        assert cli.main(["replay", "--nodes", f"{a.name},{b.name}", "--kind", "x"]) == 1
    said = capsys.readouterr()
    assert "kind must be one of dlq" in said.out
    assert "no admin API" in said.out
    assert "--job-id" not in said.err
    assert "mend what was refused" in said.err


def test_replay_dry_run_shows_the_plan_and_names_no_job(capsys: pytest.CaptureFixture[str]) -> None:
    plan = {"dry_run": True, "count": 1234, "skipped": 0, "duration_ms": 2000, "by_sink": {"acme/orders/0/http": 1234}}
    node = FakeNode((200, plan))
    with serving(node) as address:
        assert cli.main(["replay", "--nodes", address.name, "--kind", "dlq", "--dry-run"]) == 0
    assert node.asked[0][3] == {"kind": "dlq", "dry_run": True}
    said = capsys.readouterr().out
    assert "acme/orders/0/http" in said
    assert "would move 1,234 on 1 of 1 nodes in about 2 s" in said
