"""The egress guard on URLs, on names, and its allow list."""

import asyncio

import pytest

from ankusa.sinks.egress import Destination, Egress, EgressSpecError, Refusal, Unresolved


def resolver(*found: str):
    async def resolve(host: str, port: int) -> list[str]:
        return list(found)

    return resolve


def resolve(guard: Egress, url: str):
    destination = guard.judge_url(url)
    assert isinstance(destination, Destination), destination
    return asyncio.run(guard.resolve(destination))


@pytest.mark.parametrize(
    ("url", "host", "port", "literal"),
    [
        ("https://example.com/hooks?token=1#part", "example.com", 443, False),
        ("http://Example.COM:8080", "example.com", 8080, False),
        ("HTTPS://bücher.example/", "xn--bcher-kva.example", 443, False),
        ("http://example.com./", "example.com.", 80, False),
        ("http://8.8.8.8/", "8.8.8.8", 80, True),
        ("http://134744072/", "8.8.8.8", 80, True),
        ("http://[2606:4700::1111]:81/", "2606:4700::1111", 81, True),
        ("http://with_underscore.example/", "with_underscore.example", 80, False),
    ],
)
def test_a_good_url_is_taken_apart(url: str, host: str, port: int, literal: bool) -> None:
    destination = Egress().judge_url(url)
    assert isinstance(destination, Destination)
    assert (destination.host, destination.port, destination.literal) == (host, port, literal)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7F.1",
        "0x7f.0.0.1",
        "017700000001",
        "0177.0.0.1",
        "0177.0x0.0.1",
        "%31%32%37.0.0.1",
        "127\u30020\u30020\u30021",
        "\uff11\uff12\uff17.0.0.1",
        "0",
        "0.0.0.0",
        "3232235777",
        "0xA9FEA9FE",
        "169.254.169.254",
        "0251.0376.0251.0376",
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:7f00:1::]",
        "[fe80::1%25eth0]",
        "[fe80::1%eth0]",
        "[fd00:ec2::254]",
        "[2001:db8::1]",
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_private_literal_is_refused_in_every_spelling(host: str, scheme: str) -> None:
    refusal = Egress().judge_url(f"{scheme}://{host}/")
    assert isinstance(refusal, Refusal)
    assert str(refusal).startswith("egress_denied: ")
    assert Egress().check_destination(f"{scheme}://{host}/") == refusal


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "javascript:alert(1)",
        "http:example.com",
        "http:/example.com",
        "http:///example.com",
        "http://",
        "http://?q",
        "http://user@example.com/",
        "http://user:secret@example.com/",
        "http://:secret@example.com/",
        "http://@example.com/",
        "http://example.com\\@10.0.0.1/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://exa mple.com/",
        "http://exa\tmple.com/",
        "http://example.com/\n",
        "\x00http://example.com/",
        " http://example.com/",
        "http://1.2.3.4.5/",
        "http://256.1.1.1/",
        "http://[::1/",
        "http://xn--a/",
    ],
)
def test_a_url_of_another_shape_is_refused(url: str) -> None:
    refusal = Egress().judge_url(url)
    assert isinstance(refusal, Refusal)
    assert "secret" not in str(refusal)


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST", "localhost.", "a.localhost", "ip6-loopback"])
def test_names_of_the_node_itself_are_refused_before_any_lookup(name: str) -> None:
    assert Egress().check_destination(f"http://{name}:9/") is not None
    assert Egress(["127.0.0.1"]).check_destination(f"http://{name}:9/") is None
    assert Egress(["::1"]).check_destination(f"http://{name}:9/") is None
    assert Egress([name]).check_destination(f"http://{name}:9/") is None


def test_the_static_check_looks_nothing_up() -> None:
    async def never(host: str, port: int) -> list[str]:
        raise AssertionError("looked up")

    assert Egress(resolver=never).check_destination("https://nowhere.invalid/") is None


def test_only_the_judged_good_addresses_come_back_in_order() -> None:
    guard = Egress(resolver=resolver("10.0.0.1", "8.8.8.8", "::1", "2606:4700::1111", "8.8.8.8", "fe80::1%eth0"))
    assert resolve(guard, "http://mixed.test/") == ["8.8.8.8", "2606:4700::1111"]


def test_a_name_with_no_good_address_is_refused_and_the_address_unsaid() -> None:
    guard = Egress(resolver=resolver("10.9.8.7", "fd00::77"))
    refusal = resolve(guard, "http://inner.test/")
    assert isinstance(refusal, Refusal)
    assert "inner.test" in str(refusal)
    assert "10.9.8.7" not in str(refusal)


def test_an_allowed_host_lets_its_addresses_through_and_no_other_host() -> None:
    guard = Egress(["Inner.TEST"], resolver("10.9.8.7"))
    assert resolve(guard, "http://inner.test/") == ["10.9.8.7"]
    assert resolve(guard, "http://inner.test./") == ["10.9.8.7"]
    assert isinstance(resolve(guard, "http://x.inner.test/"), Refusal)
    assert isinstance(resolve(guard, "http://inner.test.example/"), Refusal)
    assert isinstance(guard.judge_url("http://10.9.8.7/"), Refusal)


def test_an_allowed_block_lets_names_and_literals_through() -> None:
    guard = Egress(["10.0.0.0/8"], resolver("10.9.8.7", "192.168.0.1"))
    assert resolve(guard, "http://inner.test/") == ["10.9.8.7"]
    assert resolve(guard, "http://10.1.1.1/") == ["10.1.1.1"]
    assert isinstance(guard.judge_url("http://192.168.0.1/"), Refusal)


def test_a_name_that_does_not_resolve_is_no_refusal() -> None:
    async def fails(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    async def empty(host: str, port: int) -> list[str]:
        return []

    for broken in (fails, empty):
        assert isinstance(resolve(Egress(resolver=broken), "http://gone.test/"), Unresolved)


def test_the_system_resolver_is_judged_too() -> None:
    assert isinstance(resolve(Egress(), "http://localhost:1/"), Refusal)
    assert "127.0.0.1" in resolve(Egress(["127.0.0.1"]), "http://localhost:1/")
    assert isinstance(resolve(Egress(), f"http://{'a' * 70}.test/"), Unresolved)


@pytest.mark.parametrize(
    "entry",
    ["", " ", "10.0.0.1/8", "10.0.0.0/33", "300.1.1.1", "*.example.com", "example.com:80", "http://example.com",
     "user@example.com", "a b", "example.com/x", "2130706433", "0x7f.1", "127.1", "[::1]", "a..b", "-a.example",
     "fe80::1%eth0", 7, None],
)  # fmt: skip
def test_a_bad_allow_entry_is_named(entry: object) -> None:
    with pytest.raises(EgressSpecError) as caught:
        Egress(["127.0.0.0/8", entry])  # type: ignore[list-item]
    assert caught.value.entry == entry
    assert repr(entry) in str(caught.value)


@pytest.mark.parametrize(
    "entry", ["10.0.0.0/8", "10.1.2.3", "::1", "fd00::/8", "example.com", "sink", "a_b.test", "bücher.example"]
)
def test_good_allow_entries(entry: str) -> None:
    Egress([entry])
