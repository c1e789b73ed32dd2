"""The documents against the tree: links, the module map, every configuration key with its default, the examples."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from ankusa.config import load
from schemas.config import Config, Dedupe, Retry, Source, Verify

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MAP = (ROOT / "docs/architecture.md").read_text()
CONFIGURATION = (ROOT / "docs/configuration.md").read_text()

LINK = re.compile(r"\]\(([^)#\s]+)?(#[^)\s]+)?\)")
NODE_SECTIONS = (
    *("node", "log", "http", "admin", "rate_limits", "quarantine", "batcher", "dispatch", "egress"),
    *("claim_check", "source_store", "routes", "kafka"),
)


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    for target, anchor in LINK.findall(document.read_text()):
        if "://" in target:
            continue
        path = (document.parent / target).resolve() if target else document
        assert path.exists(), f"{document.name}: {target}"
        assert not anchor or anchor in anchors(path), f"{document.name}: {target}{anchor}"


def test_the_map_names_every_package_and_module_of_the_product() -> None:
    modules = [path for path in (ROOT / "ankusa").iterdir() if path.suffix == ".py" and path.name != "__init__.py"]
    packages = [path.parent for name in ("ankusa", "api") for path in (ROOT / name).glob("*/__init__.py")]
    for path in (*modules, *packages, ROOT / "schemas", ROOT / "streams"):
        name = str(path.relative_to(ROOT)) + ("/" if path.is_dir() else "")
        assert f"`{name}`" in MAP, f"docs/architecture.md does not name {name}"


def test_every_path_that_a_document_names_exists() -> None:
    for document in DOCUMENTS:
        for name in re.findall(r"`((?:ankusa|streams|api|schemas|tests|docs)/[\w/.*-]+)`", document.read_text()):
            assert list(ROOT.glob(name.rstrip("/"))), f"{document.name}: {name}"


def test_short_names_of_the_map_exist_beside_what_they_follow() -> None:
    for line in MAP.splitlines():
        names = re.findall(r"`([\w/]+(?:\.py|/))`", line)
        if not line.startswith("| `") or not names:
            continue
        first = ROOT / names[0]
        folder = first if names[0].endswith("/") else first.parent
        for name in names[1:]:
            assert (ROOT / name).exists() or (folder / name).exists(), f"docs/architecture.md: {name} beside {names[0]}"


def rows(text: str) -> dict[str, list[str]]:
    """The cells of each table row by each code word of its first cell."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for name in re.findall(r"`([\w.]+)`", cells[0]) if cells else ():
            found[name] = cells[1:]
    return found


def keys_of_the_node() -> Iterator[tuple[str, Any]]:
    sections = {field.name: field.type for field in msgspec.structs.fields(Config)}
    for section in NODE_SECTIONS:
        for field in msgspec.structs.fields(sections[section]):
            yield f"{section}.{field.encode_name}", default(field)
    for field in msgspec.structs.fields(Retry):
        yield f"retry.{field.encode_name}", default(field)


def default(field: Any) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def test_no_section_is_left_out() -> None:
    assert {*NODE_SECTIONS, "sources", "demo"} == {field.name for field in msgspec.structs.fields(Config)}


@pytest.mark.parametrize(("key", "value"), [pytest.param(key, value, id=key) for key, value in keys_of_the_node()])
def test_configuration_tells_the_key_and_its_default(key: str, value: Any) -> None:
    told = rows(CONFIGURATION)[key][0]
    if isinstance(value, msgspec.Struct):
        assert told == ""  # its keys have rows of their own
        return
    if value is None:
        assert told == "none"
        return
    plain = list(value) if isinstance(value, tuple) else value
    assert yaml.safe_load(told.strip("`")) == plain


def test_configuration_tells_the_keys_of_sources() -> None:
    named = set(re.findall(r"`([\w.]+)`", CONFIGURATION))
    named |= {word for code in re.findall(r"`\{([^`]*)\}`", CONFIGURATION) for word in re.findall(r"\w+", code)}
    for struct in (Source, Verify, Dedupe):
        for field in msgspec.structs.fields(struct):
            assert field.encode_name in named | {"name"}, f"{struct.__name__}.{field.encode_name}"


def test_the_first_source_of_the_readme_loads(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    path = tmp_path / "ankusa.yaml"
    path.write_text(text)
    config = load(str(path), {"GITHUB_SECRET": "s3cret"})
    assert list(config.sources) == ["github"]


def test_metrics_that_are_told_of_exist() -> None:
    source = (ROOT / "ankusa/metrics.py").read_text()
    told = re.findall(r"`ankusa_(\w+?)(?:_total)?(?:\{[^`]*)?`", (ROOT / "docs/operations.md").read_text())
    assert told
    for name in told:
        sink = re.fullmatch(r"sink_(\w+)_rows", name)
        assert f'"{name}"' in source or (sink is not None and f'"{sink[1]}":' in source), name


def told_events(text: str) -> set[str]:
    return set(re.findall(r"event=(\w+)", text))


def test_events_that_are_told_of_exist() -> None:
    told = set[str]().union(*(told_events(document.read_text()) for document in DOCUMENTS))
    product = (path.read_text() for folder in ("ankusa", "streams", "api") for path in (ROOT / folder).rglob("*.py"))
    assert told - set(re.findall(r"\w+", " ".join(product))) == set()


def test_what_ends_or_stalls_a_worker_is_told_of() -> None:
    """An operator who finds one of these in the log looks for it here."""
    told = told_events((ROOT / "docs/operations.md").read_text())
    worker = [*(ROOT / "streams/kafka").glob("*work*.py"), *(ROOT / "streams/kafka").glob("tr*.py")]
    logged = re.compile(r"log\.(?:warning|error|critical)\(\s*\"event=(\w+)")
    events = {event for path in worker for event in logged.findall(path.read_text())}
    assert events - told == set()
