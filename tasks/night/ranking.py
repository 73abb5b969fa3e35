"""The ranking stage of a run: cohorts through the engine, from the quarantined rows to the last commit.

Takes up what earlier starts committed, reuses what an earlier night ranked, and asks the canaries before the first
batch. Knows nothing of publishing.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.errors import CanaryFailed, DeadlinePassed
from tasks.garbage import collected_rarely
from tasks.generate.generations import Engine, EngineInfo
from tasks.generate.process import EngineOnDemand, engine_options
from tasks.judge.forecast import Deadline, Forecast
from tasks.keep.disk import require_space
from tasks.keep.ledger import Ledger, LoadPace
from tasks.keep.spool import Spool
from tasks.keep.store import Store
from tasks.keep.tables import BatchId, BatchRows, promptless_batch_row, quarantine_rows
from tasks.night.outlook import RunToForecast, note_forecast, store_actual
from tasks.night.request import PreparedNight
from tasks.night.runs import earlier_run_of
from tasks.pack.kv_budget import check_promise
from tasks.rank.canaries import ask_canaries, load_canaries, wrong_canaries
from tasks.rank.cohort import Cohort, StoredOutcome
from tasks.rank.lists import list_depth
from tasks.rank.recipe import Recipe
from tasks.rank.reuse import EarlierRun, Standing, find_standings
from tasks.rank.sizes import num_windows_of, size_of
from tasks.read.staging import StagedInput
from tasks.schedule.rankings import WindowKey
from tasks.schedule.windows import Outcome

logger = logging.getLogger(__name__)

LOW_ID_MASS = 0.5  # of the probability at an answer's first token
CHUNK_QUERIES = 1_000  # taken in at once, while the engine is at what it has
ENGINE_COLUMNS = (  # of runs, as the engine reports them
    *("device", "dtype", "enable_prefix_caching"),
    *("num_gpu_blocks", "block_size", "max_num_seqs", "max_num_batched_tokens"),
)
NOT_LOOKED_FOR = Standing(reuse_reason=None, scores_run_id=None)

CANARY_ADVICE = (
    "Look at the prompt template and chat template, or take another decode_mode; "
    "[checks] canary = 'warn' goes on anyway."
)

OnProgress = Callable[[int, int], None]  # windows done, windows in all


@dataclass(frozen=True, slots=True)
class Part:
    """What of a run is ranked, all of it or one shard, and where that keeps its files."""

    shard: int
    spool: Spool
    earlier: EarlierRun | None  # whose rows may be reused
    scratch: Path  # of the engine
    log_path: Path
    on_begun: Callable[[], None]  # told when the engine is noted, and canaries and forecast are, or failed


def whole_run(prepared: PreparedNight, run_id: str, store: Store) -> Part:
    """The one part of a run without shards."""
    return Part(
        shard=0,
        spool=Spool(prepared.settings.spool_folder, run_id),
        earlier=earlier_run_of(prepared, store, run_id),
        scratch=prepared.work_folder / "tmp" / store.path.stem,
        log_path=prepared.work_folder / "logs" / f"{run_id}.engine.log",
        on_begun=lambda: None,
    )


class RankStage:
    """The ranking of one part of a run's queries, with an engine of its own that `end_engine` ends in any case."""

    _staged: StagedInput  # from `rank` on

    def __init__(self, prepared: PreparedNight, run_id: str, store: Store, part: Part) -> None:
        self.prepared = prepared
        self.run_id = run_id
        self.store = store
        self._part = part
        options = engine_options(prepared.settings, part.scratch, part.log_path)
        self._engine = EngineOnDemand(options, prepared.settings.packing.max_engine_starts, self._note_engine)
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
    def rank(self, staged: StagedInput, *listeners: OnProgress, engine: EngineOnDemand | None = None) -> None:
        """Ranks every staged query that has no row yet, and commits each batch as it ends.

        Args:
            staged: the part's input.
            listeners: each is told (windows done, windows in all) after every batch.
            engine: one that somebody else starts and ends; its own if not given.

        Raises:
            EngineError, StoreError, ConfigError: what was committed stays, the same command goes on from there.
        """
        self._staged = staged
        settings = self.prepared.settings
        part = self._part
        pace = LoadPace(settings.store.load_every_s, settings.store.max_load_share)
        ledger = Ledger(self.store, part.spool, self.run_id, part.shard, pace)
        self._require_space_to_rank(staged)
        self._commit_quarantine(ledger)
        watch = self._watch()
        progress = _Progress([*listeners, watch.look], num_windows_of(self.prepared.recipe, staged))
        cohort = Cohort(staged, self.prepared.recipe, ledger)
        take_more = partial(self._take_more, cohort, iter(self._chunks()), progress)
        take_more()
        with _loaded_at_a_stop(ledger):
            if cohort.needs_engine:
                watch.require_time()
                asked = engine or self._engine
                self._begin_asking(asked, watch)
                cohort.rank(asked, progress.add, take_more)
        self._engine.close()
        ledger.close()
        store_actual(self.store, self.run_id)
        self._warn_of_low_id_mass()
        del self._staged

    def _require_space_to_rank(self, staged: StagedInput) -> None:
        """Room for what is not ranked yet; the rest has its place."""
        (counted,) = self._rows("run/count_rankings").to_pylist()
        missing = 1 - counted["num_rankings"] / max(1, staged.num_queries)
        size = size_of(self.prepared.recipe, staged)
        require_space(self.prepared.work_folder, int(missing * size.num_bytes), "database and spool")

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

    def _take_more(self, cohort: Cohort, chunks: Iterator[range], progress: "_Progress") -> None:
        """Fills the cohort up before it runs dry, so that the engine does not wait for the next queries."""
        most = self.prepared.settings.packing.cohort_queries - self._chunk_queries
        while cohort.num_in_flight <= most and (queries := next(chunks, None)) is not None:
            self._fill(cohort, queries, progress)

    def _fill(self, cohort: Cohort, queries: range, progress: "_Progress") -> None:
        staged, recipe, earlier = self._staged, self.prepared.recipe, self._part.earlier
        span = {
            "run_id": self.run_id,
            "first_query_id": staged.query_ids[queries[0]],
            "last_query_id": staged.query_ids[queries[-1]],
        }
        with self.store.unit_of_work() as database:
            ranked = set(database.query("resume/list_ranked_queries", span).column("query_id").to_pylist())
            stored = _stored_outcomes(database.query("resume/list_outcomes", span))
            standings = find_standings(database, earlier, staged, recipe, queries) if earlier else {}
        for query_index in queries:
            query_id = staged.query_ids[query_index]
            standing = standings.get(query_id, NOT_LOOKED_FOR)
            if query_id in ranked:
                depth = list_depth(staged, recipe, query_index)
                progress.add(recipe.schedule.strategy.bound(depth).num_windows)
            elif standing.reused_run_id is not None and query_id not in stored:
                progress.add(cohort.reuse_query(query_index, standing.reused_run_id))
            else:
                progress.add(cohort.add_query(query_index, stored.get(query_id, []), standing.reuse_reason))
        cohort.commit_unasked()

    def _begin_asking(self, engine: EngineOnDemand, watch: "_Watch") -> None:
        """Before the first batch of this start: notes the engine, if it is somebody else's, and asks the canaries."""
        if self._has_begun:
            return
        self._has_begun = True
        info = engine.info
        if not self._is_engine_noted:
            self._note_engine(info)
        try:
            self._ask_canaries(engine)
            run = RunToForecast(self.run_id, self.store, self._staged, self._part.earlier)
            watch.begin(note_forecast(self.prepared, run, info.device))
        finally:
            self._part.on_begun()

    def _watch(self) -> "_Watch":
        (run,) = self._rows("run/find_run").to_pylist()
        night = self.prepared.settings.night
        ends_at = night.ends_at(run["started_at"])
        return _Watch(self.run_id, night.finish_by, None if ends_at is None else Deadline(ends_at))

    def _ask_canaries(self, engine: Engine) -> None:
        """Asks the pairs whose order is known.

        Raises:
            CanaryFailed: the model orders them wrongly or not at all, and `[checks] canary` is to stop.
        """
        policy = self.prepared.settings.checks.canary
        if policy == "off":
            return
        answered = ask_canaries(load_canaries(), self.prepared.recipe, engine)
        note_canaries(self.store, self.run_id, [asdict(each) for each in answered], self.prepared.recipe)
        wrong = wrong_canaries(answered)
        if wrong and policy == "stop":
            raise CanaryFailed(f"run {self.run_id}: {wrong} Nothing was ranked. {CANARY_ADVICE}")
        if wrong:
            logger.warning("run_id=%s %s", self.run_id, wrong)

    def _note_engine(self, info: EngineInfo) -> None:
        """Holds the engine's limits against the promise, and stores them.

        Raises:
            ConfigError: see `check_promise`.
        """
        if self.prepared.settings.packing.promise == "no_preemption":
            prompt_tokens, max_tokens = self.prepared.recipe.largest_need
            check_promise(info.limits, self.prepared.settings.packing.headroom_share, prompt_tokens, max_tokens)
        self._is_engine_noted = True
        note_engine(self.store, self.run_id, _engine_columns(info))
        logger.info("run_id=%s device=%s dtype=%s %s", self.run_id, info.device, info.dtype, info.limits)

    def _warn_of_low_id_mass(self) -> None:
        """Where the model wants to say something else than an identifier, its order of them means little."""
        (told,) = self._rows("run/mean_id_mass").to_pylist()
        if told["mean_id_mass"] is not None and told["mean_id_mass"] < LOW_ID_MASS:
            logger.warning(
                "run_id=%s mean_id_mass=%.3f: below %.1f the prompt or its identifiers do not fit the model",
                self.run_id,
                told["mean_id_mass"],
                LOW_ID_MASS,
            )

    def _rows(self, name: str) -> pa.Table:
        return self.store.query(name, {"run_id": self.run_id})


