"""What a store may refuse with. Every message says what to do about it."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot do what was asked of it now: a full disk, an I/O error, a read-only directory."""


class StoreLockedError(StoreError):
    """Another process has the directory open."""


class StoreDamagedError(StoreError):
    """The files are not what a crash can leave behind. Refused rather than guessed at."""


class StoreFormatError(StoreError):
    """The store was written by a release whose format this one does not read."""
