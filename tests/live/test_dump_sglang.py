"""What SGLang itself writes, read by drafttrace: module dumps, dumper folders, and return_hidden_states."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sglang_cpu.arguments import cpu_args

from drafttrace.tracer.capture import Capture, Norm
from drafttrace.tracer.open import open_capture
from drafttrace.tracer.target_weights import TargetWeights

pytestmark = pytest.mark.live

TOKENS = [0, 2, 477, 262, 745, 17, 743, 29, 353, 322, 390, 353, 822, 321, 17, 751, 29, 315, 847, 371, 17, 737]
N = 16


def generate(url: str) -> dict[str, Any]:
    body = {
        "input_ids": TOKENS,
        "sampling_params": {"max_new_tokens": 3, "temperature": 0},
        "return_hidden_states": True,
    }
    request = urllib.request.Request(
        f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300) as answer:
        value: dict[str, Any] = json.loads(answer.read())
    return value


def check(capture: Capture, target: TargetWeights) -> None:
    """The prefill of the prompt: every boundary there, the first the embedding, the last normed the norm's output."""
    assert capture.tokens.tolist() == TOKENS
    assert sorted(capture.boundaries) == list(range(N + 1))
    assert capture.wiring == (2, 8, 13)
    assert np.array_equal(capture.boundaries[0].floats(), target.embedding(capture.tokens))
    assert capture.last is not None
    assert capture.last.norm is Norm.POST
    normed, stored = target.final_norm(capture.boundaries[N].floats()), capture.last.rows.floats()
    assert np.median(np.linalg.norm(normed - stored, axis=-1) / np.linalg.norm(stored, axis=-1)) < 0.01
    norms = [float(np.median(np.linalg.norm(capture.boundaries[k].floats(), axis=-1))) for k in range(N + 1)]
    assert len(set(norms)) == N + 1, "two boundaries are the same tensor"


def test_what_sglang_writes(pairs: Mapping[str, Any], start_server: Callable[..., Any], tmp_path: Path) -> None:
    target = pairs["tiny-llama"].target
    env = {"DUMPER_ENABLE": "1", "DUMPER_DIR": str(tmp_path / "dumper"), "DUMPER_NON_INTRUSIVE_MODE": "all"}
    extra = ["--disable-cuda-graph", "--enable-return-hidden-states", "--debug-tensor-dump-output-folder",
             str(tmp_path / "passes")]  # fmt: skip
    server = start_server(cpu_args(target, extra=extra), env=env, serve=None, fresh=True)
    answer = generate(server.url)
    weights = TargetWeights(target)

    first = sorted((tmp_path / "passes").rglob("Pass*.pt"))[0]
    passed = open_capture(str(first))
    assert passed.format == "SG-PASS"
    check(passed, weights)

    folder = next(path for path in (tmp_path / "dumper").iterdir() if path.is_dir())
    dumped = open_capture(f"{folder}#0")
    assert dumped.format == "SG-DUMPER"
    check(dumped, weights)

    (tmp_path / "answer.json").write_text(json.dumps(answer | {"input_ids": TOKENS}))
    returned = open_capture(str(tmp_path / "answer.json"))
    assert returned.format == "SG-JSON"
    assert returned.tokens.tolist() == [*TOKENS, *answer["output_ids"]]
    assert returned.last is not None
    assert passed.last is not None
    assert np.array_equal(returned.last.rows.floats(0, len(TOKENS)), passed.last.rows.floats())

    decoded = open_capture(str(sorted((tmp_path / "passes").rglob("Pass*.pt"))[1]))
    assert decoded.table.position.tolist() == [len(TOKENS)]
    assert decoded.last is not None
    assert np.array_equal(decoded.last.rows.floats(), returned.last.rows.floats(len(TOKENS), len(TOKENS) + 1))
