"""What a queue sink says of a library's error: short, and without a secret.

Libraries put addresses, URLs and what a server answered in their messages. Owns turning those into a reason that may
be stored and shown.
"""

from __future__ import annotations

from collections.abc import Iterable

from ankusa.redact import redact_text

_MAX_CHARS = 300


def reason(word: str, error: BaseException | str, secrets: Iterable[str] = ()) -> str:
    """`word`, then the error's text with all of `secrets` and everything of a secret's shape hidden."""
    name = "" if isinstance(error, str) else type(error).__name__
    text = ": ".join(filter(None, (name, str(error))))
    return f"{word}: {redact_text(' '.join(text.split()), secrets)[:_MAX_CHARS]}"
