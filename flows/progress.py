"""How far a night is, for people at a terminal: a bar, told `(done, in all)`, of windows as a rule.

Knows nothing of what a window is. `flows.messenger` has Prefect's bar.
"""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tasks.system.redaction import printable


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
