"""The Arrow form of what a batch commits: its tables have the columns of sql/schema.

Knows nothing of files or databases.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.decode.answer import Generation, Reading
from tasks.engine.batches import Batch
from tasks.engine.generations import BatchStats
from tasks.engine.kv_cache import KVCacheLimits
from tasks.engine.step_stats import EngineStep
from tasks.prompt.prompts import Prompt
from tasks.schedule.rankings import WindowKey
from tasks.schedule.scores import ScoredDocs
from tasks.system.database import arrow_schemas

SCHEMAS = arrow_schemas("schema")  # of every table
BATCH_TABLES = ("batches", "windows", "outcomes", "rankings", "scores", "engine_steps", "quarantine")
NAMED_BY_BATCH = ("run_id", "shard", "batch_no")
WINDOW_COLUMNS = tuple(name for name in SCHEMAS["windows"].names if name not in NAMED_BY_BATCH)
OUTCOME_COLUMNS = tuple(name for name in SCHEMAS["outcomes"].names if name != "run_id")


@dataclass(frozen=True, slots=True)
class BatchId:
    """Names a batch."""

    run_id: str
    shard: int
    batch_no: int


class BatchRows:
    """Collects the rows of one batch, then gives them as Arrow tables."""

    def __init__(self) -> None:
        self._windows: list[tuple[Any, ...]] = []
        self._outcomes: list[tuple[Any, ...]] = []
        self._rankings: list[dict[str, Any]] = []
        self._steps: list[EngineStep] = []
        self._scores: list[pa.Table] = []

    def add_window(
        self, query_id: str, key: WindowKey, prompt: Prompt, generation: Generation, reading: Reading
    ) -> None:
        """One answered window: as `WINDOW_COLUMNS` and `OUTCOME_COLUMNS` name its values."""
        named = (query_id, key.round, key.window_no, key.attempt)
        latency = generation.latency
        self._windows.append(
            (
                *named,
                prompt.request_id,
                prompt.window.docs,
                prompt.prompt_tokens,
                generation.cached_tokens,
                generation.output_tokens,
                prompt.truncated_passages,
                prompt.truncated_tokens,
                latency.queue_s,
                latency.prefill_s,
                latency.ttft_s,
                latency.tpot_s,
                latency.e2el_s,
                generation.num_preemptions,
                generation.finish_reason,
                reading.parse_status,
                reading.num_missing,
                reading.num_duplicate,
                reading.num_out_of_range,
                reading.id_mass,
                prompt.decode_mode,
                reading.outcome.num_listed,
            )
        )
        self._outcomes.append((*named, reading.outcome.order, reading.outcome.logprobs, reading.answer))

    def add_ranking(self, ranking: dict[str, Any]) -> None:
        """One finished query: the columns of `rankings` but for run_id; scores_run_id only where it is another run."""
        self._rankings.append(ranking)

    def add_scores(self, query_id: str, doc_ids: pa.Array, first_stage_scores: np.ndarray, scored: ScoredDocs) -> None:
        """The score rows of one finished query; `doc_ids` and `first_stage_scores` in first-stage order."""
        order = scored.candidates
        columns = {
            "query_id": pa.repeat(query_id, len(order)),
            "doc_id": doc_ids.take(pa.array(order)),
            "rank": np.arange(1, len(order) + 1, dtype=np.int32),
            "score": scored.scores,
            "score_kind": scored.score_kinds,
            "model_score": pa.array(scored.model_scores, from_pandas=True),  # NaN: null
            "first_stage_rank": order + 1,
            "first_stage_score": pa.array(first_stage_scores[order], from_pandas=True),
            "status": scored.statuses,
        }
        self._scores.append(pa.table(columns))

    def add_steps(self, steps: Sequence[EngineStep]) -> None:
        """The engine's steps over the batch, where a timeline was asked for."""
        self._steps += steps

    def tables(self, batch_id: BatchId, batch_row: dict[str, Any]) -> dict[str, pa.Table]:
        """The batch as it is committed."""
        run_id, shard, batch_no = batch_id.run_id, batch_id.shard, batch_id.batch_no
        named = {"run_id": run_id, "shard": shard, "batch_no": batch_no}
        rankings = [{"scores_run_id": run_id} | each | {"run_id": run_id} for each in self._rankings]
        tables = {
            "batches": pa.Table.from_pylist([batch_row], SCHEMAS["batches"]),
            "windows": _table("windows", WINDOW_COLUMNS, self._windows, named),
            "outcomes": _table("outcomes", OUTCOME_COLUMNS, self._outcomes, {"run_id": run_id}),
            "rankings": pa.Table.from_pylist(rankings, SCHEMAS["rankings"]),
        }
        if self._steps:
            steps = [named | asdict(step) | {"step": number} for number, step in enumerate(self._steps)]
            tables["engine_steps"] = pa.Table.from_pylist(steps, SCHEMAS["engine_steps"])
        if self._scores:
            scores = pa.concat_tables(self._scores)
            scores = scores.append_column("run_id", pa.repeat(run_id, scores.num_rows))
            tables["scores"] = scores.select(SCHEMAS["scores"].names).cast(SCHEMAS["scores"])
        return tables


