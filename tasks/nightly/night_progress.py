"""A night's progress, as one record for bars, artifacts and logs, and the check of `[night] finish_by` against it.

Knows nothing of who listens.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from tasks.forecast.rates import Deadline, Forecast
from tasks.system.errors import DeadlinePassed

Phase = Literal[
    "reading the input", "loading the model", "asking canaries", "ranking", "evaluating", "checking", "publishing"
]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a night is now; while it ranks, how much of that is done."""

    phase: Phase
    done: int = 0
    total: int | None = None  # None: nothing is counted in this phase
    num_asked: int = 0  # of `done`, by this start: what it restored or reused took no time
    unit: str = "windows"
    part: str = ""  # of several nights in a row, which this is: a study's arm
    part_no: int = 1
    num_parts: int = 1


OnProgress = Callable[[Progress], None]


def begin_phase(phase: Phase, run_id: str, listeners: Sequence[OnProgress]) -> None:
    """Logs that a phase of a run begins, and tells the listeners."""
    logger.info("run_id=%s %s", run_id, phase)
    for listener in listeners:
        listener(Progress(phase))


class WindowCount:
    """Counts a run's windows towards their total, and tells the listeners after every batch."""

    def __init__(self, total: int, listeners: Sequence[OnProgress]) -> None:
        self._listeners = listeners
        self._progress = Progress("ranking", total=total)

    def skip(self, num_windows: int) -> None:
        """Windows that need not be asked: restored, reused, or of lists without a choice."""
        self._progress = replace(self._progress, done=self._progress.done + num_windows)

    def add(self, num_windows: int) -> None:
        """Windows that this start asked."""
        if num_windows:
            asked = self._progress.num_asked + num_windows
            self._progress = replace(self._progress, done=self._progress.done + num_windows, num_asked=asked)
            self.tell()

    def tell(self) -> None:
        """Tells the listeners how it stands."""
        for listener in self._listeners:
            listener(self._progress)


class DeadlineWatch:
    """Warns once when `[night] finish_by` is at risk, and stops the run when it has passed."""

    def __init__(self, run_id: str, finish_by: str, deadline: Deadline | None) -> None:
        self._run_id = run_id
        self._finish_by = finish_by
        self._deadline = deadline  # None: the run may take as long as it takes
        self._has_warned = False

    @property
    def has_time(self) -> bool:
        """Whether more may be asked."""
        return self._deadline is None or not self._deadline.has_passed(datetime.now(UTC))

    def begin(self, expected: Forecast | None) -> None:
        """The first batch is asked now; with what the run is expected to take, if that is known."""
        if self._deadline is None:
            return
        now = datetime.now(UTC)
        self._deadline.begin(now)
        if expected is not None:
            self._warn_if_late(self._deadline, now + timedelta(seconds=expected.expected_s))

    def look(self, progress: Progress) -> None:
        """After every batch.

        Raises:
            DeadlinePassed: windows are left to ask, and the time is over.
        """
        num_left = (progress.total or 0) - progress.done
        if self._deadline is None or num_left <= 0:
            return
        self.require_time(f" with {progress.done} of {progress.total} windows done")
        end = self._deadline.expected_end(datetime.now(UTC), progress.num_asked, num_left)
        if end is not None:
            self._warn_if_late(self._deadline, end)

    def require_time(self, so_far: str = "") -> None:
        """Raises DeadlinePassed if nothing more may be asked."""
        if self._deadline is not None and not self.has_time:
            raise DeadlinePassed(
                f"run {self._run_id}: [night] finish_by = {self._finish_by} has passed "
                f"({self._deadline.ends_at:%Y-%m-%d %H:%M %Z}){so_far}. Committed work is kept, nothing is "
                "published. The same command continues from there with a later time, --set night.finish_by=HH:MM, or "
                "without one, --set night.finish_by="
            )

    def _warn_if_late(self, deadline: Deadline, end: datetime) -> None:
        if end > deadline.ends_at and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "run_id=%s finish_by=%s at risk: at this rate, the run ends at %s",
                self._run_id,
                self._finish_by,
                end.astimezone(deadline.ends_at.tzinfo).strftime("%Y-%m-%d %H:%M %Z"),
            )
