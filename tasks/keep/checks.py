"""What must hold before a run is published: each check is a SQL file that returns the offending rows.

Knows nothing of how the rows came to be.
"""

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tasks.errors import CheckFailed
from tasks.keep.store import Store
from tasks.settings import CheckSettings


@dataclass(frozen=True, slots=True)
class Check:
    """A file of sql/checks, and how much of what it finds is let through."""

    name: str
    of: Literal["queries", "candidates", "passages", "batches"]
    max_share: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found."""

    check_name: str
    num_offending: int
    share: float
    max_share: float
    examples: tuple[str, ...]  # ids of the first offending rows

    @property
    def passed(self) -> bool:
        """Whether no more than `max_share` offends."""
        return self.share <= self.max_share


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


def run_checks(store: Store, run_id: str, checks: list[Check]) -> list[CheckResult]:
    """Runs the checks and stores what they found."""
    (totals,) = store.query("run/count_totals", {"run_id": run_id}).to_pylist()
    results = [_run(store, run_id, check, int(totals[check.of] or 0)) for check in checks]
    names = ("check_name", "num_offending", "share", "max_share", "passed")
    rows = pa.Table.from_pylist([{name: getattr(result, name) for name in names} for result in results])
    store.replace_rows("check_results", run_id, rows.append_column("run_id", pa.array([run_id] * len(results))))
    failed = [result.check_name for result in results if not result.passed]
    store.update("note_checks", {"run_id": run_id, "failed_checks": failed})
    return results


def raise_if_failed(run_id: str, results: list[CheckResult]) -> None:
    """Raises CheckFailed naming each failed check, its numbers and the first offending rows."""
    failed = [result for result in results if not result.passed]
    if failed:
        raise CheckFailed(
            f"run {run_id}: {len(failed)} of {len(results)} checks failed, the scores are stored but not published: "
            f"{'; '.join(map(_told, failed))}. See docs/operations.md."
        )


def _told(result: CheckResult) -> str:
    examples = f" (e.g. {', '.join(result.examples)})" if result.examples else ""
    return (
        f"{result.check_name}: {result.num_offending} offending, share {result.share:.4f}, "
        f"allowed {result.max_share:.4f}{examples}"
    )


def _run(store: Store, run_id: str, check: Check, total: int) -> CheckResult:
    rows = store.query(f"checks/{check.name}", {"run_id": run_id})
    num_offending = sum(rows.column("num_offending").to_pylist())
    ids = [str(value) for value in rows.column(0).slice(0, 3).to_pylist() if value is not None]
    return CheckResult(
        check_name=check.name,
        num_offending=num_offending,
        share=num_offending / total if total else float(num_offending > 0),
        max_share=check.max_share,
        examples=tuple(ids),
    )
