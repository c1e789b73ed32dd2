"""`${VAR}` and `${VAR:-default}` in string values.

Owns the syntax of references. Keys are never touched, a default is not read for references again, and `$${`
stands for `${`. What a value must be is not known here: it comes out as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ankusa.config.problems import Problems, at_index, join
from ankusa.config.yaml_file import is_text

_REFERENCE = re.compile(r"\$(?P<escaped>\$\{)|\$\{(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^}]*)?\}|)")


def substitute(document: dict[str, Any], env: Mapping[str, str], problems: Problems) -> dict[str, Any]:
    """A copy of `document` with every reference replaced; a missing variable is noted at the field that names it."""
    replaced: dict[str, Any] = _apply(document, env, "", problems)
    return replaced


def _apply(value: Any, env: Mapping[str, str], path: str, problems: Problems) -> Any:
    if isinstance(value, dict):
        return {key: _apply(item, env, join(path, key), problems) for key, item in value.items()}
    if isinstance(value, list):
        return [_apply(item, env, at_index(path, index), problems) for index, item in enumerate(value)]
    if isinstance(value, str) and "${" in value:
        return _REFERENCE.sub(lambda match: _replace(match, env, path, problems), value)
    return value


def _replace(match: re.Match[str], env: Mapping[str, str], path: str, problems: Problems) -> str:
    if match["escaped"]:
        return "${"
    name, default = match["name"], match["default"]
    if name is None:
        problems.add(
            path, "holds a `${` that is no reference such as `${NAME}` or `${NAME:-default}`; `$${` stands for it"
        )
        return ""
    given = env.get(name)
    if given and not is_text(given):
        problems.add(path, f"the environment variable {name} is not UTF-8")
        return ""
    if default is not None:
        return given or default[2:]  # as in a shell, `:-` also stands in for an empty variable
    if given is None:
        problems.add(path, f"the environment variable {name} is not set")
        return ""
    return given
