"""The kinds of blob store: from `claim_check.store` to a store, or to the key that is wrong.

Owns the choice and its rules. Each kind is a module of its own.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from urllib.parse import urlsplit

from ankusa.claim_check import object_blobs
from ankusa.claim_check.blobs import BlobError, BlobStore
from ankusa.claim_check.local_blobs import LocalBlobs
from ankusa.claim_check.object_blobs import OPTIONS
from ankusa.claim_check.unset_blobs import UnsetBlobs
from ankusa.store.errors import StoreError
from schemas.config import ClaimStore

FOLDER = "claims"
"""Where local packs are unless the file says otherwise, under `node.data_dir`."""

EXTRA = "objects"


class ClaimStoreError(Exception):
    """A key of `claim_check.store` is wrong. `field` is relative to it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def check_store(spec: ClaimStore) -> None:
    """Check a store's keys without opening it. Raises ClaimStoreError."""
    if spec.type == "local":
        for field in ("url", "options"):
            if getattr(spec, field):
                raise ClaimStoreError(field, "is not for a local store")
        return
    if spec.path is not None:
        raise ClaimStoreError("path", "is only for a local store")
    if spec.url is None:
        raise ClaimStoreError("url", "is required, such as s3://bucket/prefix")
    url = urlsplit(spec.url)
    known = OPTIONS.get(url.scheme)
    if known is None or not url.netloc or "@" in url.netloc or url.query or url.fragment:
        raise ClaimStoreError("url", f"must be {', '.join(f'{scheme}://...' for scheme in OPTIONS)}")
    for name in spec.options:
        if name not in known:
            raise ClaimStoreError(f"options.{name}", f"is not one of {', '.join(sorted(known))}")
    if importlib.util.find_spec("obstore") is None:
        raise ClaimStoreError("type", f"needs an extra: pip install 'ankusa-server[{EXTRA}]'")
    try:
        object_blobs.build(spec.url, spec.options)
    except BlobError as error:
        raise ClaimStoreError("options", str(error)) from error


def open_store(spec: ClaimStore, data_dir: str, *, shared: bool = False) -> BlobStore:
    """The store, of one node alone unless it is `shared` by a fleet. Raises StoreError when it cannot be had."""
    try:
        if spec.type == "local":
            if shared and spec.path is None:
                return UnsetBlobs()
            return LocalBlobs(Path(data_dir) / FOLDER if spec.path is None else Path(spec.path), shared=shared)
        assert spec.url is not None
        return object_blobs.build(spec.url, spec.options)
    except BlobError as error:
        raise StoreError(f"claim_check.store: {error}") from error
