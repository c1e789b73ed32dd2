"""Secrets stay out of everything that is shown: the configuration, errors, texts."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ankusa.config import ConfigError, effective
from ankusa.redact import HIDDEN, redact, redact_text, redact_tree, secret_values
from schemas.config import Config
from tests.unit.config.files import load_document


def drawn(alphabet: str) -> st.SearchStrategy[str]:
    """Text too long and too mixed to stand in a configuration by chance; from a list, for `text` tries words too."""
    texts = st.lists(st.sampled_from(alphabet), min_size=12, max_size=40).map("".join)
    return texts.filter(lambda text: len(set(text)) > 5 and text.strip() == text)


# With characters that quoting, URLs and YAML care about; a token has to fit a header.
SECRETS = drawn(string.ascii_letters + string.digits + "_-+/=.:@#$%&{}[]'\"!~ é")
TOKENS = drawn(string.ascii_letters + string.digits + "_-+/=.~")


def sound(secret: str, token: str) -> dict[str, Any]:
    """A document that loads, with a secret in every place that holds one."""
    inside = quote(secret, safe="")
    url = f"https://example.com/hooks?api_key={inside}&page=2"
    return {
        "admin": {"tokens": [{"token": token, "scopes": ["read"], "name": "ops"}]},
        "sources": {
            "a": {
                "verify": {"type": "hmac", "secret": secret, "signature_header": "x-sig", "signed": "{body}"},
                "sinks": [
                    {
                        "type": "http",
                        "url": url,
                        "secret": [secret, secret],
                        "headers": {
                            "authorization": f"Bearer {token}",
                            "X-Api-Key": token,
                            "x-shop-access-token": token,
                            "x-plain": "plain",
                        },
                    }
                ],
            },
            "b": {"verify": {"type": "github", "secret": [secret, token]}, "sinks": [{"type": "log"}]},
        },
    }


def one_source(source: dict[str, Any]) -> dict[str, Any]:
    return {"sources": {"a": {"verify": {"type": "none"}, "sinks": [{"type": "log"}], **source}}}


def one_sink(**keys: Any) -> dict[str, Any]:
    return one_source({"sinks": [{"type": "http", "url": "https://example.com/", **keys}]})


# Documents that do not load, each wrong at or beside the secret it is given.
BROKEN: dict[str, Callable[[str], dict[str, Any]]] = {
    "level": lambda s: {"log": {"level": s}},
    "port": lambda s: {"http": {"port": s}},
    "scope": lambda s: {"admin": {"tokens": [{"token": s, "scopes": [s]}]}},
    "token of two words": lambda s: {"admin": {"tokens": [{"token": f"{s} {s}", "scopes": ["read"]}]}},
    "token twice": lambda s: {"admin": {"tokens": [{"token": s, "scopes": ["read"]}] * 2}},
    "token as key": lambda s: {"admin": {"tokens": {s: ["read", "${NOPE}"]}}},
    "token alone": lambda s: {"admin": {"tokens": [s]}},
    "token hash": lambda s: {"admin": {"tokens": [{"sha256": s, "scopes": ["read"]}]}},
    "egress": lambda s: {"egress": {"allow": [f"https://user:{quote(s, safe='')}@example.com/"]}},
    "verify type": lambda s: one_source({"verify": {"type": s, "secret": s}}),
    "not base64": lambda s: one_source({"verify": {"type": "standard_webhooks", "secret": f"whsec_{s}!"}}),
    "header": lambda s: one_source(
        {"verify": {"type": "hmac", "secret": s, "signature_header": "x y", "signed": "{body}"}}
    ),
    "needless secret": lambda s: one_source({"verify": {"type": "none", "secret": s}}),
    "secret as mapping": lambda s: one_source({"verify": {"type": "github", "secret": {"value": s}}}),
    "secret as key": lambda s: one_source({"verify": {"type": "github", "secret": {s: "x"}}}),
    "second empty": lambda s: one_source({"verify": {"type": "github", "secret": [s, ""]}}),
    "second a number": lambda s: one_source({"verify": {"type": "github", "secret": [s, 5]}}),
    "missing variable beside": lambda s: one_source({"verify": {"type": "github", "secret": s + " ${NOPE}"}}),
    "url with password": lambda s: one_sink(url=f"https://user:{quote(s, safe='')}@example.com/"),
    "private url with password": lambda s: one_sink(url=f"https://user:{quote(s, safe='')}@10.0.0.1/"),
    "private url with token": lambda s: one_sink(url=f"https://10.0.0.1/?token={quote(s, safe='')}"),
    "url with raw password": lambda s: one_sink(url=f"https://user:{s}@example.com/", method=5),
    "signing secret as mapping": lambda s: one_sink(secret={"value": s}),
    "signing secret and method": lambda s: one_sink(secret=s, method="fetch"),
    "header with line break": lambda s: one_sink(headers={"authorization": f"{s}\n{s}"}),
    "header as list": lambda s: one_sink(headers={"authorization": [s]}),
    "unknown type": lambda s: one_sink(type="pigeon", token=s),
    "unknown option": lambda s: one_sink(password=s),
    "unbuilt type": lambda s: one_sink(type="kafka", security={"sasl_password": s}),
    "unknown key of a log-in": lambda s: {"kafka": {"security": {"sasl": {"passwort": s}}}},
    "log-in of another kind": lambda s: {"kafka": {"security": {"sasl": {"mechanism": s, "password": s}}}},
}


def shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(secret=SECRETS, token=TOKENS)
def test_no_secret_is_shown(tmp_path: Path, secret: str, token: str) -> None:
    document = sound(secret.replace("${", "$${"), token)
    config = load_document(tmp_path, document)
    text = shown(redact(config))
    for form in (secret, quote(secret, safe=""), token, shown(secret)[1:-1]):
        assert form not in text
        assert form not in repr(config)
    assert "plain" in text
    assert "https://example.com/hooks?api_key=[redacted]&page=2" in text


@pytest.mark.parametrize("case", BROKEN)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8, deadline=None)
@given(secret=SECRETS)
def test_no_error_holds_a_secret(tmp_path: Path, case: str, secret: str) -> None:
    document = BROKEN[case](secret.replace("${", "$${"))
    with pytest.raises(ConfigError) as caught:
        load_document(tmp_path, {**one_source({}), **document})
    for form in (secret, quote(secret, safe="")):
        assert form not in str(caught.value)
        assert form not in repr(caught.value.problems)
    assert caught.value.__cause__ is None


def test_print_config_loads_again(tmp_path: Path) -> None:
    config = load_document(tmp_path, sound("s3cr3t-s3cr3t", "t0k3n-t0k3n"))
    document = redact(config)
    again = load_document(tmp_path, yaml.safe_load(yaml.safe_dump(document)))
    assert again.sources["a"].verify.secret == HIDDEN
    assert again.http == config.http
    assert redact(again) == document


def test_what_is_no_secret_stays() -> None:
    config = Config()
    assert redact(config) == effective(config)
    tree = {
        "secret": None,
        "secret_decode": "whsec_base64",
        "tokens": [{"scopes": ["admin"], "name": "ops", "token": None}],
        "sig_prefix": "sha256=",
        "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "headers": {"content-type": "application/json", "accept": "*/*"},
        "url": "https://hooks.example.com:8443/in/orders-2026/customer_updates?page=2&limit=100",
        "idempotency_key": "acme:stripe:evt_1",
        "count": 3,
        "on": True,
    }
    assert redact_tree(tree) == tree


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("secret", "x"),
        ("client_secret", "x"),
        ("Password", "x"),
        ("sasl_password", "x"),
        ("api_key", "x"),
        ("apiKey", "x"),
        ("api-key", "x"),
        ("aws_access_key_id", "x"),
        ("private_key", "x"),
        ("Authorization", "x"),
        ("cookie", "x"),
        ("token", "x"),
        ("password", 12345),
        ("password", True),
    ],
)
def test_by_name(key: str, value: object) -> None:
    assert redact_tree({key: value}) == {key: HIDDEN}
    assert redact_tree({key: [value, {"inner": value}]}) == {key: [HIDDEN, {"inner": HIDDEN}]}


@pytest.mark.parametrize(
    "name", ["Authorization", "X-Api-Key", "x-auth", "x-signature", "Cookie", "x-session-id", "X-Hub-Secret"]
)
def test_by_the_name_of_a_header(name: str) -> None:
    assert redact_tree({"headers": {name: "v"}}) == {"headers": {name: HIDDEN}}


@pytest.mark.parametrize(
    ("text", "cleared"),
    [
        ("https://user:pw@host/x", "https://[redacted]@host/x"),
        ("https://user@host/x", "https://[redacted]@host/x"),
        ("amqp://user:p%40w@host:5672/v", "amqp://[redacted]@host:5672/v"),
        ("amqp://user:p/w@host:5672/v", "amqp://[redacted]@host:5672/v"),
        ("redis://:pw@host:6379/0", "redis://[redacted]@host:6379/0"),
        ("amqp://user:p@w/x@host/v", "amqp://[redacted]@host/v"),
        ("https://host:8443/a@b", "https://host:8443/a@b"),
        ("https://host/x?token=abc&a=b", "https://host/x?token=[redacted]&a=b"),
        ("https://host/x?a=b&X-Amz-Signature=abc", "https://host/x?a=b&X-Amz-Signature=[redacted]"),
        ("https://host/x?q=8f3kd93kd02kd93kd0", "https://host/x?q=[redacted]"),
        ("https://host/x#access_token=abc", "https://host/x#access_token=[redacted]"),
        (
            "https://hooks.slack.com/services/T000/B000/abcd1234efgh5678ijkl9012",
            "https://hooks.slack.com/services/T000/B000/[redacted]",
        ),
        (
            "https://discord.com/api/webhooks/1/aB3-dEfGhIjKlMnOpQrStU_vW9",
            "https://discord.com/api/webhooks/1/[redacted]",
        ),
        ("Bearer abcdef123", "[redacted]"),
        ("got Basic dXNlcjpwdw== back", "got [redacted] back"),
        ("whsec_c2VjcmV0", "[redacted]"),
        ("key sk_live_abc123 is wrong", "key [redacted] is wrong"),
        ("rk_test_abc123", "[redacted]"),
        ("ghp_abcdef0123456789", "[redacted]"),
        ("AKIAIOSFODNN7EXAMPLE", "[redacted]"),
        ("xoxb-1234-abcd", "[redacted]"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "[redacted]"),
        ("password=abc", "password=[redacted]"),
        ("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----", "[redacted]"),
        ("a basic thing", "a basic thing"),
        ("expected text, got a list", "expected text, got a list"),
    ],
)
def test_by_shape(text: str, cleared: str) -> None:
    assert redact_text(text) == cleared
    assert redact_tree({"detail": [text]}) == {"detail": [cleared]}


def test_texts_are_cleared_of_given_secrets_longest_first() -> None:
    assert redact_text("a hunter2 and hunter22", ["hunter2", "hunter22", "a", ""]) == "a [redacted] and [redacted]"


def test_secret_values_are_what_is_hidden() -> None:
    tree = {
        "verify": {"secret": ["one", "two"]},
        "tokens": [{"token": "three", "sha256": "four", "name": "ops"}],
        "headers": {"authorization": "five", "accept": "*/*"},
        "url": "https://u:six@host/x?token=seven",
        "password": {"deep": ["eight"]},
        "plain": "words",
    }
    assert {"one", "two", "three", "four", "five", "six", "seven", "eight"} <= set(secret_values(tree))
    assert not {"ops", "*/*", "words"} & set(secret_values(tree))
