"""One of something is no plural: "1 slots" and "1 tokens are" become "1 slot" and "1 token is".

Sentences are written with a number that is nearly always more than one; here they are put right where they leave, in one
place, and not at each of some hundred of them.
"""

from __future__ import annotations

import re

_NOUNS = (
    "boundaries|bytes|channels|columns|entries|files|findings|heads|hooks|ids|layers|numbers|notes|passes|positions|processes|"
    "ranks|requests|rounds|rows|runs|samples|scales|sentences|shards|slots|spaces|states|steps|tensors|tokens|traces|values|"
    "weights|words"
)
_VERBS = {"are": "is", "do": "does", "go": "goes", "have": "has", "were": "was"} | {
    verb: f"{verb}s"
    for verb in ("begin", "belong", "come", "differ", "fit", "hold", "lack", "lie", "need", "say", "show", "stand")
}
# "1 of 5 rows" has its verb after a few words more, none of which begins a clause of its own.
_CLAUSES = "and|but|or|that|where|which|who|whose"
_PHRASE = rf"(?: (?:at|before|beyond|from|in|of|on|with)(?: (?!(?:{_CLAUSES})\b)[\w'/#-]+){{1,4}}?)?"
# What comes before a number that is a name: "rank 1 rows" are the rows of a rank.
_NAMED = "channel|head|layer|line|position|rank|request|round|row|sample|slot|stage|step"
_BETWEEN = "(?:and|at|by|for|from|in|of|on|or|to|with) "
_ONE = re.compile(
    rf"(?<![\w.,:#/+–-])(?P<named>(?:{_NAMED}) )?1 (?P<kind>(?!{_BETWEEN})(?:[a-z-]+ )?)(?P<noun>{_NOUNS})\b"
    rf"(?:(?P<phrase>{_PHRASE}) (?P<verb>{'|'.join(_VERBS)})\b)?"
)
_QUOTED = re.compile(r"((?<!\w)'[^']*'(?!\w)|“[^”]*”)")  # a file may be called '1 rows.pt'


def in_number(text: str) -> str:
    """The text with the singular after every 1. What stands in quotes stays as it is."""
    if "1 " not in text:
        return text
    return "".join(
        part if place % 2 else _ONE.sub(_singular, part) for place, part in enumerate(_QUOTED.split(text))
    )


def _singular(found: re.Match[str]) -> str:
    if found["named"]:
        return found[0]
    noun = found["noun"]
    one = f"{noun[:-3]}y" if noun.endswith("ies") else noun[:-2] if noun.endswith("sses") else noun[:-1]
    verb = f"{found['phrase']} {_VERBS[found['verb']]}" if found["verb"] else ""
    return f"1 {found['kind']}{one}{verb}"