def note_engine(store: Store, run_id: str, columns: Mapping[str, Any]) -> None:
    """Stores what an engine reported, ENGINE_COLUMNS.

    A run taken up again keeps what an earlier start was answered: not always what this engine would say.
    """
    (before,) = store.query("run/find_run", {"run_id": run_id}).to_pylist()
    for name in ("device", "dtype", "enable_prefix_caching"):
        if before[name] is not None and before[name] != columns[name]:
            logger.warning(
                "run_id=%s is taken up with %s=%s, it began with %s: its rows come of both",
                run_id,
                name,
                columns[name],
                before[name],
            )
    store.update("note_engine", {"run_id": run_id} | {name: columns[name] for name in ENGINE_COLUMNS})


def note_canaries(store: Store, run_id: str, answered: Sequence[Mapping[str, Any]], recipe: Recipe) -> None:
    """Stores what the canaries answered: pair, margin, passed."""
    rows = pa.Table.from_pylist([{**each, "run_id": run_id} for each in answered])
    digests = pa.repeat(pa.scalar(recipe.digest, pa.uint64()), len(answered))
    store.replace_canaries(run_id, rows.append_column("recipe_digest", digests))


def _engine_columns(info: EngineInfo) -> dict[str, Any]:
    told = asdict(info)
    return {name: told[name] if name in told else told["limits"][name] for name in ENGINE_COLUMNS}


