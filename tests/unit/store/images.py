"""Crash images: a store's directory as `kill -9` would leave it, and ways to damage one."""

from __future__ import annotations

import shutil
from pathlib import Path

from ankusa.store.database import Database


def crash_image(path: Path) -> Path:
    """A copy of an open store's directory: what was written is in it, whatever a clean close would add is not."""
    image = path.with_name(path.name + "-image")
    shutil.rmtree(image, ignore_errors=True)
    shutil.copytree(path, image)
    return image


def wal(image: Path) -> Path:
    """The log file with the data."""
    return max(image.glob("*.log"), key=lambda file: file.stat().st_size)


def flip(file: Path, at: int, count: int = 16) -> None:
    """Invert `count` bytes from `at` on."""
    data = bytearray(file.read_bytes())
    data[at : at + count] = bytes(byte ^ 0xFF for byte in data[at : at + count])
    file.write_bytes(data)


def write_out(database: Database, family: str) -> Path:
    """Flush a family into a table file of its own, so that it can be damaged."""
    before = set(database.path.glob("*.sst"))
    database._families[family].flush()
    (file,) = set(database.path.glob("*.sst")) - before
    return file


def damage_table(file: Path) -> None:
    """Spoil the middle of a table file: a block of its data, and neither its index nor its footer."""
    flip(file, file.stat().st_size // 2, 64)
