"""How far a night is, for people at a terminal: a bar on stderr, and log lines that do not break it.

`flows.messenger` has Prefect's bar.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Self, TypeVar

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, track
from rich.progress import Progress as RichProgress
from rich.table import Column

from tasks.nightly.night_progress import Progress
from tasks.report.summary_tables import duration_text
from tasks.system.redaction import hide_url_secrets, printable

TERMINAL = Console(stderr=True)  # one for bar and log lines: a line is printed above the bar
BAR_WIDTH = 16
BEFORE_RANKING = ("reading the input", "loading the model", "asking canaries", "ranking")


Step = TypeVar("Step")


def label_of(progress: Progress) -> str:
    """The phase, and the part where there are several."""
    if not progress.part:
        return progress.phase
    return f"{progress.part}, {progress.part_no} of {progress.num_parts}: {progress.phase}"


def share_of(progress: Progress) -> float:
    """How much is ranked, of all parts: 0 to 1."""
    if progress.total is None:
        of_part = 0.0 if progress.phase in BEFORE_RANKING else 1.0
    else:
        of_part = progress.done / max(1, progress.total)
    return (progress.part_no - 1 + of_part) / progress.num_parts


def left_s(progress: Progress, elapsed_s: float) -> float | None:
    """Seconds left at the rate of this start, which has ranked for `elapsed_s`; None where that cannot be told."""
    if progress.total is None or not progress.num_asked:
        return None
    return elapsed_s / progress.num_asked * (progress.total - progress.done)


def track_steps(label: str, steps: Sequence[Step]) -> Iterable[Step]:
    """The steps in turn, with a bar on stderr; without one where stderr is no terminal."""
    return track(steps, label, console=TERMINAL, disable=not TERMINAL.is_terminal, transient=True)


class TerminalBar:
    """A bar with the phase and the time left; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        columns = (
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(BAR_WIDTH),
            TextColumn("{task.fields[counted]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        self._bar = RichProgress(*columns, console=TERMINAL, disable=not TERMINAL.is_terminal, transient=True)
        self._task = self._bar.add_task("starting", total=None, counted="", left="")
        self._label = ""
        self._begun_at = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError, ValueError):  # a terminal that is gone
            self._bar.stop()

    def show(self, progress: Progress) -> None:
        """Moves the bar; each phase has its own clock."""
        label = printable(label_of(progress))
        if label != self._label:
            self._label, self._begun_at = label, time.monotonic()
            self._bar.reset(self._task, description=label, total=progress.total, counted="", left="")
            with suppress(OSError, ValueError):  # a terminal that is gone
                self._bar.refresh()
        if progress.total is None:
            return
        seconds = left_s(progress, time.monotonic() - self._begun_at)
        self._bar.update(
            self._task,
            completed=progress.done,
            total=progress.total,
            counted=f"{progress.done:,}/{progress.total:,} {progress.unit} in",
            left="" if seconds is None else f"{duration_text(seconds)} left",
        )


class TerminalHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Log lines on stderr, without secrets; on a terminal above the bar, and nothing else than lines to it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        self.setLevel(logging.WARNING if TERMINAL.is_terminal else logging.INFO)  # the bar has the rest

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Handler.format`."""
        return hide_url_secrets(printable(super().format(record)))

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        if not TERMINAL.is_terminal:  # rich ends the process where a pipe is closed
            super().emit(record)
            return
        try:
            TERMINAL.print(self.format(record), markup=False, highlight=False, soft_wrap=True)
        except Exception:  # as for every handler
            self.handleError(record)
