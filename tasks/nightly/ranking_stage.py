"""The ranking stage of a run: cohorts through the engine, from the quarantined rows to the last commit.

Takes up what earlier starts committed, reuses what an earlier night ranked, and asks the canaries before the first
batch. Knows nothing of publishing.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.decode.answer import LOW_ID_MASS
from tasks.engine.engine_options import engine_options
from tasks.engine.generations import Engine, EngineInfo
from tasks.engine.kv_cache import check_promise
from tasks.engine.process import EngineOnDemand
from tasks.forecast.demand import num_windows_of, size_of
from tasks.forecast.rates import Deadline
from tasks.inputs.staging import StagedInput
from tasks.nightly.night_progress import DeadlineWatch, OnProgress, WindowCount, begin_phase
from tasks.nightly.outlook import RunToForecast, note_forecast
from tasks.nightly.prepare import PreparedNight
from tasks.ranking.canaries import ask_canaries, load_canaries, outside_identifiers, wrong_canaries
from tasks.ranking.cohort import Cohort, StoredOutcome
from tasks.ranking.query import StagedQuery
from tasks.ranking.recipe import Recipe
from tasks.ranking.reuse import ReuseDecision, ReuseSource, find_standings
from tasks.schedule.rankings import WindowKey
from tasks.schedule.windows import Outcome
from tasks.store.loader import Ledger, LoadPace
from tasks.store.night_store import OWN_WAIT_S, Store
from tasks.store.runs import ENGINE_COLUMNS, Run, Runs
from tasks.store.spool import Spool
from tasks.store.tables import BatchId, BatchRows, promptless_batch_row, quarantine_rows
from tasks.system.database import Database
from tasks.system.disk import require_space
from tasks.system.errors import CanaryFailed, DatabaseLocked, DeadlinePassed, StoreError
from tasks.system.garbage import collected_rarely

logger = logging.getLogger(__name__)
CHUNK_QUERIES = 1_000  # taken in at once, while the engine is at what it has
TAKE_WAIT_S, TAKE_PAUSE_S = 1.0, 30.0  # for the lock while the engine works, and until it is tried again
LOGGED_LIMITS = ("num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len")
NOT_LOOKED_FOR = ReuseDecision(reuse_reason=None, scores_run_id=None)
CANARY_ADVICE = (
    "Check the prompt template and chat template, or use another decode_mode; "
    "[checks] canary = 'warn' ranks anyway, but publishes nothing."
)


@dataclass(frozen=True, slots=True)
class Part:
    """What of a run is ranked, all of it or one shard, and where that keeps its files."""

    shard: int
    spool: Spool
    earlier: ReuseSource | None  # whose rows may be reused
    scratch: Path  # of the engine
    log_path: Path
    on_begun: Callable[[], None]  # told when the engine is noted, and canaries and forecast are, or failed


def whole_run(prepared: PreparedNight, run_id: str, earlier: ReuseSource | None) -> Part:
    """The one part of a run without shards."""
    return Part(
        shard=0,
        spool=Spool(prepared.settings.spool_folder, run_id),
        earlier=earlier,
        scratch=prepared.workspace.scratch,
        log_path=prepared.workspace.engine_log(run_id),
        on_begun=lambda: None,
    )


class RankStage:
    """The ranking of one part of a run's queries, with an engine of its own that `end_engine` ends in any case."""

    _staged: StagedInput  # from `rank` on
    _has_rows: bool  # of earlier starts

    def __init__(
        self, prepared: PreparedNight, run: Run, store: Store, part: Part, listeners: Sequence[OnProgress]
    ) -> None:
        self.prepared = prepared
        self.run_id = run.run_id
        self.store = store
        self._run = run
        self._part = part
        self._listeners = listeners
        options = engine_options(prepared.settings, prepared.recipe.driver, part.scratch, part.log_path)
        self._engine = EngineOnDemand(options, prepared.settings.packing.max_engine_starts, self._note_engine)
        self._take_at = 0.0  # monotonic: queries are taken in again
        self._has_begun = False
        self._is_engine_noted = False

    def start_engine(self, longest_list: int) -> None:
        """Lets the model load while passages are tokenised, if something will be asked for certain, and in time.

        A run that may reuse rows does not know yet, and one whose `[night] finish_by` has passed may not ask.
        """
        if longest_list > 1 and self._part.earlier is None and self._watch().has_time:
            self._engine.start()

    def end_engine(self) -> None:
        """Ends it now, if it runs: after ranking it has ended already."""
        self._engine.kill()

    @collected_rarely()
    def rank(self, staged: StagedInput, engine: EngineOnDemand | None = None) -> None:
        """Ranks every staged query that has no row yet, and commits each batch as it ends.

        Args:
            staged: the part's input.
            engine: one that somebody else starts and ends; its own if not given.

        Raises:
            EngineError, StoreError, ConfigError: what was committed stays, the same command goes on from there.
        """
        self._staged = staged
        settings = self.prepared.settings
        part = self._part
        pace = LoadPace(settings.store.load_every_s, settings.store.max_load_share)
        ledger = Ledger(self.store, part.spool, self.run_id, part.shard, pace)
        self._has_rows = ledger.progress.last_batch_no >= 0
        self._require_space_to_rank(staged, ledger.progress.num_rankings)
        self._commit_quarantine(ledger)
        watch = self._watch()
        count = WindowCount(num_windows_of(self.prepared.recipe, staged), [*self._listeners, watch.look])
        cohort = Cohort(staged, self.prepared.recipe, ledger)
        take_more = partial(self._take_more, cohort, deque(self._chunks()), count)
        take_more()
        with self._loaded_at_a_stop(ledger):
            if cohort.needs_engine:
                watch.require_time()
                asked = engine or self._engine
                self._begin_asking(asked, watch)
                cohort.rank(asked, count.add, take_more)
        count.tell()
        self._engine.close()
        ledger.close()
        del self._staged

    @contextmanager
    def _loaded_at_a_stop(self, ledger: Ledger) -> Iterator[None]:
        """A run that stops in order leaves nothing in the spool, unless somebody has the database open."""
        try:
            yield
        except DeadlinePassed:
            self.end_engine()  # its hours are over
            try:
                ledger.close(OWN_WAIT_S)
            except StoreError as error:
                logger.warning("run_id=%s %s", self.run_id, error)
            raise

    def _require_space_to_rank(self, staged: StagedInput, num_rankings: int) -> None:
        """Room for what is not ranked yet; the rest has its place."""
        missing = 1 - num_rankings / max(1, staged.num_queries)
        size = size_of(self.prepared.recipe, staged)
        require_space(self.prepared.workspace.folder, int(missing * size.num_bytes), "database and spool")

    def _commit_quarantine(self, ledger: Ledger) -> None:
        """The first batch of a run holds the rows set aside: a resumed run has it already."""
        if not ledger.is_new:
            return
        batch_id: BatchId = ledger.next_id()
        tables = BatchRows().tables(batch_id, promptless_batch_row(batch_id, datetime.now(UTC)))
        rows = quarantine_rows(self.run_id, self._staged.quarantine)
        ledger.commit(batch_id, tables | {"quarantine": rows})

    def _chunks(self) -> list[range]:
        """The staged queries in slices, small enough to be taken in at once, of which at least four fill the cohort."""
        num, size = self._staged.num_queries, self._chunk_queries
        return [range(first, min(first + size, num)) for first in range(0, num, size)]

    @property
    def _chunk_queries(self) -> int:
        return min(CHUNK_QUERIES, max(1, self.prepared.settings.packing.cohort_queries // 4))

    def _take_more(self, cohort: Cohort, chunks: deque[range], count: WindowCount) -> None:
        """Fills the cohort up before it runs dry, so that the engine does not wait for the next queries.

        While another program has the database open for writing, what is in flight goes on, and this tries again later.
        """
        most = self.prepared.settings.packing.cohort_queries - self._chunk_queries
        while chunks and cohort.num_in_flight <= most:
            is_dry = cohort.num_in_flight == 0
            if not is_dry and time.monotonic() < self._take_at:
                return
            try:
                self._fill(cohort, chunks[0], count, None if is_dry else TAKE_WAIT_S)
            except DatabaseLocked as error:
                if is_dry:
                    raise
                logger.warning("run_id=%s the next queries are read later: %s", self.run_id, error)
                self._take_at = time.monotonic() + TAKE_PAUSE_S
                return
            chunks.popleft()

    def _fill(self, cohort: Cohort, queries: range, count: WindowCount, wait_s: float | None) -> None:
        """Takes queries in; `wait_s` is for the database's lock, the store's own time if None."""
        staged, recipe = self._staged, self.prepared.recipe
        ranked, stored, standings = self._known(queries, wait_s)
        for query_index in queries:
            query_id = staged.query_ids[query_index]
            standing = standings.get(query_id, NOT_LOOKED_FOR)
            if query_id in ranked:
                depth = StagedQuery(staged, recipe, query_index).depth
                count.skip(recipe.schedule.strategy.bound(depth).num_windows)
            elif standing.reused_run_id is not None and query_id not in stored:
                count.skip(cohort.reuse_query(query_index, standing.reused_run_id))
            else:
                count.skip(cohort.add_query(query_index, stored.get(query_id, []), standing.reuse_reason))
        cohort.commit_unasked()

    def _known(
        self, queries: range, wait_s: float | None
    ) -> tuple[set[str], Mapping[str, list[StoredOutcome]], Mapping[str, ReuseDecision]]:
        """The queries that have their row, outcomes of earlier starts, and how queries stand against the earlier run.

        A run that began with this start has neither, so nothing is read where it reuses nothing.
        """
        staged, earlier = self._staged, self._part.earlier
        if not (self._has_rows or earlier):
            return set(), {}, {}
        span = {
            "run_id": self.run_id,
            "first_query_id": staged.query_ids[queries[0]],
            "last_query_id": staged.query_ids[queries[-1]],
        }
        with self.store.reader(wait_s) as database:
            ranked = set(database.query("resume/list_ranked_queries", span).column("query_id").to_pylist())
            stored = _stored_outcomes(database.query("resume/list_outcomes", span))
            standings = find_standings(database, earlier, staged, self.prepared.recipe, queries) if earlier else {}
        return ranked, stored, standings

    def _begin_asking(self, engine: EngineOnDemand, watch: "DeadlineWatch") -> None:
        """Before the first batch of this start: notes the engine, if it is somebody else's, and asks the canaries."""
        if self._has_begun:
            return
        self._has_begun = True
        begin_phase("loading the model", self.run_id, self._listeners)
        info = engine.info
        if not self._is_engine_noted:
            self._note_engine(info)
        try:
            self._ask_canaries(engine)
            run = RunToForecast(self.run_id, self.store, self._staged, self._part.earlier)
            watch.begin(note_forecast(self.prepared, run, info.device))
            self.store.write_deferred()  # a later start that finds every batch committed has no engine to ask again
        finally:
            self._part.on_begun()
        begin_phase("ranking", self.run_id, self._listeners)

    def _watch(self) -> "DeadlineWatch":
        night = self.prepared.settings.night
        ends_at = night.ends_at(self._run.started_at)
        return DeadlineWatch(self.run_id, night.finish_by, None if ends_at is None else Deadline(ends_at))

    def _ask_canaries(self, engine: Engine) -> None:
        """Asks the pairs whose order is known.

        Raises:
            CanaryFailed: the model orders them wrongly or not at all, and `[checks] canary` is to stop.
        """
        checks = self.prepared.settings.checks
        if checks.canary == "off":
            return
        begin_phase("asking canaries", self.run_id, self._listeners)
        answered = ask_canaries(load_canaries(), self.prepared.recipe, engine)
        rows = [{"pair": each.pair, "margin": each.margin, "passed": each.passed} for each in answered]
        note_canaries(self.store, self.run_id, rows, self.prepared.recipe)
        wrong, outside = wrong_canaries(answered, checks.max_missed_canary_share), outside_identifiers(answered)
        told = " ".join(filter(None, (wrong, outside)))
        if wrong and checks.canary == "stop":
            raise CanaryFailed(f"run {self.run_id}: {told} Nothing was ranked. {CANARY_ADVICE}")
        if told:
            logger.warning("run_id=%s %s", self.run_id, told)

    def _note_engine(self, info: EngineInfo) -> None:
        """Holds the engine's limits against the promise, and stores them.

        Raises:
            ConfigError: see `check_promise`.
        """
        if self.prepared.settings.packing.promise == "no_preemption":
            for asking in self.prepared.recipe.askings.values():
                check_promise(info.limits, self.prepared.settings.packing.headroom_share, *asking.largest_need)
        self._is_engine_noted = True
        self._run = note_engine(self.store, self._run, _engine_columns(info))
        limits = " ".join(f"{name}={getattr(info.limits, name)}" for name in LOGGED_LIMITS)
        logger.info("run_id=%s device=%s dtype=%s %s", self.run_id, info.device, info.dtype, limits)


def warn_of_low_id_mass(database: Database, run_id: str) -> None:
    """Warns if the model prefers other tokens to the identifiers: its order of them then means little."""
    for told in database.query("summary/id_masses", {"run_id": run_id}).to_pylist():
        if told["mean_id_mass"] < LOW_ID_MASS:
            logger.warning(
                "run_id=%s decode_mode=%s mean_id_mass=%.3f: below %.1f the prompt or its identifiers do not fit "
                "the model",
                run_id,
                told["decode_mode"],
                told["mean_id_mass"],
                LOW_ID_MASS,
            )


def note_engine(store: Store, run: Run, columns: Mapping[str, Any]) -> Run:
    """Stores what an engine reported, ENGINE_COLUMNS; returns the run with it.

    A run taken up again keeps what an earlier start was answered: not always what this engine would say.
    """
    for name in ("device", "dtype", "enable_prefix_caching"):
        before = getattr(run, name)
        if before is not None and before != columns[name]:
            logger.warning(
                "run_id=%s resumes with %s=%s but began with %s: its rows come from both",
                run.run_id,
                name,
                columns[name],
                before,
            )
    store.write_later(lambda database: Runs(database).note_engine(run.run_id, columns))
    return replace(run, **columns)


def note_canaries(store: Store, run_id: str, answered: Sequence[Mapping[str, Any]], recipe: Recipe) -> None:
    """Stores what the canaries answered: pair, margin, passed."""
    rows = pa.Table.from_pylist([{**each, "run_id": run_id} for each in answered])
    digests = pa.repeat(pa.scalar(recipe.digest, pa.uint64()), len(answered))
    rows = rows.append_column("recipe_digest", digests)

    def note(database: Database) -> None:
        database.execute("canaries/delete_canaries", {"run_id": run_id})
        database.append("canaries", rows)

    store.write_later(note)


def _engine_columns(info: EngineInfo) -> dict[str, Any]:
    told = asdict(info)
    return {name: told[name] if name in told else told["limits"][name] for name in ENGINE_COLUMNS}


def _stored_outcomes(rows: pa.Table) -> dict[str, list[StoredOutcome]]:
    stored: dict[str, list[StoredOutcome]] = {}
    for row in rows.to_pylist():
        order = tuple(row["outcome_order"])
        logprobs = None if row["outcome_logprobs"] is None else tuple(row["outcome_logprobs"])
        outcome = Outcome(order, row["num_listed"], logprobs)
        key = WindowKey(row["round"], row["window_no"], row["attempt"])
        stored.setdefault(row["query_id"], []).append(StoredOutcome(key, outcome))
    return stored
