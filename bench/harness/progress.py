"""Prints progress lines with the expected remaining time."""

import sys
import time


class Progress:
    """Estimates the remaining time from the planned seconds of each measurement, corrected by the
    ratio of spent to planned time so far on this machine."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.left = 0.0
        self.planned_so_far = 0.0
        self.spent_so_far = 0.0

    def plan(self, seconds: float) -> None:
        self.left += seconds

    def done(self, planned: float, spent: float) -> None:
        self.left -= planned
        self.planned_so_far += planned
        self.spent_so_far += spent

    def skip(self, planned: float) -> None:
        self.left -= planned

    def remaining(self) -> str:
        # The first measurements are not precise enough, so the plan counts for the first minute.
        factor = self.spent_so_far / self.planned_so_far if self.planned_so_far > 60 else 1.0
        seconds = max(self.left, 0.0) * factor
        return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.start:5.0f} s] {text}", file=sys.stderr, flush=True)
