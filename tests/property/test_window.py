"""The window under any claims: counts never go below nothing, and what it lets through is within its budgets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ankusa.core.window import FREE_SHARE, Limits, Window, replay_part

TENANTS = ("a", "b")
LIMITS = st.builds(Limits, st.integers(1, 10), st.integers(1, 10_000))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.sampled_from(TENANTS), st.integers(1, 20_000), st.booleans()),
        st.tuples(st.just("finish"), st.integers(0, 100), st.just(0), st.just(False)),
        st.tuples(st.just("limits"), LIMITS, LIMITS, st.just(False)),
    ),
    max_size=60,
)


@given(LIMITS, st.dictionaries(st.sampled_from(TENANTS), LIMITS), LIMITS, STEPS)
def test_it_stays_within_its_budgets(
    whole: Limits, tenants: dict[str, Limits], default: Limits, steps: list[tuple[object, ...]]
) -> None:
    window = Window(whole, tenants, default)
    claims: list[tuple[str, int, bool]] = []
    for kind, first, second, flag in steps:
        if kind == "limits":
            assert isinstance(first, Limits)
            assert isinstance(second, Limits)
            whole, default = first, second
            window.reconfigure(whole, tenants, default)
        elif kind == "finish":
            if claims:
                assert isinstance(first, int)
                tenant, size_bytes, replayed = claims.pop(first % len(claims))
                window.finish(tenant, size_bytes, replayed=replayed)
        else:
            assert isinstance(first, str)
            assert isinstance(second, int)
            replayed = bool(flag)
            if window.room(replayed=replayed) and window.tenant_room(first, replayed=replayed):
                assert window.rows_left(first, replayed=replayed) >= 1
                check_room(claims, first, whole, tenants.get(first, default), replayed)
                claims.append((first, second, replayed))
                window.claim(first, second, replayed=replayed)
        check_counts(window, claims)


def check_room(claims: list[tuple[str, int, bool]], tenant: str, whole: Limits, limits: Limits, replayed: bool) -> None:
    """Before a claim: each budget has a row left, and bytes, or nothing is claimed of it."""
    budgets = [(claims, whole), ([one for one in claims if one[0] == tenant], limits)]
    if replayed:
        budgets += [([one for one in held if one[2]], replay_part(budget)) for held, budget in budgets]
    for held, budget in budgets:
        assert len(held) < budget.rows
        assert not held or sum(size_bytes for _, size_bytes, _ in held) < budget.size_bytes
    held = [one for one in claims if one[0] == tenant]
    if held:
        assert len(held) <= FREE_SHARE * (whole.rows - len(claims))
        held_bytes, claimed_bytes = sum(one[1] for one in held), sum(one[1] for one in claims)
        assert held_bytes <= FREE_SHARE * (whole.size_bytes - claimed_bytes)


def check_counts(window: Window, claims: list[tuple[str, int, bool]]) -> None:
    assert (window.used.rows, window.used.size_bytes) == (len(claims), sum(size for _, size, _ in claims))
    assert window.replay_used.rows == sum(replayed for _, _, replayed in claims)
    for tenant in TENANTS:
        assert window.tenant_rows(tenant) == sum(owner == tenant for owner, _, _ in claims)
    if not claims:
        assert not window._tenants
        assert not window._tenant_replays


@given(st.integers(1, 10_000), st.integers(1, 1 << 40))
def test_an_empty_window_takes_any_row(rows: int, size_bytes: int) -> None:
    limits = Limits(rows, size_bytes)
    window = Window(limits, {}, limits)
    for replayed in (False, True):
        assert window.room(replayed=replayed)
        assert window.tenant_room("a", replayed=replayed)
        assert window.rows_left("a", replayed=replayed) >= 1
    window.claim("a", 1 << 50, replayed=True)
    window.finish("a", 1 << 50, replayed=True)
    assert window.room(replayed=True)


@given(st.integers(1, 5000), st.integers(1, 40))
def test_however_many_tenants_fill_their_share_there_is_room_for_one_more(rows: int, tenants: int) -> None:
    """As long as there are rows enough: each takes all it may and gives nothing back."""
    limits = Limits(rows, 1 << 40)
    window = Window(limits, {}, limits)
    for number in range(tenants):
        tenant = f"t{number}"
        free = rows - window.used.rows
        if free == 0:
            break
        taken = 0
        while window.room(replayed=False) and window.tenant_room(tenant, replayed=False):
            left = window.rows_left(tenant, replayed=False)
            assert left >= 1
            window.claim(tenant, 1, replayed=False)
            taken += 1
        assert taken >= 1, "the newcomer got nothing"
        assert rows - window.used.rows >= (free - 1) // (FREE_SHARE + 1)
