"""Marks the unit tests that take seconds: `make test-fast` leaves them out, `make test` runs them.

Chosen by CPU time of the whole file (`pytest --durations`), not by how much the tests matter.
"""

from __future__ import annotations

from pathlib import Path

import pytest

# file -> what it spends its time on
SLOW = {
    "test_audit_hostile": "thousands of made-up configs",
    "test_auditing": "processes, and a Ray cluster",
    "test_compare_html": "a browser",
    "test_dump_damage": "every layout, damaged in every way",
    "test_dump_streaming": "files larger than the memory that may be used",
    "test_hooks_versions": "SGLang is imported",
    "test_pairs_trained": "the trained pairs, forward",
    "test_reference": "a target in transformers",
    "test_replay_forward": "the draft against its training code",
    "test_replay_pairs": "the draft on whole dumps",
    "test_smol_lessons": "training steps",
    "test_trace_crash": "processes that are killed",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)
