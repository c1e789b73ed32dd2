"""What the demo shows: lines, a live line while something runs (on a terminal), and the table."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ankusa.demo.setting import Setting
from ankusa.demo.tally import Tally

ROWS = ("accepted", "delivered", "retried", "dead", "replayed", "lost", "duplicates")


class Screen:
    """Writes to stdout, plainly where that is no terminal."""

    def __init__(self) -> None:
        self.console = Console()

    def act(self, text: str) -> None:
        """A new part of the story."""
        self.console.print(f"\n[bold]{text}[/bold]", highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(f"  {text}", markup=False, highlight=False, soft_wrap=True)

    @contextlib.contextmanager
    def live(self) -> Iterator[Callable[[str], None]]:
        """A line that is rewritten while something runs; its last state stays. Without a terminal only that is said."""
        last = ""

        def update(text: str) -> None:
            nonlocal last
            last = text
            if status is not None:
                status.update(text)

        status = None
        if self.console.is_terminal:
            with self.console.status("", spinner="dots") as status:
                yield update
        else:
            yield update
        if last:
            self.say(last)

    def table(self, by_tenant: Mapping[str, Tally], total: Tally) -> None:
        self.act("What became of every hook that got a 201, by the sink's own record")
        table = Table()
        table.add_column("")
        for name in (*by_tenant, "total"):
            table.add_column(name, justify="right")
        for row in ROWS:
            figures = [getattr(tally, row) for tally in (*by_tenant.values(), total)]
            bad = row in ("lost", "duplicates") and any(figures)
            style = "bold red" if bad else "bold green" if row in ("lost", "duplicates") else ""
            table.add_row(row, *map(str, figures), style=style)
        self.console.print(table)

    def farewell(self, setting: Setting) -> None:
        """The lines to try while it goes on serving."""
        hooks, admin, sink = (
            f"http://127.0.0.1:{port}" for port in (setting.http_port, setting.admin_port, setting.sink_port)
        )
        json_type = "-H 'content-type: application/json'"
        self.act("The node and the sink go on serving. Try:")
        for what, line in (
            ("send a hook", f'curl -i {hooks}/webhooks/try {json_type} -d \'{{"hello": "world"}}\''),
            ("what the sink has", f"curl {sink}/record"),
            ("let the sink fail, then send again", f"curl -X POST {sink}/mode/down"),
            ("rows, lag, depth by sink", f"curl {admin}/v1/stats"),
            ("the dead letters", f"curl {admin}/v1/dlq"),
            ("let the sink work again", f"curl -X POST {sink}/mode/up"),
            ("replay them", f"{_command()} replay --nodes {admin} --kind dlq --watch"),
            ("the same by HTTP", f'curl {admin}/v1/replays {json_type} -d \'{{"kind": "dlq"}}\''),
            ("a hook's history", f"curl {admin}/v1/hooks/ID"),
            ("health and figures", f"curl {admin}/health; curl {admin}/ready; curl {admin}/metrics"),
        ):
            self.console.print(f"  # {what}\n  {line}", markup=False, highlight=False, soft_wrap=True)
        self.say(f"configuration: {setting.config_path}")
        self.say("Ctrl-C ends it and removes what it stored.")


def _command() -> str:
    """How a person who sees the demo can run `ankusa`: as they did when it is on their path, else by its place."""
    if shutil.which("ankusa"):
        return "ankusa"
    place = Path(sys.executable).with_name("ankusa")
    here = Path.cwd()
    return str(place.relative_to(here) if place.is_relative_to(here) else place)
