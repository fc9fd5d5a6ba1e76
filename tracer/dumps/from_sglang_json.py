"""SGLang's ``return_hidden_states``: an answer of ``/generate`` as JSON, or a list of them.

Source: SGLang ``/generate``, ``srt/layers/logits_processor.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from drafttrace.tracer.capture import Capture, Ints, LastState, Norm
from drafttrace.tracer.dumps import build
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.registry import Layout, Request, register
from drafttrace.tracer.dumps.tensor import Tensor
from drafttrace.tracer.errors import DrafttraceError, UnreadableFile
from drafttrace.tracer.rows import Rows


def _answers(document: Document) -> list[Any]:
    """The answers of a file, of which one has states at least: a request that failed is one of the others."""
    answers = document.value if isinstance(document.value, list) else [document.value]
    return answers if any(map(_has_states, answers)) else []


def _has_states(answer: Any) -> bool:
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    return isinstance(meta, dict) and "hidden_states" in meta


def _detect_json(document: Document, _request: Request) -> str | None:
    if not document.container.startswith("json") or not _answers(document):
        return None
    return "JSON with meta_info.hidden_states (an answer of /generate with return_hidden_states)"


def _read_json(document: Document, inner: int, request: Request) -> Capture:
    path = document.path
    answers = _answers(document)
    if inner >= len(answers):
        raise UnreadableFile(
            f"The file '{path}' is no answer of /generate with hidden states; ask with return_hidden_states."
        )
    answer = answers[inner]
    if not _has_states(answer):
        good = next(k for k, item in enumerate(answers) if _has_states(item))
        raise UnreadableFile(
            f"Answer {inner} of '{path}' has no meta_info.hidden_states; ask the server for it again, or take another, as "
            f"'{path}#{good}'."
        )
    matrix = _json_rows(path, answer["meta_info"]["hidden_states"])
    tokens, notes = _json_tokens(path, answer, matrix.shape[0])
    hidden = request.hidden_size
    parts: list[Rows] = []
    last: LastState | None = None
    if hidden is not None and matrix.shape[1] > hidden:
        parts = list(build.side_by_side(matrix, "hidden_states", path, request, None))
        notes.append("the server captured aux states, so hidden_states holds the slots side by side")
    else:
        why = "SGLang convention without aux capture: after the final norm"
        last = build.last_state("hidden_states", build.rows(matrix, "hidden_states", path), Norm.POST, why)
        if hidden is None:
            notes.append(
                "with an EAGLE-3 target this would be the slots side by side; give the hidden size to cut them"
            )
    if last is not None and request.layer_ids is not None and not request.tokens_only:
        without = "leave --layer-ids out"
        cut = (
            f"give the width of one slot with --hidden-size, which cuts slots that stand side by side, or {without}"
        )
        raise DrafttraceError(
            f"{len(request.layer_ids)} layer ids are given ({', '.join(map(str, request.layer_ids))}), and '{path}', "
            f"{matrix.shape[1]} wide, is read as a last state without slots; {cut if hidden is None else without}."
        )
    boundaries, source = build.ENTRIES.resolve(request, len(parts))
    return build.capture(
        path,
        "SG-JSON",
        build.recognised(_detect_json, document, request),
        tokens,
        build.slots_of(parts, "hidden_states", boundaries, source),
        last=last,
        valid_length=len(tokens),
        notes=tuple(notes),
    )


def _json_rows(path: Path, value: Any) -> Tensor:
    """Entry 0 holds the prefill rows, each later entry one decode row (or a list of one)."""
    if value is None:
        raise UnreadableFile(
            f"The hidden_states of '{path}' are null: the server was not asked for them; ask with return_hidden_states."
        )
    blocks: list[Any] = []
    try:
        for entry in value:
            with np.errstate(over="ignore"):  # a number beyond float32 becomes infinity, and is counted as such
                block = np.asarray(entry, np.float32)
            blocks.append(block[None] if block.ndim == 1 else block)
        matrix = np.concatenate(blocks)
    except (ValueError, TypeError):
        raise UnreadableFile(
            f"The hidden_states of '{path}' are no rows of one width; ask the server again."
        ) from None
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise UnreadableFile(
            f"The hidden_states of '{path}' hold no rows; start the server with --enable-return-hidden-states."
        )
    return Tensor.held(matrix, "fp32")


def _json_tokens(path: Path, answer: Mapping[str, Any], count: int) -> tuple[Ints, list[str]]:
    """Prompt ids from a saved request or from logprobs, then output ids; -1 where the answer does not tell."""
    meta = answer["meta_info"]
    prompt = answer.get("input_ids") or [item[1] for item in meta.get("input_token_logprobs") or []
                                         if isinstance(item, list) and len(item) > 1]  # fmt: skip
    output = answer.get("output_ids") or [item[1] for item in meta.get("output_token_logprobs") or []
                                          if isinstance(item, list) and len(item) > 1]  # fmt: skip
    length = meta.get("prompt_tokens")
    notes: list[str] = []
    _refuse_gap(path, meta, len(prompt) if isinstance(prompt, list) and prompt else length, count)
    if not prompt and type(length) is int and 0 < length <= count:
        prompt = [-1] * length
        notes.append('prompt tokens unknown: add "input_ids" to the JSON, or ask with return_logprob')
    ids = [*prompt, *output] if isinstance(prompt, list) and isinstance(output, list) else []
    if not ids:
        return np.full(count, -1, np.int64), ["tokens unknown: the answer holds none"]
    if not all(type(token) is int and -1 <= token < 2**31 for token in ids):
        raise UnreadableFile(f"The token ids of '{path}' are no whole numbers; ask the server again.")
    return np.array(ids, np.int64), notes


def _refuse_gap(path: Path, meta: Mapping[str, Any], prompt: Any, count: int) -> None:
    """Raise UnreadableFile for states that do not begin with the prompt's first token.

    Of tokens that the prefix cache held nothing ran, and the answer has no rows: those that it has would stand at other
    tokens' places.
    """
    cached = meta.get("cached_tokens")
    made = meta.get("completion_tokens")
    known = type(prompt) is int and prompt > 0
    # Every token but the last one made has a row.
    whole = prompt + max(0, made - 1) if known and type(made) is int else None
    if type(cached) is int and cached > 0 and (whole is None or count < whole):
        gap = f"has no rows of its first {cached} tokens, which the server's prefix cache held"
    elif known and count < prompt:
        gap = f"has {count} rows for a prompt of {prompt} tokens"
    else:
        return
    raise UnreadableFile(
        f"The answer '{path}' {gap}; ask again with an \"extra_key\" that no other request has, or after /flush_cache."
    )


register(
    Layout(
        "SG-JSON",
        "SGLang's own dumps",
        "SGLang return_hidden_states",
        _detect_json,
        _read_json,
        lambda document: len(_answers(document)) or 1,
        several=True,
        ids="B(id)",
    )
)
