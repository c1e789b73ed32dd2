"""What an HTTP answer means for a delivery: the status table of spec 04 and `Retry-After`.

Pure: a status, a header and a time in, a result out.
"""

from __future__ import annotations

import re
from datetime import UTC
from email.utils import parsedate_to_datetime

from ankusa.sinks.contract import Failed, Ok, SinkResult

PERMANENT = frozenset({400, 401, 403, 404, 410, 413, 422})
MAY_SAY_WHEN = frozenset({408, 429})
MAX_SECONDS_DIGITS = 10  # three centuries; more is no time a server means
_SECONDS = re.compile(rf"[0-9]{{1,{MAX_SECONDS_DIGITS}}}")
_OK = {status: Ok(str(status)) for status in range(200, 300)}


def answer(status: int, retry_after: str | None, at: int) -> SinkResult:
    """The result of an answer with `status` and a `Retry-After` header, to an attempt that started `at` (unix ms).

    The wait is not capped here; the dispatcher caps it at one hour.
    """
    if (ok := _OK.get(status)) is not None:
        return ok
    if status in PERMANENT:
        return Failed("permanent", f"HTTP {status}")
    if status in MAY_SAY_WHEN or 500 <= status <= 599:
        wait_ms = retry_after_ms(retry_after, at)
        if wait_ms is not None:
            return Failed("retry_after", f"HTTP {status}, retry after {wait_ms} ms", wait_ms)
    if 300 <= status <= 399:
        return Failed("transient", f"HTTP {status}, redirects are not followed")
    return Failed("transient", f"HTTP {status}")


def retry_after_ms(value: str | None, at: int) -> int | None:
    """Milliseconds from `at` that a `Retry-After` asks for: whole seconds or an HTTP date in any of its three forms.

    A date that has passed is 0. None for an absent one and for what is neither: negative, fractional, huge, garbage.
    """
    if value is None:
        return None
    value = value.strip()
    if _SECONDS.fullmatch(value):
        return int(value) * 1000
    if not value.isascii() or len(value) > 40 or not value[:3].isalpha():
        return None
    try:
        date = parsedate_to_datetime(value)
        date_ms = int((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()) * 1000
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
    return max(0, date_ms - at)
