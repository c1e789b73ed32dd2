"""Ask an advisory service about every version in requirements.lock, with pip-audit.

Exit status 1 when a known vulnerability is found. When no service answers for a version, that is said loudly and is
no failure: such a version is not judged, which is another thing than clean.
"""
# ruff: noqa: T201 - it is run to be read

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = "requirements.lock"
SERVICES = ("pypi", "osv")
BAR = "!" * 100


def ask(service: str) -> tuple[list[dict[str, Any]], str]:
    """pip-audit's entries, one a package; none and what it said instead when it could not ask."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", LOCK, "--disable-pip", "--require-hashes"]
    command += ["--vulnerability-service", service, "--format", "json", "--progress-spinner", "off", "--timeout", "20"]
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    try:
        document = json.loads(result.stdout)
    except ValueError:
        return [], " ".join(result.stderr.split())[-300:]
    entries: list[dict[str, Any]] = document["dependencies"]
    return entries, ""


def main() -> int:
    if not Path(LOCK).is_file():
        print(f"{LOCK} is not here; run this from the project's root")
        return 2
    judged: dict[str, dict[str, Any]] = {}
    silent: list[str] = []
    for service in SERVICES:
        entries, said = ask(service)
        if said:
            print(f"advisory service {service}: cannot be asked: {said}")
        judged |= {entry["name"]: entry for entry in entries if "vulns" in entry}
        silent = [entry["name"] for entry in entries if entry["name"] not in judged] or silent
        if entries and not silent:
            break
    for entry in judged.values():
        for found in entry["vulns"]:
            fixed = ", ".join(found["fix_versions"]) or "no version yet"
            print(f"VULNERABLE: {entry['name']} {entry['version']}: {found['id']}, fixed in {fixed}")
    bad = sum(bool(entry["vulns"]) for entry in judged.values())
    print(f"{LOCK}: {len(judged)} versions audited, {bad} with known vulnerabilities")
    unjudged = [name for name in silent if name not in judged]
    if unjudged or not judged:
        what = ", ".join(unjudged) if judged else "ALL OF IT"
        print(f"{BAR}\nNOT AUDITED, because no advisory service answered for it: {what}\n{BAR}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
