"""Plots of a result with matplotlib (``pip install 'drafttrace[plot]'``). Each returns a figure, which a notebook draws.

::

    from drafttrace import plots

    plots.by_position(result).savefig("cosine.png")
"""

from __future__ import annotations

from collections.abc import Collection
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from drafttrace.public import public
from drafttrace.tracer.errors import DrafttraceError, NothingToCompare
from drafttrace.tracer.report_file import is_stream

if TYPE_CHECKING:
    from drafttrace.compare.result import Matrix, Result

Form = Literal["png", "pdf", "svg"]
Measure = Literal["cosine", "rel_l2", "norm"]
Which = Literal["slots", "boundaries"]
_LABELS: dict[Measure, str] = {"cosine": "cosine", "rel_l2": "relative L2", "norm": "norm of a row"}
# What says whose a picture is, so that an older one is replaced and nobody else's.
_MARKS: dict[Form, dict[str, str | None]] = {
    "png": {"Software": "drafttrace"},
    "pdf": {"Creator": "drafttrace", "CreationDate": None},
    "svg": {"Creator": "drafttrace", "Date": None},
}
_LINES: dict[Measure, str] = {
    "rel_l2": "solid: the rows\ndotted: limit of a match",
    "norm": "solid: left\ndashed: reference",
}


@public
def by_position(result: Result, measure: Measure = "cosine") -> Any:
    """One curve per slot over the token position; for ``norm`` two, the reference's dashed.

    Relative L2 and norms are drawn on a logarithmic axis. Raises NothingToCompare for a result without slots.
    """
    _need_slots(result)
    _choose("measure", measure, _LABELS)
    figure = _figure((9.0, 3.6))
    axes = figure.subplots()
    _draw_curves(axes, result, measure)
    axes.set_title(_title(result), loc="left")
    return figure


@public
def heatmap(result: Result, which: Which = "slots", measure: Literal["cosine", "rel_l2"] = "rel_l2") -> Any:
    """Every state of the left side (rows) against every state of the reference, or every boundary of the sweep.

    Colours are log10 of the relative L2 (dark = near), or the cosine. Raises NothingToCompare where the result holds
    no such matrix: ``boundaries`` needs a layer sweep in one of the files.
    """
    _choose("matrix", which, ("slots", "boundaries"))
    _choose("measure", measure, ("cosine", "rel_l2"))
    matrix: Matrix | None = result.matrix if which == "slots" else result.sweep
    if matrix is None:
        raise NothingToCompare(
            f"The result holds no matrix of {which}; compare with a file that has a layer sweep."
        )
    figure = _figure((max(5.0, 0.16 * len(matrix.columns) + 2.5), 0.42 * len(matrix.rows) + 1.8))
    _draw_matrix(figure, figure.subplots(), matrix, measure)
    return figure


def form_of(path: Path) -> Form:
    """The form of a picture that its name ends in; PNG for standard output, ``-``, and for devices and pipes.

    Raises DrafttraceError for another ending.
    """
    if str(path) == "-" or is_stream(path):
        return "png"
    for form in _MARKS:
        if path.suffix.lower() == f".{form}":
            return form
    ends = f"ends in '{path.suffix}'" if path.suffix else "has no ending"
    raise DrafttraceError(
        f"The picture '{path}' {ends}, which is no form of pictures; give a name that ends in .png, .pdf or .svg."
    )


@public
def overview(result: Result, form: Form = "png") -> bytes:
    """One picture of everything that there is to plot: the matrices, then cosine, relative L2 and norms.

    Raises NothingToCompare for a result without slots, DrafttraceError where matplotlib is not installed.
    """
    _need_slots(result)
    _choose("form", form, _MARKS)
    matrices = [
        (matrix, name)
        for matrix, name in ((result.sweep, "slot × boundary"), (result.matrix, "slot × slot"))
        if matrix is not None
    ]
    heights = [0.34 * len(matrix.rows) + 1.2 for matrix, _ in matrices] + [2.6] * len(_LABELS)
    figure = _figure((11.0, sum(heights)))
    panels = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (matrix, name) in zip(panels, matrices, strict=False):
        _draw_matrix(figure, axes, matrix, "rel_l2")
        axes.set_title(name, loc="left", fontsize="medium")
    for axes, measure in zip(panels[len(matrices) :], _LABELS, strict=True):
        _draw_curves(axes, result, measure)
    figure.suptitle(_title(result), x=0.01, ha="left")
    picture = BytesIO()
    figure.savefig(picture, format=form, dpi=110, metadata=_MARKS[form])
    return picture.getvalue()


def _need_slots(result: Result) -> None:
    if not result.slots:
        raise NothingToCompare(
            "The result compared no slots, so there is nothing to plot; compare a trace with a training dump."
        )


def _choose(what: str, given: str, known: Collection[str]) -> None:
    if given not in known:
        raise DrafttraceError(f"There is no {what} '{given}' to plot; choose one of {', '.join(known)}.")


def _title(result: Result) -> str:
    names = ", ".join(dict.fromkeys(f.id for f in result.findings)) or "no finding"
    return f"{result.verdict}: {names}"


def _draw_curves(axes: Any, result: Result, measure: Measure) -> None:
    for slot in result.slots:
        position = np.array(slot.series.position)
        order = np.argsort(position, kind="stable")
        label = f"slot {slot.slot}: {slot.left_boundary or slot.left} / {slot.reference_boundary or slot.reference}"
        if measure == "norm":
            (line,) = axes.plot(position[order], np.array(slot.series.norm_left)[order], label=label)
            axes.plot(position[order], np.array(slot.series.norm_reference)[order], "--", color=line.get_color())
        else:
            (line,) = axes.plot(position[order], np.array(getattr(slot.series, measure))[order], label=label)
        if measure == "rel_l2" and np.isfinite(slot.judged.match_limit):
            axes.axhline(slot.judged.match_limit, color=line.get_color(), linewidth=0.8, linestyle=":")
    if measure == "cosine":
        axes.ticklabel_format(axis="y", useOffset=False)
    elif measure == "norm":
        axes.set_yscale("log")
    elif measure == "rel_l2":
        axes.set_yscale("symlog", linthresh=1e-4)
    axes.set_xlabel("token position")
    axes.set_ylabel(_LABELS[measure])
    # Beside the curves: inside, there is no place that no curve of some result goes through.
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0.0,
        fontsize="small",
        title=_LINES.get(measure),
        title_fontsize="small",
    )


def _draw_matrix(figure: Any, axes: Any, matrix: Matrix, measure: Literal["cosine", "rel_l2"]) -> None:
    values = np.array(getattr(matrix, measure), np.float64)
    shown = values if measure == "cosine" else np.log10(np.maximum(values, 1e-4))
    image = axes.imshow(shown, aspect="auto", cmap="viridis" if measure == "rel_l2" else "viridis_r")
    every = max(1, len(matrix.columns) // 24)
    axes.set_xticks(range(0, len(matrix.columns), every), matrix.columns[::every], rotation=60, ha="right")
    axes.set_yticks(range(len(matrix.rows)), matrix.rows)
    figure.colorbar(image, ax=axes, label="log10 of relative L2" if measure == "rel_l2" else "cosine")


def _figure(size: tuple[float, float]) -> Any:
    try:
        from drafttrace.notebook_figure import NotebookFigure
    except ImportError:
        raise DrafttraceError(
            "Plots need matplotlib, which is not installed; pip install 'drafttrace[plot]'."
        ) from None
    return NotebookFigure(figsize=size, layout="constrained")
