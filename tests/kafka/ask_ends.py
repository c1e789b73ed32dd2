"""A process that asks for the ends of topics over and over: a line for each answer, `known` or why not.

A process of its own, since what a client's library does when it finds itself in a state that it takes for impossible is
to end the process.
"""

from __future__ import annotations

import sys

from msgspec.structs import replace

from ankusa.clock import now_ms
from ankusa.store.errors import StoreError
from streams.kafka.topic_trim import TopicTrim
from tests.kafka import cluster


def main(broker: str, prefix: str) -> None:
    config = cluster.configuration(broker)
    trim = TopicTrim(replace(config, kafka=replace(config.kafka, prefix=prefix)), request_s=1.0)
    places = [(f"{prefix}{name}", number) for name in ("hooks", "quarantine") for number in (0, 1)]
    while True:
        try:
            spans, refused = trim.spans(places, now_ms())
            said = "known" if len(spans) == len(places) else str(refused)
        except StoreError as error:
            said = str(error)
        print(said, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
