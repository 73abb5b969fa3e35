"""What a run did, as a few tables: read from the views, so that a log, an artifact and a query cannot disagree.

Knows nothing of Prefect or terminals beyond writing Markdown and rich tables.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.decode.answer import LOW_ID_MASS
from tasks.engine.benchmark_table import table_of_run
from tasks.report.summary_tables import Notice, SummaryTable, boxed, listing, pairs
from tasks.store.night_store import Store
from tasks.system.database import Database
from tasks.system.errors import PackrankError

MS = 1000.0
SERVING_ROWS = (  # label as `vllm bench serve` prints it, column, factor
    ("Successful requests", "successful_requests", 1),
    ("Benchmark duration (s)", "duration_s", 1),
    ("Total input tokens", "total_input_tokens", 1),
    ("Total generated tokens", "total_generated_tokens", 1),
    ("Request throughput (req/s)", "requests_per_s", 1),
    ("Output token throughput (tok/s)", "output_tokens_per_s", 1),
    ("Total token throughput (tok/s)", "total_tokens_per_s", 1),
    ("Mean TTFT (ms)", "mean_ttft_s", MS),
    ("Median TTFT (ms)", "median_ttft_s", MS),
    ("P99 TTFT (ms)", "p99_ttft_s", MS),
    ("Mean TPOT (ms)", "mean_tpot_s", MS),
    ("Median TPOT (ms)", "median_tpot_s", MS),
    ("P99 TPOT (ms)", "p99_tpot_s", MS),
    ("Mean ITL (ms)", "mean_itl_s", MS),
    ("Median ITL (ms)", "median_itl_s", MS),
    ("P99 ITL (ms)", "p99_itl_s", MS),
    ("Mean E2EL (ms)", "mean_e2el_s", MS),
    ("Median E2EL (ms)", "median_e2el_s", MS),
    ("P99 E2EL (ms)", "p99_e2el_s", MS),
    ("Mean queue time (ms)", "mean_queue_s", MS),
    ("Median queue time (ms)", "median_queue_s", MS),
    ("P99 queue time (ms)", "p99_queue_s", MS),
)
RUN_ROWS = (
    "run_id",
    "status",
    "night",
    "model",
    "device",
    "strategy",
    "decode_mode",
    "input_partition",
    "elapsed_s",
    "engine_s",
    "forecast_low_s",
    "forecast_high_s",
    "actual_s",
    "num_queries",
    "num_ranked_queries",
    "num_reused_queries",
    "num_single_queries",
    "num_partial_queries",
    "num_fallback_queries",
    "num_unranked_queries",
    "num_candidates",
    "num_quarantined_candidates",
    "num_windows",
    "num_repeated_windows",
    "mean_id_mass",
    "num_batches",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "num_passages",
    "truncated_passages",
    "truncated_tokens",
    "num_preemptions",
    "error",
)
KV_CACHE_NOTE = (
    "At once: estimated from mean sequences; limited_by allows no more. A batch is committed as one, but runs in "
    "several loads of the cache."
)


def summarise(store: Store, run_id: str) -> list[SummaryTable]:
    """The run's tables: what must be seen, itself, one query before and after, quality, serving figures, blocks, ...

    Raises:
        PackrankError: no such run.
    """
    with store.reader() as database:
        return _summarise(database, run_id)


def _summarise(database: Database, run_id: str) -> list[SummaryTable]:
    runs = _rows(database, "run", run_id)
    if not runs:
        raise PackrankError(f"no run {run_id!r} in the database. `packrank runs` lists them.")
    names = ("run", "canary_modes", "id_masses", "volumes", "checks")
    noticed = notices_of({f"summary/{name}": _rows(database, name, run_id) for name in names})
    tables = [
        *map(boxed, noticed),
        pairs("Run", [(name, runs[0][name]) for name in RUN_ROWS if runs[0][name] is not None]),
        listing("Ranked although an earlier night was there", _rows(database, "reuse_reasons", run_id)),
        listing("Set aside", _rows(database, "quarantine", run_id)),
        _before_after(_rows(database, "before_after", run_id)),
        listing("Quality", _rows(database, "quality", run_id)),
        _serving(_rows(database, "serving", run_id)),
        *[pairs("KV cache", list(row.items()), KV_CACHE_NOTE) for row in _rows(database, "budget", run_id)],
        listing("Changes since the published night before", _rows(database, "churn", run_id)),
        listing("Checks", _rows(database, "checks", run_id)),
    ]
    return [table for table in tables if table is not None]


def notices_of(tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Notice]:
    """The boxes of a run, the worst first.

    Args:
        tables: rows of `summary/run`, `summary/canary_modes`, `summary/id_masses`, `summary/volumes` and
            `summary/checks`, by these names.
    """
    told = [_missed_canaries(row) for row in tables["summary/canary_modes"]]
    told += [_outside(row) for row in tables["summary/id_masses"] if row["mean_id_mass"] < LOW_ID_MASS]
    for run in tables["summary/run"]:
        told += [Notice("caution", "Input of another day", warning) for warning in run["input_warnings"] or ()]
    grown = any(row["check_name"] == "volume_growth" and row["num_offending"] for row in tables["summary/checks"])
    if grown:
        told.append(_growth(tables["summary/volumes"]))
    return sorted(told, key=lambda notice: notice.level)  # stable: bad, then caution


def _rows(database: Database, name: str, run_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = database.query(f"summary/{name}", {"run_id": run_id}).to_pylist()
    return rows


def _missed_canaries(row: Mapping[str, Any]) -> Notice:
    is_bad = 2 * row["num_missed"] >= row["num_pairs"] or row["mean_margin"] <= 0  # no better than a coin
    decides = "the first places" if row["is_main"] else "which candidates reach the list-wise step"
    return Notice(
        "bad" if is_bad else "caution",
        f"Canaries missed in {row['decode_mode']}",
        f"The irrelevant passage is not below the relevant one in {row['num_missed']} of {row['num_pairs']} pairs "
        f"({', '.join(row['missed'])}), mean margin {row['mean_margin']:.3f}. This mode decides {decides}."
        + (" Do not rely on its orders." if is_bad else ""),
    )


def _outside(row: Mapping[str, Any]) -> Notice:
    return Notice(
        "caution",
        f"Answers outside the requested form, in {row['decode_mode']}",
        f"Identifiers, or yes and no, have {row['mean_id_mass']:.3f} of the probability at the first token, on average "
        f"over {row['num_windows']:,} windows: the model prefers other tokens. Compare with another decode_mode.",
    )


def _growth(volumes: Sequence[Mapping[str, Any]]) -> Notice:
    counts = [f"{row['number']:,} {row['quantity']}, usually {row['usual_number']:,.0f}" for row in volumes]
    return Notice("caution", "Larger than usual", f"{'; '.join(counts)}. Were several nights read as one?")


def _before_after(rows: list[dict[str, Any]]) -> SummaryTable | None:
    shown = [{name: value for name, value in row.items() if name != "query_id"} for row in rows]
    return listing(f"Query {rows[0]['query_id']}: first ten before and after", shown) if rows else None


def _serving(rows: list[dict[str, Any]]) -> SummaryTable | None:
    if not rows:
        return None
    figures = rows[0]
    notes = ["One-token answers have no TPOT and no ITL."] if figures["mean_tpot_s"] is None else []
    notes += [f"This table cannot be true. {each}" for each in table_of_run(figures).broken_rules()]
    shown = [
        (label, "n/a" if figures[column] is None else figures[column] * factor)
        for label, column, factor in SERVING_ROWS
    ]
    return pairs("Serving benchmark", shown, " ".join(notes) or None)
