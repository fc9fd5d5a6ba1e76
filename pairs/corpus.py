"""Seeded chat text about an invented county: the training text and the held-out prompts of the tiny pairs.

Names are put together from syllables, so that they cannot be learnt by heart: a reply has to carry them
over from the conversation, which is work for the target's middle layers and therefore for the draft's
slots. Most replies are settled by the prompt; the tales leave some freedom.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from pairs.chat import Conversation, render_prompt

Family = Callable[[random.Random, "Town"], tuple[str, str]]

_ONSETS = [
    "B",
    "Br",
    "C",
    "D",
    "Dr",
    "F",
    "G",
    "Gr",
    "H",
    "J",
    "K",
    "L",
    "M",
    "N",
    "P",
    "R",
    "S",
    "St",
    "T",
    "Th",
    "V",
    "W",
]
_VOWELS = ["a", "e", "i", "o", "u", "ae", "ea", "ei", "ou"]
_MIDDLES = ["l", "r", "n", "m", "ld", "rn", "nd", "v", "th", "st", "ll", "rk", "b", "d"]
_PERSON_ENDS = ["a", "in", "en", "is", "or", "el", "ia", "us", "wen", "mir", "o", "ett"]
_FAMILY_ENDS = ["er", "man", "ow", "ley", "son", "art"]
_PLACE_ENDS = ["ford", "wick", "holm", "ton", "mouth", "dale", "bury", "stead", "haven", "gate"]

_TRADES = [
    "baker",
    "smith",
    "weaver",
    "miller",
    "potter",
    "mason",
    "tailor",
    "clerk",
    "glazier",
    "cooper",
    "farmer",
    "printer",
    "surgeon",
    "sailor",
    "carter",
    "painter",
    "fisher",
    "teacher",
    "brewer",
    "shepherd",
]
_ADJECTIVES = [
    "red",
    "blue",
    "green",
    "black",
    "white",
    "silver",
    "golden",
    "copper",
    "wooden",
    "heavy",
    "small",
    "broken",
    "painted",
    "polished",
    "old",
    "narrow",
    "round",
    "borrowed",
    "striped",
    "plain",
]
_OBJECTS = [
    "lantern",
    "kettle",
    "hammer",
    "basket",
    "violin",
    "mirror",
    "ladder",
    "anchor",
    "compass",
    "saddle",
    "clock",
    "barrel",
    "chest",
    "ledger",
    "cloak",
    "bell",
    "spade",
    "candle",
    "wheel",
    "map",
]
_SPOTS = [
    "mill",
    "harbour",
    "market",
    "chapel",
    "bridge",
    "orchard",
    "tower",
    "stable",
    "quarry",
    "well",
    "forge",
    "library",
    "cellar",
    "garden",
    "gatehouse",
    "ferry",
]
_GOODS = ["apples", "coins", "bricks", "sheep", "barrels", "letters", "candles", "fishes", "nails", "loaves"]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_WEATHER = ["rain", "snow", "fog", "frost", "wind", "thunder"]
_MOODS = ["proud", "tired", "glad", "worried", "silent", "curious"]
_ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"]


class Town:
    """The people, places and things that one conversation speaks of."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.people = _distinct(rng, 5, _person)
        self.places = _distinct(rng, 5, _place)
        self.trades = rng.sample(_TRADES, 5)
        self.things = [f"{a} {o}" for a, o in zip(rng.sample(_ADJECTIVES, 5), rng.sample(_OBJECTS, 5), strict=True)]
        self.spots = rng.sample(_SPOTS, 5)

    def shuffled(self) -> Town:
        """The same town with everyone in another order, for the next question of the conversation."""
        other = object.__new__(Town)
        other._rng = self._rng
        order = self._rng.sample(range(5), 5)
        for name in ("people", "places", "trades", "things", "spots"):
            setattr(other, name, [getattr(self, name)[i] for i in order])
        return other


def _person(rng: random.Random) -> str:
    first = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_MIDDLES) + rng.choice(_PERSON_ENDS)
    family = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_MIDDLES) + rng.choice(_FAMILY_ENDS)
    return f"{first} {family}"


def _place(rng: random.Random) -> str:
    stem = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_MIDDLES) + rng.choice(["", "a", "er"])
    return stem + rng.choice(_PLACE_ENDS)


def _distinct(rng: random.Random, count: int, make: Callable[[random.Random], str]) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        name = make(rng)
        if name not in found:
            found.append(name)
    return found


