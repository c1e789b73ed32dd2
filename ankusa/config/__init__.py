"""The configuration: one YAML file, references to the environment and overrides from it, made one frozen `Config`.

Owns the way in (`load`), its errors, what a reload may change, and the way back out (`effective`). The shape
itself, with its defaults and ranges, is `schemas/config.py`. Nothing here is read again once a node runs, but by
a reload.
"""

from __future__ import annotations

from ankusa.config.checks import validate_dispatch
from ankusa.config.load import PATH_VARIABLE, load
from ankusa.config.problems import ConfigError, Problem
from ankusa.config.reload import reloadable_changes, taken_up
from schemas.config_document import effective

__all__ = [
    "PATH_VARIABLE",
    "ConfigError",
    "Problem",
    "effective",
    "load",
    "reloadable_changes",
    "taken_up",
    "validate_dispatch",
]
