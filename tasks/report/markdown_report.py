"""A run as Markdown that reads in Prefect's page: the result, the queries that gained and lost most, latency.

Ids only: texts of queries and documents are nobody's but the inputs'.
"""

import socket
from pathlib import Path

from tasks.report.headline import Headline
from tasks.report.summary_tables import SummaryTable
from tasks.report.table_formats import to_markdown
from tasks.store.night_store import Store

MEASURE = "nDCG@10"
SHOWN = 5  # queries that gained most, and that lost most
BAR = 20  # characters of a difference of 1
LATENCIES = (("queue", "queue_s"), ("time to first token", "ttft_s"), ("end to end", "e2el_s"))
QUANTILES = (("p50", 100), ("p90", 180), ("p99", 198))  # places among page/latency_quantiles' 201


def to_report(store: Store, headline: Headline, page: Path | None) -> str:
    """The report.

    Args:
        store: the run's database.
        headline: of the run.
        page: the run's HTML page, where one was written.

    Raises:
        StoreError: somebody else holds the database.
    """
    run_id = headline.run["run_id"]
    tables = [_moved(store, run_id), _latency(store, run_id)]
    return headline.to_markdown() + to_markdown([each for each in tables if each is not None]) + _where(page, run_id)


def _moved(store: Store, run_id: str) -> SummaryTable | None:
    rows = store.query("page/quality_by_query", {"run_id": run_id, "measure": MEASURE}).to_pylist()
    if not rows:
        return None
    gained = [row for row in rows if row["difference"] > 0][:SHOWN]
    lost = [row for row in rows if row["difference"] < 0][-SHOWN:]
    cells = tuple(
        (row["query_id"], f"{row['first_stage']:.3f}", f"{row['reranked']:.3f}", _bar(row["difference"]))
        for row in gained + lost
    )
    return SummaryTable(f"{MEASURE}: gained and lost most", ("query", "before", "after", "difference"), cells)


def _bar(difference: float) -> str:
    return f"{difference:+.3f} {('█' if difference > 0 else '░') * max(1, round(abs(difference) * BAR))}"


def _latency(store: Store, run_id: str) -> SummaryTable | None:
    (found,) = store.query("page/latency_quantiles", {"run_id": run_id}).to_pylist()
    rows = tuple(
        (label, *(f"{found[column][place]:.3f}" for _, place in QUANTILES))
        for label, column in LATENCIES
        if found[column] is not None and found[column][0] is not None
    )
    return SummaryTable("Latency of a request, seconds", ("", *(name for name, _ in QUANTILES)), rows) if rows else None


def _where(page: Path | None, run_id: str) -> str:
    written = "" if page is None else f"The page with charts and texts: `{page}` on `{socket.gethostname()}`. "
    return f"\n{written}Anew, where the database is: `packrank report {run_id}`\n"
