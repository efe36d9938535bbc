"""The ratios of a report as a bar chart (PNG), drawn with Pillow, which the demo needs anyway."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from bench.rows import Row, readable

_WIDTH, _LEFT, _RIGHT, _TOP, _STEP, _BAR = 1000, 190, 250, 70, 52, 26
_INK, _GRID, _GOAL = "#1f2933", "#cbd2d9", "#b45309"
_COLOURS = {True: "#2f855a", False: "#c53030", None: "#4a6fa5"}


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Write the chart: one bar per row, its whisker the range of the pairs, its goal a mark."""
    image = Image.new("RGB", (_WIDTH, _TOP + _STEP * len(rows) + 40), "white")
    canvas = ImageDraw.Draw(image)
    canvas.text((20, 20), f"bench {title}: mount / baseline", _INK, ImageFont.load_default(22))
    end = axis_end(rows)
    scale = (_WIDTH - _LEFT - _RIGHT) / end
    _axis(canvas, end, scale, image.height - 34)
    for number, row in enumerate(rows):
        _bar(canvas, row, _TOP + number * _STEP, scale)
    image.save(path, "PNG")


def axis_end(rows: Sequence[Row]) -> float:
    """Where the axis stops: a quarter step that holds every bar, goal and whisker, and 1."""
    largest = max([1.0, *(pair.ratio for row in rows for pair in row.pairs)])
    return (int(largest * 4) + 1) / 4


def _axis(canvas: ImageDraw.ImageDraw, end: float, scale: float, bottom: float) -> None:
    for tick in range(int(end * 4) + 1):
        x = _LEFT + tick / 4 * scale
        canvas.line((x, _TOP - 8, x, bottom), _INK if tick == 4 else _GRID)
        canvas.text((x, bottom + 4), f"{tick / 4:.2f}", _INK, _font(), anchor="ma")


def _bar(canvas: ImageDraw.ImageDraw, row: Row, top: float, scale: float) -> None:
    middle = top + _BAR / 2
    canvas.text((_LEFT - 10, middle), row.name, _INK, _font(), anchor="rm")
    canvas.rectangle((_LEFT, top, _LEFT + row.ratio * scale, top + _BAR), _COLOURS[row.ok])
    low, high = min(pair.ratio for pair in row.pairs), max(pair.ratio for pair in row.pairs)
    canvas.line((_LEFT + low * scale, middle, _LEFT + high * scale, middle), _INK, 2)
    if row.goal is not None:
        x = _LEFT + row.goal * scale
        canvas.line((x, top - 6, x, top + _BAR + 6), _GOAL, 3)
    label = f"{row.ratio:.2f}   {readable(row.value, row.unit)}"
    canvas.text((_WIDTH - _RIGHT + 15, middle), label, _INK, _font(), anchor="lm")


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(16)
