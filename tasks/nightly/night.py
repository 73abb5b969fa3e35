"""The life of a run, from settings to published scores, as plain functions: the flow only calls them in order.

    prepare (reads footers, writes nothing) -> open (lock, run row) -> stage -> rank -> evaluate -> check -> publish

Knows nothing of Prefect: a task called outside a flow would start a temporary server.
"""

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tasks.engine.process import EngineOnDemand
from tasks.inputs.staging import StagedInput
from tasks.nightly.night_progress import OnProgress, begin_phase
from tasks.nightly.prepare import NightRequest, PreparedNight, prepare_night
from tasks.nightly.ranking_stage import RankStage, warn_of_low_id_mass, whole_run
from tasks.nightly.run_choice import choose_run, find_reuse_source, new_run, note_failure, store_of
from tasks.nightly.shards import RunShards, ShardStage, ranks_in_turn
from tasks.ranking.reuse import ReuseSource
from tasks.report.summary_tables import value_text
from tasks.store.checks import Check, checks_of, failed_checks, run_checks
from tasks.store.night_store import Store
from tasks.store.publication import follow_up, publish
from tasks.store.runs import Run, Runs
from tasks.system.disk import told_when_full
from tasks.system.errors import AlreadyInProgress, AlreadyRunning, CheckFailed, FollowUpFailed, LogUnreadable
from tasks.system.run_lock import await_run_lock, run_lock

logger = logging.getLogger(__name__)

RunStage = Callable[[str, Callable[[], None]], None]  # is given a stage's name, and the stage


