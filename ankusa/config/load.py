"""Loading: from a file and the environment to one sound `Config`, or to everything that is wrong with them.

Owns the order of the steps:
1. read the YAML (`yaml_file`)             4. settle what is known and not built (`unbuilt`)
2. substitute references (`substitute`)    5. build the structs, part by part (`spelling`, `build`)
3. let variables win (`overrides`)         6. check what spans keys (`checks`)
A part with a fault is left out of the later steps and the others go on, so that one run shows all it can.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

import msgspec

from ankusa.config import checks
from ankusa.config.build import Part, build, unknown_key
from ankusa.config.hosts import check_host
from ankusa.config.overrides import override
from ankusa.config.problems import Problems, join
from ankusa.config.spelling import rename, respell
from ankusa.config.substitute import substitute
from ankusa.config.unbuilt import settle
from ankusa.config.yaml_file import read
from ankusa.redact import secret_values
from schemas.config import Config, Dispatch, Sink, Source, Verify

PATH_VARIABLE = "ANKUSA_CONFIG"

DEMO_SOURCES = {"demo": Source(name="demo", verify=Verify(type="none"), sinks=(Sink(type="log"),))}

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
# The node's own; the rest of `Config` is its sources and the mark that it is the demo's.
_SECTIONS: dict[str, Any] = {
    field.name: field.type for field in msgspec.structs.fields(Config) if field.name not in ("sources", "demo")
}


def load(path: str | None, env: Mapping[str, str]) -> Config:
    """The configuration in the YAML file at `path`, else at `ANKUSA_CONFIG`, else of the demo (`demo` is then set).

    `env` is the process's environment. Raises `ConfigError` with every problem found, each with its field.
    """
    problems = Problems()
    path = path or env.get(PATH_VARIABLE) or None
    raw = read(path, problems) if path else {}
    problems.raise_if_any()

    document = substitute(raw, env, problems)
    origins = {**override(document, env), **rename(document, problems)}
    secrets = set(secret_values(document))
    settle(document, problems)
    if path:
        checks.check_sources_given(document, problems)
    respell(document, problems)
    parts: list[Part] = []
    sections = _sections(document, parts, problems)
    sources = _sources(document.get("sources"), parts, problems)
    _check(sections, sources, parts, problems)
    problems.raise_if_any(secrets, origins)
    return Config(**sections, sources=sources) if path else Config(**sections, sources=DEMO_SOURCES, demo=True)


def _sections(document: dict[str, Any], parts: list[Part], problems: Problems) -> dict[str, Any]:
    """Every section but the sources, each built by itself; one with a fault is left out."""
    known = (*_SECTIONS, "sources")
    for key in (key for key in document if key not in known):
        problems.add(key, unknown_key(key, known))
    built = {name: build(kind, document.get(name), name, problems, parts) for name, kind in _SECTIONS.items()}
    return {name: section for name, section in built.items() if section is not None}


def _sources(raw: Any, parts: list[Part], problems: Problems) -> dict[str, Source]:
    """Every source, each built by itself; one with a fault is left out."""
    if raw is not None and not isinstance(raw, dict):
        problems.add("sources", "expected a mapping of names to sources")
        return {}
    built: dict[str, Source] = {}
    for name, spec in (raw or {}).items():
        path = join("sources", name)
        sound = _NAME.fullmatch(name) is not None
        if not sound:
            problems.add(path, "a name is 1 to 64 letters, digits, `_` and `-`")
        named = {**spec, "name": name if sound else "unnamed"} if isinstance(spec, dict) else spec
        source = build(Source, named, path, problems, parts)
        if source is not None:
            built[name] = source
    return built


def _check(sections: dict[str, Any], sources: dict[str, Source], parts: list[Part], problems: Problems) -> None:
    checks.check_parts(parts, sections.get("egress"), problems)
    # Those at fault too, as far as they are sound: each rule looks whether it reads what is not.
    known = {part.path: part.value for part in parts if part.path in _SECTIONS}
    listening = ("node", "log", "http", "admin", "claim_check", "routes")
    if known.keys() >= set(listening):
        node, log, http, admin, claim_check, routes = (cast(Any, known[name]) for name in listening)
        checks.check_listeners(node, log, http, admin, claim_check, routes, problems)
        check_host(node, log, claim_check, problems)
    if "dispatch" in known and not problems.under("dispatch.retry"):
        for name, source in sources.items():
            checks.check_retries(cast(Dispatch, known["dispatch"]).retry, source, join("sources", name), problems)
