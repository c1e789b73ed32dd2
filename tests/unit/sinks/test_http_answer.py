"""The status table and Retry-After, without a network."""

import pytest

from ankusa.sinks.contract import Failed, Ok
from ankusa.sinks.http_answer import answer, retry_after_ms

AT = 1_445_412_470_000  # Wed, 21 Oct 2015 07:27:50 GMT
PERMANENT = {400, 401, 403, 404, 410, 413, 422}


@pytest.mark.parametrize("status", range(100, 1000))
def test_every_status_without_a_hint(status: int) -> None:
    result = answer(status, None, AT)
    if 200 <= status < 300:
        assert result == Ok(str(status))
    else:
        assert isinstance(result, Failed)
        assert result.error_class == ("permanent" if status in PERMANENT else "transient")
        assert str(status) in result.reason


@pytest.mark.parametrize("status", range(100, 1000))
def test_retry_after_counts_for_408_429_and_5xx_alone(status: int) -> None:
    result = answer(status, "7", AT)
    if status in (408, 429) or 500 <= status < 600:
        assert isinstance(result, Failed)
        assert (result.error_class, result.retry_after_ms) == ("retry_after", 7000)
    else:
        assert result == answer(status, None, AT)


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("0", 0),
        ("120", 120_000),
        (" 5 ", 5_000),
        ("9999999999", 9_999_999_999_000),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 10_000),
        ("Wednesday, 21-Oct-15 07:28:00 GMT", 10_000),
        ("Wed Oct 21 07:28:00 2015", 10_000),
        ("Wed, 21 Oct 2015 07:27:00 GMT", 0),
        ("Wed, 21 Oct 2015 09:28:00 +0200", 10_000),
    ],
)
def test_a_wait_is_read(value: str, ms: int) -> None:
    assert retry_after_ms(value, AT) == ms


@pytest.mark.parametrize(
    "value",
    [None, "", "-1", "+5", "1.5", "1e3", "0x10", "٣", "99999999999", "9" * 5000, "soon", "Wed, 21 Oct", "NaN", "inf",
     "Wed, 99 Oct 2015 07:28:00 GMT", "Wed, 21 Foo 2015 07:28:00 GMT", "Wed, 21 Oct 99999 07:28:00 GMT",
     "Wed, 21 Oct 2015 07:28:00 +99999999999999", "é", "\x00", "1, 2", "Wed, " * 2000],
)  # fmt: skip
def test_anything_else_is_no_hint(value: str | None) -> None:
    assert retry_after_ms(value, AT) is None
    assert answer(503, value, AT) == Failed("transient", "HTTP 503")
