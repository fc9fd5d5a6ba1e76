"""A capture as one line, and as one block of HTML for notebooks. Reads no tensors."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING

from drafttrace.tracer.boundary import boundary_name

if TYPE_CHECKING:
    from drafttrace.tracer.capture import Capture


def one_line(capture: Capture) -> str:
    """``<Capture traces/t.h5: drafttrace.trace/1, 80 tokens, 234 rows, slots [B2, B30, B58]>``."""
    slots = ", ".join(boundary_name(k) for k in capture.wiring)
    whole = "" if capture.complete else ", incomplete"
    return (
        f"<Capture {capture.path}: {capture.format}, {len(capture.tokens)} tokens, {len(capture.table)} rows, "
        f"slots [{slots}]{whole}>"
    )


def as_html(capture: Capture) -> str:
    """What the file is, its states as a table, and its notes."""
    return "<div>" + "".join(_parts(capture)) + "</div>"


def _parts(capture: Capture) -> Iterator[str]:
    prompt = "" if capture.prompt_length is None else f", {capture.prompt_length} of them prompt"
    yield f"<div><b>{html.escape(capture.path)}</b> ({html.escape(capture.format)})</div>"
    yield f"<div>{len(capture.tokens)} tokens{prompt}; {len(capture.table)} rows</div>"
    heads = "".join(
        f'<th style="text-align:left">{h}</th>' for h in ("state", "shape", "dtype", "boundary", "source")
    )
    lines = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{html.escape(cell)}</td>' for cell in cells) + "</tr>"
        for cells in _states(capture)
    )
    yield f"<table><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"
    if capture.boundaries:
        known = sorted(capture.boundaries)
        yield f"<div>layer sweep: {len(known)} boundaries, {boundary_name(known[0])} to {boundary_name(known[-1])}</div>"
    if capture.draft is not None:
        yield f"<div>draft: {len(capture.draft.table)} rows of {html.escape(', '.join(capture.draft.tensors))}</div>"
    yield from (f"<div>note: {html.escape(note)}</div>" for note in capture.notes)


def _states(capture: Capture) -> Iterator[tuple[str, str, str, str, str]]:
    for slot in capture.slots:
        shape = f"{slot.rows.shape[0]} × {slot.rows.shape[1]}"
        yield f"slot {slot.name}", shape, str(slot.rows.dtype), boundary_name(slot.boundary), slot.source
    if capture.embed is not None:
        rows = capture.embed.rows
        yield "embed", f"{rows.shape[0]} × {rows.shape[1]}", str(rows.dtype), "B0", capture.embed.source
    if capture.last is not None:
        last = capture.last
        where = f"{boundary_name(last.boundary)}, {last.norm} the final norm".replace("post the", "after the")
        where = where.replace("pre the", "before the").replace("unknown the final norm", "norm unknown")
        yield "last", f"{last.rows.shape[0]} × {last.rows.shape[1]}", str(last.rows.dtype), where, last.proven_by
