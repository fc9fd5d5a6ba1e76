"""Options that say what a dump does not: shared by every command that reads one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drafttrace.tracer.errors import DrafttraceError

if TYPE_CHECKING:
    from drafttrace.tracer.dumps.registry import FieldMap, Request

PANEL = "What a dump does not say"

HiddenSize = Annotated[
    int | None, typer.Option("--hidden-size", min=1, help="Width of one slot.", rich_help_panel=PANEL)
]
LayerIds = Annotated[
    str | None,
    typer.Option(
        "--layer-ids",
        metavar="2,30,58",
        help="The layer ids of the dump, in the numbering of its own project.",
        rich_help_panel=PANEL,
    ),
]
SlotNames = Annotated[
    str | None,
    typer.Option(
        "--slots",
        metavar="A,B,C",
        help="Fields that hold the slots, for a file of no known layout.",
        rich_help_panel=PANEL,
    ),
]
TokensName = Annotated[
    str | None,
    typer.Option("--tokens", metavar="NAME", help="The field that holds the token ids.", rich_help_panel=PANEL),
]
LastName = Annotated[
    str | None,
    typer.Option("--last", metavar="NAME", help="The field that holds the last state.", rich_help_panel=PANEL),
]


Png = Annotated[Path | None, typer.Option("--png", help="One picture of the plots (needs matplotlib).")]


def request_of(hidden_size: int | None, layer_ids: str | None) -> Request:
    """The reader's request from the options."""
    from drafttrace.tracer.dumps.registry import Request

    return Request(hidden_size=hidden_size, layer_ids=None if layer_ids is None else _ids(layer_ids))


def mapping_of(slots: str | None, tokens: str | None, last: str | None) -> FieldMap | None:
    """The field map from the options; None where none was given."""
    if slots is None and tokens is None and last is None:
        return None
    if slots is None or tokens is None:
        raise DrafttraceError(
            "A file of no known layout needs both --slots and --tokens; give the names of its fields."
        )
    from drafttrace.tracer.dumps.registry import FieldMap

    return FieldMap(slots=tuple(name.strip() for name in slots.split(",")), tokens=tokens, last=last)


def _ids(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.strip("[] ").split(","))
    except ValueError:
        raise DrafttraceError(f"The layer ids '{text}' are no numbers; write them like 2,30,58.") from None
