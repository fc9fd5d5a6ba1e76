"""What unit tests share, and which of them take seconds: `make test-fast` leaves those out, `make test` runs them.

Chosen by CPU time of the whole file (`pytest --durations`), not by how much the tests matter.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from drafttrace.hooks.store import Store

# file -> what it spends its time on
SLOW = {
    "test_api": "whole traces, through Python",
    "test_audit_any_value": "thousands of made-up configs",
    "test_audit_hostile": "thousands of made-up configs",
    "test_audit_refusals": "SGLang is asked",
    "test_auditing": "processes, and a Ray cluster",
    "test_bench_commands": "the bench scripts, started",
    "test_compare_broken_taps": "whole traces, compared again and again",
    "test_compare_diagnose": "whole traces, compared again and again",
    "test_compare_html": "a browser",
    "test_compare_own_rows": "whole traces, compared again and again",
    "test_compare_parts": "whole traces, compared again and again",
    "test_compare_single_rows": "whole traces, compared again and again",
    "test_compare_stacked": "whole traces, compared again and again",
    "test_convert_many": "folders of hundreds of files",
    "test_demo_story": "a server that does not start",
    "test_dump_chunks": "files larger than the memory that may be used",
    "test_dump_damage": "every layout, damaged in every way",
    "test_dump_forced": "every layout read as every other",
    "test_dump_fuzz": "made-up bytes, for a fixed budget",
    "test_dump_hostile": "bombs",
    "test_dump_streaming": "files larger than the memory that may be used",
    "test_hooks_recorder": "queues that fill up",
    "test_hooks_send_now": "processes that are stopped and killed",
    "test_hooks_static": "the hooks on and off in a process of their own",
    "test_hooks_versions": "SGLang is imported",
    "test_hooks_writer_process": "processes that are killed",
    "test_interrupts": "processes that are interrupted",
    "test_output_json": "commands, started",
    "test_pairs_trained": "the trained pairs, forward",
    "test_reference": "a target in transformers",
    "test_replay_absent_rows": "the draft on whole traces",
    "test_replay_forward": "the draft against its training code",
    "test_replay_live_rows": "the draft on whole traces",
    "test_replay_pairs": "the draft on whole dumps",
    "test_replay_speed": "replays, timed",
    "test_replay_traces": "the draft on whole traces",
    "test_rope_tables": "SGLang is imported",
    "test_sglang_cpu_server": "servers that do not start",
    "test_smol_commands": "the pair's scripts, started",
    "test_smol_fetch": "packages, fetched and damaged",
    "test_smol_lessons": "training steps",
    "test_speed_bounds": "instructions, counted",
    "test_trace_bad_files": "files that are cut off by a killed process",
    "test_trace_crash": "processes that are killed",
    "test_trace_sums": "files larger than the memory that may be used",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty trace folder."""
    made = Store(tmp_path / "traces")
    made.create()
    return made
