"""Files that load: the whole language as far as it is built, defaults, the demo, references, overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ankusa.config import ConfigError, effective, load
from ankusa.redact import redact
from schemas.config import (
    Config,
    Dedupe,
    Kafka,
    KafkaSasl,
    KafkaSecurity,
    RateLimit,
    Retry,
    RetryOverride,
    Sink,
    TenantDispatch,
    retry_policy,
)
from tests.unit.config.files import SOUND, error_of, fields_of, load_document, load_text, write

# The example of spec 10 without what is not built: the archive.
EXAMPLE = """
node:       {instance: default, roles: [edge, dispatch, storage], data_dir: ./data, edges: 1}
log:        {type: local, level: info}
kafka:      {brokers: localhost:9092, prefix: ankusa., partitions: 12, replication: 3, security: {}}
http:       {ip: 127.0.0.1, port: 4000, max_body_bytes: 8000000, routing: path, prefix: /webhooks}
admin:      {enabled: true, ip: 127.0.0.1, port: 4002, tokens: [], insecure: false}
routes:     {enabled: false, max_routes: 10000, ip_denied_status: 403, trusted_proxies: [],
             ip_rules: {default: allow, rules: []}, admin: {ip: 127.0.0.1, port: 4003}, seed: []}
rate_limits: {default: null, tenants: {}}
quarantine: {burst: 100, rate: 20, max_bytes: 1073741824}
batcher:    {max_batch: 256, max_delay_ms: 0, max_queue: 10000, max_queue_bytes: 268435456}
dispatch:
  batch: 128
  concurrency: 32
  sink_concurrency: 8
  max_inflight: 4096
  max_inflight_bytes: 134217728
  attempt_timeout_ms: 30000
  breaker_failures: 5
  breaker_open_ms: 30000
  breaker_max_open_ms: 300000
  tenants: {default: {}, acme: {max_inflight: 512, max_inflight_bytes: 16777216, concurrency: 8}}
  retry: {base_ms: 100, max_ms: 300000, max_attempts: 84, max_elapsed_ms: 86400000, jitter: true}
claim_check: {ip: 127.0.0.1, port: 4001, pack_max_bytes: 16777216, retention_days: null, store: {type: local}}
lifecycle:  {sinks: [], retention_days: 30}
egress:     {allow: []}
source_store: {type: static}
sources:
  stripe:
    tenant: default
    verify: {type: stripe, secret: ["${NEW}", "${OLD}"], tolerance_seconds: 300}
    on_verify_failure: quarantine
    dedupe: stripe
    forward_headers: [stripe-signature]
    retry: {max_attempts: 20}
    sinks:
      - {type: http, url: "${SINK_URL}", method: post, timeout_ms: 5000, headers: {}, secret: "${WHSEC}"}
      - {type: log, ordered: false, retry: {max_ms: 1000}}
