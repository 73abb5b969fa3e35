"""What must hold before a run is published: each check is a SQL file that returns the offending rows.

Knows nothing of how the rows came to be.
"""

from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from tasks.database import Database
from tasks.keep.store import Store
from tasks.settings import CheckSettings


@dataclass(frozen=True, slots=True)
class Check:
    """A file of sql/checks, and how much of what it finds is let through."""

    name: str
    of: Literal["queries", "candidates", "passages", "batches"]
    max_share: float = 0.0


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
    ]


def run_checks(store: Store, run_id: str, checks: list[Check]) -> None:
    """Runs the checks, stores what they found, and marks the run with the names of those that failed."""
    with store.unit_of_work() as database, database.transaction():
        (totals,) = database.query("run/count_totals", {"run_id": run_id}).to_pylist()
        results = [_run(database, run_id, check, int(totals[check.of] or 0)) for check in checks]
        database.execute("run/delete_check_results", {"run_id": run_id})
        database.execute("run/insert_check_results", tables={"incoming": pa.Table.from_pylist(results)})
        failed = [result["check_name"] for result in results if not result["passed"]]
        database.execute("run/note_checks", {"run_id": run_id, "failed_checks": failed})


def failed_checks(store: Store, run_id: str) -> list[str]:
    """Each failed check of the run with its numbers and the first offending rows; empty if all passed."""
    with store.unit_of_work() as database:
        rows = database.query("run/list_failed_checks", {"run_id": run_id}).to_pylist()
        return [_told(database, run_id, row) for row in rows]


def _run(database: Database, run_id: str, check: Check, total: int) -> dict[str, Any]:
    rows = database.query(f"checks/{check.name}", {"run_id": run_id})
    num_offending = sum(rows.column("num_offending").to_pylist())
    share = num_offending / total if total else float(num_offending > 0)
    return {
        "run_id": run_id,
        "check_name": check.name,
        "num_offending": num_offending,
        "share": share,
        "max_share": check.max_share,
        "passed": share <= check.max_share,
    }


def _told(database: Database, run_id: str, row: dict[str, Any]) -> str:
    offending = database.query(f"checks/{row['check_name']}", {"run_id": run_id})
    examples = [str(value) for value in offending.column(0).slice(0, 3).to_pylist() if value is not None]
    return (
        f"{row['check_name']}: {row['num_offending']} offending, share {row['share']:.4f}, allowed "
        f"{row['max_share']:.4f}" + (f" (e.g. {', '.join(examples)})" if examples else "")
    )
