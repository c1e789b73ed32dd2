"""The blob store on an object store: S3 and what speaks it, Google Cloud Storage, Azure, through obstore.

One object a pack, `<tenant>/<pack>` under the URL's prefix. Owns the step from the port to the library, and what its
answers mean; never knows what is in a pack. The library is an optional extra, imported when a store is made.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ankusa.claim_check.blobs import BlobError
from ankusa.claim_check.reference import is_pack, is_tenant

if TYPE_CHECKING:
    from obstore.store import ObjectStore

OPTIONS: dict[str, frozenset[str]] = {
    "s3": frozenset(
        {
            *("endpoint", "region", "access_key_id", "secret_access_key", "session_token"),
            *("virtual_hosted_style_request", "skip_signature", "server_side_encryption", "sse_kms_key_id"),
        }
    ),
    "gs": frozenset({"service_account", "service_account_key", "application_credentials", "skip_signature"}),
    "az": frozenset(
        {
            *("endpoint", "account_name", "access_key", "sas_key", "tenant_id", "client_id", "client_secret"),
            "skip_signature",
        }
    ),
}
"""Schemes of a store's URL, and the options each knows. What is not given comes from the cloud's own environment."""

CONNECT_TIMEOUT, TIMEOUT = "3s", "8s"
RETRIES, RETRY_FOR_S = 1, 5
"""Less than a check-in may take: one request that is lost in the network is made again within it."""

_URLS = re.compile(r"https?://\S+")
_MAX_REASON_CHARS = 200


class ObjectBlobs:
    """Implements `ankusa.claim_check.blobs.BlobStore` on a store of obstore."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def put(self, tenant_id: str, pack: str, parts: Sequence[bytes]) -> None:
        from obstore import put_async

        path = _path(tenant_id, pack)
        try:
            # One request: an upload in parts takes three, and leaves its parts behind when it is given up.
            await put_async(self._store, path, b"".join(parts), use_multipart=False)
        except Exception as error:
            raise _refusal(error) from error

    async def read(self, tenant_id: str, pack: str, start: int, length: int) -> bytes | None:
        from obstore import get_range_async

        path = _path(tenant_id, pack)
        try:
            return bytes(await get_range_async(self._store, path, start=start, length=length))
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):  # the whole store is gone: it may be back, and so may the pack
                raise _refusal(error) from error
            return None
        except Exception as error:
            raise _refusal(error) from error

    async def delete(self, tenant_id: str, pack: str) -> None:
        from obstore import delete_async

        path = _path(tenant_id, pack)
        try:
            await delete_async(self._store, path)
        except FileNotFoundError:
            return
        except Exception as error:
            raise _refusal(error) from error

    async def older(self, pack: str) -> AsyncIterator[tuple[str, str]]:
        """None: several nodes may share a bucket."""
        nothing: tuple[tuple[str, str], ...] = ()
        for found in nothing:
            yield found

    async def close(self) -> None:
        """Its connections end with it."""


def build(url: str, options: Mapping[str, str]) -> ObjectBlobs:
    """The store at `url`. Opens no connection. Raises ImportError without the extra, and BlobError for options that
    the library will not take."""
    from obstore.store import from_url

    client: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT, "timeout": TIMEOUT}
    if options.get("endpoint", "").startswith("http://"):
        client["allow_http"] = True
    retries = {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_FOR_S)}
    make: Any = from_url  # its types tell the clouds apart; here they are text
    try:
        return ObjectBlobs(make(url, config=dict(options), client_options=client, retry_config=retries))
    except Exception as error:
        raise _refusal(error) from error


def _path(tenant_id: str, pack: str) -> str:
    """The only place where a path is made of a name. Raises ValueError for what is no name of ours."""
    if not is_tenant(tenant_id) or not is_pack(pack):
        raise ValueError("not the name of a pack")
    return f"{tenant_id}/{pack}"


def _refusal(error: Exception) -> BlobError:
    """The library's words without what follows the first line, and without URLs: they may be signed."""
    first = str(error).partition("\n")[0]
    return BlobError(" ".join(_URLS.sub("", first).split())[:_MAX_REASON_CHARS] or type(error).__name__)
