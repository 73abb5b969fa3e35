"""The moments at which a soak kills: drawn from a seed, spread over the life of an undisturbed start.

A moment at a step can be had again exactly; one in time, or a little after a step, also falls inside DuckDB's and Arrow's
own code. What a step is: see `starts`.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

PHASES = {  # patterns of steps
    "staging": r"/staging/|statement staging/",
    "commit": r"\.part|os\.rename",
    "load": r"append (batches|windows|outcomes|rankings|scores|quarantine)|rmtree /var/spool|os\.remove \w+\.parquet",
    "publish": r"statement (checks/|check_results/|runs/(note_checks|count_rankings|complete_run|publish_run))|append check_results",
    "any": "",
}
TURNS = ("time", "commit", "time", "load", "time", "staging", "time", "publish", "time", "any")
LITTLE_LATER_S = 0.02  # a load takes as long


@dataclass(frozen=True, slots=True)
class Moment:
    """When a start is killed: so long after its beginning, or after a step."""

    after_s: float
    phase: str | None = None  # of steps, see PHASES; None: counted from the beginning
    number: int = 0  # of the phase's steps, from 0

    def __str__(self) -> str:
        return f"{self.after_s:.4f} s" + ("" if self.phase is None else f" after {self.phase} step {self.number}")


def draw_moments(seed: int, count: int, life_s: float, steps: Sequence[str]) -> Iterator[Moment]:
    """Endless; of the first `count`, those in time fall one into each of as many equal parts of the life.

    Args:
        seed: names what is drawn.
        count: how many kills are planned.
        life_s: of an undisturbed start.
        steps: of the same.
    """
    rng = random.Random(seed)
    counts = {phase: sum(bool(re.search(where, step)) for step in steps) for phase, where in PHASES.items()}
    assert all(counts.values()), counts
    parts: list[int] = []
    num_parts = max(1, count * TURNS.count("time") // len(TURNS))
    while True:
        for turn in TURNS:
            if turn != "time":
                later_s = rng.choice((0.0, rng.uniform(0.0, LITTLE_LATER_S)))
                yield Moment(later_s, turn, rng.randrange(counts[turn]))
                continue
            if not parts:
                parts = rng.sample(range(num_parts), num_parts)
            yield Moment(life_s * (parts.pop() + rng.random()) / num_parts)
