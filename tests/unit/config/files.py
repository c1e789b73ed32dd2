"""Helpers of the configuration tests: write a document, load it, collect what is wrong with it."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ankusa.config import ConfigError, load
from schemas.config import Config

SOUND = "sources: {a: {verify: {type: none}, sinks: [{type: log}]}}\n"


def write(directory: Path, text: str | bytes) -> str:
    path = directory / "ankusa.yaml"
    path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    return str(path)


def load_text(directory: Path, text: str | bytes, env: Mapping[str, str] | None = None) -> Config:
    return load(write(directory, text), env or {})


def load_document(directory: Path, document: Mapping[str, Any], env: Mapping[str, str] | None = None) -> Config:
    return load_text(directory, yaml.safe_dump(document), env)


def error_of(directory: Path, text: str | bytes, env: Mapping[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_text(directory, text, env)
    return caught.value


def fields_of(directory: Path, text: str | bytes, env: Mapping[str, str] | None = None) -> list[str]:
    return [problem.field for problem in error_of(directory, text, env).problems]
