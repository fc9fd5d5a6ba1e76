"""``serve --wiring`` before any server: can this target hand over these boundaries, and can this draft read them?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from drafttrace.compare.audit.target_config import TargetConfig, read_target_config
from drafttrace.compare.draft_config import read_draft_config
from drafttrace.compare.draft_weights import draft_weights
from drafttrace.tracer.boundary import WrongWiring, check_wiring
from drafttrace.tracer.checkpoint import open_checkpoint
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.hub_cache import cached_snapshots, is_hub_name

# Names of SGLang's options, and the shortest beginning that argparse takes for each where it is no other's.
_TARGET = ("--model-path", "--model", "--model-p")
_DRAFT = ("--speculative-draft-model-path", "--speculative-draft-model", "--speculative-draft-model-p")
_ALGORITHM = ("--speculative-algorithm", "--speculative-algo", "--speculative-al")
_CONFIG = ("--config", "--config", "--config")
_REVISION = ("--revision", "--revision", "--rev")
_DRAFT_REVISION = (
    "--speculative-draft-model-revision",
    "--speculative-draft-model-revision",
    "--speculative-draft-model-r",
)
_DOWNLOADS = ("--download-dir", "--download-dir", "--do")

_LATER = "the plugin checks the wiring when the models are loaded and stops the server if it cannot work"


def refuse_wrong_wiring(wiring: Sequence[int], sglang_arguments: Sequence[str]) -> tuple[str, ...]:
    """Raise where SGLang's arguments say that ``wiring`` cannot work; return one sentence for each open question.

    Raises WrongWiring for a target that cannot hand it over or a draft that cannot read it, and DrafttraceError for a
    server without EAGLE-3. A name of the hub is looked up in this machine's hub cache. What no argument tells, is
    neither a folder nor in that cache, or cannot be read, is left to the server, which checks once more with the models
    that it has loaded.
    """
    target, missing = _target(sglang_arguments)
    width, unread = _fc_width(sglang_arguments)
    slot = _slot_width(sglang_arguments)
    fits = (
        target is not None and width == len(wiring) * target.hidden_size
    )  # the config's number alone is lost, then
    if target is not None and slot not in {None, target.hidden_size} and not fits:
        raise WrongWiring(
            f"This draft is for another target: its slots are {slot} wide, the hidden states of {target.path.parent} are "
            f"{target.hidden_size} wide; give the draft that was trained for this target.{_read_from(sglang_arguments)}"
        )
    if target is not None:
        try:
            check_wiring(wiring, n=target.layers, hidden=target.hidden_size, width=width)
        except WrongWiring as error:
            raise WrongWiring(f"{error}{_read_from(sglang_arguments)}") from None
    _refuse_other_algorithm(sglang_arguments)
    return tuple(_open_questions(sglang_arguments, missing, unread))


def _open_questions(arguments: Sequence[str], target: str | None, draft: str | None) -> Iterator[str]:
    unread = " and ".join(reason for reason in (target, draft) if reason is not None)
    if unread:
        yield f"--wiring could not be checked before the start, because {unread}; {_LATER}."
    if _value(arguments, _ALGORITHM) is None:  # it was refused where there is no --config either
        config = _value(arguments, _CONFIG)
        yield (
            f"whether '{config}' asks for EAGLE3 could not be checked before the start, and without it --wiring has no "
            "effect; look at wiring.algorithm of the server's /drafttrace/health."
        )


def _refuse_other_algorithm(arguments: Sequence[str]) -> None:
    """Only under EAGLE3 does the target hand over slots; SGLang would start all the same and ignore the wiring."""
    given = _value(arguments, _ALGORITHM)
    if given is not None and given.upper() != "EAGLE3":
        raise DrafttraceError(
            f"--wiring has no effect under --speculative-algorithm {given}, where the target hands over no slots; start "
            "with --speculative-algorithm EAGLE3."
        )
    if given is None and _value(arguments, _CONFIG) is None:
        raise DrafttraceError(
            "--wiring has no effect without speculative decoding; add --speculative-algorithm EAGLE3 and "
            "--speculative-draft-model-path DRAFT to SGLang's arguments."
        )


def _target(arguments: Sequence[str]) -> tuple[TargetConfig | None, str | None]:
    """The target's config, or why there is none."""
    folders, reason = _folders(arguments, _TARGET)
    if not folders:
        return None, reason
    try:
        return read_target_config(_holding(folders, "config.json")), None
    except DrafttraceError as error:
        return None, f"the target cannot be read ({_short(error)})"


