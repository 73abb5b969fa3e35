"""The life of a run, from settings to published scores, as plain functions: the flow only calls them in order.

    prepare (reads footers, writes nothing) -> open (lock, run row) -> stage -> rank -> evaluate -> check -> publish

Knows nothing of Prefect: a task called outside a flow would start a temporary server.
"""

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from tasks.errors import CheckFailed, FollowUpFailed, StoreError
from tasks.generate.process import EngineOnDemand
from tasks.keep.checks import Check, checks_of, failed_checks, run_checks
from tasks.keep.disk import told_when_full
from tasks.keep.store import RunState, Store, run_lock
from tasks.night.ranking import OnProgress, RankStage, whole_run
from tasks.night.request import PreparedNight
from tasks.night.runs import (
    choose_run_id,
    find_earlier_run,
    has_nothing_to_requeue,
    new_run,
    note_failure,
    num_shards_of,
    store_of,
)
from tasks.night.shards.stage import RunShards, ShardStage, ranks_in_turn
from tasks.offer.publication import follow_up
from tasks.offer.publish import publish_run
from tasks.read.staging import StagedInput

logger = logging.getLogger(__name__)


class Night:
    """A run that holds its database's run lock; see `open_night`."""

    def __init__(self, prepared: PreparedNight, run_id: str, state: RunState | None, store: Store) -> None:
        self.prepared = prepared
        self.run_id = run_id
        self.state = state  # before this start; None: the run is new
        self.store = store
        self._staged: StagedInput | None = None
        self._ranking: RankStage | None = None
        self._shards: ShardStage | None = None
        self._follow_up_error: FollowUpFailed | None = None

    @property
    def is_ranked(self) -> bool:
        """Whether every query had its row before this start."""
        return self.state is not None and self.state.is_ranked

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do: published, or complete, checked and well where nobody asks to publish.

        A degraded run is never done: the limits of its checks may have been raised since.
        """
        if self.state is None or not self.state.is_ranked:
            return False
        if self.state.status == "published":
            return self.state.is_offered
        return not self.prepared.publish and self.state.is_checked and not self.state.is_degraded

    @property
    def _is_published(self) -> bool:
        """Whether it was before this start."""
        return self.state is not None and self.state.status == "published"

    @property
    def unit(self) -> str:
        """What `rank` counts for its listeners."""
        return "windows" if self._shards is None else "shards"

    def stage(self, *, starts_engine: bool = False) -> None:
        """Reads, checks and lays out the night's input; shards do so each for its own queries.

        Args:
            starts_engine: whether the run's own engine may load its model meanwhile.

        Raises:
            InputError: see `stage_input`.
            StoreError: the disk has no room for it.
        """
        num_shards = num_shards_of(self.prepared, self.store, self.run_id)
        if num_shards > 1:
            self._shards = ShardStage(self.prepared, self.run_id, self.store, num_shards)
            self._shards.lay_out()
            return
        self.prepared.require_space_to_stage()
        ranking = RankStage(self.prepared, self.run_id, self.store, whole_run(self.prepared, self.run_id, self.store))
        self._ranking = ranking
        folder = self.prepared.work_folder / "staging" / self.store.path.stem
        staged = self.prepared.stage(folder, on_matched=ranking.start_engine if starts_engine else None)
        self._staged = staged
        self.store.update(
            "note_input",
            {
                "run_id": self.run_id,
                "num_queries": staged.num_queries,
                "num_candidates": staged.num_candidates,
                "notes": json.dumps(staged.notes),
            },
        )
        logger.info(
            "run_id=%s queries=%d candidates=%d quarantined=%d partition=%s notes=%s",
            self.run_id,
            staged.num_queries,
            staged.num_candidates,
            staged.quarantine.num_rows,
            self.prepared.found.partition,
            staged.notes,
        )

    def rank(
        self,
        *listeners: OnProgress,
        engine: EngineOnDemand | None = None,
        run_shards: RunShards | None = None,
    ) -> None:
        """Ranks every staged query that has no row yet, and commits each batch as it ends.

        Args:
            listeners: each is told (done, in all) after every batch, of windows; or of shards, where there are several.
            engine: one that somebody else starts and ends; its own if not given.
            run_shards: how shards are run; one after another in this process if not given.

        Raises:
            EngineError, StoreError, ConfigError: what was committed stays, the same command goes on from there.
        """
        if self._shards is not None:
            self._complete(self._shards.rank(run_shards or ranks_in_turn(self.prepared), *listeners))
            self._shards.remove_spool()
            return
        if self._ranking is None or self._staged is None:
            raise RuntimeError("rank() before stage()")
        num_queries = self._staged.num_queries
        self._ranking.rank(self._staged, *listeners, engine=engine)
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
        # pandas takes a second that other nights save
        from tasks.judge.evaluation import NIGHT_MEASURES, RunOrders, measure_run, metric_rows, read_qrels

        queries = frozenset(self._rows("summary/list_queries").column("query_id").to_pylist())
        qrels = read_qrels(self.prepared.settings.inputs, self.prepared.night)
        if not qrels.relevant_queries & queries:
            logger.warning("run_id=%s: no query has a relevant judgment, nothing is measured", self.run_id)
            return
        if self.prepared.limit_queries is not None:
            qrels = qrels.of_queries(set(queries))  # a trial is judged on what it ran
        orders = RunOrders(self.run_id, queries, self._rows("summary/run_scores").to_pandas())
        self.store.replace_metrics(self.run_id, metric_rows(measure_run(orders, qrels, NIGHT_MEASURES)))

    def check(self) -> None:
        """Runs the checks and stores what they found, unless it is published already; `conclude` tells."""
        if self._is_published:
            return
        run_checks(self.store, self.run_id, self._checks())

    def publish(self) -> None:
        """Makes this the run of its night for `latest_scores`, if that was asked for and every check passed.

        Then does what `[store]` wants done after that, also where an earlier start came only so far; what of it failed,
        `conclude` tells.
        """
        if (self.prepared.publish and not self._failed_checks()) or self._is_published:
            publish_run(self.store, self.run_id, is_whole=True)  # a limited night does not come here
            logger.info("run_id=%s published", self.run_id)
            try:
                for line in follow_up(self.store, self.prepared.settings.store, self.run_id):
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
        failed = self._failed_checks()
        if failed:
            raise CheckFailed(
                f"run {self.run_id}: {len(failed)} checks failed, the scores are stored but not published: "
                f"{'; '.join(failed)}. docs/operations.md says what to do."
            )
        if self._follow_up_error is not None:
            raise self._follow_up_error

    def _failed_checks(self) -> list[str]:
        return failed_checks(self.store, self.run_id, self._checks())

    def _checks(self) -> list[Check]:
        settings = self.prepared.settings
        return checks_of(settings.checks, keeps_budget=settings.packing.promise == "no_preemption")

    def _complete(self, num_queries: int) -> None:
        run = {"run_id": self.run_id}
        with self.store.unit_of_work() as database:
            (counted,) = database.query("run/count_rankings", run).to_pylist()
            if counted["num_rankings"] != num_queries:
                raise StoreError(
                    f"run {self.run_id}: {counted['num_rankings']} of {num_queries} queries have a row in "
                    f"{self.store.path}. Run the same command again: what is missing is computed again."
                )
            database.execute("run/note_reuse", run)
            database.execute("run/finish_run", run | {"status": "complete", "error": None})

    def _rows(self, name: str) -> pa.Table:
        return self.store.query(name, {"run_id": self.run_id})


@contextmanager
def open_night(prepared: PreparedNight, flow_run_id: str | None) -> Iterator[Night]:
    """Takes the run lock and the run up; on the way out the run's row tells how it ended.

    A run that has nothing left to do is not taken up, and needs no lock.

    Raises:
        AlreadyRunning: another run holds the lock. AlreadyInProgress where that is this very run.
        StoreError: the database cannot be opened.
    """
    night = find_night(prepared)
    if night.is_done:
        yield night
        return
    with run_lock(night.store.path, night.run_id), told_when_full(prepared.work_folder):
        night.store.prepare()
        night = find_night(prepared)  # again: another start may have ended it meanwhile
        if not night.is_ranked:
            if night.state is not None:
                logger.info("run_id=%s taken_up_from=%s", night.run_id, night.state.status)
            earlier = find_earlier_run(prepared)
            run = new_run(prepared, night.run_id, flow_run_id, earlier.run_id if earlier else None)
            night.store.begin_run(run, reuses=prepared.reuse != "nothing")
        try:
            yield night
        except BaseException as error:
            if not (night.is_ranked or isinstance(error, CheckFailed | FollowUpFailed)):
                note_failure(night.store, night.run_id, error)
            raise
        finally:
            night.end_engine()
            for scratch in ("staging", "tmp"):
                shutil.rmtree(prepared.work_folder / scratch / night.store.path.stem, ignore_errors=True)


def find_night(prepared: PreparedNight) -> Night:
    """The run as the database knows it, without taking it up."""
    store = store_of(prepared)
    repeats = store.find_repeats(prepared.base_run_id)
    rerun = prepared.rerun and not has_nothing_to_requeue(prepared, store, repeats)
    run_id = choose_run_id(prepared.base_run_id, repeats, rerun=rerun)
    return Night(prepared, run_id, repeats.get(run_id), store)


def run_night(prepared: PreparedNight, *listeners: OnProgress) -> str:
    """The whole night without Prefect; returns the run_id. The flow does the same, stage by stage.

    Raises:
        PackrankError: see the stages.
    """
    with open_night(prepared, flow_run_id=None) as night:
        if not night.is_ranked:
            night.stage(starts_engine=True)
            night.rank(*listeners)
        if not night.is_done:  # also a run that was killed between its last query and its checks
            night.evaluate()
            night.check()
            night.publish()
        night.conclude()
    return night.run_id
