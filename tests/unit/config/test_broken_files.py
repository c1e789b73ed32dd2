"""Files that must not load, and the field each of them has to name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.files import SOUND, error_of, fields_of

NOT_BUILT = "known, but not built yet in this version"
ON_KAFKA = "log: {{type: kafka}}\nnode: {{roles: [{}]}}\n"


def source(keys: str) -> str:
    return f"sources: {{a: {{verify: {{type: none}}, sinks: [{{type: log}}], {keys}}}}}"


def verify(keys: str) -> str:
    return f"sources: {{a: {{verify: {{{keys}}}, sinks: [{{type: log}}]}}}}"


def sink(keys: str) -> str:
    return f"sources: {{a: {{verify: {{type: none}}, sinks: [{{{keys}}}]}}}}"


def claim_store(keys: str) -> str:
    return SOUND + f"claim_check: {{store: {{{keys}}}}}"


def http(keys: str) -> str:
    return sink(f"type: http, url: 'https://example.com/', {keys}")


# What is wrong, the file, the field to be named, words that must be in its message.
BROKEN = [
    # Keys and values, at every level.
    ("unknown section", SOUND + "htpp: {port: 1}", "htpp", "did you mean `http`"),
    ("unknown key in a section", SOUND + "http: {prot: 1}", "http.prot", "did you mean `port`"),
    ("unknown key in dispatch", SOUND + "dispatch: {bach: 1}", "dispatch.bach", "not a known key"),
    ("unknown key in retry", SOUND + "dispatch: {retry: {tries: 3}}", "dispatch.retry.tries", "not a known key"),
    (
        "unknown key of a tenant",
        SOUND + "dispatch: {tenants: {acme: {inflight: 3}}}",
        "dispatch.tenants.acme.inflight",
        "not a known key",
    ),
    ("unknown key of a source", source("sink: []"), "sources.a.sink", ""),
    ("unknown key of verify", verify("type: none, scret: x"), "sources.a.verify.scret", ""),
    ("unknown key of dedupe", source("dedupe: {head: x}"), "sources.a.dedupe.head", ""),
    ("unknown key of a log sink", sink("type: log, urk: x"), "sources.a.sinks[0].urk", ""),
    ("unknown key of an http sink", http("urk: x"), "sources.a.sinks[0].urk", ""),
    ("unknown key of a sink's retry", sink("type: log, retry: {x: 1}"), "sources.a.sinks[0].retry.x", ""),
    (
        "unknown key of a token",
        SOUND + "admin: {tokens: [{token: abc, scopes: [read], scope: x}]}",
        "admin.tokens[0].scope",
        "",
    ),
    (
        "a name inside a source",
        "sources: {a: {name: b, verify: {type: none}, sinks: [{type: log}]}}",
        "sources.a.name",
        "key of the source",
    ),
    ("the mark of the demo", SOUND + "demo: true", "demo", "not a known key"),
    ("a number that is none", SOUND + "http: {port: fast}", "http.port", "expected a whole number, got text"),
    ("a negative number", SOUND + "dispatch: {batch: -1}", "dispatch.batch", ">= 1"),
    ("a number too small", SOUND + "dispatch: {attempt_timeout_ms: 0}", "dispatch.attempt_timeout_ms", ">= 1"),
    ("a fraction for a whole number", SOUND + "dispatch: {concurrency: 1.5}", "dispatch.concurrency", "whole number"),
    ("true for a number", SOUND + "dispatch: {concurrency: true}", "dispatch.concurrency", "whole number"),
    ("a port too large", SOUND + "http: {port: 65536}", "http.port", "<= 65535"),
    (
        "a number beyond 64 bits",
        SOUND + "quarantine: {max_bytes: 1000000000000000000000}",
        "quarantine.max_bytes",
        "<=",
    ),
    ("infinity", SOUND + "quarantine: {rate: .inf}", "quarantine.rate", "<="),
    ("not a number", SOUND + "quarantine: {rate: .nan}", "quarantine.rate", "number"),
    ("a rate of zero", SOUND + "rate_limits: {default: {rate: 0, burst: 1}}", "rate_limits.default.rate", "> 0"),
    (
        "a rate without burst",
        SOUND + "rate_limits: {tenants: {acme: {rate: 1}}}",
        "rate_limits.tenants.acme.burst",
        "required",
    ),
    ("text for true or false", SOUND + "admin: {enabled: perhaps}", "admin.enabled", "true or false"),
    ("a word not in the list", SOUND + "log: {level: loud}", "log.level", "debug, info, warning, error"),
    ("a list for a section", SOUND + "http: [4000]", "http", "expected a mapping"),
    ("text for a list", SOUND + "node: {roles: edge}", "node.roles", "expected a list"),
    ("an unknown role", SOUND + "node: {roles: [edge, cook]}", "node.roles[1]", "edge, dispatch, storage, claim_check"),
    ("a role twice", SOUND + "node: {roles: [edge, edge]}", "node.roles[1]", "twice"),
    ("no roles", SOUND + "node: {roles: []}", "node.roles", "length >= 1"),
    ("no directory", SOUND + "node: {data_dir: ''}", "node.data_dir", "length >= 1"),
    ("a bad instance", SOUND + "node: {instance: 'a b'}", "node.instance", "must be 1 to 64 of A-Z a-z 0-9 _ -"),
    ("a prefix without a slash", SOUND + "http: {prefix: webhooks}", "http.prefix", "must be one or more /segment"),
    ("a prefix that ends in one", SOUND + "http: {prefix: /webhooks/}", "http.prefix", "must be one or more /segment"),
    (
        "a prefix with an empty segment",
        SOUND + "http: {prefix: /web//hooks}",
        "http.prefix",
        "must be one or more /segment",
    ),
    (
        "a prefix with a line break",
        SOUND + 'http: {prefix: "/webhooks\\n"}',
        "http.prefix",
        "must be one or more /segment",
    ),
    ("no address to listen on", SOUND + "http: {ip: example.com}", "http.ip", "IP address"),
    (
        "a rate limit of a bad tenant",
        SOUND + "rate_limits: {tenants: {'a b': {rate: 1, burst: 1}}}",
        "rate_limits.tenants.a b",
        "1 to 64 of",
    ),
    # Sources.
    ("no sources", "http: {port: 0}", "sources", "at least one source"),
    ("empty sources", "sources: {}", "sources", "at least one source"),
    ("sources as a list", "sources: [{name: a}]", "sources", "expected a mapping"),
    ("a bad source name", "sources: {'a/b': {verify: {type: none}, sinks: [{type: log}]}}", "sources.a/b", "letters"),
    (
        "a reserved source name",
        "sources: {'ankusa:lifecycle': {verify: {type: none}, sinks: [{type: log}]}}",
        "sources.ankusa:lifecycle",
        "keeps for itself",
    ),
    (
        "a bad tenant name",
        "sources: {a: {tenant: 'a.b', verify: {type: none}, sinks: [{type: log}]}}",
        "sources.a.tenant",
        "1 to 64 of",
    ),
    ("no verify", "sources: {a: {sinks: [{type: log}]}}", "sources.a.verify", "required"),
    ("a source that is text", "sources: {a: stripe}", "sources.a", "expected a mapping"),
    ("an unknown verifier", verify("type: paypal"), "sources.a.verify.type", "stripe"),
    ("no secret", verify("type: stripe"), "sources.a.verify.secret", "required"),
    ("an empty secret", verify("type: stripe, secret: ''"), "sources.a.verify.secret", "empty"),
    (
        "an empty secret in a list",
        verify("type: stripe, secret: [abc, '']"),
        "sources.a.verify.secret",
        "element 1 is empty",
    ),
    ("an empty list of secrets", verify("type: stripe, secret: []"), "sources.a.verify.secret", "required"),
    (
        "a number as secret",
        verify("type: stripe, secret: 12345678"),
        "sources.a.verify.secret",
        "expected text or a list",
    ),
    (
        "a scheme without its template",
        verify("type: hmac, secret: x, signature_header: x-sig"),
        "sources.a.verify.signed",
        "required",
    ),
    (
        "a bad tolerance",
        verify("type: stripe, secret: x, tolerance_seconds: 0"),
        "sources.a.verify.tolerance_seconds",
        ">= 1",
    ),
    ("an unknown policy", source("on_verify_failure: drop"), "sources.a.on_verify_failure", "reject"),
    ("an unknown dedupe preset", source("dedupe: paypal"), "sources.a.dedupe.preset", "svix"),
    ("a dedupe of two kinds", source("dedupe: {header: x, json: y}"), "sources.a.dedupe.preset", "exactly one"),
    ("a dedupe of no kind", source("dedupe: {ttl_seconds: 5}"), "sources.a.dedupe.preset", "exactly one"),
    (
        "a forwarded header that is none",
        source("forward_headers: [ok, 'not ok']"),
        "sources.a.forward_headers[1]",
        "header name",
    ),
    (
        "retry upside down for a source",
        source("retry: {base_ms: 400000}"),
        "sources.a.retry.base_ms",
        "more than max_ms",
    ),
    (
        "retry upside down for a sink",
        sink("type: log, retry: {max_ms: 50}"),
        "sources.a.sinks[0].retry.base_ms",
        "more than max_ms",
    ),
    (
        "retry upside down for the node",
        SOUND + "dispatch: {retry: {base_ms: 10, max_ms: 5}}",
        "dispatch.retry.base_ms",
        "more than max_ms",
    ),
    # Sinks.
    ("no sinks", "sources: {a: {verify: {type: none}}}", "sources.a.sinks", "at least one sink"),
    (
        "an empty list of sinks",
        "sources: {a: {verify: {type: none}, sinks: []}}",
        "sources.a.sinks",
        "at least one sink",
    ),
    ("a sink without type", sink("url: 'https://example.com/'"), "sources.a.sinks[0].type", "required"),
    (
        "a sink that is text",
        "sources: {a: {verify: {type: none}, sinks: [log]}}",
        "sources.a.sinks[0]",
        "expected a mapping",
    ),
    (
        "an unknown sink type",
        "sources: {a: {verify: {type: none}, sinks: [{type: log}, {type: pigeon}]}}",
        "sources.a.sinks[1].type",
        "",
    ),
    ("a kafka sink without brokers", sink("type: kafka, topic: x"), "sources.a.sinks[0].brokers", "required"),
    ("an http sink without url", sink("type: http"), "sources.a.sinks[0].url", ""),
    ("a sink url to a private address", sink("type: http, url: 'http://10.0.0.1/'"), "sources.a.sinks[0].url", ""),
    (
        "a sink url with a password",
        sink("type: http, url: 'https://u:hunter22@example.com/'"),
        "sources.a.sinks[0].url",
        "",
    ),
    ("a bad number of a sink", http("timeout_ms: soon"), "sources.a.sinks[0].timeout_ms", ""),
    ("an empty signing secret", http("secret: ''"), "sources.a.sinks[0].secret", ""),
    # Rules over several keys.
    (
        "a scope that does not exist",
        SOUND + "admin: {tokens: [{token: abc, scopes: [read, write]}]}",
        "admin.tokens[0].scopes[1]",
        "tenant:<id>",
    ),
    (
        "a scope of a bad tenant",
        SOUND + "admin: {tokens: [{token: abc, scopes: ['tenant:a b']}]}",
        "admin.tokens[0].scopes[0]",
        "tenant:<id>",
    ),
    (
        "a token without scopes",
        SOUND + "admin: {tokens: [{token: abc, scopes: []}]}",
        "admin.tokens[0].scopes",
        "length >= 1",
    ),
    ("no token in an entry", SOUND + "admin: {tokens: [{scopes: [read]}]}", "admin.tokens[0].token", "exactly one"),
    ("an empty token", SOUND + "admin: {tokens: [{token: '', scopes: [read]}]}", "admin.tokens[0].token", "empty"),
    (
        "a token no header can carry",
        SOUND + "admin: {tokens: [{token: 'a b', scopes: [read]}]}",
        "admin.tokens[0].token",
        "ASCII",
    ),
    (
        "a token in both forms",
        SOUND + f"admin: {{tokens: [{{token: abc, sha256: '{'0' * 64}', scopes: [read]}}]}}",
        "admin.tokens[0].token",
        "exactly one",
    ),
    (
        "a hash that is none",
        SOUND + "admin: {tokens: [{sha256: abc, scopes: [read]}]}",
        "admin.tokens[0].sha256",
        "must be 64 of 0-9 a-f",
    ),
    (
        "a token twice",
        SOUND + "admin: {tokens: [{token: abc, scopes: [read]}, {token: abc, scopes: [admin]}]}",
        "admin.tokens[1]",
        "earlier token",
    ),
    ("an open admin listener without tokens", SOUND + "admin: {ip: 0.0.0.0}", "admin.tokens", "required"),
    ("an open admin listener over IPv6", SOUND + "admin: {ip: '::'}", "admin.tokens", "required"),
    ("one port for two listeners", SOUND + "http: {port: 4002}", "admin.port", "port of http"),
    ("one port on overlapping addresses", SOUND + "http: {ip: 0.0.0.0, port: 4002}", "admin.port", "port of http"),
    (
        "one port for the gateway and the hooks",
        SOUND + "node: {roles: [edge, claim_check]}\nhttp: {port: 4001}",
        "claim_check.port",
        "port of http",
    ),
    ("no address for the gateway", SOUND + "claim_check: {ip: example.com}", "claim_check.ip", "IP address"),
    ("packs of nothing", SOUND + "claim_check: {pack_max_bytes: 0}", "claim_check.pack_max_bytes", ">= 1"),
    ("retention of no days", SOUND + "claim_check: {retention_days: 0}", "claim_check.retention_days", ">= 1"),
    ("an unknown blob store", claim_store("type: tape"), "claim_check.store.type", "one of local, object"),
    ("a URL for local files", claim_store("url: 's3://b/p'"), "claim_check.store.url", "not for a local store"),
    ("options for local files", claim_store("options: {a: b}"), "claim_check.store.options", "not for a local store"),
    ("a path for an object store", claim_store("type: object, path: x"), "claim_check.store.path", "only for a local"),
    ("an object store without a URL", claim_store("type: object"), "claim_check.store.url", "required"),
    ("an object store elsewhere", claim_store("type: object, url: 'ftp://b/p'"), "claim_check.store.url", "s3://"),
    ("an object store without a bucket", claim_store("type: object, url: 's3:///p'"), "claim_check.store.url", "s3://"),
    (
        "an unknown option of an object store",
        claim_store("type: object, url: 's3://b/p', options: {allow_http: 'true'}"),
        "claim_check.store.options.allow_http",
        "secret_access_key",
    ),
    (
        "half of a key pair",
        claim_store("type: object, url: 's3://b/p', options: {access_key_id: AKIAQQQQQQQQQQQQQQQQ}"),
        "claim_check.store.options",
        "",
    ),
    ("a bad CIDR", SOUND + "egress: {allow: [127.0.0.0/8, 10.0.0.0/40]}", "egress.allow[1]", ""),
    # The Kafka host.
    (
        "an embedded role on kafka",
        SOUND + ON_KAFKA.format("edge, dispatch"),
        "node.roles[1]",
        "give edge, worker",
    ),
    ("a role of kafka without it", SOUND + "node: {roles: [worker]}", "node.roles[0]", "`log.type: kafka`"),
    ("no edge process", SOUND + "node: {roles: [edge], edges: 0}\nlog: {type: kafka}", "node.edges", "at least 1"),
    (
        "a worker's routes on the port of its admin API",
        SOUND + ON_KAFKA.format("worker") + "routes: {enabled: true, admin: {port: 4002}}",
        "routes.admin.port",
        "port of admin",
    ),
    (
        "a claim check of a fleet on a disk of one",
        SOUND + ON_KAFKA.format("worker") + "claim_check: {retention_days: 3}",
        "claim_check.store.path",
        "every worker and gateway mounts",
    ),
    (
        "a gateway of a fleet without a store",
        SOUND + ON_KAFKA.format("claim_check"),
        "claim_check.store.path",
        "or set type: object",
    ),
    (
        "a worker's admin API on the port of its edge",
        SOUND + ON_KAFKA.format("edge, worker") + "http: {port: 4002}",
        "admin.port",
        "port of http",
    ),
    ("no broker", SOUND + "kafka: {brokers: ''}", "kafka.brokers", ">= 1"),
    ("a broker without a port", SOUND + "kafka: {brokers: 'a:9092, b'}", "kafka.brokers[1]", "host:port"),
    ("a broker as a URL", SOUND + "kafka: {brokers: ['kafka://a:9092']}", "kafka.brokers[0]", "host:port"),
    ("a prefix", SOUND + "kafka: {prefix: 'a b.'}", "kafka.prefix", "1 to 100 of A-Z a-z 0-9 . _ -"),
    ("no partitions", SOUND + "kafka: {partitions: 0}", "kafka.partitions", ">= 1"),
    ("too many partitions", SOUND + "kafka: {partitions: 4097}", "kafka.partitions", "<= 4096"),
    ("an unknown key of kafka", SOUND + "kafka: {broker: 'a:1'}", "kafka.broker", "did you mean `brokers`"),
    (
        "a log-in of another kind",
        SOUND + "kafka: {security: {sasl: {mechanism: gssapi, username: a, password: b}}}",
        "kafka.security.sasl.mechanism",
        "scram_sha_512",
    ),
    (
        "a log-in without a password",
        SOUND + "kafka: {security: {sasl: {mechanism: plain, username: a}}}",
        "kafka.security.sasl.password",
        "required",
    ),
    ("a CA without TLS", SOUND + "kafka: {security: {ca_file: /ca}}", "kafka.security.ca_file", "tls: true"),
    (
        "a certificate without its key",
        SOUND + "kafka: {security: {tls: true, certificate_file: /c}}",
        "kafka.security.key_file",
        "required",
    ),
    (
        "a key without its certificate",
        SOUND + "kafka: {security: {tls: true, key_file: /k}}",
        "kafka.security.certificate_file",
        "required",
    ),
    # Known and not built.
    (
        "an unknown key in routes that are off",
        SOUND + "routes: {enabled: false, rotues: 1}",
        "routes.rotues",
        "not a known key",
    ),
    ("archive", SOUND + "archive: {roll_ms: 30000}", "archive", NOT_BUILT),
    ("archive under its older name", SOUND + "storage: {roll_ms: 30000}", "storage", NOT_BUILT),
    ("lifecycle", SOUND + "lifecycle: {sinks: [{type: log}]}", "lifecycle", NOT_BUILT),
    ("routes", SOUND + "routes: {enabled: perhaps}", "routes.enabled", "true or false"),
    ("an unknown key of routes", SOUND + "routes: {seeds: []}", "routes.seeds", "did you mean `seed`"),
    ("a status for denied addresses", SOUND + "routes: {ip_denied_status: 200}", "routes.ip_denied_status", "403, 404"),
    ("a proxy by name", SOUND + "routes: {trusted_proxies: [10.0.0.0/8, proxy]}", "routes.trusted_proxies[1]", "CIDR"),
    (
        "a rule with host bits",
        SOUND + "routes: {ip_rules: {rules: [{action: deny, cidr: 10.0.0.1/8}]}}",
        "routes.ip_rules.rules[0].cidr",
        "10.0.0.0/8 is the block",
    ),
    (
        "a rule of another action",
        SOUND + "routes: {ip_rules: {default: maybe}}",
        "routes.ip_rules.default",
        "allow, deny",
    ),
    ("a seed without a path", SOUND + "routes: {seed: [{id: a}]}", "routes.seed[0].path", "required"),
    ("a seed's pattern", SOUND + "routes: {seed: [{path: '/a/*/b'}]}", "routes.seed[0].path", "last segment"),
    ("a seed's id", SOUND + "routes: {seed: [{path: /a, id: A B}]}", "routes.seed[0].id", "must be 1 to 64 of a-z"),
    (
        "two seeds of one path",
        SOUND + "routes: {seed: [{path: '/a/:b'}, {path: '/a/:c', id: other}]}",
        "routes.seed[1]",
        "an earlier seed again",
    ),
    (
        "more seeds than routes",
        SOUND + "routes: {max_routes: 1, seed: [{path: /a}, {path: /b}]}",
        "routes.seed",
        "max_routes",
    ),
    (
        "the routes listener on the admin's port",
        SOUND + "routes: {enabled: true, admin: {port: 4002}}",
        "routes.admin.port",
        "the port of admin",
    ),
    (
        "a routes listener that others reach",
        SOUND + "routes: {enabled: true, admin: {ip: 0.0.0.0}}",
        "admin.tokens",
        "routes.admin",
    ),
    (
        "a source store of another kind",
        SOUND + "source_store: {type: elsewhere}",
        "source_store.type",
        "one of static, persistent",
    ),
    ("a seal key of letters", SOUND + "source_store: {secret_key: hunter2!}", "source_store.secret_key", "base64"),
    ("a short seal key", SOUND + "source_store: {secret_key: c2hvcnQ=}", "source_store.secret_key", "5 bytes, not 32"),
    ("no seal keys", SOUND + "source_store: {secret_key: []}", "source_store.secret_key", "empty list"),
    (
        "an ordering key without order",
        sink("type: log, ordering_key: {json: id}"),
        "sources.a.sinks[0].ordering_key",
        "ordered",
    ),
    (
        "an ordering key of nothing",
        sink("type: log, ordered: true, ordering_key: {}"),
        "sources.a.sinks[0].ordering_key.json",
        "exactly one",
    ),
    ("order of the wrong kind", sink("type: log, ordered: often"), "sources.a.sinks[0].ordered", "true or false"),
    # References to the environment.
    ("a missing variable", verify("type: stripe, secret: '${NOPE}'"), "sources.a.verify.secret", "NOPE is not set"),
    (
        "a missing variable in a list",
        SOUND + "egress: {allow: [127.0.0.1, '${NOPE}']}",
        "egress.allow[1]",
        "NOPE is not set",
    ),
    ("a variable that is empty", verify("type: stripe, secret: '${EMPTY}'"), "sources.a.verify.secret", "empty"),
    ("a variable of another type", SOUND + "http: {port: '${WORD}'}", "http.port", "expected a whole number"),
    ("a reference that is none", SOUND + "node: {data_dir: '${not closed'}", "node.data_dir", "no reference"),
    ("a variable that is not UTF-8", SOUND + "node: {data_dir: '${LATIN}'}", "node.data_dir", "LATIN is not UTF-8"),
]
ENV = {"EMPTY": "", "WORD": "word", "LATIN": b"caf\xe9".decode("utf-8", "surrogateescape")}


@pytest.mark.parametrize(("text", "field", "words"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_names_the_field_and_nothing_else(tmp_path: Path, text: str, field: str, words: str) -> None:
    error = error_of(tmp_path, text, ENV)
    assert [problem.field for problem in error.problems] == [field]
    assert words in error.problems[0].message


def test_a_section_under_both_its_names(tmp_path: Path) -> None:
    assert fields_of(tmp_path, SOUND + "storage: {}\narchive: {}") == ["storage", "archive"]


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    text = """
        http: {port: 70000, prefix: hooks, ip: 1.2.3}
        dispatch: {batch: 0, retry: {base_ms: 0}}
        kafka: {partitions: 0}
        egress: {allow: ["${NOPE}", 10.0.0.0/99]}
        admin: {port: fast, tokens: [{scopes: [read]}, {token: abc, scopes: [all]}]}
        sources:
          a:
            verify: {type: stripe, secret: ""}
            sinks: [{type: pigeon}, {type: log, retry: {max_attempts: 0}}]
          b:
            tenants: acme
            verify: {type: stripe, secret: ""}
            dedupe: {header: "no header"}
            sinks: [{type: pigeon}, {type: http}]
          c:
            verify: {type: none}
    """
    assert sorted(fields_of(tmp_path, text)) == [
        "admin.port",
        "admin.tokens[0].token",
        "admin.tokens[1].scopes[0]",
        "dispatch.batch",
        "dispatch.retry.base_ms",
        "egress.allow[0]",
        "egress.allow[1]",
        "http.ip",
        "http.port",
        "http.prefix",
        "kafka.partitions",
        "sources.a.sinks[0].type",
        "sources.a.sinks[1].retry.max_attempts",
        "sources.a.verify.secret",
        "sources.b.dedupe.header",
        "sources.b.sinks[0].type",
        "sources.b.sinks[1].url",
        "sources.b.tenants",
        "sources.b.verify.secret",
        "sources.c.sinks",
    ]
