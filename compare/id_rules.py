"""Layer ids in a draft's config, as boundaries, under each rule that a server applies; and the way back.

Pure functions over small tuples. Which server class applies which rule in which release is the table in
``compare/audit/sglang_rules.py``; a trace records the rule that its server applied.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class IdRule(enum.StrEnum):
    """How a server turns the ids of a config into boundaries. The value is what reports print."""

    PLUS_ONE = "id k means B(k+1)"
    RAW = "id k means B(k)"
    PLUS_ONE_IF_FIRST_IS_ONE = "id k means B(k+1) if the first id is 1, else B(k)"
    RAW_IF_HIGHEST_IS_N = "id k means B(k) if the highest id is n, else B(k+1)"


def boundaries_of(ids: Sequence[int], rule: IdRule, n: int) -> tuple[int, ...]:
    """The boundaries that ``ids`` name under ``rule`` for a target of n layers, in the order of the list."""
    raw = tuple(ids)
    shifted = tuple(k + 1 for k in ids)
    if rule is IdRule.RAW or not raw:
        return raw
    if rule is IdRule.PLUS_ONE_IF_FIRST_IS_ONE:
        return shifted if raw[0] == 1 else raw
    if rule is IdRule.RAW_IF_HIGHEST_IS_N:
        return raw if max(raw) == n else shifted
    return shifted


def ids_for(boundaries: Sequence[int], rule: IdRule, n: int) -> tuple[int, ...] | None:
    """Ids that make a server with ``rule`` capture exactly ``boundaries``; None where no ids do.

    The order of the ids may differ from that of the boundaries where only that order says what is meant: servers
    hand slots over in ascending order whatever the order of the list.
    """
    wanted = sorted(boundaries)
    for ids in spellings(boundaries):
        if sorted(boundaries_of(ids, rule, n)) == wanted:
            return ids
    return None


def spellings(boundaries: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Lists of ids to try for ``boundaries``, the one that most servers share first.

    B(id+1) is the reading that most classes and releases agree on, so it comes first where it may be meant; lists
    that begin elsewhere follow, for servers that look at the first id.
    """
    raw, early = tuple(boundaries), tuple(k - 1 for k in boundaries)
    first = [early, raw]
    return (*first, *(ids[k:] + ids[:k] for ids in (raw, early) for k in range(1, len(ids))))


def emitted(boundaries: Sequence[int], highest: int) -> tuple[int, ...]:
    """What a server hands over for ``boundaries``: ascending, each once, those within ``0..highest`` only.

    Layers append to one list as they run, so the order of the config's list is lost, a repeated id gives one
    slot, and a boundary that no layer enters gives none. ``highest`` is n - 1 for most model classes.
    """
    return tuple(sorted({k for k in boundaries if 0 <= k <= highest}))
