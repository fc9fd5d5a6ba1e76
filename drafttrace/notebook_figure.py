"""A matplotlib figure that a notebook draws as the last value of a cell."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """Draws itself in every kernel: IPython knows how to show a plain figure only once pyplot was told about it."""

    def _repr_png_(self) -> bytes:
        """The figure as PNG, in the figure's own size."""
        picture = BytesIO()
        self.savefig(picture, format="png", metadata={"Software": "drafttrace"})
        return picture.getvalue()