class Night:
    """A run that holds its database's run lock; see `open_night`."""

    def __init__(
        self, prepared: PreparedNight, run_id: str, run: Run | None, earlier: ReuseSource | None, store: Store
    ) -> None:
        self.prepared = prepared
        self.run_id = run_id
        self.found = run  # before this start; None: the run is new
        self.store = store
        self.listeners: Sequence[OnProgress] = ()  # told of each phase, and of each batch or shard
        self._earlier = earlier
        self._run: Run | None = None  # as it began
        self._engine: EngineOnDemand | None = None  # somebody else's
        self._staged: StagedInput | None = None
        self._ranking: RankStage | None = None
        self._shards: ShardStage | None = None
        self._failures: list[str] | None = None  # of its checks, as this start found them
        self._follow_up_error: FollowUpFailed | None = None

    @property
    def is_ranked(self) -> bool:
        """Whether every query had its row before this start."""
        return self.found is not None and self.found.is_ranked

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do: published, or complete, checked and well where nobody asks to publish.

        A degraded run is never done: the limits of its checks may have been raised since.
        """
        if self.found is None or not self.found.is_ranked:
            return False
        if self._is_published:
            return self.found.offered_at is not None
        return not self.prepared.publish and self.found.failed_checks is not None and not self.found.is_degraded

    @property
    def _is_published(self) -> bool:
        """Whether it was before this start."""
        return self.found is not None and self.found.status == "published"

    def begin(self, flow_run_id: str | None, engine: EngineOnDemand | None) -> None:
        """Adds the run's row, or takes it up again."""
        earlier_run_id = None if self._earlier is None else self._earlier.run_id
        run = new_run(self.prepared, self.run_id, flow_run_id, earlier_run_id)
        if self.found is not None:
            logger.info("run_id=%s taken_up_from=%s", self.run_id, self.found.status)
            run = self.found.taken_up(run, reuses=self.prepared.reuse != "nothing")
        self.store.begin_run(run)
        self._run, self._engine = run, engine
        for warning in self.prepared.input_warnings:
            logger.warning("run_id=%s %s", self.run_id, warning)

    def stage(self) -> None:
        """Reads, checks and lays out the night's input; shards do so each for its own queries.

        Raises:
            InputError: see `stage_input`.
            StoreError: the disk has no room for it.
        """
        run, asked = self._run, self.prepared.settings.packing.shards
        if run is None:
            raise RuntimeError("stage() before begin()")
        begin_phase("reading the input", self.run_id, self.listeners)
        if run.num_shards != asked:
            told = "run_id=%s keeps the %d shards that it began with; [packing] shards = %d"
            logger.warning(told, self.run_id, run.num_shards, asked)
        if run.num_shards > 1:
            self._shards = ShardStage(self.prepared, run, self.store)
            self._shards.lay_out(self._earlier)
            return
        self.prepared.require_space_to_stage()
        part = whole_run(self.prepared, self.run_id, self._earlier)
        self._ranking = RankStage(self.prepared, run, self.store, part, self.listeners)
        on_matched = self._ranking.start_engine if self._engine is None else None
        staged = self.prepared.stage(self.prepared.workspace.staging, on_matched=on_matched)
        self._staged = staged
        found = (staged.num_queries, staged.num_candidates, staged.notes)
        self.store.write_later(lambda database: Runs(database).note_input(self.run_id, *found))
        logger.info(
            "run_id=%s queries=%d candidates=%d quarantined=%d partition=%s notes=%r",
            self.run_id,
            staged.num_queries,
            staged.num_candidates,
            staged.quarantine.num_rows,
            self.prepared.found.partition,
            ", ".join(f"{rows} {note}" for note, rows in staged.notes.items()),
        )

    def rank(self, run_shards: RunShards | None = None) -> None:
        """Ranks every staged query that has no row yet, and commits each batch as it ends.

        Args:
            run_shards: how shards are run; one after another in this process if not given.

        Raises:
            EngineError, StoreError, ConfigError: what was committed stays, the same command goes on from there.
        """
        if self._shards is not None:
            self._complete(self._shards.rank(run_shards or ranks_in_turn(self.prepared), self.listeners))
            self._shards.remove_spool()
            return
        if self._ranking is None or self._staged is None:
            raise RuntimeError("rank() before stage()")
        num_queries = self._staged.num_queries
        self._ranking.rank(self._staged, self._engine)
        self._staged = None  # mapped files of 10^7 candidates are 0.7 GB of memory, which the checks want
        self._complete(num_queries)

    def end_engine(self) -> None:
        """Ends the run's own engine, if one runs."""
        if self._ranking is not None:
            self._ranking.end_engine()

    def evaluate(self) -> None:
        """Stores the quality of both orders, where the settings name judgments."""
        if self.prepared.settings.inputs.qrels is None:
            return
        begin_phase("evaluating", self.run_id, self.listeners)
        # pandas takes a second that other nights save
        from tasks.evaluation.evaluate import qrels_of
        from tasks.evaluation.measures import NIGHT_MEASURES, RunOrders, measure_run, metric_rows

        run = {"run_id": self.run_id}
        with self.store.reader() as database:
            queries = frozenset(database.query("evaluation/list_queries", run).column("query_id").to_pylist())
            rows = database.query("evaluation/list_orders", run).to_pandas()
        qrels = qrels_of(self.prepared.settings.inputs, self.prepared.night)
        if not qrels.relevant_queries & queries:
            logger.warning("run_id=%s: no query has a relevant judgment, nothing is measured", self.run_id)
            return
        orders = RunOrders(self.run_id, queries, rows, is_limited=self.prepared.limit_queries is not None)
        measured = metric_rows(measure_run(orders, qrels, NIGHT_MEASURES))
        for row in self.store.replace_metrics(self.run_id, measured):
            logger.warning("run_id=%s replaced in metrics, measured by another rule: %s", self.run_id, value_text(row))

    def check(self) -> None:
        """Runs the checks and stores what they found, unless it is published already; `conclude` tells."""
        if not self._is_published:
            begin_phase("checking", self.run_id, self.listeners)
            self._failures = run_checks(self.store, self.run_id, self._checks())

    def publish(self) -> None:
        """Makes this the run of its night for `latest_scores`, if that was asked for and every check passed.

        Then does what `[store]` asks for after publishing, even if an earlier start got no further. `conclude` reports
        what failed.
        """
        if not (self._is_published or (self.prepared.publish and not self._failed_checks())):
            return
        begin_phase("publishing", self.run_id, self.listeners)
        published = publish(self.store, self.run_id, self.prepared.settings.store)
        logger.info("run_id=%s published", self.run_id)
        if published.hidden is not None:
            logger.warning("run_id=%s %s", self.run_id, published.hidden)
        try:
            for line in follow_up(self.store, published):
                logger.info("run_id=%s %s", self.run_id, line)
        except FollowUpFailed as error:
            self._follow_up_error = error

    def conclude(self) -> None:
        """Ends a night that went through.

        Raises:
            CheckFailed: its scores are stored, but a check failed and they are not published.
            FollowUpFailed: they are published, but not exported, say.
        """
        if self.is_done:
            logger.info("run_id=%s already done", self.run_id)
            self.store.empty_log()  # a process killed after its last commit left it: a copy of the file would lack that
        failed = self._failed_checks()
        if failed:
            raise CheckFailed(
                f"run {self.run_id}: {len(failed)} checks failed, the scores are stored but not published: "
                f"{'; '.join(failed)}. docs/operations.md says what to do."
            )
        if self._follow_up_error is not None:
            raise self._follow_up_error

    def _failed_checks(self) -> list[str]:
        if self._failures is None:
            self._failures = failed_checks(self.store, self.run_id, self._checks())
        return self._failures

    def _checks(self) -> list[Check]:
        settings = self.prepared.settings
        return checks_of(settings.checks, keeps_budget=settings.packing.promise == "no_preemption")

    def _complete(self, num_queries: int) -> None:
        with self.store.unit_of_work() as database, database.transaction():
            Runs(database).complete(self.run_id, num_queries)
            database.execute("forecast/note_actual", {"run_id": self.run_id})
            warn_of_low_id_mass(database, self.run_id)


