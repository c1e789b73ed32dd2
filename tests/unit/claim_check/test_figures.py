"""What metrics tell of the claim check."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from ankusa.claim_check.stats import ClaimCheckStats
from ankusa.metrics import Metrics
from streams.operations.figures import claim_check
from tests.unit.api.test_metrics import figures


def dispatcher(stats: ClaimCheckStats | None) -> Any:
    return SimpleNamespace(check_ins=None if stats is None else SimpleNamespace(stats=stats))


def test_every_count_is_told() -> None:
    stats = ClaimCheckStats(packs=1, bodies=2, stored_bytes=3, failed=4, deleted=5, kept=6)
    text = Metrics().render(replace(figures({}), claim_check=claim_check(dispatcher(stats)))).decode()
    lines = [line for line in text.splitlines() if line.startswith("ankusa_claim_check")]
    assert lines == [
        'ankusa_claim_check_total{what="body"} 2.0',
        'ankusa_claim_check_total{what="pack"} 1.0',
        'ankusa_claim_check_total{what="failed"} 4.0',
        'ankusa_claim_check_total{what="deleted_pack"} 5.0',
        "ankusa_claim_check_stored_bytes_total 3.0",
        "ankusa_claim_check_kept_packs 6.0",
    ]


def test_without_check_ins_there_is_nothing_to_tell() -> None:
    assert claim_check(dispatcher(None)) is None
    assert "claim_check" not in Metrics().render(figures({})).decode()
