#!/usr/bin/env python3
"""Draws floors.svg, the picture of a ready floor in docs/internals/engine.md.

    docs/images/floors.py           writes the picture
    docs/images/floors.py --check   exits with 1 when the committed picture is another one
"""

from svg import BLUE, FAINT, GRID, INK, ORANGE, PAPER, Svg, save

WIDTH, HEIGHT = 920, 434
LEFT, CELL, GAP = 150, 46, 6

# Kind of an index entry: colour of the cell, colour of its letter, what it means.
DEAD, CLAIMED, READY, LATER = "dead", "claimed", "ready", "later"
KINDS = {
    DEAD: ("#e4e8ec", "#8c959f", "settled; its row is dead, but not vacuumed yet"),
    CLAIMED: ("#f8d9c4", ORANGE, "claimed by a transaction that still runs"),
    READY: ("#cfe3f8", BLUE, "ready"),
    LATER: (PAPER, FAINT, "pending, but not due yet"),
}
LETTERS = {DEAD: "×", CLAIMED: "c", READY: "r", LATER: "…"}


def x_of(place: int) -> int:
    return LEFT + place * (CELL + GAP)


def entries(svg: Svg, label: str, y: int, kinds: list[str]) -> None:
    svg.text(LEFT - 16, y + CELL / 2 + 5, label, text_anchor="end", font_weight="bold")
    for place, kind in enumerate(kinds):
        fill, ink, _ = KINDS[kind]
        svg.add("rect", x=x_of(place), y=y, width=CELL, height=CELL, fill=fill, stroke=GRID, rx=4)
        svg.text(x_of(place) + CELL / 2, y + CELL / 2 + 6, LETTERS[kind], fill=ink, text_anchor="middle",
                 font_size=17, font_weight="bold")


def floor(svg: Svg, y: int, place: int, label: str, anchor: str = "middle") -> None:
    """A mark in front of an entry, as high as the row."""
    x = x_of(place) - GAP / 2
    svg.line(x, y - 14, x, y + CELL + 6, stroke=BLUE, stroke_width=3)
    svg.text(x, y - 20, label, fill=BLUE, font_weight="bold", text_anchor=anchor)


def arrow(svg: Svg, y: int, start: float, end: float, colour: str, label: str) -> None:
    svg.line(start, y, end - 6, y, stroke=colour, stroke_width=1.5)
    svg.add("path", d=f"M{end:g},{y} l-9,-4.5 v9 z", fill=colour)
    svg.text((start + end) / 2, y + 18, label, fill=colour, text_anchor="middle", font_size=12)


def draw() -> str:
    svg = Svg(WIDTH, HEIGHT)
    svg.text(24, 34, "The pick index of one version", font_weight="bold", font_size=15)
    svg.text(24, 54, "each row: the entries of one priority, in the order of (next_iteration, attempts, seq)",
             fill=FAINT)

    y = 104
    entries(svg, "priority 10", y, [DEAD] * 6 + [CLAIMED, DEAD, DEAD, READY, READY, READY, LATER, LATER])
    floor(svg, y, 6, "floor")
    arrow(svg, y + CELL + 14, x_of(0), x_of(6) - GAP, FAINT, "no pick reads these")
    arrow(svg, y + CELL + 14, x_of(6), x_of(12) - GAP, BLUE, "a pick reads from the floor on, and skips the claimed one")

    y = 236
    entries(svg, "priority 0", y, [DEAD] * 3 + [READY] * 4 + [LATER] * 3)
    floor(svg, y, 3, "floor")

    y = 328
    entries(svg, "priority −5", y, [DEAD] * 5)
    floor(svg, y, 5, "floor behind everything: the level is empty, and is not read", "start")

    for place, (fill, ink, meaning) in enumerate(KINDS.values()):
        x = (24, 346, 618, 694)[place]
        svg.add("rect", x=x, y=HEIGHT - 34, width=16, height=16, fill=fill, stroke=GRID, rx=3)
        svg.text(x + 8, HEIGHT - 21, list(LETTERS.values())[place], fill=ink, text_anchor="middle", font_size=12)
        svg.text(x + 23, HEIGHT - 21, meaning, fill=INK, font_size=12)
    return svg.picture(
        "Three rows of index entries, one for each priority. The floor of priority 10 stands before a claimed entry; "
        "the six dead entries before it are not read. The floor of priority 0 stands before the first ready entry. "
        "The floor of priority -5 stands behind everything: that level is empty.",
        "docs/images/floors.py")


if __name__ == "__main__":
    save(__file__, draw())
