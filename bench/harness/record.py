"""Writes the results of a run to raw.csv and series.csv as soon as they are measured."""

import csv
import statistics
import time
from collections import defaultdict
from pathlib import Path

FIELDS = ["time", "scenario", "variant", "system", "round", "metric", "value"]
SERIES = ["scenario", "variant", "system", "round", "seconds", "metric", "value"]
FAILURE = "failed"


class Record:
    """The results of a run. A measurement has a scenario, a variant, a system and a round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        # (scenario, variant, system) → metric → round → value
        self.values: dict[tuple[str, str, str], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        self.failures: list[tuple[str, str, str, int, str]] = []
        self.series: dict[tuple[str, str, str], list[tuple[int, float, str, float]]] = defaultdict(list)
        self._read()

    def _read(self) -> None:
        for row in self._rows("raw.csv"):
            if row["metric"] != FAILURE:
                key = (row["scenario"], row["variant"], row["system"])
                self.values[key][row["metric"]][int(row["round"])] = float(row["value"])
            # A failed measurement is repeated when the run is continued.
        for row in self._rows("series.csv"):
            key = (row["scenario"], row["variant"], row["system"])
            self.series[key].append((int(row["round"]), float(row["seconds"]), row["metric"], float(row["value"])))

    def _rows(self, name: str) -> list[dict[str, str]]:
        path = self.folder / name
        if not path.exists():
            return []
        with open(path, newline="") as f:
            return list(csv.DictReader(f))

    def _append(self, name: str, fields: list[str], rows: list[list[object]]) -> None:
        path = self.folder / name
        new = not path.exists()
        with open(path, "a", newline="") as f:
            writer = csv.writer(f, lineterminator="\n")
            if new:
                writer.writerow(fields)
            writer.writerows(rows)

    def add(self, scenario: str, variant: str, system: str, number: int, metrics: dict[str, float]) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        for metric, value in metrics.items():
            self.values[scenario, variant, system][metric][number] = value
        rows = [[now, scenario, variant, system, number, metric, f"{value:.6g}"] for metric, value in metrics.items()]
        self._append("raw.csv", FIELDS, rows)

    def add_series(
        self, scenario: str, variant: str, system: str, number: int, metric: str, points: list[tuple[float, float]]
    ) -> None:
        self.series[scenario, variant, system] += [(number, at, metric, value) for at, value in points]
        rows = [[scenario, variant, system, number, f"{at:.1f}", metric, f"{value:.6g}"] for at, value in points]
        self._append("series.csv", SERIES, rows)

    def fail(self, scenario: str, variant: str, system: str, number: int, why: str) -> None:
        self.failures.append((scenario, variant, system, number, why))
        now = time.strftime("%Y-%m-%dT%H:%M:%S")
        self._append("raw.csv", FIELDS, [[now, scenario, variant, system, number, FAILURE, why]])

    def has(self, scenario: str, variant: str, system: str, number: int) -> bool:
        return any(number in rounds for rounds in self.values.get((scenario, variant, system), {}).values())

    # ------------------------------------------------------------ reading --
    def rounds(self, scenario: str, variant: str, system: str, metric: str) -> dict[int, float]:
        return self.values.get((scenario, variant, system), {}).get(metric, {})

    def median(self, scenario: str, variant: str, system: str, metric: str) -> float | None:
        values = self.rounds(scenario, variant, system, metric).values()
        return statistics.median(values) if values else None

    def spread(self, scenario: str, variant: str, system: str, metric: str) -> tuple[float, float] | None:
        values = self.rounds(scenario, variant, system, metric).values()
        return (min(values), max(values)) if values else None
