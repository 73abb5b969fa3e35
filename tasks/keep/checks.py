"""What must hold before a run is published: each check is a SQL file that returns the offending rows.

Knows nothing of how the rows came to be.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tasks.database import Database
from tasks.keep.store import Store
from tasks.settings import CheckSettings

CHECK_RESULTS = pa.schema(
    [
        ("run_id", pa.string()),
        ("check_name", pa.string()),
        ("num_offending", pa.int64()),
        ("share", pa.float64()),
        ("max_share", pa.float64()),
        ("passed", pa.bool_()),
        ("skip_reason", pa.string()),
    ]
)

# What a share is of, a column of run/count_totals or run/count_compared -> what is said where there is none of it.
NOTHING = {
    "queries": "the run has no queries",
    "candidates": "the run has no candidates",
    "passages": "nothing was asked",
    "batches": "nothing was asked",
    "scored_queries": "no query has four numbers of the model",
    "ranked_queries": "no query has four documents that the model ranked",
    "canaries": "no canaries were asked",
    "banded_canaries": "fewer than three earlier nights with this recipe are published",
    "steady_places": "fewer than twenty queries were ranked again though nothing changed for them",
}


@dataclass(frozen=True, slots=True)
class Check:
    """A file of sql/checks, and how much of what it finds is let through."""

    name: str
    of: str  # a key of NOTHING
    max_share: float = 0.0
    parameters: Mapping[str, object] = field(default_factory=dict)  # of the file, beside run_id


def checks_of(settings: CheckSettings, *, keeps_budget: bool) -> list[Check]:
    """The checks of a run; without the packing promise preemptions are no fault."""
    return [
        Check("every_query_once", "queries"),
        Check("every_candidate_once", "queries"),
        Check("ranks_are_1_to_n", "queries"),
        Check("scores_strictly_decrease", "queries"),
        *([Check("budget_kept", "batches")] if keeps_budget else []),
        Check("fallback_queries", "queries", settings.max_fallback_share),
        Check("partial_queries", "queries", settings.max_partial_share),
        Check("quarantined_candidates", "candidates", settings.max_quarantined_share),
        Check("truncated_passages", "passages", settings.max_truncated_share),
        Check("constant_scores", "scored_queries", settings.max_constant_share),
        Check("orders_as_given", "ranked_queries", settings.max_as_given_share),
        Check("churn_without_cause", "steady_places", 1.0 - settings.min_overlap_at_10),
        *_canary_checks(settings),
    ]


def _canary_checks(settings: CheckSettings) -> list[Check]:
    """With `canary = "warn"` they are figures that fail nothing; with "stop" a run that missed half is not ranked."""
    if settings.canary == "off":
        return []
    is_strict = settings.canary == "stop"
    return [
        Check("canary_margins", "canaries", 0.5 if is_strict else 1.0),
        Check(
            "canary_bands",
            "banded_canaries",
            0.0 if is_strict else 1.0,
            {"max_drift": settings.max_canary_drift},
        ),
    ]


def run_checks(store: Store, run_id: str, checks: Sequence[Check]) -> None:
    """Runs the checks, stores what they found, and marks the run with the names of those that failed."""
    run = {"run_id": run_id}
    with store.unit_of_work() as database, database.transaction():
        (totals,) = database.query("run/count_totals", run).to_pylist()
        (compared,) = database.query("run/count_compared", run).to_pylist()
        totals |= compared
        results = [_run(database, run_id, check, int(totals[check.of] or 0)) for check in checks]
        database.execute("run/delete_check_results", run)
        database.execute("run/insert_check_results", tables={"incoming": pa.Table.from_pylist(results, CHECK_RESULTS)})
        failed = [result["check_name"] for result in results if not result["passed"]]
        database.execute("run/note_checks", run | {"failed_checks": failed})


def failed_checks(store: Store, run_id: str, checks: Sequence[Check]) -> list[str]:
    """Each failed check of the run with its numbers and the first offending rows; empty if all passed."""
    known = {check.name: check for check in checks}
    with store.unit_of_work() as database:
        rows = database.query("run/list_failed_checks", {"run_id": run_id}).to_pylist()
        return [_told(database, run_id, row, known.get(row["check_name"])) for row in rows]


def _run(database: Database, run_id: str, check: Check, total: int) -> dict[str, Any]:
    rows = _offending(database, run_id, check)
    num_offending = sum(rows.column("num_offending").to_pylist())
    share = num_offending / total if total else float(num_offending > 0)
    return {
        "run_id": run_id,
        "check_name": check.name,
        "num_offending": num_offending,
        "share": share,
        "max_share": check.max_share,
        "passed": share <= check.max_share,
        "skip_reason": None if total or num_offending else NOTHING[check.of],
    }


def _offending(database: Database, run_id: str, check: Check) -> pa.Table:
    return database.query(f"checks/{check.name}", {"run_id": run_id} | dict(check.parameters))


def _told(database: Database, run_id: str, row: dict[str, Any], check: Check | None) -> str:
    """`check` is None where other settings than now had it."""
    offending = [] if check is None else _offending(database, run_id, check).column(0).slice(0, 3).to_pylist()
    examples = [str(value) for value in offending if value is not None]
    return (
        f"{row['check_name']}: {row['num_offending']} offending, share {row['share']:.4f}, allowed "
        f"{row['max_share']:.4f}" + (f" (e.g. {', '.join(examples)})" if examples else "")
    )