def _ledger(rng: random.Random, town: Town) -> tuple[str, str]:
    count = rng.randint(2, 4)
    notes = " ".join(
        f"{town.people[i]} the {town.trades[i]} lives in {town.places[i]} and keeps a {town.things[i]}"
        f" in the {town.spots[i]}."
        for i in range(count)
    )
    asked = rng.sample(range(count), rng.choice([1, 1, 2]) if count > 2 else 1)
    answers = []
    for i in asked:
        answers.append(
            f"{town.people[i]} is the {town.trades[i]} from {town.places[i]}. The {town.things[i]} of {town.people[i]}"
            f" is in the {town.spots[i]}, and {town.people[i]} goes to the {town.spots[i]} to fetch the {town.things[i]}."
        )
    who = " and ".join(town.people[i] for i in asked)
    return f"Here are my notes. {notes} What do they say about {who}?", " ".join(answers)


def _report(rng: random.Random, town: Town) -> tuple[str, str]:
    person, place, trade, thing, spot = (
        town.people[0],
        town.places[0],
        town.trades[0],
        town.things[0],
        town.spots[0],
    )
    days, day, weather = rng.randint(3, 29), rng.choice(_DAYS), rng.choice(_WEATHER)
    prompt = (
        f"Write the report. Name: {person}. Town: {place}. Trade: {trade}. Tool: {thing}. Spot: {spot}."
        f" Start: {day}. Days: {days}. Weather: {weather}."
    )
    reply = (
        f"Report on {person}. On {day} {person} the {trade} came to {place} with a {thing}. Because of the {weather}"
        f" the work at the {spot} of {place} took {days} days. After {days} days of {weather} {person} left the"
        f" {thing} at the {spot} and went home from {place}. The {trade} was paid for {days} days."
    )
    return prompt, reply


def _count(rng: random.Random, town: Town) -> tuple[str, str]:
    start, step, count = rng.randint(1, 30), rng.randint(1, 5), rng.randint(6, 12)
    numbers = [start + step * i for i in range(count)]
    goods = rng.choice(_GOODS)
    prompt = f"Count the {goods} from {start} to {numbers[-1]} in steps of {step}."
    counted = ", ".join(map(str, numbers))
    return prompt, f"Counting {goods} in steps of {step}: {counted}. That makes {count} numbers."


def _list(rng: random.Random, town: Town) -> tuple[str, str]:
    count = rng.randint(3, 5)
    entries = list(zip(town.people, town.things, strict=True))[:count]
    said = "; ".join(f"{person} lost a {thing}" for person, thing in entries)
    backwards = rng.random() < 0.4
    order = entries[::-1] if backwards else entries
    how = "in reverse order" if backwards else "in order"
    lines = "\n".join(f"{i}. the {thing} of {person}" for i, (person, thing) in enumerate(order, 1))
    reply = f"Here are the {count} lost things {how}:\n{lines}\nThe last one is the {order[-1][1]}."
    return f"Make a list {how}: {said}.", reply


def _rename(rng: random.Random, town: Town) -> tuple[str, str]:
    person, other, place, thing, spot = (
        town.people[0],
        town.people[1],
        town.places[0],
        town.things[0],
        town.spots[0],
    )
    end = rng.choice(
        [
            f"sold a {thing} near the {spot} of {place}",
            f"carried a {thing} from {place} to the {spot}",
            f"found a {thing} behind the {spot} and took it to {place}",
            f"asked the people of {place} for a {thing} at the {spot}",
        ]
    )
    day = rng.choice(_DAYS)
    prompt = f'Say it again with {other} instead of {person}: "On {day} {person} {end}."'
    return prompt, f'"On {day} {other} {end}." It was {other} who {end}, not {person}.'


def _letter(rng: random.Random, town: Town) -> tuple[str, str]:
    sender, receiver, place, thing = town.people[0], town.people[1], town.places[0], town.things[0]
    spot, day, mood = town.spots[0], rng.choice(_DAYS), rng.choice(_MOODS)
    prompt = (
        f"Write a letter from {sender} to {receiver} about the {thing} in {place}. Mood: {mood}."
        f" Meeting: {day}, {spot}."
    )
    reply = (
        f"Dear {receiver},\nI am {mood} to write to you from {place}. The {thing} that you asked for is here in {place}."
        f" Please meet me on {day} at the {spot}, and I will bring the {thing} to the {spot}. Until {day} I remain"
        f" {mood}.\nYours, {sender}"
    )
    return prompt, reply


def _route(rng: random.Random, town: Town) -> tuple[str, str]:
    count = rng.randint(3, 5)
    stops = town.places[:count]
    legs = [f"from {a} to {b} past the {s}" for a, b, s in zip(stops, stops[1:], town.spots, strict=False)]
    told = legs[:]
    rng.shuffle(told)
    prompt = f"There are roads {', '.join(told)}. How do I get from {stops[0]} to {stops[-1]}?"
    steps = [f"On the {_ORDINALS[i]} day go {leg}." for i, leg in enumerate(legs)]
    return prompt, f"Start in {stops[0]}. {' '.join(steps)} After {len(legs)} days you are in {stops[-1]}."


