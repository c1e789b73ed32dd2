"""How the records' enumerations are spelled in the API."""

from __future__ import annotations

from typing import Literal

from schemas.api import ErrorClassName
from schemas.records import ErrorClass, OutcomeKind

ERROR_CLASSES: dict[ErrorClass, ErrorClassName] = {
    ErrorClass.PERMANENT: "permanent",
    ErrorClass.RETRY_AFTER: "retry_after",
    ErrorClass.TRANSIENT: "transient",
    ErrorClass.TIMEOUT: "timeout",
}

OUTCOMES: dict[OutcomeKind, Literal["delivered", "retry", "parked", "dead", "revived", "dropped"]] = {
    OutcomeKind.DELIVERED: "delivered",
    OutcomeKind.RETRY: "retry",
    OutcomeKind.PARKED: "parked",
    OutcomeKind.DEAD: "dead",
    OutcomeKind.REVIVED: "revived",
    OutcomeKind.DROPPED: "dropped",
}
