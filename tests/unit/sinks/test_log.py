"""The log sink: one line of facts, no body."""

import asyncio
import logging

import pytest

from ankusa.sinks.contract import Ok, OptionError
from ankusa.sinks.log import LogSink
from tests.unit.sinks.deliveries import delivery


@pytest.mark.parametrize(("options", "level"), [({}, logging.INFO), ({"level": "debug"}, logging.DEBUG)])
def test_one_line_a_delivery(options: dict[str, str], level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ankusa.sink.log")
    sink = LogSink.build(options)
    result = asyncio.run(sink.deliver(delivery(body=b"hush", headers=(("x-a", "hush"),), attempt=3, replay_id="job-1")))
    assert result == Ok("logged")
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("ankusa.sink.log", level)
    assert record.getMessage() == (
        "delivered id=01890a5d-ac96-774b-bcce-b302099a8057 source=github tenant=acme"
        " size_bytes=4 attempt=3 replay_id=job-1"
    )


@pytest.mark.parametrize(
    ("options", "field"), [({"level": "warning"}, "level"), ({"level": 1}, "level"), ({"x": 1}, "x")]
)
def test_a_wrong_option_is_named(options: dict[str, object], field: str) -> None:
    with pytest.raises(OptionError) as caught:
        LogSink.build(options)
    assert caught.value.field == field
