"""The runs of a database: one record for a row of `runs`, and one repository for the statements on that table.

Knows nothing of how a run is ranked, nor of locks and files: see `store`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from tasks.settings import OutcomeSettings
from tasks.system.database import KeptDatabase
from tasks.system.errors import CheckFailed, PackrankError, StoreError

ENGINE_COLUMNS = (  # what the engine reports at its start
    *("device", "dtype", "enable_prefix_caching"),
    *("num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"),
)
AGAIN = "Run its command again with --publish"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row of `runs`: sql/schema says what its columns mean. JSON is text; None is not known yet, or none."""

    run_id: str
    name: str
    night: date
    started_at: datetime
    settings: str
    resolved: str
    input_digest: str
    model: str
    model_identity: str
    strategy: str
    decode_mode: str
    versions: str
    host: str
    recipe: str | None = None
    input_partition: str | None = None
    input_warnings: Sequence[str] | None = None
    stages: Sequence[str] | None = None
    input_notes: str | None = None
    git_commit: str | None = None
    flow_run_id: str | None = None
    is_limited: bool = False
    reuse_run_id: str | None = None
    status: str = "running"
    is_degraded: bool = False
    failed_checks: Sequence[str] | None = None
    finished_at: datetime | None = None
    error: str | None = None
    published_at: datetime | None = None
    publication_no: int | None = None
    offered_at: datetime | None = None
    device: str | None = None
    dtype: str | None = None
    enable_prefix_caching: bool | None = None
    num_gpu_blocks: int | None = None
    block_size: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    num_queries: int | None = None
    num_candidates: int | None = None
    num_reused_queries: int | None = None

    @property
    def is_ranked(self) -> bool:
        """Whether every query has its row."""
        return self.status in ("complete", "published")

    @property
    def stored_settings(self) -> dict[str, Any]:
        """The settings as given, defaults filled in, without secrets."""
        values: dict[str, Any] = json.loads(self.settings)
        return values

    @property
    def num_shards(self) -> int:
        """How many shards rank it: as many as it began with, since each query's rows are in the one or the other."""
        return int(self.stored_settings.get("packing", {}).get("shards", 1))

    @property
    def engine(self) -> dict[str, Any]:
        """What the engine reported, ENGINE_COLUMNS."""
        return {name: getattr(self, name) for name in ENGINE_COLUMNS}

    def taken_up(self, now: "Run", *, reuses: bool) -> "Run":
        """This run, killed or failed before, as it begins again; `now` is what a new run would be.

        It keeps its start and the run that it reuses, unless it no longer `reuses`.
        """
        return replace(
            self,
            status="running",
            finished_at=None,
            error=None,
            is_limited=now.is_limited,
            versions=now.versions,
            git_commit=now.git_commit,
            host=now.host,
            flow_run_id=now.flow_run_id,
            reuse_run_id=self.reuse_run_id if reuses else None,
        )


def runs_of(rows: pa.Table) -> list[Run]:
    """Rows of `runs` as records, without what DuckDB computes."""
    return [Run(**row) for row in rows.drop_columns("elapsed_s").to_pylist()]