@contextmanager
def _loaded_at_a_stop(ledger: Ledger) -> Iterator[None]:
    """A run that stops in order leaves nothing in the spool."""
    try:
        yield
    except DeadlinePassed:
        ledger.close()
        raise


class _Watch:
    """Warns once when `[night] finish_by` is at risk, and stops the run when it has passed."""

    def __init__(self, run_id: str, finish_by: str, deadline: Deadline | None) -> None:
        self._run_id = run_id
        self._finish_by = finish_by
        self._deadline = deadline  # None: the run may take as long as it takes
        self._is_asking = False
        self._has_warned = False

    @property
    def has_time(self) -> bool:
        """Whether more may be asked."""
        return self._deadline is None or not self._deadline.has_passed(datetime.now(UTC))

    def begin(self, expected: Forecast | None) -> None:
        """The first batch is asked now; with what the run is expected to take, if that is known."""
        self._is_asking = True
        if self._deadline is None:
            return
        now = datetime.now(UTC)
        self._deadline.begin(now)
        if expected is not None:
            self._warn_if_late(self._deadline, now + timedelta(seconds=expected.expected_s))

    def look(self, done: int, total: int) -> None:
        """After every batch, and when windows are known to be done before the first one: those need no time.

        Raises:
            DeadlinePassed: windows are left to ask, and the time is over.
        """
        if self._deadline is None or done >= total:
            return
        if self._is_asking:
            self.require_time(f" with {done} of {total} windows done")
        end = self._deadline.expected_end(datetime.now(UTC), done, total)
        if end is not None:
            self._warn_if_late(self._deadline, end)

    def require_time(self, so_far: str = "") -> None:
        """Raises DeadlinePassed if nothing more may be asked."""
        if self._deadline is not None and not self.has_time:
            raise DeadlinePassed(
                f"run {self._run_id}: [night] finish_by = {self._finish_by} has passed "
                f"({self._deadline.ends_at:%Y-%m-%d %H:%M %Z}){so_far}. What was committed stays, nothing is "
                "published. The same command goes on from there with a later time, --set night.finish_by=HH:MM, or "
                "without one, --set night.finish_by="
            )

    def _warn_if_late(self, deadline: Deadline, end: datetime) -> None:
        if end > deadline.ends_at and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "run_id=%s finish_by=%s at risk: as it goes, the run ends at %s",
                self._run_id,
                self._finish_by,
                end.astimezone(deadline.ends_at.tzinfo).strftime("%Y-%m-%d %H:%M %Z"),
            )


class _Progress:
    """Counts windows towards a total."""

    def __init__(self, listeners: Sequence[OnProgress], total: int) -> None:
        self._listeners = listeners
        self._total = total
        self._done = 0

    def add(self, num_windows: int) -> None:
        if num_windows:
            self._done += num_windows
            for listener in self._listeners:
                listener(self._done, self._total)


def _stored_outcomes(rows: pa.Table) -> dict[str, list[StoredOutcome]]:
    stored: dict[str, list[StoredOutcome]] = {}
    for row in rows.to_pylist():
        order = tuple(row["outcome_order"])
        logprobs = None if row["outcome_logprobs"] is None else tuple(row["outcome_logprobs"])
        outcome = Outcome(order, row["num_listed"], logprobs)
        key = WindowKey(row["round"], row["window_no"], row["attempt"])
        stored.setdefault(row["query_id"], []).append(StoredOutcome(key, outcome))
    return stored
