"""The argument as a picture: what runs, what waits, block tables, used and wasted places, over the steps of an arm.

    sequences      running, and waiting on top of them
    block tables   made so far
    places         of the blocks in use: with a token, and empty on top of them

Charts of arms that are compared have the same axes. Knows nothing of databases and pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tasks.report.drawing import FIRST, INK, NUMBER, SECOND, Axes, Chart, draw_panels, show_legend

HEIGHT = 470


@dataclass(frozen=True, slots=True)
class ArmTimeline:
    """An arm to draw: its rows of page/timeline."""

    name: str  # unique on the page
    title: str
    max_num_seqs: int
    steps: Sequence[dict[str, Any]]


def draw_timelines(arms: Sequence[ArmTimeline]) -> list[Chart]:
    """One chart an arm, all on one time axis and with the same heights."""
    shown = [arm for arm in arms if arm.steps]
    until_s = max((row["until_s"] for arm in shown for row in arm.steps), default=0.0)
    most = {
        "sequences": max(
            (row["scheduled_seqs"] + row["waiting_seqs"] for arm in shown for row in arm.steps), default=0
        ),
        "tables": max((arm.steps[-1]["made_tables"] or 0 for arm in shown), default=0),
        "places": max(
            ((row["used_places"] or 0) + (row["wasted_places"] or 0) for arm in shown for row in arm.steps), default=0
        ),
    }
    return [_draw(arm, until_s, most) for arm in shown]


def _draw(arm: ArmTimeline, until_s: float, most: dict[str, int]) -> Chart:
    edges = np.array([*(row["since_start_s"] for row in arm.steps), arm.steps[-1]["until_s"]])
    edges = np.maximum.accumulate(edges)

    def column(name: str) -> np.ndarray:
        return np.array([row[name] or 0 for row in arm.steps], float)

    def sequences(axes: Axes) -> None:
        _stack(axes, edges, (column("scheduled_seqs"), "running"), (column("waiting_seqs"), "waiting"))
        axes.axhline(arm.max_num_seqs, color=INK, linewidth=1.2, linestyle=(0, (5, 3)), label="max_num_seqs")
        _finish(axes, "sequences", until_s, max(most["sequences"], arm.max_num_seqs))

    def tables(axes: Axes) -> None:
        axes.stairs(column("made_tables"), edges, fill=True, color=FIRST, alpha=0.75, label="made so far")
        _finish(axes, "block tables", until_s, most["tables"])

    def places(axes: Axes) -> None:
        _stack(axes, edges, (column("used_places"), "with a token"), (column("wasted_places"), "empty"))
        _finish(axes, "places", until_s, most["places"])
        axes.set_xlabel("seconds since the first step")

    used, wasted = column("used_places").max(), column("wasted_places").max()
    caption = (
        f"{arm.title}: at most {column('scheduled_seqs').max():,.0f} running and "
        f"{column('waiting_seqs').max():,.0f} waiting, {arm.steps[-1]['made_tables'] or 0:,} block tables, at most "
        f"{used:,.0f} places with a token and {wasted:,.0f} empty; done after {arm.steps[-1]['until_s']:,.1f} s."
    )
    paints: list[Callable[[Axes], None]] = [sequences, tables, places]
    return draw_panels(f"argument-{arm.name}", arm.title, caption, paints, HEIGHT)


def _stack(axes: Axes, edges: np.ndarray, lower: tuple[np.ndarray, str], upper: tuple[np.ndarray, str]) -> None:
    (low, low_label), (high, high_label) = lower, upper
    axes.stairs(low, edges, fill=True, color=FIRST, alpha=0.75, label=low_label)
    axes.stairs(low + high, edges, baseline=low, fill=True, color=SECOND, alpha=0.75, label=high_label)


def _finish(axes: Axes, quantity: str, until_s: float, most: int) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set(ylabel=quantity, xlim=(0.0, until_s * 1.02 or 1.0), ylim=(0.0, most * 1.08 or 1.0))
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(NUMBER)
    show_legend(axes)
