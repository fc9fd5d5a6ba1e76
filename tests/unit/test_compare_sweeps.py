"""Which side's layer sweep places the slots."""

from __future__ import annotations

from dataclasses import replace

from compare_world import bf16, dumped, make_world, served

from drafttrace.compare.diff import diff

WORLD = make_world(layers=12, tokens=40)


def test_a_few_boundaries_of_the_trace_do_not_hide_the_whole_sweep_of_the_reference() -> None:
    """ "No layer sweep was recorded", confidence 0.60: the trace had seven boundaries, the reference all of them."""
    few = served(WORLD, (5, 9, 11), sweep=(0, 1, 12))
    reference = dumped(WORLD, (0, 3, 9))
    whole = replace(reference, boundaries={k: bf16(WORLD.streams[k]) for k in range(13)})
    found = diff(few, whole)
    assert found.findings[0].id == "wrong-boundary" and found.findings[0].confidence > 0.9, found.summary
    assert "slot 0 is B5, training had B0" in found.summary
    # Where both have as many, the trace's own decides.
    assert diff(served(WORLD, (5, 9, 11)), whole).findings[0].confidence > 0.9
