"""Measures whether other processes use the machine."""

import time

BUSY = 0.1  # A larger share of all cores makes short loads unreliable.


def busy(seconds: float = 1.0) -> float:
    """Returns the share of all cores that was not idle while the benchmark did nothing."""

    def times() -> tuple[int, int]:
        with open("/proc/stat") as f:
            fields = [int(field) for field in f.readline().split()[1:9]]
        # Waiting for the disk counts as idle. Time that other guests took counts as busy.
        return sum(fields), fields[3] + fields[4]

    before = times()
    time.sleep(seconds)
    after = times()
    total = after[0] - before[0]
    return 1 - (after[1] - before[1]) / total if total else 0.0
