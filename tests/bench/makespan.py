"""A night's makespan against one bare `LLM.generate` of the same prompts without dependencies.

    python -m tests.bench.makespan configs/sample.toml --set inputs.queries=... --set strategy.depth=100

Makespan: from the engine being ready to the last commit in the database, rounds waited for, answers parsed, rows loaded.
Bare: the same prompts in one call of a fresh engine. Prints a table and one JSON line; the ratio is the figure.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from tasks.generate.process import engine_on_demand, engine_options
from tasks.keep.ledger import Ledger
from tasks.keep.spool import Spool
from tasks.keep.store import Store
from tasks.night.request import NightRequest, prepare_night
from tasks.pack.batches import Batch
from tasks.rank.cohort import Cohort
from tasks.settings import overrides_from


class RecordingEngine:
    """Passes batches on and keeps their prompts."""

    def __init__(self, engine):
        self._engine = engine
        self.prompts = []
        self.engine_s = 0.0

    @property
    def info(self):
        return self._engine.info

    def generate(self, batch, meanwhile):
        self.prompts += batch.prompts
        generations, stats = self._engine.generate(batch, meanwhile)
        self.engine_s += stats.engine_s
        return generations, stats


def main() -> None:
    config, *rest = sys.argv[1:]
    overrides = overrides_from(
        [text for flag, text in zip(rest[::2], rest[1::2], strict=True) if flag == "--set"], Path.cwd()
    )
    prepared = prepare_night(NightRequest(config=Path(config), overrides=overrides))
    with tempfile.TemporaryDirectory(prefix="packrank-bench-") as scratch:
        folder = Path(scratch)
        options = engine_options(prepared.settings, folder / "tmp", folder / "engine.log")
        staged = prepared.stage(folder / "staging")
        store = Store(folder / "x.duckdb", prepared.settings.database_limits(folder / "spill"))
        store.prepare()
        with engine_on_demand(options, 1, lambda _: None) as engine:
            recording = RecordingEngine(engine)
            limits = engine.info.limits
            started = time.monotonic()
            ledger = Ledger(store, Spool(folder / "spool", "bench"), "bench", 0, prepared.settings.store.load_every_s)
            cohort = Cohort(staged, prepared.recipe, ledger)
            for query_index in range(staged.num_queries):
                cohort.add_query(query_index, [])
            cohort.commit_unasked()
            cohort.rank(recording, lambda _: None)
            ledger.close()
            makespan_s = time.monotonic() - started
        with engine_on_demand(options, 1, lambda _: None) as engine:
            assert engine.info.limits == limits
            started = time.monotonic()
            engine.generate(Batch(tuple(recording.prompts), 0, 0))
            bare_s = time.monotonic() - started
        (rows,) = store.query("run/count_rankings", {"run_id": "bench"}).to_pylist()
    figures = {
        "bench": "makespan",
        "queries": rows["num_rankings"],
        "candidates": staged.num_candidates,
        "prompts": len(recording.prompts),
        "prompt_tokens": sum(prompt.prompt_tokens for prompt in recording.prompts),
        "makespan_s": round(makespan_s, 2),
        "engine_s": round(recording.engine_s, 2),
        "bare_s": round(bare_s, 2),
        "ratio": round(makespan_s / bare_s, 4),
    }
    for name, value in figures.items():
        print(f"{name:>15}  {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
