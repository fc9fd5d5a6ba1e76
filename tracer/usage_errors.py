"""Usage errors as every other error: one sentence with what happened, the value and the remedy.

typer draws a box around "Input should be greater than or equal to 1", which says neither which value was meant nor what
to write, and which no script can read.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

# Commands, options and errors are typer's own or, in its older versions, click's: neither has types that fit both.
Command = Any
Option = Any
Context = Any

PROGRAM = "drafttrace"
_INPUTS = ("--from", "--from-dump", "--trace", "--dump", "--target", "--draft")  # options that name what is read


def keep_values(command: Command) -> Command:
    """Make the options of a command line leave the value that they refuse on their error, as ``given``, and the commands
    their context, as ``ctx``."""
    for one in (command, *getattr(command, "commands", {}).values()):
        one.parse_args = _Parsed(one.parse_args)
        for option in one.params:
            option.handle_parse_result = _Kept(option, option.handle_parse_result)
    return command


class _Parsed:
    """Stands for a command's parsing: its parser's own errors do not say of which command they are."""

    def __init__(self, parse: Any) -> None:
        self._parse = parse

    def __call__(self, ctx: Context, args: list[str]) -> Any:
        try:
            return self._parse(ctx, args)
        except Exception as error:
            if is_usage_error(error) and getattr(error, "ctx", None) is None:
                error.ctx = ctx  # type: ignore[attr-defined]
            raise


class _Kept:
    """Stands for an option's parsing."""

    def __init__(self, option: Option, parse: Any) -> None:
        self._option, self._parse = option, parse

    def __call__(self, ctx: Context, opts: Mapping[str, Any], args: list[str]) -> Any:
        given = opts.get(self._option.name)
        try:
            return self._parse(ctx, opts, args)
        except Exception as error:
            if is_usage_error(error):
                error.given = given  # type: ignore[attr-defined]
            raise


def is_usage_error(error: BaseException) -> bool:
    """Whether typer or click raised it about what was typed."""
    return hasattr(error, "format_message") and getattr(error, "exit_code", None) == 2


def asks_for_help(error: Any) -> bool:
    """Whether nothing was typed at all: the help, which is out already or is its message, answers that."""
    return type(error).__name__ == "NoArgsIsHelpError"