def _table(name: str, columns: Sequence[str], rows: Sequence[tuple[Any, ...]], constants: dict[str, Any]) -> pa.Table:
    """Rows of one table, column by column."""
    schema = SCHEMAS[name]
    values = dict(zip(columns, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(columns, ())
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), len(rows))
        if field.name in constants
        else pa.array(values[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def batch_row(  # noqa: PLR0913  a row has as many sources
    batch_id: BatchId,
    batch: Batch,
    driver: str,
    rounds: Sequence[int],
    generations: Sequence[Generation],
    stats: BatchStats,
    limits: KVCacheLimits,
) -> dict[str, Any]:
    """The statistics of an answered batch: the columns of `batches`."""
    lengths = [
        (prompt.prompt_tokens, generation.output_tokens)
        for prompt, generation in zip(batch.prompts, generations, strict=True)
    ]
    return (
        {
            "run_id": batch_id.run_id,
            "shard": batch_id.shard,
            "batch_no": batch_id.batch_no,
            "driver": driver,
            "min_round": min(rounds),
            "max_round": max(rounds),
            "num_prompts": len(batch.prompts),
            "prompt_tokens": sum(prompt for prompt, _ in lengths),
            "cached_tokens": sum(generation.cached_tokens for generation in generations),
            "output_tokens": sum(output for _, output in lengths),
            "num_blocks": batch.needed_blocks,
            "used_blocks": sum(limits.used_blocks(*each) for each in lengths),
            "block_budget": batch.block_budget,
            "last_block_waste_tokens": sum(limits.wasted_tokens(*each) for each in lengths),
            "num_preemptions": sum(generation.num_preemptions for generation in generations),
            "submitted_at": stats.submitted_at,
            "finished_at": stats.finished_at,
            "engine_s": stats.engine_s,
        }
        | _latency_columns(generations)
        | _gap_columns(stats.itl_s)
    )


def promptless_batch_row(batch_id: BatchId, now: datetime) -> dict[str, Any]:
    """A batch of queries that needed no call."""
    counts = ("num_prompts", "prompt_tokens", "cached_tokens", "output_tokens", "num_blocks", "used_blocks")
    return dict.fromkeys((*counts, "block_budget", "last_block_waste_tokens", "num_preemptions"), 0) | {
        "run_id": batch_id.run_id,
        "shard": batch_id.shard,
        "batch_no": batch_id.batch_no,
        "driver": "none",
        "submitted_at": now,
        "finished_at": now,
        "engine_s": 0.0,
    }


def quarantine_rows(run_id: str, rows: pa.Table) -> pa.Table:
    """The rows set aside, with their run."""
    return rows.add_column(0, "run_id", pa.repeat(run_id, rows.num_rows)).cast(SCHEMAS["quarantine"])


def _latency_columns(generations: Sequence[Generation]) -> dict[str, float | None]:
    columns: dict[str, float | None] = {}
    for name in ("queue", "ttft", "tpot", "e2el"):
        values = [getattr(generation.latency, f"{name}_s") for generation in generations]
        known = np.array([value for value in values if value is not None])
        columns[f"{name}_mean_s"] = float(known.mean()) if len(known) else None
        columns[f"{name}_p50_s"] = float(np.percentile(known, 50)) if len(known) else None
        columns[f"{name}_p99_s"] = float(np.percentile(known, 99)) if len(known) else None
    return columns


def _gap_columns(gaps_s: np.ndarray) -> dict[str, Any]:
    """ITL is per token: figures, and a histogram that merges over batches. Bin b is the gaps of about 1.01^b s."""
    if len(gaps_s) == 0:
        return {}
    bins, counts = np.unique(np.round(np.log(np.maximum(gaps_s, 1e-9)) / np.log(1.01)), return_counts=True)
    return {
        "itl_count": len(gaps_s),
        "itl_sum_s": float(gaps_s.sum()),
        "itl_p50_s": float(np.percentile(gaps_s, 50)),
        "itl_p99_s": float(np.percentile(gaps_s, 99)),
        "itl_bins": bins.astype(np.int16),
        "itl_bin_counts": counts.astype(np.uint32),
    }