"""
ENV = {
    "NEW": "whsec_bmV3LXNlY3JldC1vZi0zMi1ieXRlcy1sb25nISE=",
    "OLD": "whsec_b2xkLXNlY3JldC1vZi0zMi1ieXRlcy1sb25nISE=",
    "SINK_URL": "https://example.com/hooks",
    "WHSEC": "whsec_c2luay1zZWNyZXQtMzItYnl0ZXMtbG9uZyEhISE=",
}


def test_the_example_loads(tmp_path: Path) -> None:
    config = load_text(tmp_path, EXAMPLE, ENV)
    source = config.sources["stripe"]
    assert (source.name, source.tenant, source.on_verify_failure) == ("stripe", "default", "quarantine")
    assert source.verify.secret == (ENV["NEW"], ENV["OLD"])
    assert source.dedupe == Dedupe(preset="stripe")
    assert source.forward_headers == ("stripe-signature",)
    assert source.sinks[0].type == "http"
    assert source.sinks[0].options["url"] == ENV["SINK_URL"]
    assert source.sinks[0].options["secret"] == ENV["WHSEC"]
    assert source.sinks[1] == Sink(type="log", retry=RetryOverride(max_ms=1000))
    assert config.dispatch.tenants["acme"] == TenantDispatch(
        max_inflight=512, max_inflight_bytes=16_777_216, concurrency=8
    )
    assert not config.demo


def test_its_figures_are_the_defaults(tmp_path: Path) -> None:
    short = yaml.safe_dump({"sources": yaml.safe_load(EXAMPLE)["sources"], "dispatch": {"tenants": {"acme": {}}}})
    written, assumed = load_text(tmp_path, EXAMPLE, ENV), load_text(tmp_path, short, ENV)
    sections = ("node", "log", "http", "admin", "rate_limits", "quarantine", "batcher", "claim_check", "egress")
    for section in sections:
        assert getattr(written, section) == getattr(assumed, section)
    for key in ("batch", "concurrency", "sink_concurrency", "max_inflight", "max_inflight_bytes", "attempt_timeout_ms"):
        assert getattr(written.dispatch, key) == getattr(assumed.dispatch, key)
    assert written.dispatch.retry == assumed.dispatch.retry


def test_retry_keys_go_from_the_node_to_the_sink(tmp_path: Path) -> None:
    config = load_text(tmp_path, EXAMPLE, ENV)
    source = config.sources["stripe"]
    assert retry_policy(config.dispatch.retry, source.retry, source.sinks[1].retry) == Retry(
        max_attempts=20, max_ms=1000
    )


def test_without_a_file_it_is_the_demo() -> None:
    config = load(None, {})
    assert config.demo
    assert list(config.sources) == ["demo"]
    assert config.sources["demo"].verify.type == "none"
    assert [sink.type for sink in config.sources["demo"].sinks] == ["log"]
    assert config == Config(sources=config.sources, demo=True)


def test_the_environment_names_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, SOUND)
    assert list(load(None, {"ANKUSA_CONFIG": path}).sources) == ["a"]
    assert load(None, {"ANKUSA_CONFIG": ""}).demo
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path / "other.yaml"), {"ANKUSA_CONFIG": path})


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("dedupe: github", Dedupe(preset="github")),
        ("dedupe: {preset: github, ttl_seconds: 60}", Dedupe(preset="github", ttl_seconds=60)),
        ("dedupe: {header: X-Event-Id}", Dedupe(header="X-Event-Id")),
        ("dedupe: {json: data.id, ttl_seconds: 60}", Dedupe(json="data.id", ttl_seconds=60)),
        ("dedupe: null", None),
        ("tenant: default", None),
    ],
)
def test_spellings_of_dedupe(tmp_path: Path, written: str, read: Dedupe | None) -> None:
    text = f"sources: {{a: {{verify: {{type: none}}, {written}, sinks: [{{type: log}}]}}}}"
    assert load_text(tmp_path, text).sources["a"].dedupe == read


def test_tokens_in_either_form(tmp_path: Path) -> None:
    text = (
        SOUND
        + f"""
admin:
  ip: 0.0.0.0
  tokens:
    - {{token: abc, scopes: [admin], name: ops}}
    - {{sha256: "{"0" * 64}", scopes: [read, "tenant:acme"]}}
