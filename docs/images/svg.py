"""What the scripts of this folder share: an SVG file, written by hand."""

import sys
from pathlib import Path

# An explicit background, so that a picture reads the same on a light and on a dark page.
PAPER, INK, FAINT, GRID = "#ffffff", "#1f2328", "#59636e", "#d8dee4"
BLUE, ORANGE = "#0b6bcb", "#c2410c"
FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"


class Svg:
    """Collects the elements of a picture."""

    def __init__(self, width: int, height: int) -> None:
        self.size = width, height
        self.elements: list[str] = []
        self.add("rect", x=0.5, y=0.5, width=width - 1, height=height - 1, fill=PAPER, stroke=GRID, rx=8)

    def add(self, name: str, content: str | None = None, **attributes: object) -> None:
        pairs = "".join(f' {key.replace("_", "-")}="{shown(value)}"' for key, value in attributes.items())
        self.elements.append(f"<{name}{pairs}/>" if content is None else f"<{name}{pairs}>{content}</{name}>")

    def text(self, x: float, y: float, content: str, **attributes: object) -> None:
        merged: dict[str, object] = {"x": x, "y": y, "fill": INK, "font_size": 13, **attributes}
        self.add("text", content, **merged)

    def line(self, x1: float, y1: float, x2: float, y2: float, **attributes: object) -> None:
        merged: dict[str, object] = {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "stroke": GRID, **attributes}
        self.add("line", **merged)

    def picture(self, title: str, source: str) -> str:
        """The whole file; title: what the picture says in words; source: what it was made from."""
        width, height = self.size
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}"'
            f' height="{height}" role="img" font-family="{FONT}">\n'
            f"<title>{title}</title>\n<!-- Made from {source}. -->\n" + "\n".join(self.elements) + "\n</svg>\n"
        )


def shown(value: object) -> str:
    """A number with at most one digit behind the point."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def save(script: str, wanted: str) -> None:
    """Writes the picture beside its script, or with --check compares it with the one that is there."""
    path = Path(script).resolve().with_suffix(".svg")
    if sys.argv[1:] == ["--check"]:
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            sys.exit(f"docs/images/{path.name} is stale: run docs/images/{path.stem}.py")
    elif sys.argv[1:]:
        sys.exit(f"usage: docs/images/{path.stem}.py [--check]")
    else:
        path.write_text(wanted, encoding="utf-8")
