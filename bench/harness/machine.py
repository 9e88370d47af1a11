"""Is anything else running here?"""

import time

BUSY = 0.1  # more than this of all cores spoils short loads


def busy(seconds: float = 1.0) -> float:
    """The share of all cores that was not idle, while we do nothing."""

    def times() -> tuple[int, int]:
        with open("/proc/stat") as f:
            fields = [int(field) for field in f.readline().split()[1:9]]
        # (waiting for the disk counts as idle, being robbed by other guests as busy)
        return sum(fields), fields[3] + fields[4]

    before = times()
    time.sleep(seconds)
    after = times()
    total = after[0] - before[0]
    return 1 - (after[1] - before[1]) / total if total else 0.0
