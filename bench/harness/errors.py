"""What goes wrong in a measurement."""


class Failed(Exception):
    """One measurement failed. It is reported, and the rest goes on."""


class Interrupted(BaseException):
    """The run was told to end: nothing catches it but the runner."""


def cause(error: BaseException) -> BaseException:
    """The first of a row of failures: the cleaning up after one may fail too."""
    while isinstance(error.__context__, Failed):
        error = error.__context__
    return error


def last_lines(text: str, count: int = 3) -> str:
    """The end of a program's output, on one line: its reason is there."""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])
