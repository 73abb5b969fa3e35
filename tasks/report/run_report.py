"""One run as one page: a single HTML file that opens from disk anywhere and asks the network for nothing.

Figures come from the views, so that page, log and query cannot disagree; each is on the page with its column
(`data-key`) and its unrounded value (`data-value`). Texts of queries and passages are no part of the database: they are
read again from the run's inputs, as long as those are what they were. Knows nothing of how a run was made.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

from tasks.report.page import render_page
from tasks.report.page_sections import MAX_POINTS, MEASURE, RunFacts
from tasks.report.page_tables import Row
from tasks.report.run_texts import read_texts
from tasks.report.sql_shell import read_rows
from tasks.settings import InputSettings
from tasks.store.night_store import Store
from tasks.store.runs import runs_of
from tasks.system.atomic_files import whole_file
from tasks.system.database import read_sql
from tasks.system.errors import PackrankError, first_line
from tasks.system.redaction import hide_url_secrets
from tasks.system.workspace import Workspace

logger = logging.getLogger(__name__)
Query = Callable[[str, Mapping[str, object]], pa.Table]  # a statement's name and its parameters
SUMMARY_TABLES = (  # of sql/summary.sql
    *("run", "quality", "serving", "budget", "quarantine", "checks"),
    *("volumes", "canary_modes", "id_masses", "churn"),
)


def report_run(database: Path, run_id: str, output: Path | None, inputs: InputSettings | None = None) -> Path:
    """Writes a run's page and returns its path; the database is open, read-only, for one statement at a time.

    Args:
        database: where the run lies.
        run_id: whatever its status.
        output: `Workspace.report` if not given; replaced when the new page is complete.
        inputs: where the texts are; as the run's settings say if not given, which hold no secrets of URLs.

    Raises:
        StoreError: no such database, or a writer holds it for longer than a second.
        PackrankError: no such run, or the page cannot be written.
    """

    def query(name: str, parameters: Mapping[str, object]) -> pa.Table:
        return read_rows(database, read_sql(name), parameters)

    facts = read_facts(query, run_id)
    return _write_page(facts, inputs, output or Workspace(database).report(facts.run.run_id))


def report_night(store: Store, run_id: str, inputs: InputSettings | None = None) -> Path | None:
    """A night's page in its place; a page that cannot be made is a warning, not the end of the night."""
    try:
        return _write_page(read_facts(store.query, run_id), inputs, Workspace(store.path).report(run_id))
    except Exception as error:  # whatever it is: the night itself went through
        logger.warning(
            "run_id=%s has no report page: %s: %s", run_id, type(error).__name__, hide_url_secrets(first_line(error))
        )
        return None


def read_facts(query: Query, run_id: str) -> RunFacts:
    """Everything on the page but texts.

    Args:
        query: runs a statement by a connection of its own, so that nobody waits for all of them.
        run_id: the run.

    Raises:
        PackrankError: no such run.
    """
    tables: dict[str, list[Row]] = {}

    def read(name: str, **parameters: object) -> list[Row]:
        tables[name] = query(name, {"run_id": run_id} | parameters).to_pylist()
        return tables[name]

    run = next(iter(runs_of(query("runs/find_run", {"run_id": run_id}))), None)
    if run is None:
        raise PackrankError(f"no run {run_id!r} in the database. `packrank runs` lists them.")
    for name in SUMMARY_TABLES:
        read(f"summary/{name}")
    for name in ("latency_quantiles", "parse_statuses", "churn", "reordering"):
        read(f"page/{name}")
    for name, max_points in MAX_POINTS.items():
        read(name, max_points=max_points)
    read("page/quality_by_query", measure=MEASURE)
    movers = read("page/movers_by_quality", measure=MEASURE) or read("page/movers_by_rank")
    read("page/first_tens", query_ids=[row["query_id"] for row in movers])
    tables["movers"] = movers
    return RunFacts(run, tables["summary/run"][0], tables)


def _write_page(facts: RunFacts, inputs: InputSettings | None, output: Path) -> Path:
    wanted: dict[str, list[str]] = {}
    for row in facts.tables["page/first_tens"]:
        wanted.setdefault(row["query_id"], []).append(row["doc_id"])
    page = render_page(facts, read_texts(facts.run, wanted, inputs))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PackrankError(f"{output}: its folder cannot be made: {first_line(error)}. Give --output.") from error
    with whole_file(output) as stream:
        stream.write(page.encode("utf-8", "replace"))
    return output
