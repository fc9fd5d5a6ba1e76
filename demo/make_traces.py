"""Record what lies in ``traces/``: python -m demo.make_traces

Each trace is one request with the training dump's own tokens, from a real SGLang server.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sglang_cpu import CpuServer, cpu_args

from demo.home_paths import without_home_paths
from demo.pairs import PAIRS, ROOT
from demo.story import COMMAND, run, say
from pairs.accept_length import rewired

STEPS = 5
# A miswired draft takes a round per token: 32 tokens keep every trace below 3 MB.
SHORT = ("--max-new-tokens", "32")
# The real model's rows are nine times as wide: fewer tokens, and the slots' neighbours in place of all boundaries.
SHORTER = ("--max-new-tokens", "4", "--boundary-rows", "37", "--boundaries", "B15,B16,B17,B27,B28,B29,B30")


@dataclass(frozen=True)
class Recording:
    """One trace: which pair, under which layer ids (None: as the draft's config says), into which file.

    dump: the sample that lies beside the trace. ask: the same sample where its layout says which tokens are the answer, so
    that the server writes the answer itself; None where the file alone says so.
    """

    pair: str
    dump: str
    ids: tuple[int, ...] | None
    file: str
    options: tuple[str, ...] = SHORT
    ask: str | None = None


RECORDINGS = (
    # The config as the trainer left it: B{2, 30, 58} in SGLang 0.5.23.
    Recording("tiny-kimi", "dump/data_0.pt", None, "as-trained.h5"),
    # What releases before 0.5.15 made of the same config: the pure shift of the original incident.
    Recording("tiny-kimi", "dump/data_0.pt", (3, 31, 59), "shifted.h5"),
    # The remedy that drafttrace prints.
    Recording("tiny-kimi", "dump/data_0.pt", (0, 3, 31), "fixed.h5"),
    Recording("tiny-llama", "dump/hidden_states/hs_0.safetensors", None, "healthy.h5", ask="dump#0"),
    # A real language model, as the trainer left its head: B{16, 28, 29} where training had [B0, B16, B28].
    Recording("smol", "dump/data_0.pt", None, "as-trained.h5", SHORTER),
)


def make(recording: Recording, out: Path, scratch: Path) -> None:
    """Record one trace into ``out/<pair>/``, beside a copy of its dump."""
    home = ROOT / "pairs" / recording.pair
    draft = home / "draft"
    if recording.ids is not None:
        draft = rewired(draft, recording.ids, scratch / f"{recording.pair}-{recording.file}-draft")
    folder = out / recording.pair
    folder.mkdir(parents=True, exist_ok=True)
    dump = folder / recording.dump
    dump.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(home / recording.dump, dump)
    config = home / "dump" / "data_config.json"
    if config.is_file() and config.parent == (home / recording.dump).parent:
        shutil.copyfile(config, dump.parent / config.name)
    target = PAIRS[recording.pair].target() if recording.pair in PAIRS else home / "target"
    args = cpu_args(target, draft, steps=STEPS, topk=1, num_draft_tokens=STEPS + 1)
    launcher = [*COMMAND, "serve", "--trace-dir", str(scratch / "server-traces"), "--"]
    with CpuServer(args, scratch / "server.log", launcher=launcher) as server:
        trace = folder / recording.file
        asked = dump if recording.ask is None else home / recording.ask
        run(
            "record",
            "--url",
            server.url,
            "--from-dump",
            asked,
            "-o",
            trace,
            "--force",
            *recording.options,
            expect=0,
        )
    # What the next machine finds: the repository's own folders, seen from its root.
    without_home_paths(trace, {f"{ROOT}/": "", f"{scratch}/": "", str(target.parent): "cache"})


def main() -> None:
    parser = argparse.ArgumentParser(prog="make_traces", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "traces")
    parser.add_argument("--only", help="only the recordings of this pair")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for recording in RECORDINGS:
            if options.only in (None, recording.pair):
                make(recording, options.out, Path(scratch))
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    say(f"\n{options.out} holds {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
