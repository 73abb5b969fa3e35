"""How far a night is, for people: a bar on a terminal, and a progress artifact in Prefect.

Both are told `(done, in all)`, of windows as a rule. Knows nothing of what a window is.
"""

import sys
import time
from types import TracebackType
from typing import Self
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tasks.redaction import printable

UPDATE_EVERY_S = 5.0  # an artifact update takes 6 ms of the night, and the page need not be faster


class TerminalBar:
    """A bar on stderr; nothing where stderr is no terminal."""

    def __init__(self, description: str, unit: str = "windows") -> None:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
        self._task = self._progress.add_task(printable(description), total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, done: int, total: int) -> None:
        """Moves the bar."""
        self._progress.update(self._task, completed=done, total=total)


class ProgressArtifact:
    """A bar on the flow run's page; must be used inside a flow or task run."""

    def __init__(self, description: str) -> None:
        from prefect.artifacts import create_progress_artifact

        artifact_id = create_progress_artifact(progress=0.0, key="progress", description=description)
        assert isinstance(artifact_id, UUID), type(artifact_id)
        self._artifact_id = artifact_id
        self._updated_at = time.monotonic()

    def update(self, done: int, total: int) -> None:
        """Moves the bar, at most every few seconds, and at the end."""
        from prefect.artifacts import update_progress_artifact

        now = time.monotonic()
        if done < total and now - self._updated_at < UPDATE_EVERY_S:
            return
        self._updated_at = now
        update_progress_artifact(self._artifact_id, progress=100.0 * done / total)
