"""What is used of Faust's transport is there in the installed release, and what is left out stays out."""

from __future__ import annotations

import asyncio
import inspect
from typing import cast

from faust.transport.consumer import Consumer

from streams.kafka.transport import FoldConsumer


def test_faust_does_not_tell_who_stands_still() -> None:
    """Its detector asks this, and would ask every partition in turn."""
    assert "self.verify_all_partitions_active()" in inspect.getsource(Consumer)
    assert FoldConsumer.verify_all_partitions_active is not Consumer.verify_all_partitions_active
    asyncio.run(FoldConsumer.verify_all_partitions_active(cast(FoldConsumer, None)))  # asks nothing of the consumer