"""
    )
    tokens = load_text(tmp_path, text).admin.tokens
    assert [(token.token, token.sha256, token.scopes, token.name) for token in tokens] == [
        ("abc", None, ("admin",), "ops"),
        (None, "0" * 64, ("read", "tenant:acme"), None),
    ]


@pytest.mark.parametrize(
    "admin",
    [
        "admin: {ip: 0.0.0.0, insecure: true}",
        "admin: {ip: 0.0.0.0, enabled: false}",
        "admin: {ip: '::1'}",
        "admin: {ip: localhost}",
        "admin: {ip: 127.0.0.2}",
    ],
)
def test_admin_without_tokens_where_it_may_be(tmp_path: Path, admin: str) -> None:
    assert load_text(tmp_path, SOUND + admin).admin.tokens == ()


@pytest.mark.parametrize(
    "listeners",
    [
        "{http: {port: 0}, admin: {port: 0}}",
        "{http: {port: 4002}, admin: {enabled: false}}",
        "{http: {port: 4002}, node: {roles: [dispatch, storage]}}",
        "{http: {port: 4002, ip: 127.0.0.1}, admin: {ip: 127.0.0.2}}",
    ],
)
def test_listeners_that_do_not_collide(tmp_path: Path, listeners: str) -> None:
    document = {**yaml.safe_load(SOUND), **yaml.safe_load(listeners)}
    assert load_document(tmp_path, document).sources.keys() == {"a"}


def test_sections_that_state_they_are_off_load(tmp_path: Path) -> None:
    off = "routes: {enabled: false}\nsource_store: {type: static}\nlifecycle: {sinks: []}\n"
    assert load_text(tmp_path, SOUND + off) == load_text(tmp_path, SOUND)


def test_an_empty_section_is_its_defaults(tmp_path: Path) -> None:
    assert load_text(tmp_path, SOUND + "http:\ndispatch:\n  tenants:\n  retry:\n") == load_text(tmp_path, SOUND)


def test_sink_concurrency_off(tmp_path: Path) -> None:
    assert load_text(tmp_path, SOUND + "dispatch: {sink_concurrency: null}").dispatch.sink_concurrency is None


def test_rate_limits(tmp_path: Path) -> None:
    limits = load_text(
        tmp_path, SOUND + "rate_limits: {default: {rate: 50, burst: 100}, tenants: {x: {rate: 0.5, burst: 1}}}"
    )
    assert limits.rate_limits.default == RateLimit(rate=50, burst=100)
    assert limits.rate_limits.tenants == {"x": RateLimit(rate=0.5, burst=1)}


class TestReferences:
    """`${VAR}`, `${VAR:-default}` and `$${`."""

    @pytest.mark.parametrize(
        ("written", "value"),
        [
            ("${DIR}", "/srv/x"),
            ("a-${DIR}-${DIR}", "a-/srv/x-/srv/x"),
            ("${NONE:-./here}", "./here"),
            ("${EMPTY:-./here}", "./here"),
            ("${DIR:-./here}", "/srv/x"),
            ("$${DIR}", "${DIR}"),
            ("$$${DIR}", "$${DIR}"),
            ("$DIR", "$DIR"),
            ("${NESTED}", "${DIR}"),
            ("a${EMPTY}b", "ab"),
        ],
    )
    def test_in_text(self, tmp_path: Path, written: str, value: str) -> None:
        env = {"DIR": "/srv/x", "EMPTY": "", "NESTED": "${DIR}"}
        document = {**yaml.safe_load(SOUND), "node": {"data_dir": written}}
        assert load_document(tmp_path, document, env).node.data_dir == value

    def test_become_the_type_of_the_field(self, tmp_path: Path) -> None:
        text = (
            SOUND
            + """
