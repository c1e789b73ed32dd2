"""How a replay over several nodes looks to the person who started it: bars on a terminal, plain lines elsewhere.

Owns wording and drawing. It asks no node and judges nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from ankusa.replay.fleet import Report

PLAIN_EVERY_S = 5.0
"""Without a terminal a job that only grows is written this often, so that a log of hours stays readable."""


def progress_of(job: dict[str, Any]) -> tuple[int, int | None]:
    """`(moved, total)` of a job object; total is None while nobody knows it."""
    moved, remaining = int(job["moved"]), job["remaining"]
    return moved, None if remaining is None else moved + int(remaining)


def line_of(report: Report) -> str:
    """One node's job in one line."""
    words = [report.node.name, report.state]
    if report.job is not None:
        moved, total = progress_of(report.job)
        words.append(f"moved {moved:,}" + (f" of {total:,}" if total is not None else ""))
        words += [f"{name} {report.job[name]:,}" for name in ("delivered", "dead", "skipped") if report.job[name]]
        if report.job["throttled"] and report.state == "running":
            reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(report.job["throttled"].items()))
            words.append(f"waited for live traffic ({reasons})")
        if report.job["held"]:
            words.append(f"held back: {', '.join(report.job['held'])}")
        if report.job["error"]:
            words.append(str(report.job["error"]))
    if report.trouble is not None:
        words.append(report.trouble)
    return "  ".join(words)


class ReplayView:
    """Shows a watched replay. Use it as a context; call it with the reports of each turn."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: dict[str, TaskID] = {}
        self._lines: dict[str, tuple[str, int, float]] = {}
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[figures]}"),
                console=console,
                transient=False,
            )

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._progress is not None:
            self._progress.stop()

    def __call__(self, reports: Sequence[Report]) -> None:
        for report in reports:
            if self._progress is not None:
                self._bar(self._progress, report)
            else:
                self._line(report)

    def _bar(self, progress: Progress, report: Report) -> None:
        name = report.node.name
        moved, total = progress_of(report.job) if report.job is not None else (0, None)
        figures = f"{moved:,}/{total:,}" if total is not None else f"{moved:,}"
        eta_ms = report.job["eta_ms"] if report.job is not None else None
        tail = f"  {eta_ms / 1000:,.0f} s left" if eta_ms else ""
        if name not in self._bars:
            self._bars[name] = progress.add_task(escape(name), total=total, figures="")
        progress.update(
            self._bars[name],
            total=max(total, 1) if total is not None else None,
            completed=max(moved, 1) if report.state == "done" else moved,
            figures=escape(f"{figures}  {report.state}{tail}"),
        )

    def _line(self, report: Report) -> None:
        """A line when the state changed, a tenth more is done, or some time went by."""
        moved, total = progress_of(report.job) if report.job is not None else (0, None)
        tenth = 10 * moved // total if total else 0
        state, last_tenth, at = self._lines.get(report.node.name, ("", -1, 0.0))
        now = time.monotonic()
        if state != report.state or tenth > last_tenth or (moved < (total or 0) and now - at > PLAIN_EVERY_S):
            self._lines[report.node.name] = (report.state, tenth, now)
            self._console.print(line_of(report), markup=False, highlight=False, soft_wrap=True)


def show_plans(console: Console, reports: Sequence[Report]) -> None:
    """What a start would move, node by node and in all."""
    plans = [report.plan for report in reports if report.plan is not None]
    for report in reports:
        if report.plan is None:
            console.print(line_of(report), markup=False, highlight=False, soft_wrap=True)
    table = Table(title="would move", title_justify="left")
    for heading, justify in (("node", "left"), ("sink key", "left"), ("entries", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    for report in reports:
        for key, count in sorted((report.plan or {}).get("by_sink", {}).items()):
            table.add_row(escape(report.node.name), escape(key), f"{count:,}")
    if table.row_count:
        console.print(table)
    skipped = sum(plan["skipped"] for plan in plans)
    seconds = max((plan["duration_ms"] for plan in plans), default=0) / 1000
    console.print(
        f"would move {sum(plan['count'] for plan in plans):,} on {len(plans)} of {len(reports)} nodes in about "
        f"{seconds:,.0f} s" + (f"; {skipped:,} do not decode and would be left" if skipped else ""),
        highlight=False,
    )


def show_found(console: Console, reports: Sequence[Report], job_id: str) -> None:
    """The nodes that had an unfinished job of the same kind and filter, and answered that one in place of a new one."""
    for report in reports:
        if report.job is not None and not report.created and report.job["id"] != job_id:
            console.print(
                f"{report.node.name}  has this replay already: job {report.job['id']} at {report.job['rate']:,} a "
                "second, which --rate does not change; PATCH it to do that",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )


def show_outcome(console: Console, reports: Sequence[Report]) -> None:
    """A line for each node and the sum."""
    for report in reports:
        console.print(line_of(report), markup=False, highlight=False, soft_wrap=True)
    states = Counter(report.state for report in reports)
    jobs = [report.job for report in reports if report.job is not None]
    sums = "  ".join(f"{name} {sum(job[name] for job in jobs):,}" for name in ("moved", "delivered", "dead", "skipped"))
    console.print(
        f"{len(reports)} {'node' if len(reports) == 1 else 'nodes'}: "
        + ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        + f"  {sums}",
        highlight=False,
        soft_wrap=True,
    )
