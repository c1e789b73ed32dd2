"""Binding a row to its source's sinks as they are now (spec 03): by index and type, never by guess."""

from __future__ import annotations

from collections.abc import Sequence


def bind(sink: int, sink_type: str, sink_types: Sequence[str]) -> int | None:
    """The index of the sink a row goes to, None for `sink_gone`.

    `sink` and `sink_type` are the row's, fixed at commit; `sink_types` the source's now. After a reorder the
    row goes to the one sink of its type; with none or several of it there is no telling, so the row dies.
    """
    if sink < len(sink_types) and sink_types[sink] == sink_type:
        return sink
    candidates = [index for index, kind in enumerate(sink_types) if kind == sink_type]
    return candidates[0] if len(candidates) == 1 else None