http: {port: "${P}"}
quarantine: {rate: "${R}"}
admin: {enabled: "${B}"}
dispatch: {sink_concurrency: "${N}"}
routes: {enabled: "${B}"}
"""
        )
        config = load_text(tmp_path, text, {"P": "4010", "R": "2.5", "B": "false", "N": "null"})
        assert config.http.port == 4010
        assert config.quarantine.rate == 2.5
        assert config.admin.enabled is False
        assert config.dispatch.sink_concurrency is None

    def test_are_checked_like_any_value(self, tmp_path: Path) -> None:
        assert fields_of(tmp_path, SOUND + "http: {port: '${P}'}", {"P": "70000"}) == ["http.port"]

    def test_text_stays_text(self, tmp_path: Path) -> None:
        text = "sources: {a: {verify: {type: github, secret: '${S}'}, sinks: [{type: log}]}}"
        for value in ("null", "true", "12345"):
            assert load_text(tmp_path, text, {"S": value}).sources["a"].verify.secret == value

    def test_not_in_keys(self, tmp_path: Path) -> None:
        text = "sources: {'${NAME}': {verify: {type: none}, sinks: [{type: log}]}}"
        assert fields_of(tmp_path, text, {"NAME": "a"}) == ["sources.${NAME}"]

    def test_reach_the_options_of_a_sink(self, tmp_path: Path) -> None:
        text = "sources: {a: {verify: {type: none}, sinks: [{type: http, url: '${U}', timeout_ms: '${T:-9}'}]}}"
        options = load_text(tmp_path, text, {"U": "https://example.com/"}).sources["a"].sinks[0].options
        assert options == {"url": "https://example.com/", "timeout_ms": 9}

    def test_an_option_of_digits_is_a_number_only_with_a_unit(self, tmp_path: Path) -> None:
        keys = "type: http, url: 'https://example.com/', timeout_ms: '${N}', secret: '${S}'"
        text = f"sources: {{a: {{verify: {{type: none}}, sinks: [{{{keys}}}]}}}}"
        options = (
            load_text(tmp_path, text, {"N": "7", "S": "12345678901234567890123456789012"}).sources["a"].sinks[0].options
        )
        assert (options["timeout_ms"], options["secret"]) == (7, "12345678901234567890123456789012")


class TestOverrides:
    """Variables win over the file, and are named when they are wrong."""

    FILE = SOUND + "node: {roles: [edge], data_dir: ./file}\nhttp: {port: 1}\nadmin: {port: 2}\nlog: {level: error}"

    @pytest.mark.parametrize(
        ("name", "text", "section", "key", "value"),
        [
            ("ANKUSA_ROLES", "edge,dispatch", "node", "roles", ("edge", "dispatch")),
            ("ANKUSA_ROLES", "dispatch storage", "node", "roles", ("dispatch", "storage")),
            ("ANKUSA_DATA_DIR", "/srv/ankusa", "node", "data_dir", "/srv/ankusa"),
            ("ANKUSA_LOG_LEVEL", "debug", "log", "level", "debug"),
            ("ANKUSA_LOG_TYPE", "local", "log", "type", "local"),
            ("ANKUSA_HTTP_PORT", "4010", "http", "port", 4010),
            ("PORT", "4011", "http", "port", 4011),
            ("ANKUSA_ADMIN_PORT", "4012", "admin", "port", 4012),
            ("ANKUSA_ADMIN_IP", "127.0.0.5", "admin", "ip", "127.0.0.5"),
            ("ANKUSA_KAFKA_BROKERS", "a:9092,b:9093", "kafka", "brokers", ("a:9092", "b:9093")),
        ],
    )
    def test_win(self, tmp_path: Path, name: str, text: str, section: str, key: str, value: Any) -> None:
        for file in (self.FILE, SOUND):
            assert getattr(getattr(load_text(tmp_path, file, {name: text}), section), key) == value
        assert getattr(getattr(load(None, {name: text}), section), key) == value

    def test_ours_wins_over_port(self, tmp_path: Path) -> None:
        env = {"PORT": "4011", "ANKUSA_HTTP_PORT": "4010"}
        assert load_text(tmp_path, self.FILE, env).http.port == 4010

    def test_an_empty_one_is_not_set(self, tmp_path: Path) -> None:
        env = {"ANKUSA_HTTP_PORT": "", "PORT": "", "ANKUSA_ROLES": " ", "ANKUSA_KAFKA_BROKERS": ""}
        assert load_text(tmp_path, self.FILE, env) == load_text(tmp_path, self.FILE)

    @pytest.mark.parametrize(
        ("name", "text", "field"),
        [
            ("ANKUSA_ROLES", "edge,cook", "ANKUSA_ROLES[1]"),
            ("ANKUSA_ROLES", "edge,edge", "ANKUSA_ROLES[1]"),
            ("ANKUSA_LOG_LEVEL", "loud", "ANKUSA_LOG_LEVEL"),
            ("ANKUSA_LOG_TYPE", "paper", "ANKUSA_LOG_TYPE"),
            ("ANKUSA_HTTP_PORT", "70000", "ANKUSA_HTTP_PORT"),
            ("ANKUSA_HTTP_PORT", "-1", "ANKUSA_HTTP_PORT"),
            ("PORT", "http", "PORT"),
            ("ANKUSA_ADMIN_PORT", "4002.5", "ANKUSA_ADMIN_PORT"),
            ("ANKUSA_ADMIN_IP", "example.com", "ANKUSA_ADMIN_IP"),
            ("ANKUSA_KAFKA_BROKERS", "a:9092,b", "ANKUSA_KAFKA_BROKERS[1]"),
        ],
    )
    def test_are_named(self, tmp_path: Path, name: str, text: str, field: str) -> None:
        assert fields_of(tmp_path, self.FILE, {name: text}) == [field]

    def test_mend_what_the_file_has_wrong(self, tmp_path: Path) -> None:
        assert load_text(tmp_path, SOUND + "http: {port: 70000}", {"PORT": "4010"}).http.port == 4010

    def test_an_open_listener_by_variable_needs_tokens_too(self, tmp_path: Path) -> None:
        assert fields_of(tmp_path, SOUND, {"ANKUSA_ADMIN_IP": "0.0.0.0"}) == ["admin.tokens"]


class TestKafka:
    """The Kafka host's section."""

    FILE = """
    log: {type: kafka}
    node: {roles: [edge]}
    kafka:
      brokers: a:9092, b:9092
      prefix: hooks-
      partitions: 24
      security: {tls: true, ca_file: /ca, sasl: {mechanism: scram_sha_512, username: hook, password: "${P}"}}
    sources: {a: {verify: {type: none}, sinks: [{type: log}]}}
    """

    def test_loads(self, tmp_path: Path) -> None:
        kafka = load_text(tmp_path, self.FILE, {"P": "hush"}).kafka
        assert kafka == Kafka(
            brokers=("a:9092", "b:9092"),
            prefix="hooks-",
            partitions=24,
            security=KafkaSecurity(
                tls=True,
                ca_file="/ca",
                sasl=KafkaSasl(mechanism="scram_sha_512", username="hook", password="hush"),
            ),
        )

    def test_an_edge_has_no_admin_api_whose_port_could_be_taken(self, tmp_path: Path) -> None:
        assert load_text(tmp_path, self.FILE, {"P": "hush", "PORT": "4002"}).http.port == 4002

    def test_is_written_back(self, tmp_path: Path) -> None:
        config = load_text(tmp_path, self.FILE, {"P": "hush"})
        assert load_document(tmp_path, effective(config)) == config

    def test_its_secrets_are_hidden(self, tmp_path: Path) -> None:
        config = load_text(tmp_path, self.FILE, {"P": "hush-hush"})
        assert "hush-hush" not in repr(config)
        assert "hush-hush" not in str(redact(config))
        assert "key_password" not in repr(config.kafka.security)