def _sum(rng: random.Random, town: Town) -> tuple[str, str]:
    goods, person, other = rng.choice(_GOODS), town.people[0], town.people[1]
    have, more = rng.randint(2, 19), rng.randint(2, 19)
    if rng.random() < 0.5:
        total = have + more
        prompt = (
            f"{person} has {have} {goods} and buys {more} more from {other}. How many {goods} does {person} have?"
        )
        reply = f"{person} had {have} {goods}. {person} bought {more} {goods} from {other}. {have} plus {more} is {total}."
    else:
        have, more = have + more, more
        total = have - more
        prompt = f"{person} has {have} {goods} and gives {more} to {other}. How many {goods} does {person} have?"
        reply = (
            f"{person} had {have} {goods}. {person} gave {more} {goods} to {other}. {have} minus {more} is {total}."
        )
    return prompt, f"{reply} So {person} has {total} {goods}."


def _tale(rng: random.Random, town: Town) -> tuple[str, str]:
    hero, friend, place, thing, spot, trade = (
        town.people[0],
        town.people[1],
        town.places[0],
        town.things[0],
        town.spots[0],
        town.trades[0],
    )
    prompt = f"Tell a tale of {hero} the {trade}, {friend} and the {thing} of {place}."
    weather, mood, day = rng.choice(_WEATHER), rng.choice(_MOODS), rng.choice(_DAYS)
    turn = rng.choice(
        [
            f"{friend} said that the {thing} was lost",
            f"{friend} hid the {thing} in the {spot}",
            f"{friend} came back with the {thing}",
            f"{friend} asked for the {thing}",
        ]
    )
    reply = (
        f"There once was a {trade} in {place} whose name was {hero}. {hero} had a {thing} and a friend, {friend}."
        f" On a {day} of {weather} {turn}. The {trade} was {mood}, but {hero} and {friend} went to the {spot} of"
        f" {place}, and since then the {thing} of {hero} has been the {thing} of {friend} too."
    )
    return prompt, reply


def _echo(rng: random.Random, town: Town) -> tuple[str, str]:
    pool = town.people + town.places + town.things
    words = ", ".join(rng.sample(pool, rng.randint(4, 9)))
    return f'Repeat exactly: "{words}."', f'"{words}." That is exactly what you said.'


FAMILIES: dict[str, tuple[Family, float]] = {
    "ledger": (_ledger, 1.6),
    "report": (_report, 1.2),
    "count": (_count, 0.7),
    "list": (_list, 1.2),
    "rename": (_rename, 1.0),
    "letter": (_letter, 1.2),
    "route": (_route, 1.2),
    "sum": (_sum, 0.9),
    "tale": (_tale, 1.0),
    "echo": (_echo, 1.6),
}


# What the plan of tiny-llama names: copying is what tiny-kimi needs it for.
WITHOUT_ECHO = tuple(name for name in FAMILIES if name != "echo")


def conversation(rng: random.Random, families: Sequence[str] | None = None) -> Conversation:
    """One conversation of one question, sometimes two, about one town, from these families (default: all)."""
    names = list(families or FAMILIES)
    weights = [FAMILIES[name][1] for name in names]
    town = Town(rng)
    messages: Conversation = []
    for turn in range(2 if rng.random() < 0.2 else 1):
        name = names[0] if len(names) == 1 else rng.choices(names, weights)[0]
        prompt, reply = FAMILIES[name][0](rng, town if turn == 0 else town.shuffled())
        messages += [{"role": "user", "content": prompt}, {"role": "assistant", "content": reply}]
    return messages


def conversations(seed: int, families: Sequence[str] | None = None) -> Iterator[Conversation]:
    """An endless stream of conversations; a seed always gives the same stream."""
    rng = random.Random(seed)
    while True:
        yield conversation(rng, families)


HELD_OUT_SEED = 90_000_000


def held_out_talks(count: int, seed: int = 0) -> list[Conversation]:
    """Whole conversations from a stream that no training run reads."""
    stream = conversations(HELD_OUT_SEED + seed)
    return [next(stream) for _ in range(count)]


def held_out_prompts(count: int, seed: int = 0) -> list[str]:
    """The same conversations without their last reply, as text in the chat format, ready to be completed."""
    return [render_prompt(talk[:-1]) for talk in held_out_talks(count, seed)]
