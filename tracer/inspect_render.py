"""An inspection as text on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

    from drafttrace.tracer.inspecting import Inspection, StateView


def render(found: Inspection, console: Console) -> None:
    """Print an inspection: header, states, checks, notes."""
    from rich.markup import escape
    from rich.table import Table

    from drafttrace.tracer.fitted import Fitted

    def line(label: str, value: str) -> None:
        console.print(f"[bold]{label:<12}[/bold]{escape(printable(value))}")

    line("file", found.path + ("" if found.sample is None else f"  (sample #{found.sample})"))
    line("format", f"{found.format}: {found.recognised_by}")
    if found.sample_count != 1:
        line("samples", str(found.sample_count))
    line("tokens", _tokens(found))
    if found.text is not None:
        console.print(f"[bold]{'text':<12}[/bold]{escape(found.text)}")
    line("ids", ", ".join(map(str, found.first_ids)) + (", ..." if found.tokens > len(found.first_ids) else ""))
    if set(found.phases) != {"prefill"} or found.draft_tensors:
        line("rows", ", ".join(f"{count} {name}" for name, count in found.phases.items()))
    if not found.complete:
        line("complete", "no: the file ends in the middle of the request")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("state", "shape", "dtype", "declared", "norm of a row", "broken rows", "probably"):
        table.add_column(column, overflow="fold")
    for state in found.states:
        cells = [f"{state.role} {state.name}", f"{state.shape[0]} x {state.shape[1]}", state.dtype, _declared(state),
                 _norms(state), _broken(state), state.probably]  # fmt: skip
        table.add_row(*(escape(printable(cell)) for cell in cells))
    if found.states:
        console.print(Fitted(table))
    if found.boundaries:
        line("boundaries", ", ".join(found.boundaries))
    for source in dict.fromkeys(state.source for state in found.states):
        line("source", source)
    for check in found.checks:
        colour = {"confirmed": "green", "consistent": "green", "refuted": "red", "found": "yellow"}.get(
            check.verdict, "dim"
        )
        console.print(f"[{colour}]{check.verdict:<11}[/{colour}] {escape(printable(check.summary))}")
    for probe in found.probes:
        if probe["fired"] != probe["expected"] or probe["dropped"]:
            line(
                "probe",
                f"{probe['name']}: fired {probe['fired']} of {probe['expected']}, {probe['dropped']} dropped",
            )
    for note in found.notes:
        line("note", note)
    if found.target is None and found.states and not found.draft_tensors and not found.checks:
        line("hint", "--target DIR checks by value: embedding slot, norm and place of the last state, token shift")


def _tokens(found: Inspection) -> str:
    parts = [f"{found.tokens}"]
    if found.valid_length != found.tokens:
        parts.append(f"{found.valid_length} without padding")
    if found.prompt_length is not None:
        parts.append(f"{found.prompt_length} of them prompt")
    if not found.first_token_known:
        parts.append("the first one unknown")
    if found.mask_ones is None:
        parts.append("no loss mask")
    else:
        parts.append(f"{found.mask_ones} in the loss mask (row t is weighted by mask[t{found.mask_offset:+d}])")
    return ", ".join(parts)


def _declared(state: StateView) -> str:
    declared = boundary_name(state.boundary)
    return declared if state.norm is None else f"{declared} {state.norm}"


def _norms(state: StateView) -> str:
    numbers = state.statistics
    if numbers.norm_mean is None or numbers.norm_std is None:
        return "-" if numbers.norm_row0 is None else f"{numbers.norm_row0:.4g}"
    row0 = "" if numbers.norm_row0 is None else f" (row 0: {numbers.norm_row0:.4g})"
    return f"{numbers.norm_mean:.4g} ± {numbers.norm_std:.3g}{row0}"


def _broken(state: StateView) -> str:
    numbers = state.statistics
    parts = [
        f"{count} {what}"
        for count, what in (
            (numbers.nan_rows, "non-finite"),
            (numbers.zero_rows, "zero"),
            (numbers.repeated_rows, "repeated"),
        )
        if count
    ]
    of = "" if numbers.rows_read == state.shape[0] else f" of {numbers.rows_read} read"
    return (", ".join(parts) or "none") + of
