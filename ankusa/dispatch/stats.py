"""What the dispatcher counts: plain integers, read by metrics and the API, never reset while the process lives."""

from __future__ import annotations

from msgspec import Struct

from schemas.records import OutcomeKind


class DispatchStats(Struct):
    """`results` counts attempts by "ok" or error class; `durations_ms` by the power of two above them."""

    outcomes: dict[OutcomeKind, int]
    results: dict[str, int]
    durations_ms: dict[int, int]
    duration_sum_ms: int = 0

    @classmethod
    def empty(cls) -> DispatchStats:
        results = dict.fromkeys(("ok", "permanent", "retry_after", "transient", "timeout"), 0)
        return cls(dict.fromkeys(OutcomeKind, 0), results, {})

    def attempted(self, result: str, duration_ms: int) -> None:
        self.results[result] += 1
        bucket = 1 << max(0, duration_ms).bit_length()
        self.durations_ms[bucket] = self.durations_ms.get(bucket, 0) + 1
        self.duration_sum_ms += duration_ms
