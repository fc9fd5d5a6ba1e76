"""Errors in the words of whoever calls from Python: parameters where the command line has options."""

from __future__ import annotations

import functools
import inspect
import re

# Options whose parameter has another name.
_CALLED = {
    "threshold": "thresholds",
    "rank_trace": "rank_traces",
    "wiring": "wirings",
    "left_format": "format",
    "hash": "hash_weights",
    "mask": "mask",
}
# Whole commands stay commands: they can be typed as they stand. Between quotes are names of files.
_COMMAND = re.compile(r"'[^']*'|\b(?:drafttrace (?!\.)\w+|serve) [^;,.'()]*")
# An option, and its value where that cannot be another word of the sentence.
_OPTION = re.compile(
    r"--(?P<name>[a-z][a-z-]*[a-z])(?: (?P<value>'[^']*'|-?[BO]?\d[\d.]*(?:,[BO]?\d+)*(?!\w)|[A-Z][A-Z0-9_]*\b(?!-)))?"
)
# Options whose value is a word.
_WORDS = {"to", "format", "last_norm", "dtype"}
_WORD = re.compile(r" (?P<value>[A-Za-z0-9][\w-]*)")


def in_python(sentence: str, signature: inspect.Signature) -> str:
    """``sentence`` with ``--hidden-size H`` as ``hidden_size=H`` where the function has such a parameter, and as that of
    :func:`drafttrace.open` where only this has it; other options, of the server and of other commands, stay."""
    parts, at = [], 0
    for command in _COMMAND.finditer(sentence):
        parts += [_renamed(sentence[at : command.start()], signature), command[0]]
        at = command.end()
    return "".join([*parts, _renamed(sentence[at:], signature)])


def _renamed(text: str, signature: inspect.Signature) -> str:
    made, at = [], 0
    for option in _OPTION.finditer(text):
        name, where = _parameter(option["name"], signature)
        if name is None or option.start() < at:
            continue
        value, end = option["value"], option.end()
        if name in {*_WORDS, "lose"} and value is None and (word := _WORD.match(text, end)) is not None:
            value, end = repr(word["value"]), word.end()
        elif value is not None and re.fullmatch(r"[BO\d][BO\d,]*", value) and not value.isdecimal():
            value = repr(value)
        if signature.parameters.get(name, _NONE).annotation == "bool":
            value, end = "True", option.end("name")
        if name == "lose" and value is not None:
            value = f"[{value}]"
        made += [text[at : option.start()], name if value is None else f"{name}={value}", where]
        at = end
    return "".join([*made, text[at:]])


_NONE = inspect.Parameter("none", inspect.Parameter.KEYWORD_ONLY)


def _parameter(option: str, signature: inspect.Signature) -> tuple[str | None, str]:
    """The parameter that an option is, and the words that say of which other function it is."""
    plain = option.replace("-", "_")
    names = [name for name in (plain, _CALLED.get(plain)) if name is not None]
    for name in names:
        if name in signature.parameters:
            return name, ""
    for name in names:
        if name in _of_open():
            return name, " of drafttrace.open"
    return None, ""


@functools.cache
def _of_open() -> frozenset[str]:
    from drafttrace import api

    return frozenset(inspect.signature(api.open).parameters)
