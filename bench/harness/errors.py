"""The errors of a measurement."""


class Failed(Exception):
    """One measurement failed. The report says so, and the other measurements continue."""


class Interrupted(BaseException):
    """The run was interrupted. Only the runner catches this exception."""


def cause(error: BaseException) -> BaseException:
    """Returns the first of several failures, because the clean-up after a failure may fail too."""
    while isinstance(error.__context__, Failed):
        error = error.__context__
    return error


def last_lines(text: str, count: int = 3) -> str:
    """Returns the end of a program's output on one line. It contains the reason of a failure."""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-count:])
