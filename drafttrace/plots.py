"""Plots of a result with matplotlib (``pip install 'drafttrace[plot]'``). Each returns a figure and shows nothing.

::

    from drafttrace import plots

    plots.by_position(result).savefig("cosine.png")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from drafttrace.tracer.errors import DrafttraceError, NothingToCompare

if TYPE_CHECKING:
    from drafttrace.compare.result import Matrix, Result

Measure = Literal["cosine", "rel_l2", "norm"]
Which = Literal["slots", "boundaries"]
_LABELS = {"cosine": "cosine", "rel_l2": "relative L2", "norm": "norm of a row"}


def by_position(result: Result, measure: Measure = "cosine") -> Any:
    """One curve per slot over the token position; for ``norm`` two, the reference's dashed.

    Relative L2 and norms are drawn on a logarithmic axis. Raises NothingToCompare for a result without slots.
    """
    if not result.slots:
        raise NothingToCompare("The result compared no slots, so there is nothing to plot.")
    figure = _figure((9.0, 3.6))
    axes = figure.subplots()
    for slot in result.slots:
        position = np.array(slot.series.position)
        order = np.argsort(position, kind="stable")
        label = f"slot {slot.slot}: {slot.left_boundary or slot.left} / {slot.reference_boundary or slot.reference}"
        if measure == "norm":
            (line,) = axes.plot(position[order], np.array(slot.series.norm_left)[order], label=label)
            axes.plot(position[order], np.array(slot.series.norm_reference)[order], "--", color=line.get_color())
        else:
            axes.plot(position[order], np.array(getattr(slot.series, measure))[order], label=label)
    if measure != "cosine":
        axes.set_yscale("symlog", linthresh=1e-4)
    axes.set_xlabel("token position")
    axes.set_ylabel(_LABELS[measure])
    axes.set_title(f"{result.verdict}: {', '.join(f.id for f in result.findings) or 'no finding'}", loc="left")
    axes.legend(loc="best", fontsize="small")
    return figure


def heatmap(result: Result, which: Which = "slots", measure: Literal["cosine", "rel_l2"] = "rel_l2") -> Any:
    """Every state of the left side (rows) against every state of the reference, or every boundary of the sweep.

    Colours are log10 of the relative L2 (dark = near), or the cosine. Raises NothingToCompare where the result holds
    no such matrix: ``boundaries`` needs a layer sweep in one of the files.
    """
    matrix: Matrix | None = result.matrix if which == "slots" else result.sweep
    if matrix is None:
        raise NothingToCompare(
            f"The result holds no matrix of {which}; compare with a file that has a layer sweep."
        )
    values = np.array(getattr(matrix, measure), np.float64)
    figure = _figure((max(5.0, 0.16 * len(matrix.columns) + 2.5), 0.42 * len(matrix.rows) + 1.8))
    axes = figure.subplots()
    shown = values if measure == "cosine" else np.log10(np.maximum(values, 1e-4))
    image = axes.imshow(shown, aspect="auto", cmap="viridis" if measure == "rel_l2" else "viridis_r")
    every = max(1, len(matrix.columns) // 24)
    axes.set_xticks(range(0, len(matrix.columns), every), matrix.columns[::every], rotation=60, ha="right")
    axes.set_yticks(range(len(matrix.rows)), matrix.rows)
    figure.colorbar(image, ax=axes, label="log10 of relative L2" if measure == "rel_l2" else "cosine")
    return figure


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DrafttraceError("Plots need matplotlib; install it with 'pip install drafttrace[plot]'.") from None
    return Figure(figsize=size, layout="constrained")
