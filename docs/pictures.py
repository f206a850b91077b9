"""Draws the pictures of docs/algebra.md as SVG, from the maps that they show."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

import torch
from torch import Tensor

from growbench.axes import AxisMap, grow
from growbench.labels import Axis, parse
from growbench.maps import clone, copy, insert, isometry, stack, zero_pad

CELL = 30
FFN, RESIDUAL, FREE = "#c65d21", "#2b6cb0", "#cfe8c9"
"""The colours of two axes, and of what is free."""


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """An SVG on white, so that it reads on a dark page too."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *parts,
        "</svg>",
        "",
    ])  # fmt: skip


def text(x: float, y: float, words: str, *, anchor: str = "middle", fill: str = "#222", size: int = 13) -> str:
    """Words at a place, on one line."""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{fill}" font-size="{size}">{escape(words)}</text>'


def arrow(x: float, y: float, to: float) -> str:
    """From left to right."""
    return f'<path d="M{x:g} {y:g}H{to:g}m-6 -4l6 4l-6 4" fill="none" stroke="#222"/>'


def matrix(
    x: float,
    y: float,
    rows: Sequence[Sequence[str]],
    fills: Sequence[Sequence[str]],
    *,
    left: str = "#bbb",
    top: str = "#bbb",
) -> str:
    """Cells with their entries; `left`, `top`: the colours of the axes that its rows and its columns are."""
    out, height, width = [], len(rows) * CELL, len(rows[0]) * CELL
    for i, (row, colours) in enumerate(zip(rows, fills, strict=True)):
        for j, (entry, fill) in enumerate(zip(row, colours, strict=True)):
            at = f'x="{x + j * CELL:g}" y="{y + i * CELL:g}"'
            out.append(f'<rect {at} width="{CELL}" height="{CELL}" fill="{fill}" stroke="#fff"/>')
            out.append(text(x + (j + 0.5) * CELL, y + (i + 0.5) * CELL + 4, entry, size=11))
    out.append(f'<path d="M{x - 3:g} {y:g}v{height}" stroke="{left}" stroke-width="4"/>')
    out.append(f'<path d="M{x:g} {y - 3:g}h{width}" stroke="{top}" stroke-width="4"/>')
    return "\n".join(out)


def entry(value: float) -> str:
    """1, -0.5, 1.41; nothing for zero."""
    return "" if abs(value) < 1e-9 else f"{value:.2f}".rstrip("0").rstrip(".").replace("-", "\N{MINUS SIGN}")


def shade(value: float) -> str:
    """Orange above zero, blue below, the stronger the larger."""
    strength = min(abs(value), 1.5) / 1.5
    towards = (238, 143, 92) if value > 0 else (110, 160, 220)
    return "#" + "".join(f"{round(247 + strength * (end - 247)):02x}" for end in towards)


def numbers(x: float, y: float, values: Tensor, **axes: str) -> str:
    """A matrix of numbers, coloured by their size."""
    rows = values.tolist()
    return matrix(x, y, [[entry(v) for v in row] for row in rows], [[shade(v) for v in row] for row in rows], **axes)


def maps_picture() -> str:
    """E above C, for two units that become four."""
    ffn = Axis(name="ffn", layer=0, admits="selection")
    shown: Mapping[str, AxisMap] = {
        "zero padding": zero_pad(2, 4),
        "cloning": clone(ffn, 2, 4),
        "Net2Net": copy([0, 1, 1, 1], 2),
        "isometry": isometry(2, 4, torch.Generator().manual_seed(0)),
    }
    parts = [text(30, 110, "E"), text(30, 220, "C")]
    for k, (name, m) in enumerate(shown.items()):
        x = 70 + 170 * k
        parts += [text(x + 60, 22, name), numbers(x + 30, 40, m.expand), numbers(x, 190, m.collapse)]
    return picture(740, 270, "E and C of four maps from two units to four", parts)


