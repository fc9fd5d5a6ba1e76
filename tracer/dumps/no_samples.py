"""What a file is that holds no samples, where it can be told: a trace, a part of a model, a part of a folder's dump."""

from __future__ import annotations

import re
from pathlib import Path

from drafttrace.tracer.convert_journal import Journal, is_converted
from drafttrace.tracer.dumps.document import Document
from drafttrace.tracer.dumps.registry import folder_layouts
from drafttrace.tracer.errors import DrafttraceError, UnknownFormat, UnreadableFile

_SIDECARS = re.compile(
    r"(vocab_mapping|token_freq|cache|d2t|t2d|t2d_d2t|target_embeddings|target_weights|adapter_model"
    r"|model(-\d+-of-\d+)?|pytorch_model(-\d+-of-\d+)?|sglang_meta|vllm_meta|optimizer|scheduler|rng_state.*"
    r"|training_args)\.(pt|bin|safetensors|pth)$"
)
_DATA_TEXTS = re.compile(r"^(data_config|sample_lengths|manifest|dataset_info|dataset_dict|state|metadata)\.json$")
WEIGHTS = re.compile(r"(adapter_model|model|pytorch_model)(-\d+-of-\d+)?\.(bin|safetensors|pth?)(\.index\.json)?")
_MODEL_TEXTS = re.compile(
    r"^(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|preprocessor_config"
    r"|processor_config|adapter_config|hf_quant_config|chat_template)\.json$"
)
_PARAMETER = re.compile(r"\.(weight|bias|weight_scale|weight_scale_inv)$")


def is_sidecar(path: Path) -> bool:
    """Whether files of that name stand beside samples, or are parts of a model, and are no samples."""
    named = any(pattern.search(path.name) for pattern in (_SIDECARS, _MODEL_TEXTS, _DATA_TEXTS))
    return named or WEIGHTS.fullmatch(path.name) is not None


def refuse_no_samples(document: Document) -> None:
    """Raise UnknownFormat with what the file is, and what to give in its place; nothing where that is not known."""
    path = document.path
    if document.container == "hdf5":
        _refuse_trace(path)
    if WEIGHTS.fullmatch(path.name) or _is_of_parameters(document):
        raise UnknownFormat(
            f"The file '{path}' holds weights and no samples: it looks like a model, which is given with "
            "--target or --draft; give the folder of the dump that the trainer wrote."
        )
    if _MODEL_TEXTS.fullmatch(path.name):
        raise UnknownFormat(
            f"The file '{path}' holds no samples: it looks like a part of a model, whose folder is given with --target or "
            "--draft; give the folder of the dump that the trainer wrote."
        )
    _refuse_part(path)


def refuse_format_of_trace(path: Path, format_id: str) -> None:
    """Raise UnknownFormat for a trace that is to be read as a dump of one layout or another; fields of it can be named."""
    from drafttrace.tracer.open import is_trace_file

    if format_id.upper() != "MAPPED" and is_trace_file(path):
        raise UnknownFormat(
            f"'{path}' is a trace that drafttrace recorded, and no dump that could be {format_id}; leave the format out."
        )


def refuse_unfinished(folder: Path) -> None:
    """Raise UnreadableFile for the folder in which the samples of a conversion gather, until it is whole."""
    if (folder / Journal.NAME).is_file() and not is_converted(folder):
        raise UnreadableFile(
            f"The folder '{folder}' holds an unfinished conversion; give the same drafttrace convert again, which goes on "
            "from there, and read the folder that it writes."
        )


def _refuse_trace(path: Path) -> None:
    """A trace is read by itself, before anything is taken for a dump; so it stands in a folder that was given."""
    from drafttrace.tracer.open import is_trace_file

    if is_trace_file(path):
        raise UnknownFormat(
            f"'{path}' is a trace that drafttrace recorded, and its folder '{path.parent}' is no dump; give the trace "
            "itself."
        )


def _is_of_parameters(document: Document) -> bool:
    """Whether most names of a file are those of a model's parameters."""
    names = document.keys
    return 2 * sum(bool(_PARAMETER.search(name)) for name in names) > len(names)


def _refuse_part(path: Path) -> None:
    """Raise UnknownFormat for a file that means nothing alone in the folder of a dump, and for one beside samples."""
    for layout in folder_layouts().values():
        try:
            found = layout.detect(path.parent) is not None
        except DrafttraceError:  # of a file beside it, which nobody asked for
            continue
        if found:
            raise UnknownFormat(
                f"The file '{path}' is a part of a {layout.title} ({layout.id}) and means nothing alone; give the folder "
                f"'{path.parent}'."
            )
    if is_sidecar(path):
        raise UnknownFormat(
            f"The file '{path}' holds no samples: files of its name stand beside them; give the folder of the dump, such "
            f"as '{path.parent}', or a sample in it."
        )
