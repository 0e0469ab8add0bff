"""A small graph as an SVG picture: boxes in layers from top to bottom, lines between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_CHARACTER, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 7, 28, 24, 36, 16


def draw(boxes: Mapping[int, tuple[str, bool]], lines: Sequence[tuple[int, int, bool]]) -> str:
    """The picture. boxes: by number a label, and whether it stands out; lines: (from, to, dashed).

    Every line must go from a lower number to a higher one.
    """
    layers: dict[int, int] = {}
    for number in sorted(boxes):
        layers[number] = 1 + max((layers[source] for source, target, _ in lines if target == number), default=-1)
    widths = {number: _CHARACTER * len(label) + 16 for number, (label, _) in boxes.items()}
    places: dict[int, tuple[int, int]] = {}
    right = dict.fromkeys(layers.values(), _MARGIN)
    for number, layer in layers.items():
        places[number] = (right[layer], _MARGIN + layer * (_HEIGHT + _GAP_Y))
        right[layer] += widths[number] + _GAP_X
    width = max(right.values(), default=0) + _MARGIN
    height = 2 * _MARGIN + (max(right, default=0) + 1) * (_HEIGHT + _GAP_Y) - _GAP_Y
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="monospace"'
    parts = [f'{head} font-size="12">']
    for source, target, dashed in lines:
        (x1, y1), (x2, y2) = places[source], places[target]
        ends = f'x1="{x1 + widths[source] // 2}" y1="{y1 + _HEIGHT}" x2="{x2 + widths[target] // 2}" y2="{y2}"'
        dashes = ' stroke-dasharray="4"' if dashed else ""
        parts.append(f'<line {ends} stroke="#555"{dashes}/>')
    for number, (label, stands_out) in boxes.items():
        x, y = places[number]
        fill = "#fde9c8" if stands_out else "#eee"
        parts.append(f'<rect x="{x}" y="{y}" width="{widths[number]}" height="{_HEIGHT}" fill="{fill}" stroke="#555"/>')
        parts.append(f'<text x="{x + 8}" y="{y + 18}">{escape(label)}</text>')
    return "\n".join([*parts, "</svg>"])
