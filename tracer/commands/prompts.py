"""Where a prompt comes from: files with text, ids or messages, and the token ids of a training dump."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafttrace.tracer.client import Prompt
from drafttrace.tracer.errors import DrafttraceError
from drafttrace.tracer.report_file import where_json_breaks

if TYPE_CHECKING:
    from drafttrace.tracer.capture import Capture
    from drafttrace.tracer.commands.reading import Said


def read_ids(path: Path) -> tuple[int, ...]:
    """Token ids from a JSON list or from numbers separated by white space or commas."""
    text = read_text(path, "input ids")
    try:
        values = json.loads(text) if text.lstrip().startswith("[") else text.replace(",", " ").split()
        ids = tuple(int(value) for value in values)
    except (ValueError, TypeError):
        raise DrafttraceError(
            f"The file '{path}' holds no token ids; write a JSON list like [1, 2, 3], or numbers separated by spaces."
        ) from None
    if any(value < 0 for value in ids):
        raise DrafttraceError(f"The file '{path}' holds a negative token id ({min(ids)}); give ids from 0 on.")
    return ids


def read_messages(path: Path) -> tuple[Mapping[str, Any], ...]:
    """Chat messages ``[{"role": ..., "content": ...}, ...]``, alone or under the key ``messages``."""
    try:
        value = json.loads(read_text(path, "messages"))
    except (ValueError, RecursionError) as error:
        raise DrafttraceError(
            f"The file '{path}' is no JSON ({where_json_breaks(error)}); write a list of chat messages."
        ) from None
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list) or not all(isinstance(message, dict) and "role" in message for message in value):
        raise DrafttraceError(
            f"The file '{path}' holds no chat messages; write a list of objects with 'role' and 'content'."
        )
    return tuple(value)


def read_text(path: Path, what: str) -> str:
    """The text of a file that an option names. Raises DrafttraceError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DrafttraceError(f"The {what} file '{path}' is not UTF-8 text; save it as UTF-8.") from None
    except OSError as error:
        raise DrafttraceError(
            f"The {what} file '{path}' cannot be read ({error.strerror}); check the name."
        ) from None


def answer_start(capture: Capture) -> int | None:
    """Where the last answer of a training sample begins: the start of the last run of the loss mask.

    None where the file keeps no mask, or the mask does not end in an answer that follows a prompt.
    """
    length = capture.valid_length or len(capture.tokens)
    if capture.mask is None or length == 0:
        return None
    mask = [bool(value) for value in capture.mask[:length]]
    stop = next((i for i in range(length - 1, -1, -1) if mask[i]), None)
    if stop is None:
        return None
    start = next((i + 1 for i in range(stop, -1, -1) if not mask[i]), 0)
    return start or None


def prompt_of_dump(
    spec: str, *, whole: bool = False, format: str | None = None, dump: Said | None = None
) -> Prompt:
    """The dump's own token ids, so that both sides hold the same prompt. format, dump: what it does not say of itself.

    The server is left to write the last answer itself: after a finished answer comes nothing that a model was trained
    on, and its accept length there would say nothing. ``whole`` sends the answer, too.
    """
    from drafttrace.tracer.open import open_capture

    mapping, request = (dump.mapping, dump.request) if dump is not None else (None, None)
    capture = open_capture(spec, format=format, mapping=mapping, request=request)
    return prompt_of_capture(capture, spec, whole=whole)


def prompt_of_capture(capture: Capture, spec: str, *, whole: bool = False) -> Prompt:
    """As :func:`prompt_of_dump`, for a dump that is open; ``spec`` is what the user calls it."""
    capture.need_real_tokens("ask a server")
    length = capture.valid_length or len(capture.tokens)
    cut = None if whole else answer_start(capture)
    ids = tuple(int(token) for token in capture.tokens[: cut or length])
    if any(token < 0 for token in ids):
        where = next(i for i, token in enumerate(ids) if token < 0)
        raise DrafttraceError(
            f"The dump '{spec}' ({capture.format}) does not keep the token at position {where}, so its prompt cannot "
            "be sent; give the prompt with --input-ids."
        )
    return Prompt(input_ids=ids)


def refuse_another(place: Path, source: Prompt | None) -> None:
    """The same command typed again is fine: its prompt is that of the first trace. Raises DrafttraceError for another."""
    from drafttrace.tracer.canary import repeated
    from drafttrace.tracer.decoding import tokenizer_folder
    from drafttrace.tracer.open import open_capture
    from drafttrace.tracer.tokenizer import load_encoder

    if source is None:
        return
    first = open_capture(str(place))
    ids, text = source.input_ids, source.text
    if ids is None and text is not None:
        folder = tokenizer_folder(None, first)
        ids = None if folder is None else tuple(load_encoder(folder)(text))
    if ids is None:
        raise DrafttraceError(
            f"'{place}' holds a prompt, and without the target's tokenizer it cannot be told whether yours is the same; "
            "leave the prompt out, or give another FIRST or --dir."
        )
    held, _ = repeated(first)
    # A server puts the token of the beginning before a text, which not every tokenizer.json says.
    if ids != held and (text is None or ids != held[1:]):
        raise DrafttraceError(
            f"'{place}' holds another prompt ({len(held)} tokens, yours has {len(ids)}); leave the prompt out, or give "
            "another FIRST or --dir."
        )
