"""What unit tests share, and which of them take seconds: `make test-fast` leaves those out, `make test` runs them.

Chosen by CPU time of the whole file (`pytest --durations`), not by how much the tests matter.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from drafttrace.hooks.store import Store

HERE = Path(__file__).parent
# file -> what it spends its time on
SLOW = {
    "test_api": "whole traces, through Python",
    "test_api_record": "servers that do not answer",
    "test_audit_any_value": "thousands of made-up configs",
    "test_audit_hostile": "thousands of made-up configs",
    "test_audit_loading": "SGLang is asked",
    "test_audit_refusals": "SGLang is asked",
    "test_auditing": "processes, and a Ray cluster",
    "test_bench_commands": "the bench scripts, started",
    "test_canary": "whole traces, compared again and again",
    "test_compare_broken_taps": "whole traces, compared again and again",
    "test_compare_constant_pass": "whole traces, compared again and again",
    "test_compare_copies": "whole traces, compared again and again",
    "test_compare_diagnose": "whole traces, compared again and again",
    "test_compare_few_rows": "whole traces, compared again and again",
    "test_compare_gains": "whole traces, compared again and again",
    "test_compare_grouping": "whole traces, compared again and again",
    "test_compare_html": "a browser",
    "test_compare_judged_again": "whole traces, compared again and again",
    "test_compare_misread_nan": "whole traces, compared again and again",
    "test_compare_moved_rows": "whole traces, compared again and again",
    "test_compare_noise_verdict": "whole traces, compared again and again",
    "test_compare_one_slot_moved": "whole traces, compared again and again",
    "test_compare_one_trace": "whole traces, compared again and again",
    "test_compare_own_embed": "whole traces, compared again and again",
    "test_compare_own_parts": "whole traces, compared again and again",
    "test_compare_own_rows": "whole traces, compared again and again",
    "test_compare_part_sentences": "whole traces, compared again and again",
    "test_compare_part_sides": "whole traces, compared again and again",
    "test_compare_parts": "whole traces, compared again and again",
    "test_compare_positions": "whole traces, compared again and again",
    "test_compare_rank_blocks": "whole traces, compared again and again",
    "test_compare_ranks": "whole traces, compared again and again",
    "test_compare_right_config": "whole traces, compared again and again",
    "test_compare_rope": "whole traces, compared again and again",
    "test_compare_second_faults": "whole traces, compared again and again",
    "test_compare_sentences": "whole traces, compared again and again",
    "test_compare_single_rows": "whole traces, compared again and again",
    "test_compare_small_gains": "whole traces, compared again and again",
    "test_compare_stacked": "whole traces, compared again and again",
    "test_compare_two_traces": "whole traces, compared again and again",
    "test_compare_unlocated": "whole traces, compared again and again",
    "test_compare_vocabulary": "whole traces, compared again and again",
    "test_convert_many": "folders of hundreds of files",
    "test_demo_story": "a server that does not start",
    "test_dump_chunks": "files larger than the memory that may be used",
    "test_dump_damage": "every layout, damaged in every way",
    "test_dump_forced": "every layout read as every other",
    "test_dump_fuzz": "made-up bytes, for a fixed budget",
    "test_dump_hostile": "bombs",
    "test_dump_streaming": "files larger than the memory that may be used",
    "test_dump_variants": "every layout in every number format",
    "test_hooks_padding": "the hooks on real modules",
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
    "test_replay_blame": "the draft on whole traces",
    "test_replay_causes": "the draft on whole traces",
    "test_replay_forward": "the draft against its training code",
    "test_replay_live_compare": "the draft on whole traces",
    "test_replay_live_rows": "the draft on whole traces",
    "test_replay_orders": "the draft on whole traces",
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


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests are asked away, their files are not even imported: that alone takes seconds."""
    unasked = "not slow" in (config.option.markexpr or "")
    return True if unasked and collection_path.parent == HERE and collection_path.stem in SLOW else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE and item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty trace folder."""
    made = Store(tmp_path / "traces")
    made.create()
    return made
