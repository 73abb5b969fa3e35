"""A range of nights, one after another: `packrank backfill`. Each is a run like any other, and is never run twice.

Stops at the first night that fails; the same command goes on from there, since nights that are done are skipped.
"""

import time
from dataclasses import replace
from datetime import date, timedelta

from rich.console import Console

from flows.night_runner import Rank, rank_as_flow, rank_plainly, show_logs
from tasks.nightly.night import find_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.report.summary_tables import SummaryTable, print_tables
from tasks.system.errors import ConfigError, PackrankError


def backfill(request: NightRequest, first: date, last: date, console: Console, *, prefect: bool) -> None:
    """Runs the nights from `first` to `last`, both included, and prints one table at the end, however that comes.

    A night waits for a run that holds its database. With `request.dry_run` it only says which nights are to do.

    Args:
        request: of each night, but for its date.
        first: night.
        last: night.
        console: where the table goes.
        prefect: each night as a flow run.

    Raises:
        ConfigError: `last` is before `first`.
        PackrankError: of the first night that failed; those after it were not begun.
    """
    if last < first:
        raise ConfigError(f"backfill: --to {last} is before --from {first}.")
    show_logs()
    nights = [first + timedelta(days=days) for days in range((last - first).days + 1)]
    rows: list[tuple[str, str, str, str]] = []
    try:
        for night in nights:
            begun = time.monotonic()
            run_id, told = "-", "interrupted"
            try:
                run_id, told = _run(replace(request, night=night), rank_as_flow if prefect else rank_plainly)
            except PackrankError as error:
                told = f"failed: {type(error).__name__}"
                raise
            finally:
                rows.append((str(night), run_id, told, f"{time.monotonic() - begun:,.0f}"))
    finally:
        left = len(nights) - len(rows)
        note = f"{left} of {len(nights)} nights did not start; the same command continues from there." if left else None
        print_tables([SummaryTable("Nights", ("night", "run", "status", "s"), tuple(rows), note)], console)


def _run(request: NightRequest, rank: Rank) -> tuple[str, str]:
    """One night: its run_id and status."""
    prepared = prepare_night(request)
    night = find_night(prepared)
    if night.is_done:
        night.conclude()
        return night.run_id, "already done"
    if request.dry_run:
        return night.run_id, "to do"
    rank(request, prepared, waits=True)
    night = find_night(prepared)
    return night.run_id, "-" if night.found is None else night.found.status
