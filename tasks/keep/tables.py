"""The Arrow form of what a batch commits: one schema a table, the same names and units as in sql/schema.

Knows nothing of files or databases.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
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


@dataclass(frozen=True, slots=True)
class BatchId:
    """Names a batch."""

    run_id: str
    shard: int
    batch_no: int


class BatchRows:
    """Collects the rows of one batch, then gives them as Arrow tables."""

    def __init__(self, batch_id: BatchId) -> None:
        self._id = batch_id
        self._rows: dict[str, list[dict[str, Any]]] = {"windows": [], "outcomes": [], "rankings": []}
        self._steps: list[dict[str, Any]] = []
        self._scores: list[pa.Table] = []

    def add_window(
        self, query_id: str, key: WindowKey, prompt: Prompt, generation: Generation, reading: Reading
    ) -> None:
        """One answered window."""
        named = {
            "run_id": self._id.run_id,
            "query_id": query_id,
            "round": key.round,
            "window_no": key.window_no,
            "attempt": key.attempt,
        }
        latency = {field.name: getattr(generation.latency, field.name) for field in fields(generation.latency)}
        self._rows["windows"].append(
            named
            | latency
            | {
                "shard": self._id.shard,
                "batch_no": self._id.batch_no,
                "request_id": prompt.request_id,
                "decode_mode": prompt.decode_mode,
                "docs": prompt.window.docs,
                "prompt_tokens": prompt.prompt_tokens,
                "cached_tokens": generation.cached_tokens,
                "output_tokens": generation.output_tokens,
                "truncated_passages": prompt.truncated_passages,
                "truncated_tokens": prompt.truncated_tokens,
                "num_preemptions": generation.num_preemptions,
                "finish_reason": generation.finish_reason,
                "parse_status": reading.parse_status,
                "num_listed": reading.outcome.num_listed,
                "num_missing": reading.num_missing,
                "num_duplicate": reading.num_duplicate,
                "num_out_of_range": reading.num_out_of_range,
                "id_mass": reading.id_mass,
            }
        )
        self._rows["outcomes"].append(
            named
            | {
                "outcome_order": reading.outcome.order,
                "outcome_logprobs": reading.outcome.logprobs,
                "answer": reading.answer,
            }
        )

    def add_ranking(self, ranking: dict[str, Any]) -> None:
        """One finished query: the columns of `rankings` but for run_id; scores_run_id only where it is another run."""
        self._rows["rankings"].append({"scores_run_id": self._id.run_id} | ranking | {"run_id": self._id.run_id})

    def add_scores(self, query_id: str, doc_ids: pa.Array, first_stage_scores: np.ndarray, scored: ScoredDocs) -> None:
        """The score rows of one finished query; `doc_ids` and `first_stage_scores` in first-stage order."""
        order = scored.candidates
        columns = {
            "run_id": pa.repeat(self._id.run_id, len(order)),
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
        self._scores.append(pa.table(columns).cast(SCHEMAS["scores"]))

    def add_steps(self, steps: Sequence[EngineStep]) -> None:
        """The engine's steps over the batch, where a timeline was asked for."""
        for number, step in enumerate(steps):
            named = {"run_id": self._id.run_id, "shard": self._id.shard, "batch_no": self._id.batch_no, "step": number}
            self._steps.append(named | asdict(step))

    def tables(self, batch_row: dict[str, Any]) -> dict[str, pa.Table]:
        """The batch as it is committed."""
        rows = self._rows | {"batches": [batch_row]} | ({"engine_steps": self._steps} if self._steps else {})
        tables = {name: pa.Table.from_pylist(listed, SCHEMAS[name]) for name, listed in rows.items()}
        return tables | ({"scores": pa.concat_tables(self._scores)} if self._scores else {})


def batch_row(
    batch_id: BatchId,
    batch: Batch,
    rounds: list[int],
    generations: list[Generation],
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
            "driver": "generate",
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


def _latency_columns(generations: list[Generation]) -> dict[str, float | None]:
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
