"""What Prefect and DuckDB take of a night of 2,000 batches.

    python -m tests.benchmarks.overhead [--batches 2000] [--batch-s 0.1] [--repeats 1]

The engine is the fake one behind the real child: a batch of four prompts takes it --batch-s. The night is run as `packrank
run` runs it, a flow on a private server, and, in turn, plainly (`--no-prefect`). Night: from the run's row to published;
Prefect's and the server's start, some 15 s, lie before that, the report behind it. DuckDB's share: the seconds inside its calls
(staging, loads, checks, publishing, checkpoints), those beside a working engine included.
Prefect's share, twice: the seconds in its client's HTTP calls on the flow's main thread, and the two nights' difference.
Calls of Prefect's own threads (logs, events) cost the night only processor time, which the difference has in it.
"""

import argparse
import io
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from tasks.settings import PackingSettings
from tests.benchmarks.common import NIGHT, fake_engine, median, run_bench, run_child, sample_model, scratch_folder
from tests.benchmarks.generated import write_inputs
from tests.makers import make_settings

PROMPTS_A_BATCH, LIST_LENGTH = 4, 20


def bench(num_batches: int, batch_s: float, repeats: int):
    environment = fake_engine(batch_s=batch_s)
    seen: list[dict[str, dict[str, float]]] = []
    with scratch_folder() as folder:
        inputs = write_inputs(folder / "inputs", np.full(num_batches * PROMPTS_A_BATCH, LIST_LENGTH))
        for number in range(repeats):
            pair = {}
            for how in ("prefect", "plain"):
                config = _settings(folder / f"{how}-{number}", inputs)
                pair[how] = run_child("tests.benchmarks.overhead", f"--{how}", config, environment=environment)
            seen.append(pair)
    table = [{"night": how} | _medians([pair[how] for pair in seen]) for how in ("prefect", "plain")]
    shares = [(pair["prefect"], pair["prefect"]["night_s"], pair["plain"]["night_s"]) for pair in seen]
    return {
        "repeats": repeats,
        "batches": table[0]["num_batches"],
        "batch_s": batch_s,
        "duckdb_share": median([_duckdb_s(flow) / night_s for flow, night_s, _ in shares], 4),
        "prefect_calls_share": median([flow["prefect_main_s"] / night_s for flow, night_s, _ in shares], 4),
        "prefect_difference_share": median([(night_s - plain_s) / night_s for _, night_s, plain_s in shares], 4),
        "what_counts": {
            "night": "runs.started_at to runs.published_at",
            "duckdb": "inside DuckDB's calls in that time: on the main thread, and beside the engine in the commits' thread",
            "prefect_calls": "HTTP calls of Prefect's client on the flow's main thread in that time",
            "prefect_difference": "the night as a flow less the night without Prefect; below 0 is noise",
        },
    }, table


def _duckdb_s(told: dict[str, float]) -> float:
    return told["duckdb_main_s"] + told["duckdb_beside_s"]


def _medians(seen: list[dict[str, float]]) -> dict[str, float]:
    return {name: median([each[name] for each in seen]) for name in seen[0]}


def _settings(folder: Path, inputs: dict[str, str]) -> Path:
    values = inputs | {
        "strategy.name": "single",
        "strategy.window_size": LIST_LENGTH,
        "strategy.stride": None,
        "prompt.max_passage_tokens": 24,
        "engine.max_model_len": 2048,
        "engine.max_num_seqs": PROMPTS_A_BATCH,
        "packing.batch_loads": 1,
        "packing.driver": PackingSettings().driver,
    }
    folder.mkdir(parents=True)
    return make_settings(folder, sample_model(), values)


