"""Plots as the last value of a notebook's cell."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import drafttrace
from drafttrace import plots

ROOT = Path(__file__).resolve().parents[2]
KIMI = ROOT / "traces/tiny-kimi"
PNG = b"\x89PNG\r\n\x1a\n"

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def result() -> drafttrace.Result:
    return drafttrace.diff(KIMI / "as-trained.h5", KIMI / "dump/data_0.pt")


@pytest.mark.parametrize("draw", [plots.by_position, plots.heatmap])
def test_a_notebook_draws_the_plot(result: drafttrace.Result, draw: Callable[..., Any]) -> None:
    """It showed `<Figure size 900x360 with 1 Axes>`: IPython draws no figure that pyplot does not know."""
    figure = draw(result)
    picture = figure._repr_png_()
    assert picture.startswith(PNG) and len(picture) > 5000
    formatters = pytest.importorskip("IPython.core.formatters")
    data, _ = formatters.DisplayFormatter().format(figure)
    assert data["image/png"].startswith(PNG)


def test_a_notebook_draws_the_plot_with_matplotlib_inline_too(result: drafttrace.Result) -> None:
    """Then IPython has its own way for every figure, which must know this one."""
    formatters = pytest.importorskip("IPython.core.formatters")
    pylabtools = pytest.importorskip("IPython.core.pylabtools")
    shell = type("Shell", (), {"display_formatter": formatters.DisplayFormatter()})()
    pylabtools.select_figure_formats(shell, {"png"})
    data, _ = shell.display_formatter.format(plots.by_position(result))
    # print_figure gives the bytes, or their text for the notebook's file
    assert data["image/png"][:4] in (PNG[:4], "iVBO")


def test_a_plot_is_still_a_figure(result: drafttrace.Result) -> None:
    from matplotlib.figure import Figure

    figure = plots.by_position(result)
    assert isinstance(figure, Figure)
    assert len(pickle.loads(pickle.dumps(figure)).axes) == len(figure.axes)
    assert copy.copy(figure).axes
