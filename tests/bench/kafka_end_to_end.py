"""From the intended send to the sink on Kafka, one edge and one worker: open loops, beside the embedded host's."""

from __future__ import annotations

import argparse

from tests.bench.end_to_end import open_loop
from tests.bench.kafka_fleet import broker, new_fleet, workers
from tests.bench.node import Folder, Node, Sink
from tests.kafka.nodes import serving

RATES = (50, 500, 1500)
IN_FLIGHT = 32


def run(arguments: argparse.Namespace) -> None:
    with Folder() as folder:
        sink = Sink(folder)
        node = Node(folder, sink.url, dispatch={"sink_concurrency": None, "concurrency": IN_FLIGHT}).start()
        try:
            print("embedded host")
            for rate in RATES:
                open_loop(node.http, sink, rate, arguments.seconds)
        finally:
            node.stop()
            sink.stop()
    with Folder() as folder, broker(folder / "broker") as server:
        sink = Sink(folder)
        fleet = new_fleet(server, sink.url)
        try:
            with (
                workers(fleet, folder, sink.url, 1, {"concurrency": IN_FLIGHT}),
                serving(folder / "edge", fleet.config) as edge,
            ):
                print("kafka, one edge and one worker")
                for rate in RATES:
                    open_loop(edge.http_port, sink, rate, arguments.seconds)
        finally:
            sink.stop()