class _Spans:
    """Start and end of calls by the wall clock, on the main thread or on others; of nested ones the outermost."""

    def __init__(self) -> None:
        self.main: list[tuple[float, float]] = []
        self.others: list[tuple[float, float]] = []
        self._depth = threading.local()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        depth = self._depth.value = getattr(self._depth, "value", 0) + 1
        started = time.time()
        try:
            yield
        finally:
            self._depth.value -= 1
            if depth == 1:
                is_main = threading.current_thread() is threading.main_thread()
                (self.main if is_main else self.others).append((started, time.time()))

    def seconds(self, first: float, last: float, *, is_main: bool) -> float:
        """Those between two moments."""
        spans = self.main if is_main else self.others
        return sum(max(0.0, min(end, last) - max(start, first)) for start, end in spans)


def run_night(how: str, config: Path) -> None:
    """Child: the night with watches around connections and calls; prints seconds."""
    duckdb_spans, prefect_spans = _Spans(), _Spans()
    _watch_statements(duckdb_spans)
    _watch_calls(prefect_spans)
    from flows.night_runner import run_as_flow, run_plainly
    from tasks.nightly.prepare import NightRequest, prepare_night
    from tests.makers import select

    request = NightRequest(config=config, night=NIGHT, publish=True)
    (run_as_flow if how == "prefect" else run_plainly)(request, Console(file=io.StringIO()))
    (run,) = select(
        prepare_night(request),
        "select epoch(started_at) as first, epoch(published_at) as last, (select sum(engine_s) from batches) as engine_s, "
        "(select count(*) from batches where num_prompts > 0) as num_batches from runs",
    )
    span = run["first"], run["last"]
    told = {
        "night_s": run["last"] - run["first"],
        "engine_s": run["engine_s"],
        "num_batches": run["num_batches"],
        "duckdb_main_s": duckdb_spans.seconds(*span, is_main=True),
        "duckdb_beside_s": duckdb_spans.seconds(*span, is_main=False),
        "prefect_main_s": prefect_spans.seconds(*span, is_main=True),
        "prefect_others_s": prefect_spans.seconds(*span, is_main=False),
        "num_calls": len(prefect_spans.main) + len(prefect_spans.others),
    }
    print(json.dumps(told), flush=True)


def _watch_statements(spans: _Spans) -> None:
    """Opening, statements, fetching, commits, checkpoints with their journals, and closing."""
    from tasks.system import database

    def timed(call):
        def watched(*arguments: Any, **keywords: Any):
            with spans():
                return call(*arguments, **keywords)

        return watched

    class Watched:
        """A connection."""

        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return timed(getattr(self._connection, name))

    connected, stream = database._connected, database.Database.stream

    def watched_stream(*arguments: Any, **keywords: Any):
        batches = stream(*arguments, **keywords)
        while (batch := timed(next)(batches, None)) is not None:
            yield batch

    database._connected = lambda *arguments, **keywords: Watched(timed(connected)(*arguments, **keywords))
    database.KeptDatabase.checkpoint = timed(database.KeptDatabase.checkpoint)
    database.Database.query_text = timed(database.Database.query_text)
    database.Database.stream = watched_stream


def _watch_calls(spans: _Spans) -> None:
    import httpx

    def watch(send):
        def watched(*arguments, **keywords):
            with spans():
                return send(*arguments, **keywords)

        return watched

    def watch_async(send):
        async def watched(*arguments, **keywords):
            with spans():
                return await send(*arguments, **keywords)

        return watched

    httpx.Client.send = watch(httpx.Client.send)
    httpx.AsyncClient.send = watch_async(httpx.AsyncClient.send)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=2_000)
    parser.add_argument("--batch-s", type=float, default=0.1)
    parser.add_argument("--repeats", type=int, default=1)
    asked = parser.parse_args()
    run_bench("overhead", lambda: bench(asked.batches, asked.batch_s, asked.repeats))


if __name__ == "__main__":
    if sys.argv[1:2] in (["--prefect"], ["--plain"]):
        run_night(sys.argv[1].removeprefix("--"), Path(sys.argv[2]))
        sys.stdout.flush()
        os._exit(0)
    main()
