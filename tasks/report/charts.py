"""The charts of a run's page: inline SVG that takes the page's colours and fonts, the same bytes for the same numbers.

Drawn by matplotlib, which is imported only while drawing. Every id inside a chart begins with the chart's name, so that
charts on one page cannot meet. Knows nothing of databases and pages.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tasks.report.drawing import FIRST, INK, NUMBER, SECOND, Axes, Chart, draw_chart, show_legend

Row = dict[str, Any]
LATENCIES = (  # column of windows, what it is, its line
    ("e2el_s", "E2EL, to the last token", {"color": FIRST, "linewidth": 2.2}),
    ("ttft_s", "TTFT, to the first", {"color": INK, "linewidth": 1.4, "linestyle": (0, (5, 2))}),
    ("queue_s", "queued", {"color": SECOND, "linewidth": 1.6}),
)
MAX_LABELLED = 30  # queries, each a bar with its name; more are drawn as one area
MAX_NAME = 16  # characters of a name below its bar
MAX_POINTS = 400  # of such an area


def difference_chart(rows: Sequence[Row], measure: str) -> Chart:
    """A measure's difference by query, `rows` best first."""
    caption = (
        f"{measure} after reranking less before, one bar a query, best first: "
        f"{sum(row['difference'] > 0 for row in rows)} up, {sum(row['difference'] < 0 for row in rows)} down, "
        f"{sum(row['difference'] == 0 for row in rows)} equal."
    )
    differences = np.array([row["difference"] for row in rows])
    if len(rows) > MAX_LABELLED:
        return draw_chart("quality", f"{measure} by query", caption, _area(differences, measure))
    names = [_name(row["query_id"]) for row in rows]
    return draw_chart("quality", f"{measure} by query", caption, _bars(names, differences, measure))