def weight_picture() -> str:
    """A weight `ffn residual*` of 3 x 2 whose ffn is cloned and whose residual is padded."""
    ffn, residual = Axis(name="ffn", layer=0, admits="selection"), Axis(name="residual", admits="isometry")
    weight = parse("ffn residual*", part="keys", layer=0, axes={"ffn": (ffn, 3), "residual": (residual, 2)})
    maps = {ffn: clone(ffn, 3, 6), residual: zero_pad(2, 4)}
    numbered = torch.arange(1.0, 7.0, dtype=torch.float64).reshape(3, 2)
    grown = grow(numbered, weight, maps).round().long().tolist()
    tints = ["#fbd9c5", "#f6b48f", "#ee8f5c"]
    colour = {0: FREE} | {2 * i + j + 1: tints[i] for i in range(3) for j in range(2)}
    name = {0: ""} | {2 * i + j + 1: "abc"[i] + "₁₂"[j] for i in range(3) for j in range(2)}

    def shown(x: float, y: float, values: list[list[int]]) -> str:
        labels, fills = [[name[v] for v in row] for row in values], [[colour[v] for v in row] for row in values]
        return matrix(x, y, labels, fills, left=FFN, top=RESIDUAL)

    parts = [
        text(100, 24, "W' = E W C"),
        shown(40, 50, grown),
        text(185, 145, "="),
        text(260, 24, "E of ffn", fill=FFN),
        numbers(215, 50, maps[ffn].expand, left=FFN, top=FFN),
        text(365, 24, "W: ffn residual*"),
        shown(335, 95, numbered.long().tolist()),
        text(490, 24, "C of residual", fill=RESIDUAL),
        numbers(430, 110, maps[residual].collapse, left=RESIDUAL, top=RESIDUAL),
        f'<rect x="590" y="50" width="16" height="16" fill="{FREE}"/>',
        text(614, 63, "free: fill may write here", anchor="start"),
        f'<path d="M590 84h16" stroke="{FFN}" stroke-width="4"/>',
        text(614, 89, "rows: ffn, written", anchor="start"),
        f'<path d="M590 110h16" stroke="{RESIDUAL}" stroke-width="4"/>',
        text(614, 115, "columns: residual, read", anchor="start"),
    ]
    return picture(800, 250, "A weight grows by E on the axis that it writes and by C on the one that it reads", parts)


def layer_picture() -> str:
    """A feed-forward layer before and after: every vector becomes E times itself."""
    parts: list[str] = []
    for k, (prime, width, height) in enumerate((("", 40, 70), ("'", 80, 130))):
        y = 110 + 190 * k
        vectors = ("x", "h", "y") if not k else ("E x", "E h", "E y")
        for x, word, axis in ((80, vectors[0], RESIDUAL), (350, vectors[1], FFN), (620, vectors[2], RESIDUAL)):
            parts.append(text(x, y + 5, word, fill=axis, size=16))
        for x, label, rows, columns, (w, h) in (
            (215, f"keys{prime}", FFN, RESIDUAL, (width, height)),
            (485, f"values{prime}", RESIDUAL, FFN, (height, width)),
        ):
            left, top = x - w / 2, y - h / 2
            parts += [
                f'<rect x="{left:g}" y="{top:g}" width="{w}" height="{h}" fill="#f7f7f7" stroke="#bbb"/>',
                f'<path d="M{left:g} {top:g}v{h}" stroke="{rows}" stroke-width="4"/>',
                f'<path d="M{left:g} {top:g}h{w}" stroke="{columns}" stroke-width="4"/>',
                text(x, y + 5, label),
                arrow(x - 110, y, left - 10),
                arrow(left + w + 10, y, x + 105),
            ]
        parts.append(text(350, y + 28, "after the nonlinearity", size=11))
    parts += [
        text(215, 24, "ffn residual*"), text(485, 24, "residual ffn*"),
        text(700, 115, "old", anchor="start"), text(700, 305, "new", anchor="start"),
    ]  # fmt: skip
    return picture(760, 390, "Each weight of the grown layer reads E x and writes E of what it wrote", parts)


def depth_picture() -> str:
    """Two layers that become four: stacked, and with muted ones between."""
    parts = [text(90, 24, "source"), text(290, 24, "stack"), text(490, 24, "zero_depth")]
    columns = ((90, (0, 1), frozenset()), (290, stack(2, 4).source, stack(2, 4).muted),
               (490, insert(2, 4).source, insert(2, 4).muted))  # fmt: skip
    for x, source, muted in columns:
        for i, layer in enumerate(source):
            y, tint = 200 - 40 * i, ("#cfe0f3", "#8fb8e2")[layer]
            dash = ' stroke-dasharray="4 3"' if i in muted else ""
            fill = "#fff" if i in muted else tint
            parts.append(
                f'<rect x="{x - 60}" y="{y}" width="120" height="30" fill="{fill}" stroke="{RESIDUAL}"{dash}/>'
            )
            parts.append(text(x, y + 20, f"layer {layer}" + ", muted" * (i in muted)))
    parts.append(text(290, 255, "the function changes", size=11))
    parts.append(text(490, 255, "muted layers write zeros: the function stays", size=11))
    return picture(640, 270, "Depth: which old layer each new layer copies, and which are muted", parts)


PICTURES: Mapping[str, Callable[[], str]] = {
    "pictures/layer.svg": layer_picture,
    "pictures/maps.svg": maps_picture,
    "pictures/weight.svg": weight_picture,
    "pictures/depth.svg": depth_picture,
}
