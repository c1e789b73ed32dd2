"""What a sink answered, as far as it can be trusted: nothing it answers or raises may stop a row or spoil a batch.

Owns the step from anything at all to a `SinkResult` whose every field can be stored. Never decides what follows.
"""

from __future__ import annotations

from ankusa.core.retry import ERROR_LIMIT
from ankusa.redact import redact_text
from ankusa.sinks.contract import Failed, Ok, SinkResult
from schemas.records import ErrorClass

ERROR_CLASSES = {
    "permanent": ErrorClass.PERMANENT,
    "retry_after": ErrorClass.RETRY_AFTER,
    "transient": ErrorClass.TRANSIENT,
    "timeout": ErrorClass.TIMEOUT,
}


def answered(answer: object) -> SinkResult:
    """A sink's answer with its texts bounded and storable; anything but a result with a known class is transient."""
    if isinstance(answer, Ok):
        detail = _text(answer.detail)
        return answer if type(answer) is Ok and detail is answer.detail else Ok(detail)
    if not isinstance(answer, Failed):
        return Failed("transient", f"the sink answered {type(answer).__name__}, not a result")
    if not isinstance(answer.error_class, str) or answer.error_class not in ERROR_CLASSES:
        return Failed("transient", f"the sink answered an unknown error class: {_text(answer.reason)}")
    wait_ms = answer.retry_after_ms
    return Failed(answer.error_class, _text(answer.reason), max(0, wait_ms) if isinstance(wait_ms, int) else 0)


def raised(error: Exception) -> Failed:
    """What a sink raised, as the transient failure it counts for. A library's words may hold a URL with a password."""
    return Failed("transient", f"the sink raised {type(error).__name__}: {redact_text(_text(error))}")


def _text(value: object) -> str:
    """At most ERROR_LIMIT characters that UTF-8 can hold, whatever `value` does when it is asked for its text."""
    if type(value) is str and value.isascii():
        return value if len(value) <= ERROR_LIMIT else value[:ERROR_LIMIT]
    try:
        text = str(value)
    except Exception:
        return f"({type(value).__name__} without a text)"
    return text[:ERROR_LIMIT].encode(errors="replace").decode()