class Runs:
    """The table `runs` of one open database."""

    def __init__(self, database: KeptDatabase) -> None:
        self.database = database

    def find(self, run_id: str) -> Run | None:
        """The run of this id."""
        return self._first("find_run", {"run_id": run_id})

    def get(self, run_id: str) -> Run:
        """The run of this id; a PackrankError where there is none."""
        run = self.find(run_id)
        if run is None:
            raise PackrankError(f"{self.database.path}: no run {run_id!r}. `packrank runs` lists them.")
        return run

    def find_repeats(self, base_run_id: str) -> dict[str, Run]:
        """A run and its -rN repetitions, by run_id."""
        return {run.run_id: run for run in self._all("find_repeats", {"base_run_id": base_run_id})}

    def find_published(self, name: str, until: date = date.max) -> Run | None:
        """The run that `latest_scores` shows of a series, or showed when `until` was its newest published night."""
        return self._first("find_published", {"name": name, "until": until.isoformat()})

    def find_of_night(self, name: str, night: date) -> Run | None:
        """The run of a night that came furthest: the published one, else the newest; trials do not count."""
        return self._first("find_night", {"name": name, "night": night.isoformat()})

    def find_of_flow_run(self, flow_run_id: str) -> Run | None:
        """The run that a Prefect flow run took up."""
        return self._first("find_run_of_flow_run", {"flow_run_id": flow_run_id})

    def find_finished(self, name: str) -> list[Run]:
        """The finished runs of a series, the last to start first."""
        return self._all("list_finished_runs", {"name": name})

    def begin(self, run: Run) -> None:
        """Adds a run, or puts it in place of its row; runs that were killed or give way to it are marked so."""
        names = {"run_id": run.run_id, "name": run.name, "night": run.night.isoformat()}
        self.database.execute("runs/supersede_runs", names)
        self.database.execute("runs/replace_run", tables={"incoming": pa.Table.from_pylist([asdict(run)])})

    def note_input(self, run_id: str, num_queries: int, num_candidates: int, notes: Mapping[str, int]) -> None:
        """Notes what staging found."""
        found = {"num_queries": num_queries, "num_candidates": num_candidates, "notes": json.dumps(notes)}
        self._update("note_input", {"run_id": run_id, **found})

    def note_engine(self, run_id: str, columns: Mapping[str, Any]) -> None:
        """Notes what the engine reported, ENGINE_COLUMNS."""
        self._update("note_engine", {"run_id": run_id, **columns})

    def complete(self, run_id: str, num_queries: int) -> None:
        """Ends the ranking of a run; a StoreError where one of its queries has no row."""
        num_rankings = self.database.query("runs/count_rankings", {"run_id": run_id})["num_rankings"][0].as_py()
        if num_rankings != num_queries:
            raise StoreError(
                f"run {run_id}: {num_rankings} of {num_queries} queries have a row in {self.database.path}. "
                "Run the same command again: what is missing is computed again."
            )
        self._update("complete_run", {"run_id": run_id})

    def finish(self, run_id: str, status: str, error: str | None) -> None:
        """Ends a run that did not become complete, unless it is published: what goes wrong later does not undo that."""
        self._update("finish_run", {"run_id": run_id, "status": status, "error": error})

    def fail_crashed(self, flow_run_id: str) -> None:
        """Ends the run of a flow run whose process was killed."""
        self._update("fail_crashed_run", {"flow_run_id": flow_run_id})

    def note_checks(self, run_id: str, failed_checks: Sequence[str]) -> None:
        """Notes which checks failed."""
        self._update("note_checks", {"run_id": run_id, "failed_checks": list(failed_checks)})

    def publish(self, run: Run, keep_outcomes: OutcomeSettings) -> None:
        """Makes a complete run the one of its night; outcomes are kept of the newest published nights of its series.

        Its own log-probabilities go unless they are to be kept; what an earlier night kept of its own stays.

        Raises:
            CheckFailed: naming the checks that failed.
            PackrankError: it is unfinished, unchecked, or a trial.
        """
        self._require_publishable(run)
        self._update("publish_run", {"run_id": run.run_id})
        if not keep_outcomes.logprobs:
            self._update("drop_logprobs", {"run_id": run.run_id})
        self._update("delete_outcomes", {"name": run.name, "keep_nights": keep_outcomes.nights})

    def unpublish(self, run: Run) -> None:
        """Takes a published run back to complete: `latest_scores` shows the run before it."""
        if not run.is_ranked:
            raise PackrankError(
                f"{self.database.path}: run {run.run_id} is {run.status!r}, expected published. See `packrank runs`."
            )
        self._update("unpublish_run", {"run_id": run.run_id})

    def note_offered(self, run_id: str) -> None:
        """Notes that all that follows the run's publication is done."""
        self._update("note_offered", {"run_id": run_id})

    def _require_publishable(self, run: Run) -> None:
        where = f"{self.database.path}: run {run.run_id}"
        if run.status != "complete":
            raise PackrankError(f"{where} is {run.status!r}, expected complete. {AGAIN}: it resumes.")
        if run.is_limited:
            raise PackrankError(
                f"{where} is a trial: latest_scores would lose queries. Run it without --limit-queries."
            )
        if run.failed_checks is None:
            raise PackrankError(f"{where} was not checked. {AGAIN}: nothing is ranked again.")
        if run.failed_checks:
            raise CheckFailed(
                f"{where} failed {', '.join(run.failed_checks)}: it is not published. Raise a limit in [checks] and "
                "run its command again with --publish; docs/operations.md says more."
            )

    def _first(self, statement: str, parameters: Mapping[str, object]) -> Run | None:
        return next(iter(self._all(statement, parameters)), None)

    def _all(self, statement: str, parameters: Mapping[str, object]) -> list[Run]:
        return runs_of(self.database.query(f"runs/{statement}", parameters))

    def _update(self, statement: str, parameters: Mapping[str, object]) -> None:
        self.database.execute(f"runs/{statement}", parameters)
