"""From the intended send to the sink on Kafka, one edge and one worker: open loops, beside the embedded host's. Each
begins with three seconds that count for nothing: a broker that has just started is slow."""

from __future__ import annotations

import argparse

import uvloop

from tests.bench.accept import CONNECTIONS
from tests.bench.end_to_end import drain, open_loop
from tests.bench.kafka_fleet import broker, new_fleet, workers
from tests.bench.load import Load
from tests.bench.node import Folder, Node, Sink, signed_request
from tests.kafka.nodes import serving

RATES = (50, 500, 1500, 3000)
WARM_RATE, WARM_S = 500, 3.0
IN_FLIGHT = 32
DELAY_MS = 10
"""An edge's second setting: hooks gather for so long before their commit. A record costs a worker the same whether it
has one hook or ten."""


def run(arguments: argparse.Namespace) -> None:
    with Folder() as folder:
        sink = Sink(folder)
        node = Node(folder, sink.url, dispatch={"sink_concurrency": None, "concurrency": IN_FLIGHT}).start()
        try:
            print("embedded host")
            _loops(node.http, sink, arguments.seconds)
        finally:
            node.stop()
            sink.stop()
    with Folder() as folder, broker(folder / "broker") as server:
        for delay_ms in (0, DELAY_MS):
            place = folder / str(delay_ms)
            place.mkdir()
            sink = Sink(place)
            fleet = new_fleet(server, sink.url)
            try:
                with (
                    workers(fleet, place, sink.url, 1, {"concurrency": IN_FLIGHT}),
                    serving(place / "edge", fleet.config, batcher={"max_delay_ms": delay_ms}) as edge,
                ):
                    print(f"kafka, one edge and one worker, batcher.max_delay_ms {delay_ms}")
                    _loops(edge.http_port, sink, arguments.seconds)
            finally:
                sink.stop()


def _loops(port: int, sink: Sink, seconds: float) -> None:
    load = Load("127.0.0.1", port, signed_request(port), CONNECTIONS)
    warmed = uvloop.run(load.open(WARM_RATE, WARM_S))
    drain(sink, len(warmed.ids))
    for rate in RATES:
        open_loop(port, sink, rate, seconds)
