"""Measures how the latency of a pick depends on the other rows of the table."""

from statistics import quantiles

from ..errors import Failed
from ..pgbench import Beside, Load
from ..systems import System
from .base import PER_DOCUMENT, Bench, Scenario, checked

DEPTHS = {"1k": 1_000, "1M": 1_000_000, "10M": 10_000_000}
DEEPEST = {"1k": 1_000, "100M": 100_000_000}
SECONDS = 4.0
# One client alternately picks a document and returns it, so that the depth stays the same. In the
# log of the transactions, every other one is a pick.
TURNS = "\\if :turn = 0\n{pick}\\else\n{back}\\endif\n\\set turn 1 - :turn\n"


class Depth(Scenario):
    """Loading takes far longer than measuring. Therefore the tables of all depths and systems
    are made once, and are then measured alternately."""

    rounds = 4
    payload = "{}"

    def __init__(self, shape: str, title: str, name: str = "depth", depths: dict[str, int] = DEPTHS) -> None:
        self.name, self.title, self.fill = f"{name}_{shape}", title, f"fill_{shape}"
        self.depths, self.variants = depths, tuple(depths)
        self.needs = (self.fill, "pick", "return")

    def prepare_cost(self, bench: Bench, systems: list[System]) -> float:
        return len(systems) * sum(self.depths.values()) * PER_DOCUMENT

    def prepare(self, bench: Bench, systems: list[System]) -> None:
        self.broken: dict[tuple[str, str], str] = {}
        for variant, rows in self.depths.items():
            for system in systems:
                bench.progress.say(f"{self.name}: loading {variant} rows into {system.name}")
                try:
                    system.fresh(self.queue(variant))
                    # One row in 10,000 is ready, but at least ten rows are.
                    ready = max(10, rows // 10_000)
                    system.run(self.fill, queue=self.queue(variant), n=rows, ready=ready, payload=self.payload)
                    system.settle()
                except Failed as e:
                    self.broken[variant, system.name] = str(e)
        bench.settle_server()

    @staticmethod
    def queue(variant: str) -> str:
        return f"depth_{variant.lower()}"

    def cost(self, bench: Bench, variant: str) -> float:
        return (bench.seconds or SECONDS) + 2.0

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        if why := self.broken.get((variant, system.name)):
            raise Failed(f"not loaded: {why}")
        queue = self.queue(variant)
        pick, back = (system.text(script, queue=queue) for script in ("pick", "return"))
        script = TURNS.format(pick=pick, back=back)
        with Beside(bench.cluster, system.maintenance()):
            # The first second fills the caches, and sets the hint bits of rows of earlier loads.
            Load(bench.cluster, script, seconds=1, variables={"turn": 0}).finish()
            outcome = Load(
                bench.cluster, script, seconds=bench.seconds or SECONDS, variables={"turn": 0}, log=True
            ).finish()
        picks = [took for _, _, took in outcome.log[0::2]]
        if len(picks) < 2:
            raise Failed(f"only {len(picks)} picks in {SECONDS:.0f} s")
        cuts = quantiles(picks, n=100)
        return checked(system, {"p50_us": cuts[49], "p95_us": cuts[94], "p99_us": cuts[98], "picks": len(picks)})

    def clean_up(self, bench: Bench, systems: list[System]) -> None:
        for variant in self.depths:
            for system in systems:
                system.remove(self.queue(variant))
