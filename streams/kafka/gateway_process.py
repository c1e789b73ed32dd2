"""A claim-check gateway as a process of its own, on a node that is no worker: any number of them serve a fleet.

Run as `python -m streams.kafka.gateway_process --config FILE`, by `ankusa serve` or by hand. It needs the blob store
and no broker: a reference leads to its bytes with nothing else. All that it reads of the file is read once.
"""

from __future__ import annotations

import logging
import sys

from ankusa.claim_check.stores import open_store
from ankusa.store.errors import StoreError
from schemas.config import Config
from streams import listeners
from streams.edge import Stop
from streams.kafka.process import begin

log = logging.getLogger("ankusa.claim_check")

FAILED_EXIT = 1


async def run(config: Config, config_path: str | None, parent: int) -> int:
    """Run one gateway until SIGTERM, SIGINT or the death of `parent`; the exit status."""
    stop = Stop(parent)
    try:
        blobs = open_store(config.claim_check.store, config.node.data_dir, shared=True)
    except StoreError as error:
        log.critical("event=store_unavailable reason=%s", error)
        return FAILED_EXIT
    try:
        opened = await listeners.gateway(blobs, config)
    except OSError as error:
        log.critical("event=listen_failed reason=%s", error.strerror)
        await blobs.close()
        return FAILED_EXIT
    status = await stop.wait()
    for listener in opened:
        await listener.close()
    await blobs.close()
    return status


if __name__ == "__main__":
    sys.exit(begin("gateway", run))