class TestEffective:
    """The configuration written back as a document."""

    @pytest.mark.parametrize("text", [EXAMPLE, SOUND], ids=["example", "shortest"])
    def test_loads_again_as_itself(self, tmp_path: Path, text: str) -> None:
        config = load_text(tmp_path, text, ENV)
        assert load_document(tmp_path, effective(config)) == config

    def test_keeps_references_in_values_apart(self, tmp_path: Path) -> None:
        text = "sources: {a: {verify: {type: github, secret: '${S}'}, sinks: [{type: log}]}}"
        for secret in ("${HOME}", "$${x}", "$$", "${"):
            config = load_text(tmp_path, text, {"S": secret})
            assert load_document(tmp_path, effective(config)) == config

    def test_is_full(self) -> None:
        document = effective(load(None, {}))
        assert document["dispatch"]["retry"]["max_attempts"] == 84
        assert document["quarantine"] == {"burst": 100, "rate": 20, "max_bytes": 1_073_741_824}
        assert "demo" not in document
        assert document["sources"] == {
            "demo": {
                "tenant": "default",
                "verify": {"type": "none"},
                "on_verify_failure": "reject",
                "retry": {},
                "sinks": [{"type": "log"}],
            }
        }


def test_the_error_reads_line_by_line(tmp_path: Path) -> None:
    error = error_of(tmp_path, SOUND + "http: {port: 70000}\nlog: {level: loud}")
    assert str(error).splitlines() == [
        "log.level: must be one of debug, info, warning, error",
        "http.port: expected a whole number <= 65535",
    ]
