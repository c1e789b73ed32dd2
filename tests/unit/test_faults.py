"""docs/faults.md against the tests: every fault has its tests, and every test that is named exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/faults.md").read_text()
SECTIONS = {text.partition("\n")[0]: text.partition("\n")[2] for text in PAGE.split("\n## ")[1:]}
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))

FAULTS = (
    *("A destination is disabled or deleted with rows queued", "Attempts are not counted", "Retries never end"),
    *("A lease is shorter than the attempt", "Two workers have one row"),
    *("An outcome arrives late, after its row was claimed again", "One bad row stops a scan"),
    *("Two tenants share a counter", "A metric scans a table", "A label set grows with URLs"),
)
"""The faults that the page has to answer for."""


def definitions(path: Path) -> set[str]:
    """Names of a module's tests, and of its state machines that run as tests."""
    module = ast.parse(path.read_text())
    names = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    run = {
        node.value.value.id
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr == "TestCase"
        if isinstance(node.value.value, ast.Name)
    }
    return {name for name in names if name.startswith("test_")} | run


def test_every_fault_has_its_section_and_no_other() -> None:
    assert tuple(SECTIONS) == FAULTS


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_names_a_test_that_holds_it(fault: str) -> None:
    words, _, listed = SECTIONS[fault].partition("\n- ")
    assert len(words.split()) > 15, "what keeps it from happening is told"
    items = ("- " + listed).strip().splitlines()
    assert all(re.fullmatch(r"- `tests/[\w/]+\.py::\w+`", item) for item in items), items


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_every_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in definitions(ROOT / path)


def test_a_name_that_is_not_a_test_is_found_out() -> None:
    found = definitions(Path(__file__))
    assert "test_every_test_that_is_named_exists" in found
    assert "definitions" not in found
    assert "DueMachine" in definitions(ROOT / "tests/property/test_due.py")
