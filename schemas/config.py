"""The configuration file as frozen values: keys, types, ranges and defaults (spec 10).

Owns the shape only. Reading YAML, substituting `${VAR}`, environment overrides and the checks that
span several keys are in `ankusa/config`; nothing here reads a file or the environment.
Every duration is integer milliseconds and ends in `_ms`, every size is bytes and ends in `_bytes`,
except the two keys that the published YAML spells in seconds or days.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

Port = Annotated[int, Meta(ge=0, le=65_535)]
# Counts and sizes end at 2^53: no real one is near it, and every JSON reader keeps it exact.
Positive = Annotated[int, Meta(ge=1, le=9_007_199_254_740_992)]
# Per second. A million a second is far over what one node takes; it keeps infinity and not-a-number out.
Rate = Annotated[float, Meta(gt=0, le=1_000_000)]
# `\Z`, not `$`: a name that ends in a line break is not a name.
# A description says in words what a pattern asks: it is what a person who got it wrong is told.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z", description="1 to 64 of A-Z a-z 0-9 _ -")]
NonEmpty = Annotated[str, Meta(min_length=1)]
Role = Literal["edge", "dispatch", "storage", "claim_check", "worker"]


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of every section: immutable, unknown keys refused. Each says `kw_only` itself: it is not inherited."""


class Node(Section, frozen=True, kw_only=True):
    instance: Name = "default"
    roles: Annotated[tuple[Role, ...], Meta(min_length=1)] = ("edge", "dispatch", "storage")
    data_dir: NonEmpty = "./data"
    edges: Annotated[int, Meta(ge=0, le=64)] = 1


class LogSettings(Section, frozen=True, kw_only=True):
    type: Literal["local", "kafka"] = "local"
    level: Literal["debug", "info", "warning", "error"] = "info"


class KafkaSasl(Section, frozen=True, kw_only=True):
    """How clients log in to the brokers."""

    mechanism: Literal["plain", "scram_sha_256", "scram_sha_512"]
    username: NonEmpty
    password: NonEmpty

    def __repr__(self) -> str:
        return f"KafkaSasl(mechanism={self.mechanism!r})"


class KafkaSecurity(Section, frozen=True, kw_only=True):
    """How clients talk to the brokers. Without `ca_file` the system's certificates are trusted."""

    tls: bool = False
    ca_file: NonEmpty | None = None
    certificate_file: NonEmpty | None = None
    key_file: NonEmpty | None = None
    key_password: NonEmpty | None = None
    sasl: KafkaSasl | None = None

    def __repr__(self) -> str:
        return f"KafkaSecurity(tls={self.tls!r}, sasl={self.sasl!r})"


class Kafka(Section, frozen=True, kw_only=True):
    """The cluster of `log.type: kafka`. `partitions` is the fleet's for good: it decides where a row lives."""

    brokers: Annotated[tuple[NonEmpty, ...], Meta(min_length=1)] = ("localhost:9092",)
    prefix: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\Z",
            description="1 to 100 of A-Z a-z 0-9 . _ -, with no dot in front",
        ),
    ] = "ankusa."
    partitions: Annotated[int, Meta(ge=1, le=4096)] = 12
    replication: Annotated[int, Meta(ge=1, le=100)] = 3
    security: KafkaSecurity = field(default_factory=KafkaSecurity)


class Http(Section, frozen=True, kw_only=True):
    ip: str = "127.0.0.1"
    port: Port = 4000
    max_body_bytes: Annotated[int, Meta(ge=1, le=64_000_000)] = 8_000_000
    routing: Literal["path", "tenant_path"] = "path"
    prefix: Annotated[
        str,
        Meta(
            pattern=r"^(?:/[A-Za-z0-9_-]+)+\Z",
            description="one or more /segment of A-Z a-z 0-9 _ -, with no slash behind",
        ),
    ] = "/webhooks"


class AdminToken(Section, frozen=True, kw_only=True):
    """One bearer token. Give `token` in clear, or `sha256` (lower-case hex of it)."""

    scopes: Annotated[tuple[str, ...], Meta(min_length=1)]
    token: str | None = None
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="64 of 0-9 a-f")] | None = None
    name: str | None = None

    def __repr__(self) -> str:
        return f"AdminToken(name={self.name!r}, scopes={self.scopes!r})"


class Admin(Section, frozen=True, kw_only=True):
    enabled: bool = True
    ip: str = "127.0.0.1"
    port: Port = 4002
    tokens: tuple[AdminToken, ...] = ()
    insecure: bool = False


class RateLimit(Section, frozen=True, kw_only=True):
    """A token bucket: `rate` hooks per second, `burst` the most that may come at once."""

    rate: Rate
    burst: Positive


class RateLimits(Section, frozen=True, kw_only=True):
    default: RateLimit | None = None
    tenants: dict[Name, RateLimit] = field(default_factory=dict)


