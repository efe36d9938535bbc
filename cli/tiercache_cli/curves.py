"""Miss-ratio curves as a chart (PNG), drawn with Pillow: a line per policy over the capacities."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

from tiercache.errors import TraceError
from tiercache.simulation.jobs import Outcome
from tiercache_cli.replays import BELADY, UNBOUNDED

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 1000, 620, 70, 200, 60, 60
_INK, _GRID = "#1f2933", "#cbd2d9"
_COLOURS: Final = (
    "#c53030",
    "#2b6cb0",
    "#2f855a",
    "#b7791f",
    "#6b46c1",
    "#00838f",
    "#d53f8c",
    "#7b341e",
    "#4a5568",
    "#689f38",
)
_BOUNDS: Final = {BELADY: _INK, UNBOUNDED: "#9aa5b1"}

Point = tuple[float, float]


def curves(outcomes: Sequence[Outcome], footprint: int) -> dict[str, list[Point]]:
    """Points (share of *footprint*, miss ratio) of each policy, in order; bounds come last."""
    found: dict[str, list[Point]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.policy in _BOUNDS):
        share = min(1.0, outcome.capacity / footprint)
        found.setdefault(outcome.policy, []).append((share, 1 - outcome.counts.hit_ratio))
    if UNBOUNDED in found:
        miss = found[UNBOUNDED][0][1]
        found[UNBOUNDED] = [(0.0, miss), (1.0, miss)]
    return {policy: sorted(points) for policy, points in found.items()}


def draw(outcomes: Sequence[Outcome], footprint: int, path: Path) -> None:
    """Write the chart. Raises TraceError when *path* cannot be written."""
    image = Image.new("RGB", (_WIDTH, _HEIGHT), "white")
    canvas = ImageDraw.Draw(image)
    canvas.text((_LEFT, 18), "miss ratio over capacity (share of the footprint)", _INK, _font(20))
    _axes(canvas)
    for number, (policy, points) in enumerate(curves(outcomes, footprint).items()):
        _line(canvas, policy, number, points)
    try:
        image.save(path, "PNG")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error


def _axes(canvas: ImageDraw.ImageDraw) -> None:
    for step in range(11):
        x, y = _place((step / 10, step / 10))
        canvas.line((x, _TOP, x, _HEIGHT - _BOTTOM), _INK if step == 0 else _GRID)
        canvas.line((_LEFT, y, _WIDTH - _RIGHT, y), _INK if step == 0 else _GRID)
        canvas.text((x, _HEIGHT - _BOTTOM + 8), f"{step * 10}%", _INK, _font(15), anchor="ma")
        canvas.text((_LEFT - 8, y), f"{step / 10:.1f}", _INK, _font(15), anchor="rm")


def _line(canvas: ImageDraw.ImageDraw, policy: str, number: int, points: list[Point]) -> None:
    colour = _BOUNDS.get(policy, _COLOURS[number % len(_COLOURS)])
    places = [_place(point) for point in points]
    canvas.line(places, colour, 2, joint="curve")
    for x, y in places:
        canvas.ellipse((x - 4, y - 4, x + 4, y + 4), colour)
    y = _TOP + 26 * number + 10
    canvas.line((_WIDTH - _RIGHT + 20, y, _WIDTH - _RIGHT + 48, y), colour, 3)
    name = policy.rpartition(":")[2]
    canvas.text((_WIDTH - _RIGHT + 56, y), name, _INK, _font(16), anchor="lm")


def _place(point: Point) -> Point:
    share, miss = point
    x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
    return x, _TOP + (1 - miss) * (_HEIGHT - _TOP - _BOTTOM)


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
