"""What is refused before any key is looked at: files that cannot be read, are not YAML, or are built to hurt."""

from __future__ import annotations

from pathlib import Path

import pytest

from ankusa.config import ConfigError, load
from ankusa.config.yaml_file import MAX_FILE_BYTES
from tests.unit.config.files import SOUND, error_of, load_text

SECRET = "q7Zk2mXw9pLr4TnB"


def test_a_missing_file(tmp_path: Path) -> None:
    path = str(tmp_path / "none.yaml")
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert str(caught.value) == f"file: '{path}' cannot be read: No such file or directory"


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"file: .* cannot be read: Is a directory"):
        load(str(tmp_path), {})


def test_a_name_no_file_can_have() -> None:
    with pytest.raises(ConfigError, match=r"file: .* cannot be read"):
        load("a\0b", {})


REFUSED = [
    ("tabs", "http:\n\tport: 1\n", "file", "line 2, column 1: .*indent with spaces"),
    ("an open bracket", "http: {port: 1\n", "file", "line 2, column 1: .* expected ',' or '}', but got '<stream end>'"),
    ("text only", "just words", "file", "mapping of sections"),
    ("a list", "- http\n- admin\n", "file", "mapping of sections"),
    ("two documents", "http: {}\n---\nadmin: {}\n", "file", "another document"),
    ("not UTF-8", b"node: {}\nhttp: {prefix: /caf\xe9}\n", "file", r"not UTF-8 \(line 2\)"),
    ("UTF-16", "http: {}".encode("utf-16"), "file", "not UTF-8"),
    ("a control character", b"http: {prefix: '\x00'}", "file", "control character"),
    ("an unknown alias", "http: *nothing", "file", "undefined alias"),
    ("a type of Python", "http: !!python/object/apply:os.system [echo]", "http", "line 1: is of a YAML type"),
    ("a set", "http: !!set {a, b}", "http", "YAML type"),
    ("a number that is none", "http: {port: !!int many}", "file", "number that cannot be read"),
    ("a number without end", "http: {port: " + "9" * 5000 + "}", "file", "number that cannot be read"),
    ("half a character", 'http: {prefix: "\\ud800"}', "http.prefix", "surrogate"),
    ("a section twice", "http: {port: 1}\nadmin: {}\nhttp: {port: 2}\n", "http", "given twice, in lines 1 and 3"),
    ("a key twice", "http:\n  port: 1\n  port: 1\n", "http.port", "given twice, in lines 2 and 3"),
    ("a source twice", "sources:\n  a: {}\n  b: {}\n  a: {}\n", "sources.a", "given twice, in lines 2 and 4"),
    (
        "a key twice in a list",
        "sources: {a: {sinks: [{type: log, type: http}]}}",
        "sources.a.sinks[0].type",
        "given twice",
    ),
    (
        "a key that is a number",
        "rate_limits: {tenants: {42: {rate: 1, burst: 1}}}",
        "rate_limits.tenants.42",
        "in quotes",
    ),
    ("a key that is true", "sources: {on: {}}", "sources.on", "line 1: a key must be text: put it in quotes"),
    ("a key that is a list", "? [a, b]\n: 1\n", "?", "must be text"),
    ("an alias of itself", "node: &a {roles: [*a]}", "node.roles[0]", "contains it"),
    ("deep nesting", "a: " + "[" * 50 + "]" * 50, "file", "levels deep"),
    ("nesting without end", "a: " + "[" * 5_000, "file", "levels deep"),
    (
        "nesting through aliases",
        "\n".join(["a0: &a0 [1]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 500)]),
        "file",
        "levels deep",
    ),
    (
        "a billion laughs",
        "\n".join(['a0: &a0 ["lol"]'] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]),
        "file",
        "once its aliases are expanded",
    ),
    (
        "a billion laughs by merging",
        "\n".join(
            ["a0: &a0 {k: v}"] + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12)]
        ),
        "file",
        "once its aliases are expanded",
    ),
    ("a file too large", b"# " + b"x" * MAX_FILE_BYTES, "file", "larger than 4194304 bytes"),
]


@pytest.mark.parametrize(("text", "field", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_is_refused(tmp_path: Path, text: str | bytes, field: str, words: str) -> None:
    error = error_of(tmp_path, text)
    assert [problem.field for problem in error.problems] == [field]
    with pytest.raises(ConfigError, match=words):
        raise error


def test_every_key_given_twice_is_named(tmp_path: Path) -> None:
    error = error_of(tmp_path, "http: {port: 1, port: 2}\nadmin: {ip: a, port: 3, port: 4}\n")
    assert [problem.field for problem in error.problems] == ["http.port", "admin.port"]


@pytest.mark.parametrize(
    "text",
    [
        f"a: *{SECRET}",
        f"a: !{SECRET} b",
        f"a: !!{SECRET} b",
        f"a: !!int {SECRET}",
        f"a: &{SECRET} b\nc: &{SECRET} d\n",
        f"a: [{SECRET}",
        f"a: '{SECRET}",
        f'a: "{SECRET}\\q"',
        f"secret: {SECRET}: b",
        f"a: {{secret: {SECRET}]",
        f"{SECRET}",
        f"secret: {SECRET}\nsecret: {SECRET}2\n",
        f"%{SECRET} 1\n---\na: b",
        f"a: %{SECRET}",
        f"a: @{SECRET}",
        f"a: `{SECRET}",
        f"a: |{SECRET}",
    ],
)
def test_no_message_quotes_the_file(tmp_path: Path, text: str) -> None:
    assert SECRET not in str(error_of(tmp_path, text))


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    text = """
        sources:
          a: &a
            verify: {type: none}
            tenant: acme
            sinks: [{type: log}]
          b:
            <<: *a
            tenant: other
          c: *a
    """
    sources = load_text(tmp_path, text).sources
    assert [(name, source.name, source.tenant) for name, source in sources.items()] == [
        ("a", "a", "acme"),
        ("b", "b", "other"),
        ("c", "c", "acme"),
    ]


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    assert load_text(tmp_path, b"\xef\xbb\xbf" + SOUND.encode()) == load_text(tmp_path, SOUND)


def test_what_looks_like_a_date_is_text(tmp_path: Path) -> None:
    assert load_text(tmp_path, SOUND + "node: {instance: 2026-01-31}").node.instance == "2026-01-31"


def test_an_empty_file_has_no_sources(tmp_path: Path) -> None:
    assert [problem.field for problem in error_of(tmp_path, "").problems] == ["sources"]
    assert [problem.field for problem in error_of(tmp_path, "# nothing yet\n").problems] == ["sources"]