def sentence_of(error: Any) -> str:
    """The sentence for a usage error."""
    context = getattr(error, "ctx", None)
    option = getattr(error, "param", None)
    kind = type(error).__name__
    if context is None:
        return f"{error.format_message().rstrip('.')}; look at '{PROGRAM} --help'."
    if kind == "NoSuchOption":
        return _unknown_option(error, context)
    if kind == "MissingParameter" and option is not None:
        return _missing(option, context)
    if kind == "BadOptionUsage":
        return _misused(error, context)
    if option is not None:
        return _wrong_value(error, option, context)
    found = re.fullmatch(r"No such command '(.*?)'\..*", error.message, re.DOTALL)
    if found:
        return _unknown_command(found[1], context)
    found = re.fullmatch(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", error.message, re.DOTALL)
    if found:
        return _left_over(found[1], context)
    return f"{error.format_message().rstrip('.')}; look at '{_name(context)} --help'."


def _name(context: Context) -> str:
    """``drafttrace diff``, however the program was started."""
    return f"{PROGRAM} {context.info_name}" if context.parent is not None else PROGRAM


def _unknown_option(error: Any, context: Context) -> str:
    near = near_options(error.option_name, [name for one in context.command.params for name in one.opts])
    return f"'{error.option_name}' is no option of '{_name(context)}'; {_instead(near, _name(context))}."


def near_options(typed: str, options: Iterable[str]) -> list[str]:
    """The options that ``typed`` may be a slip of, or a word of, nearest first; the dashes, which all have, make none
    alike."""
    word = typed.lstrip("-")
    bare = {name.lstrip("-"): name for name in options if name.startswith("--")}
    near = difflib.get_close_matches(word, bare, 2, _ALIKE)
    longer = difflib.get_close_matches(word, [name for name in bare if word in name.split("-")], 2, 0.0)
    return [bare[name] for name in near or longer]


# Of a slip of a letter or two; "foo" and "format" are not alike.
_ALIKE = 0.7


def _unknown_command(word: str, context: Context) -> str:
    near = difflib.get_close_matches(word, context.command.commands, 3)
    return f"'{word}' is no command of {PROGRAM}; {_instead(near, _name(context))}."


def _instead(near: Sequence[str], name: str) -> str:
    look = f"look at '{name} --help'"
    return f"give {' or '.join(near)}, or {look}" if near else look


def _missing(option: Option, context: Context) -> str:
    name, needed = _name(context), _called(option)
    choices = _choices(option)
    what = f"give one of {', '.join(choices)}" if choices else "give it"
    example = _example(context.command, option)
    shown = f", as in '{example}'" if example else ""
    return f"'{name}' needs {needed}, which is missing; {what}{shown}."


def _misused(error: Any, context: Context) -> str:
    option = next((one for one in context.command.params if error.option_name in one.opts), None)
    name = error.option_name
    if option is None or getattr(option, "is_flag", False):
        return f"{name} takes no value, and one was given; leave out what follows its name."
    needs = f"{option.nargs} values, and fewer follow it" if option.nargs > 1 else "a value, and none follows it"
    return f"{name} needs {needs}; give it as '{name} {_metavar(option)}'."


def _left_over(words: str, context: Context) -> str:
    taken = [_called(one) for one in context.command.params if one.param_type_name == "argument"]
    most = f"nothing after {' '.join(taken)}" if taken else "no argument"
    said = f"'{_name(context)}' takes {most}, and '{words}' is left over"
    names = [name for name in _INPUTS if not taken and any(name in one.opts for one in context.command.params)]
    if names:
        which = f"with one of {', '.join(names)}" if len(names) > 1 else f"with {names[0]}"
        return f"{said}; say what it is {which}, leave it out, or put a name with spaces into quotes."
    return f"{said}; leave it out, or put a name with spaces into quotes."


def _wrong_value(error: Any, option: Option, context: Context) -> str:
    called, wanted, choices = _called(option), _number(option), _choices(option)
    for given in _given(error):
        if choices and given not in choices:
            return f"'{given}' is no value of {called}; choose one of {', '.join(choices)}."
        if wanted and not choices:
            return f"'{given}' is no {wanted}, which {called} needs; give one."
    said = error.message.rstrip(".")
    shown = "".join(f", and it is '{given}'" for given in _given(error) if f"'{given}'" not in said)
    return f"{called} cannot be used: {said}{shown}; look at '{_name(context)} --help'."


def _given(error: Any) -> Iterator[str]:
    value = getattr(error, "given", None)
    for one in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(one, str):
            yield one


def _called(option: Option) -> str:
    """``--json`` for an option, FILE for an argument."""
    if option.param_type_name == "argument":
        return str(option.metavar or option.name.upper()).strip("[]")
    return next((str(text) for text in option.opts if text.startswith("--")), str(option.opts[0]))


def _metavar(option: Option) -> str:
    choices = _choices(option)
    return str(option.metavar or "|".join(choices) or option.name.upper())


def _type(option: Option) -> tuple[Any, Any]:
    """What holds an option's choices and bounds, and the type it wants by typer's description or click's name."""
    described = getattr(option, "type_descriptor", None)
    if described is not None:
        return described.parameter_info, getattr(described.annotation, "__name__", "")
    kind = getattr(option, "type", None)
    return kind, str(getattr(kind, "name", "")).split()[0:1]


def _choices(option: Option) -> list[str]:
    holder = getattr(option, "type_descriptor", None) or getattr(option, "type", None)
    return [str(getattr(one, "value", one)) for one in getattr(holder, "choices", None) or ()]


def _number(option: Option) -> str | None:
    """``whole number of 1 or more`` for what such an option takes; None for one that takes no number."""
    bounds, kind = _type(option)
    whole = kind in ("int", ["integer"])
    if not whole and kind not in ("float", ["float"]):
        return None
    least, most = getattr(bounds, "min", None), getattr(bounds, "max", None)
    words = "whole number" if whole else "number"
    if least is not None and most is not None:
        return f"{words} from {least:g} to {most:g}"
    return words if least is None else f"{words} of {least:g} or more"


def _example(command: Command, option: Option) -> str | None:
    """The first example of the command's help that has the option."""
    lines = str(getattr(command, "epilog", "") or "").replace("\\[", "[").splitlines()
    examples = [line[2:] for line in lines if line.startswith("$ ")]
    if option.param_type_name == "argument":
        return examples[0] if examples else None
    return next((line for line in examples if set(option.opts) & set(line.split())), None)