class Quarantine(Section, frozen=True, kw_only=True):
    burst: Positive = 100
    rate: Rate = 20
    max_bytes: Positive = 1_073_741_824


class Batcher(Section, frozen=True, kw_only=True):
    max_batch: Annotated[int, Meta(ge=1, le=256)] = 256
    max_delay_ms: Annotated[int, Meta(ge=0, le=10_000)] = 0
    max_queue: Positive = 10_000
    max_queue_bytes: Positive = 268_435_456


class Retry(Section, frozen=True, kw_only=True):
    """Exponential backoff: `base_ms` doubling to `max_ms`, jitter factor uniform in [0.5, 1.0] (spec 03)."""

    base_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 100
    max_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 300_000
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] = 84
    max_elapsed_ms: Annotated[int, Meta(ge=1, le=31_536_000_000)] = 86_400_000
    jitter: bool = True


class RetryOverride(Section, frozen=True, kw_only=True):
    """The keys of `Retry` that a source or sink replaces; an absent key keeps the wider setting."""

    base_ms: Annotated[int, Meta(ge=1, le=3_600_000)] | None = None
    max_ms: Annotated[int, Meta(ge=1, le=86_400_000)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    max_elapsed_ms: Annotated[int, Meta(ge=1, le=31_536_000_000)] | None = None
    jitter: bool | None = None


class TenantDispatch(Section, frozen=True, kw_only=True):
    """One tenant's own window and cap, beside the global ones. Absent means: the global figure."""

    max_inflight: Positive | None = None
    max_inflight_bytes: Positive | None = None
    concurrency: Positive | None = None


class Dispatch(Section, frozen=True, kw_only=True):
    batch: Annotated[int, Meta(ge=1, le=4096)] = 128
    concurrency: Annotated[int, Meta(ge=1, le=4096)] = 32
    sink_concurrency: Annotated[int, Meta(ge=1, le=4096)] | None = 8
    max_inflight: Annotated[int, Meta(ge=1, le=1_000_000)] = 4096
    max_inflight_bytes: Positive = 134_217_728
    attempt_timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 30_000
    breaker_failures: Annotated[int, Meta(ge=0, le=10_000)] = 5
    breaker_open_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 30_000
    breaker_max_open_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 300_000
    tenants: dict[Name, TenantDispatch] = field(default_factory=dict)
    retry: Retry = field(default_factory=Retry)


class Egress(Section, frozen=True, kw_only=True):
    """Destinations the guard lets through although they are not globally routable: CIDRs and exact hosts."""

    allow: tuple[str, ...] = ()


SignedParse = Literal["whole", "csv_pairs", "space_versions"]


class Verify(Section, frozen=True, kw_only=True):
    """How a source proves who sent a hook. Presets need `secret`; `hmac` describes a scheme of one's own."""

    type: Literal["none", "stripe", "github", "standard_webhooks", "shopify", "slack", "hmac"]
    secret: str | tuple[str, ...] | None = None
    tolerance_seconds: Annotated[int, Meta(ge=1, le=31_536_000)] | None = None
    signature_header: str | None = None
    signed: str | None = None
    hash: Literal["sha256", "sha512", "sha1"] | None = None
    encoding: Literal["hex", "base64"] | None = None
    sig_prefix: str | None = None
    timestamp_header: str | None = None
    id_header: str | None = None
    parse: SignedParse | None = None
    secret_decode: Literal["raw", "whsec_base64"] | None = None

    def __repr__(self) -> str:
        """Without the secret: a repr ends up in tracebacks and test output."""
        return f"Verify(type={self.type!r})"


DedupePreset = Literal["github", "standard_webhooks", "svix", "shopify", "stripe"]


class Dedupe(Section, frozen=True, kw_only=True):
    """Where the provider's event key is: a preset, a request header, or a dotted path into a JSON body."""

    preset: DedupePreset | None = None
    header: str | None = None
    json: str | None = None
    ttl_seconds: Annotated[int, Meta(ge=1, le=31_536_000)] = 259_200


class OrderingKey(Section, frozen=True, kw_only=True):
    """What an ordered sink keeps in order: a request header, or a dotted path into a JSON body (spec 03 "Lanes")."""

    header: str | None = None
    json: str | None = None


class Sink(Section, frozen=True, kw_only=True):
    """One destination as written. `type` picks the module in `ankusa/sinks`; `options` are its own keys.

    The other keys are common to every type: the loader takes them out of `options`. An `ordered` sink delivers the
    hooks of one ordering key one at a time, in the order they were accepted; without a key, all of the source's.
    """

    type: str
    options: dict[str, Any] = field(default_factory=dict)
    retry: RetryOverride = field(default_factory=RetryOverride)
    ordered: bool = False
    ordering_key: OrderingKey | None = None

    def __repr__(self) -> str:
        """Names of the options only: their values hold secrets and URLs with passwords."""
        return f"Sink(type={self.type!r}, options={sorted(self.options)!r})"


class Source(Section, frozen=True, kw_only=True):
    """One catch URL (spec 02). `name` and `tenant` together are its id: `name` alone for a static source."""

    name: Name
    tenant: Name = "default"
    verify: Verify
    on_verify_failure: Literal["reject", "quarantine", "accept_flag"] = "reject"
    dedupe: Dedupe | None = None
    forward_headers: tuple[str, ...] | None = None
    retry: RetryOverride = field(default_factory=RetryOverride)
    sinks: tuple[Sink, ...] = ()

    @property
    def source_id(self) -> str:
        return self.name


class IpRuleSetting(Section, frozen=True, kw_only=True):
    action: Literal["allow", "deny"]
    cidr: NonEmpty


class IpRulesSettings(Section, frozen=True, kw_only=True):
    """The global ip rules until the API has put others in their place."""

    default: Literal["allow", "deny"] = "allow"
    rules: tuple[IpRuleSetting, ...] = ()


class RoutesAdmin(Section, frozen=True, kw_only=True):
    ip: str = "127.0.0.1"
    port: Port = 4003


class RouteSeed(Section, frozen=True, kw_only=True):
    """A route that is there from the start. Without an `id` it is named by what it matches."""

    path: NonEmpty
    id: str | None = None
    methods: tuple[str, ...] = ("POST",)
    enabled: bool = True
    ip_rules: tuple[IpRuleSetting, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)


class Routes(Section, frozen=True, kw_only=True):
    """The route guard. Enabled it lets nothing through that no route says may be posted to."""

    enabled: bool = False
    max_routes: Annotated[int, Meta(ge=1, le=100_000)] = 10_000
    ip_denied_status: Literal[403, 404] = 403
    trusted_proxies: tuple[str, ...] = ()
    ip_rules: IpRulesSettings = field(default_factory=IpRulesSettings)
    admin: RoutesAdmin = field(default_factory=RoutesAdmin)
    seed: tuple[RouteSeed, ...] = ()


class ManagedSource(Source, frozen=True, kw_only=True):
    """A source that was set up through the admin API. Its tenant is part of its id: two tenants may use one name."""

    @property
    def source_id(self) -> str:
        return f"{self.tenant}.{self.name}"


class SourceStore(Section, frozen=True, kw_only=True):
    """Where sources come from: the file alone, or `persistent` the admin API too.

    `secret_key` seals what the API was given, the first of several; any of them opens it. `ignore_unreadable` starts
    without the stored sources that cannot be read, instead of not at all.
    """

    type: Literal["static", "persistent"] = "static"
    secret_key: str | tuple[str, ...] | None = None
    max_sources: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    ignore_unreadable: bool = False

    def __repr__(self) -> str:
        return f"SourceStore(type={self.type!r})"


class ClaimStore(Section, frozen=True, kw_only=True):
    """Where the claim check keeps bodies: files under `path`, or the object store at `url`."""

    type: Literal["local", "object"] = "local"
    path: NonEmpty | None = None
    url: NonEmpty | None = None
    options: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Names of the options only: their values hold secrets."""
        return f"ClaimStore(type={self.type!r}, options={sorted(self.options)!r})"


class ClaimCheck(Section, frozen=True, kw_only=True):
    """Large bodies by reference (spec 03), and the gateway that serves them. Without `retention_days` they stay."""

    ip: str = "127.0.0.1"
    port: Port = 4001
    pack_max_bytes: Annotated[int, Meta(ge=1, le=1_073_741_824)] = 16_777_216
    retention_days: Annotated[int, Meta(ge=1, le=36_500)] | None = None
    store: ClaimStore = field(default_factory=ClaimStore)


class Config(Section, frozen=True, kw_only=True):
    """The whole configuration. `demo` is no key of the file: it says that there was none."""

    node: Node = field(default_factory=Node)
    log: LogSettings = field(default_factory=LogSettings)
    kafka: Kafka = field(default_factory=Kafka)
    http: Http = field(default_factory=Http)
    admin: Admin = field(default_factory=Admin)
    rate_limits: RateLimits = field(default_factory=RateLimits)
    quarantine: Quarantine = field(default_factory=Quarantine)
    batcher: Batcher = field(default_factory=Batcher)
    dispatch: Dispatch = field(default_factory=Dispatch)
    claim_check: ClaimCheck = field(default_factory=ClaimCheck)
    egress: Egress = field(default_factory=Egress)
    source_store: SourceStore = field(default_factory=SourceStore)
    routes: Routes = field(default_factory=Routes)
    sources: dict[Name, Source] = field(default_factory=dict)
    demo: bool = False


def retry_policy(base: Retry, *overrides: RetryOverride) -> Retry:
    """The policy for one sink: dispatch-wide, then the source's, then the sink's own keys."""
    changes: dict[str, Any] = {}
    for override in overrides:
        changes.update({k: v for k, v in msgspec.structs.asdict(override).items() if v is not None})
    return msgspec.structs.replace(base, **changes) if changes else base
