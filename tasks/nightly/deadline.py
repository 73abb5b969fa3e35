"""`[night] finish_by`: the warning when it is at risk, and the clean stop when it has passed."""

import logging
from datetime import UTC, datetime, timedelta

from tasks.forecast.rates import Deadline, Forecast
from tasks.system.errors import DeadlinePassed

logger = logging.getLogger(__name__)


class DeadlineWatch:
    """Warns once when `[night] finish_by` is at risk, and stops the run when it has passed."""

    def __init__(self, run_id: str, finish_by: str, deadline: Deadline | None) -> None:
        self._run_id = run_id
        self._finish_by = finish_by
        self._deadline = deadline  # None: the run may take as long as it takes
        self._is_asking = False
        self._has_warned = False

    @property
    def has_time(self) -> bool:
        """Whether more may be asked."""
        return self._deadline is None or not self._deadline.has_passed(datetime.now(UTC))

    def begin(self, expected: Forecast | None) -> None:
        """The first batch is asked now; with what the run is expected to take, if that is known."""
        self._is_asking = True
        if self._deadline is None:
            return
        now = datetime.now(UTC)
        self._deadline.begin(now)
        if expected is not None:
            self._warn_if_late(self._deadline, now + timedelta(seconds=expected.expected_s))

    def look(self, done: int, total: int) -> None:
        """After every batch, and when windows are known to be done before the first one: those need no time.

        Raises:
            DeadlinePassed: windows are left to ask, and the time is over.
        """
        if self._deadline is None or done >= total:
            return
        if self._is_asking:
            self.require_time(f" with {done} of {total} windows done")
        end = self._deadline.expected_end(datetime.now(UTC), done, total)
        if end is not None:
            self._warn_if_late(self._deadline, end)

    def require_time(self, so_far: str = "") -> None:
        """Raises DeadlinePassed if nothing more may be asked."""
        if self._deadline is not None and not self.has_time:
            raise DeadlinePassed(
                f"run {self._run_id}: [night] finish_by = {self._finish_by} has passed "
                f"({self._deadline.ends_at:%Y-%m-%d %H:%M %Z}){so_far}. What was committed stays, nothing is "
                "published. The same command goes on from there with a later time, --set night.finish_by=HH:MM, or "
                "without one, --set night.finish_by="
            )

    def _warn_if_late(self, deadline: Deadline, end: datetime) -> None:
        if end > deadline.ends_at and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "run_id=%s finish_by=%s at risk: as it goes, the run ends at %s",
                self._run_id,
                self._finish_by,
                end.astimezone(deadline.ends_at.tzinfo).strftime("%Y-%m-%d %H:%M %Z"),
            )
