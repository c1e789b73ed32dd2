"""A worker on Kafka as a process: the fold of its partitions, and the services that deliver beside it.

Run as `python -m streams.kafka.worker_process --config FILE`, by `ankusa serve` or by hand. Starts when the topics are
as they must be. Stops in order: attempts are drained and their outcomes written while the fold goes on, then the group
is left, so that whoever owns the partitions next repeats nothing.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping

from fastapi import FastAPI

from ankusa.config import ConfigError, load
from ankusa.store.errors import StoreError
from ankusa.supervisor import FATAL_EXIT
from api.admin import build_admin_app
from api.auth import Tokens
from api.serving import Listener
from schemas.config import Config
from streams import listeners
from streams.edge import Stop
from streams.kafka.log_producer import LogProducer, open_producer
from streams.kafka.operations import KafkaOperations
from streams.kafka.process import begin
from streams.kafka.services import Services
from streams.kafka.topic_admin import topics_fit
from streams.kafka.worker import Worker, end_in_time, leave, prepare

log = logging.getLogger("ankusa.worker")

FAILED_EXIT = 1


async def run(config: Config, config_path: str | None, env: Mapping[str, str], parent: int) -> int:
    """Run one worker until SIGTERM, SIGINT, the death of `parent` or what must not go on; the exit status."""
    stop = Stop(parent)
    loop = asyncio.get_running_loop()
    checked = loop.create_task(_checked(config))
    status = await stop.wait(checked)
    if status or not checked.done():
        checked.cancel()
        return status
    producer = LogProducer(lambda: open_producer(config.kafka))
    worker = Worker(config, producer)
    try:
        services = Services(config, worker.owned, producer)
    except StoreError as error:
        log.critical("event=store_unavailable reason=%s", error)
        await producer.close()
        return FAILED_EXIT
    opened: list[Listener] = []
    try:
        app = await _listen(services, opened)
    except OSError as error:
        log.critical("event=listen_failed reason=%s", error.strerror)
        await _close(opened)
        await services.stop()
        await producer.close()
        return FAILED_EXIT
    services.start()
    worker.start()
    log.info("event=worker_started owner=%s partitions=%d", worker.owner, config.kafka.partitions)
    reloads = loop.create_task(_reloads(services, app.state.tokens, stop, config_path, env))
    routes = loop.create_task(_routes(services, app.state.tokens, opened))
    ends = [loop.create_task(_failed(worker)), routes]
    if services.feed is not None:
        ends.append(loop.create_task(_unreadable(services)))
    status = await stop.wait(*ends)
    log.info("event=worker_stopping status=%d", status)
    reloads.cancel()
    for end in ends:
        end.cancel()

    async def stopping() -> None:
        await _close(opened)
        await services.stop()
        await worker.stop()
        await producer.close()

    await end_in_time(stopping(), status)
    return status


async def _checked(config: Config) -> int:
    return 0 if await topics_fit(config) else FATAL_EXIT


async def _listen(services: Services, opened: list[Listener]) -> FastAPI:
    """Open what the configuration asks for into `opened`; the admin API's app. Raises OSError naming the address."""
    app = build_admin_app(KafkaOperations(services), services.config.admin.tokens)
    opened += await listeners.admin(app, services.config)
    opened += await listeners.gateway(services.blobs, services.config)
    return app


async def _routes(services: Services, tokens: Tokens, opened: list[Listener]) -> int:
    """Open the listener of routes once they are read: until then it would deny that there are any. Ends only when it
    cannot be had."""
    store = await asyncio.shield(services.routes)
    try:
        opened.append(await listeners.routes(store, tokens, services.config))
    except OSError as error:
        log.critical("event=listen_failed reason=%s", error.strerror)
        return FAILED_EXIT
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def _close(opened: list[Listener]) -> None:
    for listener in reversed(opened):
        await listener.close()


async def _failed(worker: Worker) -> int:
    log.critical("event=worker_failed reason=%s", await worker.failed())
    return FAILED_EXIT


async def _unreadable(services: Services) -> int:
    """Ends when stored sources cannot be read."""
    assert services.feed is not None
    log.critical("event=sources_unreadable reason=%s", await asyncio.shield(services.feed.failed))
    return FATAL_EXIT


async def _reloads(
    services: Services, tokens: Tokens, stop: Stop, config_path: str | None, env: Mapping[str, str]
) -> None:
    """At each SIGHUP read the file again, beside the loop. A broken one changes nothing and says why."""
    while True:
        await stop.reload.wait()
        stop.reload.clear()
        try:
            config = await asyncio.to_thread(load, config_path, env)
            services.reload(config)
            tokens.reconfigure(services.config.admin.tokens)
        except ConfigError as error:
            log.error("event=reload_refused reason=%s", error)
        except Exception:
            log.exception("event=reload_failed")


async def _run(config: Config, config_path: str | None, parent: int) -> int:
    prepare(config)
    leave(await run(config, config_path, os.environ, parent))


if __name__ == "__main__":
    leave(begin("worker", _run))