def run_stages(night: Night, rank: Callable[[], None], run: RunStage = lambda _, stage: stage()) -> None:
    """Runs the stages that a night still needs, in order. `rank` is its own with listeners; `run` runs one stage."""
    if not night.is_ranked:
        run("stage", night.stage)
        run("rank", rank)
    if not night.is_done:  # also a run that was killed between its last query and its checks
        run("evaluate", night.evaluate)
        run("check", night.check)
        run("publish", night.publish)


def run_night(prepared: PreparedNight, *listeners: OnProgress) -> str:
    """The whole night without Prefect; returns the run_id.

    Raises:
        PackrankError: see the stages.
    """
    with open_night(prepared, flow_run_id=None, listeners=listeners) as night:
        run_stages(night, night.rank)
        night.conclude()
    return night.run_id


@contextmanager
def open_night(
    prepared: PreparedNight,
    flow_run_id: str | None,
    engine: EngineOnDemand | None = None,
    listeners: Sequence[OnProgress] = (),
) -> Iterator[Night]:
    """Takes the run lock, and starts or resumes the run; on exit the run's row records how it ended.

    A run that has nothing left to do is not taken up, and needs no lock.

    An `engine` that is given is started and ended by somebody else.

    Raises:
        AlreadyRunning: another run holds the lock. AlreadyInProgress where that is this very run.
        StoreError: the database cannot be opened.
    """
    night = find_night(prepared)
    if night.is_done:
        yield night
        return
    with run_lock(night.store.path, night.run_id), told_when_full(prepared.workspace.folder):
        night.store.prepare()
        night = find_night(prepared, night.store)  # again: another start may have ended it meanwhile
        night.listeners = listeners
        if not night.is_ranked:
            night.begin(flow_run_id, engine)
        try:
            yield night
        except BaseException as error:
            if not (night.is_ranked or isinstance(error, CheckFailed | FollowUpFailed)):
                note_failure(night.store, night.run_id, error)
            raise
        finally:
            night.end_engine()
            for folder in (prepared.workspace.staging, prepared.workspace.scratch):
                shutil.rmtree(folder, ignore_errors=True)


def in_turn(request: NightRequest, prepared: PreparedNight, run: Callable[[PreparedNight], str], *, waits: bool) -> str:
    """Runs a night when no other holds its database; what it prepared before it waited is prepared again.

    Args:
        request: what was prepared.
        prepared: of `request`.
        run: takes the run lock and runs the night; returns the run_id.
        waits: for the end of whatever other run holds the lock.

    Raises:
        AlreadyRunning: another run holds the lock, and `waits` is false. AlreadyInProgress where that is this very run.
        PackrankError: as `run` and `prepare_night` do.
    """
    while True:
        try:
            return run(prepared)
        except AlreadyInProgress:
            raise
        except AlreadyRunning as other:
            if not waits:
                raise
            logger.warning("night %s waits for its turn: %s", prepared.night, other)
        await_run_lock(prepared.settings.database_path)
        prepared = prepare_night(replace(request, night=prepared.night))


def find_night(prepared: PreparedNight, store: Store | None = None) -> Night:
    """The run as the database knows it, without taking it up; a log that power failure tore is set aside first."""
    store = store or store_of(prepared)
    try:
        return _find_night(prepared, store)
    except LogUnreadable as error:
        with run_lock(store.path, prepared.base_run_id):
            store.set_log_aside(str(error))
        return _find_night(prepared, store)


def _find_night(prepared: PreparedNight, store: Store) -> Night:
    with store.runs() as runs:
        repeats = {} if runs is None else runs.find_repeats(prepared.base_run_id)
        run_id = choose_run(prepared, runs, repeats)
        run = repeats.get(run_id)
        is_ranked = run is not None and run.is_ranked
        earlier = None if runs is None or is_ranked else find_reuse_source(prepared, runs, repeats, run)
    return Night(prepared, run_id, run, earlier, store)
