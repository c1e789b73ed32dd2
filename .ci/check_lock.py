"""Check requirements.lock: every entry pinned and hashed, nothing of the machine it was made on, in step with the
project's own file. Reads both and asks nobody. Exit status 1 with a line for each fault.
"""
# ruff: noqa: T201 - it is run to be read

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK, PROJECT = Path("requirements.lock"), Path("pyproject.toml")
OURS = "ankusa-server"
BUILT_EDITABLE = "editables"
"""What the build backend asks for when the project is installed in place; pyproject.toml does not name it."""

PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[A-Za-z0-9.!+_-]+)")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def read_lock(text: str) -> tuple[dict[str, str], set[str], list[str]]:
    """Version by name, the names that pyproject.toml asks for, and what is wrong with the text itself."""
    faults = [
        f"line {number}: names an address or an index: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if "://" in line or re.match(r"\s*(-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host)\b", line)
    ]
    pins: dict[str, str] = {}
    direct: set[str] = set()
    for entry in re.split(r"\n(?=[^\s#])", "\n" + re.sub(r"\A(#[^\n]*\n)+", "", text))[1:]:
        first = entry.split()[0]
        pin = PIN.fullmatch(first)
        if pin is None:
            faults.append(f"{first}: is not pinned to one version")
            continue
        name = canonicalize_name(pin["name"])
        if name in pins:
            faults.append(f"{name}: is pinned twice")
        pins[name] = pin["version"]
        if not HASH.search(entry):
            faults.append(f"{name}: has no sha256 hash")
        if f"{OURS} (pyproject.toml" in entry:
            direct.add(name)
    return pins, direct, faults


def wanted(project: dict[str, object]) -> list[Requirement]:
    """Everything pyproject.toml asks for: to run, to develop, to build."""
    table, build = project["project"], project["build-system"]
    assert isinstance(table, dict) and isinstance(build, dict)
    texts = [*table["dependencies"], *build["requires"]]
    for extra in table.get("optional-dependencies", {}).values():
        texts += extra
    return [Requirement(text) for text in texts]


def main() -> int:
    pins, direct, faults = read_lock(LOCK.read_text())
    asked = {canonicalize_name(need.name) for need in wanted(tomllib.loads(PROJECT.read_text()))}
    for need in wanted(tomllib.loads(PROJECT.read_text())):
        version = pins.get(canonicalize_name(need.name))
        if version is None:
            faults.append(f"{need}: is in {PROJECT} and not in the lock")
        elif not need.specifier.contains(version, prereleases=True):
            faults.append(f"{need}: is in {PROJECT}, and the lock pins {version}")
    faults += [f"{name}: is no longer in {PROJECT}" for name in sorted(direct - asked - {BUILT_EDITABLE})]
    for fault in faults:
        print(f"{LOCK}: {fault}")
    if faults:
        print("run `make lock`")
        return 1
    print(f"{LOCK}: {len(pins)} packages, each pinned and hashed, in step with {PROJECT}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
