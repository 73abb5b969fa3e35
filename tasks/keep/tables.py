"""The Arrow form of what a batch commits: one schema a table, the same names and units as in sql/schema.

Knows nothing of files or databases.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.answer.outcomes import Reading
from tasks.answer.scores import ScoredDocs
from tasks.generate.generations import BatchStats, Generation
from tasks.generate.timeline import EngineStep
from tasks.pack.batches import Batch
from tasks.pack.kv_budget import KVCacheLimits
from tasks.prompt.prompts import Prompt
from tasks.schedule.rankings import WindowKey

_LATENCIES = [
    (f"{name}_{figure}_s", pa.float64())
    for name in ("queue", "ttft", "tpot", "e2el")
    for figure in ("mean", "p50", "p99")
]
_WINDOW_KEY = [
    ("run_id", pa.string()),
    ("query_id", pa.string()),
    ("round", pa.int32()),
    ("window_no", pa.int32()),
    ("attempt", pa.int32()),
]

SCHEMAS: dict[str, pa.Schema] = {
    "batches": pa.schema(
        [
            ("run_id", pa.string()),
            ("shard", pa.int32()),
            ("batch_no", pa.int32()),
            ("driver", pa.string()),
            ("min_round", pa.int32()),
            ("max_round", pa.int32()),
            ("num_prompts", pa.int32()),
            ("prompt_tokens", pa.int64()),
            ("cached_tokens", pa.int64()),
            ("output_tokens", pa.int64()),
            ("num_blocks", pa.int64()),
            ("block_budget", pa.int64()),
            ("last_block_waste_tokens", pa.int64()),
            ("num_preemptions", pa.int64()),
            ("submitted_at", pa.timestamp("us", "UTC")),
            ("finished_at", pa.timestamp("us", "UTC")),
            ("engine_s", pa.float64()),
            *_LATENCIES,
            ("itl_count", pa.int64()),
            ("itl_sum_s", pa.float64()),
            ("itl_p50_s", pa.float64()),
            ("itl_p99_s", pa.float64()),
            ("itl_bins", pa.list_(pa.int16())),
            ("itl_bin_counts", pa.list_(pa.uint32())),
        ]
    ),
    "windows": pa.schema(
        [
            *_WINDOW_KEY,
            ("shard", pa.int32()),
            ("batch_no", pa.int32()),
            ("request_id", pa.string()),
            ("decode_mode", pa.string()),
            ("docs", pa.list_(pa.uint16())),
            ("prompt_tokens", pa.int32()),
            ("cached_tokens", pa.int32()),
            ("output_tokens", pa.int32()),
            ("truncated_passages", pa.int32()),
            ("truncated_tokens", pa.int32()),
            ("queue_s", pa.float64()),
            ("prefill_s", pa.float64()),
            ("ttft_s", pa.float64()),
            ("tpot_s", pa.float64()),
            ("e2el_s", pa.float64()),
            ("num_preemptions", pa.int32()),
            ("finish_reason", pa.string()),
            ("parse_status", pa.string()),
            ("num_listed", pa.int32()),
            ("num_missing", pa.int32()),
            ("num_duplicate", pa.int32()),
            ("num_out_of_range", pa.int32()),
            ("id_mass", pa.float64()),
        ]
    ),
    "outcomes": pa.schema(
        [
            *_WINDOW_KEY,
            ("outcome_order", pa.list_(pa.uint16())),
            ("outcome_logprobs", pa.list_(pa.float32())),
            ("answer", pa.string()),
        ]
    ),
    "rankings": pa.schema(
        [
            ("run_id", pa.string()),
            ("query_id", pa.string()),
            ("num_candidates", pa.int32()),
            ("depth", pa.int32()),
            ("num_windows", pa.int32()),
            ("num_rounds", pa.int32()),
            ("status", pa.string()),
            ("query_digest", pa.uint64()),
            ("candidates_digest", pa.uint64()),
            ("documents_digest", pa.uint64()),
            ("recipe_digest", pa.uint64()),
            ("scores_run_id", pa.string()),
            ("reuse_reason", pa.string()),
        ]
    ),
    "scores": pa.schema(
        [
            ("run_id", pa.string()),
            ("query_id", pa.string()),
            ("doc_id", pa.string()),
            ("rank", pa.int32()),
            ("score", pa.float32()),
            ("score_kind", pa.string()),
            ("model_score", pa.float32()),
            ("first_stage_rank", pa.int32()),
            ("first_stage_score", pa.float64()),
            ("status", pa.string()),
        ]
    ),
    "engine_steps": pa.schema(
        [
            ("run_id", pa.string()),
            ("shard", pa.int32()),
            ("batch_no", pa.int32()),
            ("step", pa.int64()),
            ("started_at", pa.timestamp("us", "UTC")),
            ("elapsed_ms", pa.float64()),
            ("num_prefill_seqs", pa.int32()),
            ("num_decode_seqs", pa.int32()),
            ("num_waiting_seqs", pa.int32()),
            ("prefill_tokens", pa.int32()),
            ("decode_tokens", pa.int32()),
            ("blocks_used", pa.int32()),
        ]
    ),
    "quarantine": pa.schema(
        [
            ("run_id", pa.string()),
            ("source", pa.string()),
            ("query_id", pa.string()),
            ("doc_id", pa.string()),
            ("reason", pa.string()),
            ("detail", pa.string()),
        ]
    ),
}


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
                prompt.decode_mode,
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
                reading.outcome.num_listed,
                reading.num_missing,
                reading.num_duplicate,
                reading.num_out_of_range,
                reading.id_mass,
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


def batch_row(
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
    counts = ("num_prompts", "prompt_tokens", "cached_tokens", "output_tokens", "num_blocks", "block_budget")
    return dict.fromkeys((*counts, "last_block_waste_tokens", "num_preemptions"), 0) | {
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
