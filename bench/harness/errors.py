"""What goes wrong in a measurement."""


class Failed(Exception):
    """One measurement failed. It is reported, and the rest goes on."""


def last_lines(text: str, count: int = 3) -> str:
    """The end of a program's output, on one line: its reason is there."""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])
