"""What must hold before a run is published: each check is a SQL file that returns the offending rows.

Knows nothing of how the rows came to be.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tasks.settings import CheckSettings
from tasks.store.night_store import Store
from tasks.store.runs import Runs
from tasks.store.tables import SCHEMAS
from tasks.system.database import Database

logger = logging.getLogger(__name__)

# What a share is of, a column of count_totals -> what is said where there is none of it.
NOTHING = {
    "queries": "the run has no queries",
    "whole_queries": "the run has no queries, or is a trial",
    "candidates": "the run has no candidates",
    "passages": "nothing was asked",
    "batches": "nothing was asked",
    "scored_queries": "no query has four numbers of the model",
    "ranked_queries": "no query has four documents that the model ranked",
    "canaries": "no canaries were asked",
    "banded_canaries": "fewer than three earlier nights with this recipe are published",
    "steady_places": "fewer than twenty queries were ranked again though nothing changed for them",
    "volumes": "no earlier night of this series is published, or the run is a trial",
}


@dataclass(frozen=True, slots=True)
class Check:
    """A file of sql/checks, and how much of what it finds is let through."""

    name: str
    of: str  # a key of NOTHING
    max_share: float = 0.0
    warns: bool = False  # what it finds is a warning in the log, also where the check passes
    parameters: Mapping[str, object] = field(default_factory=dict)  # of the file, beside run_id


def checks_of(settings: CheckSettings, *, keeps_budget: bool) -> list[Check]:
    """The checks of a run; without the packing promise preemptions are no fault."""
    return [
        Check("every_query_once", "queries"),
        Check("every_candidate_once", "queries"),
        Check("ranks_are_1_to_n", "queries"),
        Check("scores_strictly_decrease", "queries"),
        *([Check("budget_kept", "batches")] if keeps_budget else []),
        Check("queries_without_candidates", "whole_queries", settings.max_without_candidates_share),
        Check("volume", "volumes", parameters={"max_fall": settings.max_volume_fall}),
        Check("volume_growth", "volumes", 1.0, warns=True, parameters={"max_growth": settings.max_volume_growth}),
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
    """With `canary = "warn"` a run that missed too many is ranked, but not published; with "stop" it is not ranked."""
    if settings.canary == "off":
        return []
    return [
        Check("canary_margins", "canaries", settings.max_missed_canary_share),
        Check("canary_bands", "banded_canaries", parameters={"max_drift": settings.max_canary_drift}),
    ]


def run_checks(store: Store, run_id: str, checks: Sequence[Check]) -> list[str]:
    """Runs the checks, stores what they found, and marks the run with the names of those that failed.

    Returns:
        As `failed_checks`.
    """
    run = {"run_id": run_id}
    with store.unit_of_work() as database, database.transaction():
        (totals,) = database.query("check_results/count_totals", run).to_pylist()
        results = [_run(database, run_id, check, int(totals[check.of] or 0)) for check in checks]
        database.execute("check_results/delete", run)
        database.append("check_results", pa.Table.from_pylist(results, SCHEMAS["check_results"]))
        Runs(database).note_checks(run_id, [result["check_name"] for result in results if not result["passed"]])
        found = list(zip(results, checks, strict=True))
        for result, check in found:
            if check.warns and result["num_offending"]:
                logger.warning("run_id=%s %s", run_id, _told(database, run_id, result, check))
        return [_told(database, run_id, *each) for each in found if not each[0]["passed"]]


def failed_checks(store: Store, run_id: str, checks: Sequence[Check]) -> list[str]:
    """Each failed check of the run with its numbers and the first offending rows; empty if all passed."""
    known = {check.name: check for check in checks}
    with store.reader() as database:
        rows = database.query("check_results/list_failed", {"run_id": run_id}).to_pylist()
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