def latency_chart(quantiles: Row, serving: Row) -> Chart | None:
    """How long requests took, and how long of it they were queued; None where the engine told no times.

    With one-token answers TTFT is E2EL, and drawn once.

    Args:
        quantiles: for each column of windows its quantiles at even steps from 0 to 1, seconds; null where it has none.
        serving: the run's row of serving_benchmark, for the marks.
    """
    marks = {"p50": (serving["median_e2el_s"], 50.0), "p99": (serving["p99_e2el_s"], 99.0)}
    if not quantiles["e2el_s"] or serving["median_e2el_s"] is None:
        return None
    is_one_token = serving["mean_tpot_s"] is None
    curves = [each for each in LATENCIES if quantiles[each[0]] and not (is_one_token and each[0] == "ttft_s")]
    right = max(quantiles["e2el_s"][-1], serving["p99_e2el_s"]) * 1.05 or 1.0

    def paint(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        for name, label, line in curves:
            shares = np.linspace(0.0, 100.0, len(quantiles[name]))
            axes.step([0.0, *quantiles[name], right], [0.0, *shares, 100.0], where="post", label=label, **line)
        for label, (value, share) in marks.items():
            axes.plot([value], [share], "o", color=FIRST, markersize=7)
            is_left = value < right / 2  # the label of p99 stands above the curves, that of p50 where there is room
            place = (8 if is_left else -8, 5 if share > 90 else -14 if is_left else 5)
            text, side = f"{label} {_seconds(value)}", "left" if is_left else "right"
            axes.annotate(text, (value, share), place, textcoords="offset points", ha=side)
        axes.set(xlim=(0.0, right), ylim=(0.0, 118.0), xlabel="seconds", ylabel="requests done, %")
        axes.set_yticks(range(0, 101, 25))
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.xaxis.set_major_formatter(NUMBER)
        show_legend(axes)

    caption = (
        f"Share of requests that were done within so many seconds: half within {_seconds(serving['median_e2el_s'])} "
        f"(p50), 99% within {_seconds(serving['p99_e2el_s'])} (p99)."
        + (" Answers have one token, so that TTFT is E2EL." if is_one_token else "")
    )
    return draw_chart("latency", "How long requests took", caption, paint)


def sequences_chart(
    steps: Sequence[Row],
    max_num_seqs: int | None,
    name: str = "sequences",
    title: str = "Sequences scheduled and waiting",
) -> Chart:
    """Sequences scheduled and waiting over the engine's steps; a page with several names each."""
    seconds = [row["since_start_s"] for row in steps]

    def paint(axes: Axes) -> None:
        axes.step(seconds, [row["waiting_seqs"] for row in steps], color=SECOND, label="waiting", where="post")
        axes.step(seconds, [row["scheduled_seqs"] for row in steps], color=FIRST, label="scheduled", where="post")
        _limit(axes, max_num_seqs, "max_num_seqs")
        _over_time(axes, "sequences")

    most, waiting = (max(row[name] for row in steps) for name in ("scheduled_seqs", "waiting_seqs"))
    caption = (
        f"Sequences by engine step: at most {most:,} scheduled of max_num_seqs {_number(max_num_seqs)}, at most "
        f"{waiting:,} waiting; {_points(steps, 'num_steps', 'steps')}."
    )
    return draw_chart(name, title, caption, paint)


def blocks_chart(
    steps: Sequence[Row], num_gpu_blocks: int | None, name: str = "blocks", title: str = "KV-cache blocks in use"
) -> Chart:
    """KV-cache blocks in use over the engine's steps; a page with several names each."""
    seconds = [row["since_start_s"] for row in steps]

    def paint(axes: Axes) -> None:
        axes.step(seconds, [row["blocks_used"] for row in steps], color=FIRST, label="in use", where="post")
        _limit(axes, num_gpu_blocks, "num_gpu_blocks")
        _over_time(axes, "KV-cache blocks")

    caption = (
        f"KV-cache blocks in use by engine step: at most {max(row['blocks_used'] for row in steps):,} of "
        f"num_gpu_blocks {_number(num_gpu_blocks)}; {_points(steps, 'num_steps', 'steps')}."
    )
    return draw_chart(name, title, caption, paint)


def budget_chart(batches: Sequence[Row]) -> Chart:
    """Blocks that each batch has in use at once, estimated, against the cache."""
    cache_blocks = batches[0]["cache_blocks"]

    def paint(axes: Axes) -> None:
        edges = _edges(batches)
        needed = [row["blocks_at_once"] for row in batches]
        axes.stairs(needed, edges, fill=True, color=FIRST, alpha=0.75, label="in use at once")
        _limit(axes, cache_blocks, "cache")
        _by_batch(axes, "KV-cache blocks")

    most = max(row["blocks_at_once"] for row in batches)
    caption = (
        f"KV-cache blocks that each batch has in use at once, estimated: at most {most:,} of {_number(cache_blocks)}; "
        f"{_points(batches, 'num_batches', 'batches')}."
    )
    return draw_chart("budget", "Blocks in use by batch", caption, paint)


def waste_chart(batches: Sequence[Row]) -> Chart:
    """What each batch left empty in last blocks, and what it found in the prefix cache."""

    def paint(axes: Axes) -> None:
        for name, colour, label in (("waste_share", SECOND, "last-block waste"), ("cached_share", FIRST, "cached")):
            shares = [(row[name] or 0.0) * 100.0 for row in batches]
            axes.stairs(shares, _edges(batches), baseline=None, color=colour, linewidth=2, label=label)
        axes.set_ylim(bottom=0.0, top=max(axes.get_ylim()[1], 1.0))
        _by_batch(axes, "share of tokens, %")

    waste, cached = (max(row[name] or 0.0 for row in batches) for name in ("waste_share", "cached_share"))
    caption = (
        f"Empty places in last blocks per token stored (at most {waste:.1%}) and prompt tokens found in the prefix "
        f"cache (at most {cached:.1%}), by batch."
    )
    return draw_chart("waste", "Waste and cache by batch", caption, paint)


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value >= 100 else f"{value:.3g} s"


def _bars(names: Sequence[str], differences: np.ndarray, measure: str) -> Callable[[Axes], None]:
    def paint(axes: Axes) -> None:
        places = np.arange(len(names))
        axes.bar(places, differences, color=[SECOND if value < 0 else FIRST for value in differences], width=0.7)
        axes.set_xticks(places, names, rotation=90)
        axes.set(xlim=(-0.8, max(len(names), 8) - 0.2), ylabel=f"difference of {measure}")
        axes.axhline(0.0, color=INK, linewidth=1)
        if not differences.any():
            axes.set_ylim(-0.1, 0.1)

    return paint


def _area(differences: np.ndarray, measure: str) -> Callable[[Axes], None]:
    def paint(axes: Axes) -> None:
        places = np.unique(np.linspace(0, len(differences) - 1, MAX_POINTS).round().astype(int))
        shown = differences[places]
        axes.fill_between(places + 1, np.maximum(shown, 0.0), step="mid", color=FIRST, linewidth=0)
        axes.fill_between(places + 1, np.minimum(shown, 0.0), step="mid", color=SECOND, linewidth=0)
        axes.axhline(0.0, color=INK, linewidth=1)
        axes.set(xlabel="queries, best first", ylabel=f"difference of {measure}", xlim=(0.5, len(differences) + 0.5))

    return paint


def _limit(axes: Axes, value: int | None, label: str) -> None:
    if value is not None:
        axes.axhline(value, color=INK, linewidth=1.2, linestyle=(0, (5, 3)), label=label)


def _over_time(axes: Axes, quantity: str) -> None:
    axes.set(xlabel="seconds since the first step", ylabel=quantity)
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(NUMBER)
    show_legend(axes)


def _by_batch(axes: Axes, quantity: str) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.set(xlabel="batch", ylabel=quantity)
    axes.set_ylim(bottom=0.0)
    axes.yaxis.set_major_formatter(NUMBER)
    show_legend(axes)


def _edges(batches: Sequence[Row]) -> np.ndarray:
    firsts = [row["first_batch"] for row in batches]
    return np.array([*firsts, batches[0]["num_batches"]]) + 0.5  # batch 1 is the first that was asked


def _points(rows: Sequence[Row], total: str, what: str) -> str:
    """How many there are, and whether a point stands for several."""
    num = rows[0][total]
    what = {"batches": "batch", "steps": "step"}[what] if num == 1 else what
    return f"{num:,} {what}" + (f", each point the largest of about {num / len(rows):.0f}" if num > len(rows) else "")


def _number(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _name(text: str) -> str:
    """Data text as a label: printable, XML can hold it, short."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    return shown if len(shown) <= MAX_NAME else shown[: MAX_NAME - 1] + "…"