def _slot_width(arguments: Sequence[str]) -> int | None:
    """How wide the draft's config says that a slot is; None where it cannot be read, which :func:`_fc_width` tells."""
    folders, _ = _folders(arguments, _DRAFT)
    try:
        return read_draft_config(_holding(folders, "config.json")).slot_width if folders else None
    except DrafttraceError:
        return None


def _fc_width(arguments: Sequence[str]) -> tuple[int | None, str | None]:
    """Columns of the draft's ``fc``, from its header alone, or why they are not known."""
    folders, reason = _folders(arguments, _DRAFT)
    if not folders:
        return None, reason
    problem = None
    try:
        read_draft_config(_holding(folders, "config.json"))
    except DrafttraceError as error:
        problem = f"the draft cannot be read ({_short(error)})"
    folder = _holding(folders, "*.safetensors", "pytorch_model*.bin")
    try:
        shape = draft_weights(open_checkpoint(folder)).shape("fc.weight")
    except DrafttraceError as error:
        return None, problem or f"the draft cannot be read ({_short(error)})"
    if shape is None or len(shape) != 2:
        return None, problem or f"the draft '{folder}' has no fc.weight"
    return shape[1], problem


def _short(error: DrafttraceError) -> str:
    """What happened, without the remedy."""
    return str(error).split(";", 1)[0].rstrip(".")


def _folders(arguments: Sequence[str], names: Sequence[str]) -> tuple[tuple[Path, ...], str | None]:
    """The folders of this machine that hold what an option gives, or why there are none.

    More than one where ``--download-dir`` has the weights of a hub name, and the usual cache its config.
    """
    role, found = ("target" if names is _TARGET else "draft"), _value(arguments, names)
    if found is None:
        config = _value(arguments, _CONFIG)
        return (), f"the {role} is named in '{config}'" if config else f"no argument names the {role}"
    if Path(found).is_dir():
        return (Path(found),), None
    held = _cached(arguments, names, found)
    where = "no folder here and not in the hub cache" if is_hub_name(found) else "no folder here"
    return held, None if held else f"the {role} '{found}' is {where}"


def _cached(arguments: Sequence[str], names: Sequence[str], name: str) -> tuple[Path, ...]:
    downloads = _value(arguments, _DOWNLOADS)
    revision = _value(arguments, _REVISION if names is _TARGET else _DRAFT_REVISION)
    return cached_snapshots(name, revision=revision, more=() if downloads is None else (Path(downloads),))


def _holding(folders: Sequence[Path], *patterns: str) -> Path:
    """The first folder with such a file, else the first one: what reads it says what is missing."""
    with_one = (folder for folder in folders if any(any(folder.glob(pattern)) for pattern in patterns))
    return next(with_one, folders[0])


def _read_from(arguments: Sequence[str]) -> str:
    """Which snapshots of the hub cache a refusal rests on: the hub may hold a newer one."""
    found = []
    for names in (_TARGET, _DRAFT):
        given = _value(arguments, names)
        if given is not None and not Path(given).is_dir():
            found += [f"'{given}' in {folder}" for folder in _cached(arguments, names, given)[:1]]
    return f" (By the hub cache: {' and '.join(found)}.)" if found else ""


def _value(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    """What the last of the options with one of these names gives, as argparse reads them.

    names: the full name, its other names, and last the shortest beginning that argparse takes for the full one.
    """
    found = None
    for i, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names or (name.startswith(names[-1]) and names[0].startswith(name)):
            found = value if equals else next(iter(arguments[i + 1 : i + 2]), None)
    return found or None
