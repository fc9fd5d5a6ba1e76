"""One list of layer ids, read by its trainer, by vLLM and by SGLang: three wirings, said side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafttrace.compare.audit.installed import installed_class, installed_version
from drafttrace.compare.audit.sglang_rules import LAST_VERSION, LOOK_UP, capability
from drafttrace.compare.audit.target_config import TargetConfig
from drafttrace.compare.draft_config import NESTED, SPECULATORS, TOP_LEVEL, DraftConfig, LayerIds
from drafttrace.compare.id_rules import emitted, spellings
from drafttrace.tracer.boundary import canonical_wiring


@dataclass(frozen=True)
class SglangReader:
    """How one SGLang release reads ids for one target class.

    read(ids, n): the boundaries its setter stores. source: who says so, for reports. embed: whether it can capture
    B0 (None: not known). last: whether it can capture B(n). installed: the class itself was asked. looks_up: a boundary
    without a layer stops the server, where others hand over a slot less for it.
    """

    architecture: str
    version: str
    source: str
    read: Callable[[Sequence[int] | None, int], tuple[int, ...]]
    embed: bool | None
    last: bool
    installed: bool
    looks_up: bool = False

    def served(self, ids: Sequence[int] | None, n: int) -> tuple[int, ...]:
        """The slots that the server hands over, ascending."""
        return emitted(self.read(ids, n), n if self.last else n - 1)

    def stops_at(self, ids: Sequence[int] | None, n: int) -> tuple[int, ...]:
        """The boundaries at which the setter itself fails with an IndexError, before anything is served."""
        return tuple(k for k in self.read(ids, n) if k >= n) if self.looks_up else ()

    def ids_for(self, boundaries: Sequence[int], n: int) -> tuple[int, ...] | None:
        """Ids that make this server hand over exactly ``boundaries``; None where none do, or not in this order."""
        wanted = tuple(boundaries)
        if wanted != tuple(sorted(set(wanted))) or (wanted[:1] == (0,) and self.embed is False):
            return None
        return next((ids for ids in spellings(wanted) if self.served(ids, n) == wanted), None)


@dataclass(frozen=True)
class Convention:
    """What one reader makes of the draft's config. ids_from: the field, or "default". wiring is in slot order."""

    who: str
    ids_from: str
    ids: tuple[int, ...] | None
    wiring: tuple[int, ...] | None
    note: str


def sglang_reader(target: TargetConfig, version: str | None) -> SglangReader | None:
    """The reader for a target class: the installed class, or the table where a version is given or none is installed.

    None where SGLang has no setter for the class. Raises ValueError for a version that is none.
    """
    architecture = target.architecture or ""
    here = installed_version()
    if version is None or version == here:
        found = installed_class(architecture)
        if found is not None:
            known = capability(architecture, found.version)
            return SglangReader(
                architecture=architecture,
                version=found.version,
                source=f"the installed class's own setter ({found.defined_in})",
                read=found.read,
                embed=known.embed if known is not None else None,
                last=known.last if known is not None else False,
                installed=True,
                looks_up=found.looks_up or (architecture in LOOK_UP and known is not None and known.exact),
            )
    entry = capability(architecture, version or here or LAST_VERSION)
    if entry is None:
        return None
    source = entry.source if entry.exact else f"{entry.source}; {entry.version} lies outside and may differ"
    return SglangReader(
        architecture,
        entry.version,
        source,
        entry.asked,
        entry.embed,
        entry.last,
        installed=False,
        looks_up=architecture in LOOK_UP and entry.exact,
    )


def trainer(draft: DraftConfig, n: int) -> Convention:
    """What the project that wrote the config meant by it."""
    ids = draft.layer_ids
    if ids is None:
        note = "no ids in the config" if draft.ids_problem is None else "no ids in the config that are integers"
        note += ": the trainers' own default"
        return Convention(draft.project, "default", None, canonical_wiring(n), note)
    if draft.project == SPECULATORS:  # its own place first: nested ids beside it were written for SGLang
        ids = next((place for place in (ids, *draft.other_ids) if place.where == TOP_LEVEL), ids)
        return Convention(draft.project, ids.where, ids.ids, ids.ids, "id k means B(k)")
    wiring = tuple(k + 1 for k in ids.ids)
    return Convention(draft.project, ids.where, ids.ids, wiring, "id k means the output of layer k, B(k+1)")


def vllm(draft: DraftConfig, n: int) -> Convention:
    """What vLLM makes of it: ids raw, ascending; both places are read, the top level first."""
    places = [*([draft.layer_ids] if draft.layer_ids else []), *draft.other_ids]
    ids: LayerIds | None = next((place for place in places if not place.where.startswith("eagle_config")), None)
    ids = ids or next(iter(places), None)
    if ids is None:
        return Convention(
            "vLLM", "default", None, canonical_wiring(n), "no integer ids found: the default, with a warning only"
        )
    return Convention("vLLM", ids.where, ids.ids, emitted(ids.ids, n), "id k means B(k), slots ascending")


def sglang(draft: DraftConfig, n: int, reader: SglangReader | None) -> Convention:
    """What SGLang makes of it."""
    if reader is None:
        return Convention("SGLang", "none", None, None, "this target class has no EAGLE-3 capture")
    nested = draft.layer_ids if draft.layer_ids is not None and draft.layer_ids.where == NESTED else None
    who = f"SGLang {reader.version}"
    note = f"by {reader.source}"
    if nested is None and draft.nested_ids is not None:
        return Convention(who, NESTED, None, None, f"no server can use ids that are no integers; {note}")
    if nested is None:
        return Convention(who, "default", None, reader.served(None, n), f"no {NESTED}: the default; {note}")
    if reader.embed is False and 0 in reader.read(nested.ids, n):
        note = f"stops with a TypeError: it cannot capture B0; {note}"
    return Convention(who, nested.where, nested.ids, reader.served(nested.ids, n), note)
