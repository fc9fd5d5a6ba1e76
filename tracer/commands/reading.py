"""Options that say what a dump does not: shared by every command that reads one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from drafttrace.tracer.boundary import boundary_name
from drafttrace.tracer.commands.wirings import boundaries_of
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.layer_ids import parse_ids

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
        help="The layer ids of the dump, in the numbering of its own project (SGLang's dumps: B(id)), or in one that you "
        "name: B3,B31,B59 or O2,O30,O58.",
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


LastNorm = Annotated[
    str | None,
    typer.Option(
        "--last-norm",
        metavar="pre|post|unknown",
        help="Whether the field of --last stands before or after the final norm.",
        rich_help_panel=PANEL,
    ),
]
MaskName = Annotated[
    str | None,
    typer.Option("--mask", metavar="NAME", help="The field that holds the loss mask.", rich_help_panel=PANEL),
]
DumpFormat = Annotated[
    str | None, typer.Option("--format", metavar="ID", help="Read the dump as this format.", rich_help_panel=PANEL)
]
Boundaries = Annotated[
    str | None,
    typer.Option(
        "--boundaries",
        metavar="B2,B30,B58",
        help="The boundaries of the slots that --slots names.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class Said:
    """What a user says of a dump. mapping: the names of its fields, None for a file of a known layout."""

    mapping: FieldMap | None
    request: Request


def said(
    hidden_size: int | None,
    layer_ids: str | None,
    slots: str | None,
    tokens: str | None,
    last: str | None,
    last_norm: str | None,
    mask: str | None,
    boundaries: str | None,
) -> Said:
    """The options of this module, as readers take them. Raises DrafttraceError for what does not fit together."""
    from drafttrace.tracer.dumps.registry import Request

    mapping = _mapping(slots, tokens, last, last_norm, mask, boundaries)
    ids, numbering = parse_ids(layer_ids)
    return Said(mapping, Request(hidden_size=hidden_size, layer_ids=ids, numbering=numbering))


def refuse_without_dump(spec: str | None, format: str | None, dump: Said) -> None:
    """Raise DrafttraceError where something is said of a dump, and --from-dump names none."""
    from drafttrace.tracer.dumps.registry import Request

    given = format is not None or dump.mapping is not None or dump.request != Request()
    if spec is None and given:
        raise DrafttraceError(
            "--format, --slots, --tokens and their like say how a dump is read, and none is; give it with --from-dump."
        )


def _mapping(
    slots: str | None,
    tokens: str | None,
    last: str | None,
    last_norm: str | None,
    mask: str | None,
    boundaries: str | None,
) -> FieldMap | None:
    more = {"--last": last, "--last-norm": last_norm, "--mask": mask, "--boundaries": boundaries}
    given = [name for name, value in more.items() if value is not None]
    if slots is None and tokens is None and not given:
        return None
    if slots is None or tokens is None:
        what = f"{given[0]} says more of a file of no known layout, which" if given else "A file of no known layout"
        raise DrafttraceError(f"{what} needs both --slots and --tokens; give the names of its fields.")
    if last_norm is not None and last is None:
        raise DrafttraceError(
            f"--last-norm {last_norm} says something of a last state that is not named; give --last NAME."
        )
    from drafttrace.tracer.dumps.from_mapping import parse_fields

    wiring = None if boundaries is None else ",".join(map(boundary_name, boundaries_of(boundaries, "boundaries")))
    return parse_fields(slots, tokens, last, last_norm=last_norm or "unknown", mask=mask, boundaries=wiring)
