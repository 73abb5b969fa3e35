"""The life of a run, from settings to published scores, as plain functions: the flow only calls them in order.

    prepare (reads footers, writes nothing) -> open (lock, run row) -> stage -> rank -> evaluate -> check -> publish

Knows nothing of Prefect: a task called outside a flow would start a temporary server.
"""

import json
import logging
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.environment import ROOT
from tasks.errors import CanaryFailed, CheckFailed, ConfigError, FollowUpFailed, PackrankError, StoreError
from tasks.generate.engine import EngineOnDemand, engine_on_demand, engine_options
from tasks.generate.generations import Engine, EngineInfo
from tasks.keep.checks import Check, checks_of, failed_checks, run_checks
from tasks.keep.disk import RunSize, require_space, staging_bytes, told_when_full
from tasks.keep.fingerprints import canonical_json, git_commit, library_versions, model_identity, recipe_digest, run_id
from tasks.keep.ledger import Ledger
from tasks.keep.publish import publish_run
from tasks.keep.spool import Spool
from tasks.keep.store import NewRun, RunState, Store, run_lock
from tasks.keep.tables import BatchId, BatchRows, promptless_batch_row, quarantine_rows
from tasks.offer.publication import follow_up
from tasks.pack.kv_budget import check_promise
from tasks.prompt.model_files import find_model_folder
from tasks.rank.canaries import ask_canaries, load_canaries, wrong_canaries
from tasks.rank.cohort import Cohort, StoredOutcome
from tasks.rank.lists import count_depths, list_depth
from tasks.rank.recipe import Recipe, build_recipe
from tasks.rank.reuse import EarlierRun, ReuseFrom, Standing, earlier_run, find_standings
from tasks.read.arrival import await_night_input
from tasks.read.candidates import CandidateLimits
from tasks.read.staging import NightInput, StagedInput, stage_input
from tasks.redaction import hide_url_secrets
from tasks.schedule.rankings import WindowKey
from tasks.schedule.windows import Outcome
from tasks.settings import Settings, load_settings

logger = logging.getLogger(__name__)

LOW_ID_MASS = 0.5  # of the probability at an answer's first token
SHARD = 0  # the only one of an unsharded run
NOT_LOOKED_FOR = Standing(reuse_reason=None, scores_run_id=None)

CANARY_ADVICE = (
    "Look at the prompt template and chat template, or take another decode_mode; "
    "[checks] canary = 'warn' goes on anyway."
)

OnProgress = Callable[[int, int], None]  # windows done, windows in all


@dataclass(frozen=True, slots=True)
class NightRequest:
    """What a caller asks for: the flow's parameters."""

    config: Path
    night: date | None = None  # the schedule's last fire time if not given
    limit_queries: int | None = None
    dry_run: bool = False
    publish: bool = False
    rerun: bool = False
    full: bool = False  # no query is reused
    requeue: bool = False  # repeat a finished run, but ask only what it set aside
    overrides: Mapping[str, object] = field(default_factory=dict)

    @property
    def reuse(self) -> ReuseFrom:
        """What may be reused: a trial and a repetition are there to see the model at work."""
        if self.requeue:
            return "repeated"
        return "nothing" if self.full or self.rerun or self.limit_queries is not None else "published"


@dataclass(frozen=True, slots=True)
class PreparedNight:
    """A night that can run: settings checked, sizes resolved, input found. Nothing is written yet."""

    settings: Settings
    night: date
    limit_queries: int | None
    publish: bool
    rerun: bool
    reuse: ReuseFrom
    base_run_id: str
    found: NightInput
    recipe: Recipe
    recipe_parts: Mapping[str, str]  # digest by part of what a ranking depends on beside its texts
    model_identity: str

    @property
    def work_folder(self) -> Path:
        """Where run-time files of this database lie."""
        return self.settings.database_path.parent

    @property
    def candidate_limits(self) -> CandidateLimits:
        """What staging keeps to."""
        return CandidateLimits(
            rank_base=self.settings.inputs.rank_base,
            top_k=self.settings.inputs.top_k,
            max_unmatched_share=self.settings.checks.max_unmatched_share,
            limit_queries=self.limit_queries,
            max_query_tokens=self.recipe.main.sizes.max_query_tokens,
        )

    def stage(self, folder: Path) -> StagedInput:
        """Reads and lays out the input in `folder`.

        Raises:
            InputError: see `stage_input`.
        """
        return stage_input(
            self.found,
            folder,
            self.recipe.main.builder,
            self.candidate_limits,
            self.recipe.main.sizes.max_passage_tokens,
            self.settings.database_limits(folder / "spill"),
        )


def prepare_night(request: NightRequest, now: datetime | None = None) -> PreparedNight:
    """Checks everything that can be known before data is read and weights load.

    Raises:
        ConfigError, PromptTooLong: settings, model or prompt cannot work.
        InputError: files or schemas cannot be this night's input.
    """
    settings = load_settings(request.config, request.overrides)
    if request.requeue and (request.full or request.dry_run):
        raise ConfigError("requeue asks only what was set aside: full and dry_run do not go with it.")
    if request.publish and (request.dry_run or request.limit_queries is not None):
        raise ConfigError("publish does not go with limit_queries or dry_run: latest_scores would lose queries.")
    night = request.night or settings.night.night_at(now or datetime.now(UTC))
    model_folder = find_model_folder(settings.engine.model, settings.engine.revision, ROOT)
    recipe = build_recipe(settings, model_folder)
    wait_s = 0 if request.dry_run else settings.inputs.wait_s
    found = await_night_input(settings.inputs, night, wait_s)
    identity = model_identity(model_folder)
    asked = settings.ranking_settings()
    asked["engine"].pop("model")  # its identity stands for it, wherever it lies
    depends_on: dict[str, dict[str, Any]] = {
        "model": {"model_identity": identity, "engine": asked["engine"]},
        "prompt": {
            "templates": [asdict(asking.template) for asking in recipe.askings.values()],
            "chat_template_kwargs": asked["prompt"]["chat_template_kwargs"],
            "thinking_budget_tokens": asked["prompt"]["thinking_budget_tokens"],
        },
        "settings": {"strategy": asked["strategy"], "resolved": recipe.resolved},
    }
    ranking = depends_on | {"inputs": asked["inputs"], "limit_queries": request.limit_queries}
    return PreparedNight(
        settings=settings,
        night=night,
        limit_queries=request.limit_queries,
        publish=request.publish,
        rerun=request.rerun or request.requeue,
        reuse=request.reuse,
        base_run_id=run_id(night, settings.night.name, ranking, found.digest),
        found=found,
        recipe=replace(recipe, digest=recipe_digest(depends_on)),
        recipe_parts={part: f"{recipe_digest(values):016x}" for part, values in depends_on.items()},
        model_identity=identity,
    )


class Night:
    """A run that holds its database's run lock; see `open_night`."""

    def __init__(self, prepared: PreparedNight, run_id: str, state: RunState | None, store: Store) -> None:
        self.prepared = prepared
        self.run_id = run_id
        self.state = state  # before this start; None: the run is new
        self.store = store
        self._staged: StagedInput | None = None
        self._has_begun = False
        self._is_engine_noted = False
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

    def stage(self) -> None:
        """Reads, checks and lays out the night's input.

        Raises:
            InputError: see `stage_input`.
            StoreError: the disk has no room for it.
        """
        self._require_space_to_stage()
        self._staged = self.prepared.stage(self.prepared.work_folder / "staging" / self.store.path.stem)
        staged = self._staged
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

    def rank(self, *listeners: OnProgress, engine: EngineOnDemand | None = None) -> None:
        """Ranks every staged query that has no row yet, and commits each batch as it ends.

        Args:
            listeners: each is told (windows done, windows in all) after every batch.
            engine: one that somebody else starts and ends; its own if not given.

        Raises:
            EngineError, StoreError, ConfigError: what was committed stays, the same command goes on from there.
        """
        staged = self._require_staged()
        settings = self.prepared.settings
        spool = Spool(self.prepared.work_folder / "spool" / self.store.path.stem, self.run_id)
        ledger = Ledger(self.store, spool, self.run_id, SHARD, settings.store.load_every_s)
        self._require_space_to_rank(staged)
        self._commit_quarantine(ledger)
        progress = _Progress(listeners, num_windows_of(self.prepared.recipe, staged))
        earlier = self._earlier_run()
        with self._engine(engine) as asked:
            for first in range(0, staged.num_queries, settings.packing.cohort_queries):
                last = min(first + settings.packing.cohort_queries, staged.num_queries)
                cohort = self._fill_cohort(ledger, range(first, last), earlier, progress)
                cohort.commit_unasked()
                if cohort.needs_engine:
                    self._begin_asking(asked)
                    cohort.rank(asked, progress.add)
        ledger.close()
        self._warn_of_low_id_mass()
        self._complete(staged)

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

    def _require_staged(self) -> StagedInput:
        if self._staged is None:
            raise RuntimeError("rank() before stage()")
        return self._staged

    def _require_space_to_stage(self) -> None:
        inputs, num_candidates = self.prepared.found.inputs, self.prepared.found.num_candidate_rows
        if num_candidates is not None:  # unknown in the nested layout
            max_tokens = self.prepared.recipe.main.sizes.max_passage_tokens
            needed = staging_bytes(num_candidates, inputs["documents"].num_rows, max_tokens)
            require_space(self.prepared.work_folder, needed, "laying out the input")

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
        tables = BatchRows(batch_id).tables(promptless_batch_row(batch_id, datetime.now(UTC)))
        rows = quarantine_rows(self.run_id, self._require_staged().quarantine)
        ledger.commit(batch_id, tables | {"quarantine": rows})

    def _earlier_run(self) -> EarlierRun | None:
        """The run whose rows may be reused, as it was chosen when the run began; None where there is none."""
        row = self.store.find_run(self.run_id)
        found = None if row is None or row["reuse_run_id"] is None else self.store.find_run(row["reuse_run_id"])
        return None if found is None else _compared(self.prepared, found)

    def _fill_cohort(self, ledger: Ledger, queries: range, earlier: EarlierRun | None, progress: "_Progress") -> Cohort:
        staged, recipe = self._require_staged(), self.prepared.recipe
        cohort = Cohort(staged, recipe, ledger)
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
        return cohort

    @contextmanager
    def _engine(self, engine: EngineOnDemand | None) -> Iterator[EngineOnDemand]:
        """The given engine, or one of the run's own, which ends with it."""
        if engine is not None:
            yield engine
            return
        settings = self.prepared.settings
        scratch = self.prepared.work_folder / "tmp" / self.store.path.stem
        options = engine_options(settings, scratch, self.prepared.work_folder / "logs" / f"{self.run_id}.engine.log")
        with engine_on_demand(options, settings.packing.max_engine_starts, self._note_engine) as own:
            yield own

    def _begin_asking(self, engine: EngineOnDemand) -> None:
        """Before the first batch of this start: notes the engine, if it is somebody else's, and asks the canaries."""
        if self._has_begun:
            return
        self._has_begun = True
        info = engine.info
        if not self._is_engine_noted:
            self._note_engine(info)
        self._ask_canaries(engine)

    def _ask_canaries(self, engine: Engine) -> None:
        """Asks the pairs whose order is known.

        Raises:
            CanaryFailed: the model orders them wrongly or not at all, and `[checks] canary` is to stop.
        """
        policy = self.prepared.settings.checks.canary
        if policy == "off":
            return
        answered = ask_canaries(load_canaries(), self.prepared.recipe, engine)
        rows = [asdict(each) | {"run_id": self.run_id} for each in answered]
        recipe = pa.repeat(pa.scalar(self.prepared.recipe.digest, pa.uint64()), len(rows))
        self.store.replace_canaries(self.run_id, pa.Table.from_pylist(rows).append_column("recipe_digest", recipe))
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
        self._warn_of_another_engine(info)
        limits = info.limits
        self.store.update(
            "note_engine",
            {
                "run_id": self.run_id,
                "device": info.device,
                "dtype": info.dtype,
                "enable_prefix_caching": info.enable_prefix_caching,
                "num_gpu_blocks": limits.num_gpu_blocks,
                "block_size": limits.block_size,
                "max_num_seqs": limits.max_num_seqs,
                "max_num_batched_tokens": limits.max_num_batched_tokens,
            },
        )
        logger.info("run_id=%s device=%s dtype=%s %s", self.run_id, info.device, info.dtype, limits)

    def _warn_of_another_engine(self, info: EngineInfo) -> None:
        """A run taken up again keeps what an earlier start was answered: not always what this engine would say."""
        (before,) = self._rows("run/find_run").to_pylist()
        for name in ("device", "dtype", "enable_prefix_caching"):
            found = getattr(info, name)
            if before[name] is not None and before[name] != found:
                logger.warning(
                    "run_id=%s is taken up with %s=%s, it began with %s: its rows come of both",
                    self.run_id,
                    name,
                    found,
                    before[name],
                )

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

    def _complete(self, staged: StagedInput) -> None:
        run = {"run_id": self.run_id}
        with self.store.unit_of_work() as database:
            (counted,) = database.query("run/count_rankings", run).to_pylist()
            if counted["num_rankings"] != staged.num_queries:
                raise StoreError(
                    f"run {self.run_id}: {counted['num_rankings']} of {staged.num_queries} queries have a row in "
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
            run = _new_run(prepared, night.run_id, flow_run_id, earlier.run_id if earlier else None)
            night.store.begin_run(run, reuses=prepared.reuse != "nothing")
        try:
            yield night
        except BaseException as error:
            if not (night.is_ranked or isinstance(error, CheckFailed | FollowUpFailed)):
                _note_failure(night.store, night.run_id, error)
            raise
        finally:
            for scratch in ("staging", "tmp"):
                shutil.rmtree(prepared.work_folder / scratch / night.store.path.stem, ignore_errors=True)


def find_night(prepared: PreparedNight) -> Night:
    """The run as the database knows it, without taking it up."""
    store = store_of(prepared)
    repeats = store.find_repeats(prepared.base_run_id)
    rerun = prepared.rerun and not _has_nothing_to_requeue(prepared, store, repeats)
    run_id = choose_run_id(prepared.base_run_id, repeats, rerun=rerun)
    return Night(prepared, run_id, repeats.get(run_id), store)


def find_earlier_run(prepared: PreparedNight) -> EarlierRun | None:
    """The run that a new run looks at for reuse: the last published one, or the one that it repeats."""
    store = store_of(prepared)
    if prepared.reuse == "nothing" or not store.has_runs():
        return None
    if prepared.reuse == "published":
        series = {"name": prepared.settings.night.name, "night": prepared.night.isoformat()}
        (found,) = store.query("reuse/find_published", series).to_pylist() or [None]
    else:
        repeats = store.find_repeats(prepared.base_run_id)
        found = store.find_run(max((each for each, state in repeats.items() if state.is_ranked), key=_repetition))
    return None if found is None else _compared(prepared, found)


def _compared(prepared: PreparedNight, found: Mapping[str, Any]) -> EarlierRun:
    return earlier_run(found, prepared.model_identity, prepared.recipe_parts)


def _has_nothing_to_requeue(prepared: PreparedNight, store: Store, repeats: Mapping[str, RunState]) -> bool:
    """Whether the run to repeat has nothing set aside, so that it stands as it is."""
    if prepared.reuse != "repeated":
        return False
    if not any(state.is_ranked for state in repeats.values()):
        raise PackrankError(
            f"{store.path}: no finished run {prepared.base_run_id} of these settings and this input, nothing to "
            "requeue. See `packrank runs`; --night names another night."
        )
    latest = {"run_id": max(repeats, key=_repetition)}
    return int(store.query("reuse/count_set_aside", latest).column("num_queries")[0].as_py()) == 0


def store_of(prepared: PreparedNight) -> Store:
    """The database that the night's settings name."""
    return _store_at(prepared.settings)


def find_run_of_flow_run(settings: Settings, flow_run_id: str) -> str | None:
    """The run that a flow run took up; None where it came not so far.

    Raises:
        StoreError: the database cannot be read.
    """
    store = _store_at(settings)
    if not store.path.exists():
        return None
    rows = store.query("run/find_run_of_flow_run", {"flow_run_id": flow_run_id}).to_pylist()
    return rows[0]["run_id"] if rows else None


def fail_crashed_run(settings: Settings, flow_run_id: str) -> None:
    """Ends the row of a run whose process was killed, for those who look before the next start.

    Raises:
        StoreError: the database cannot be written.
    """
    _store_at(settings).update("fail_crashed_run", {"flow_run_id": flow_run_id})


def _store_at(settings: Settings) -> Store:
    path = settings.database_path
    return Store(path, settings.database_limits(path.parent / "tmp" / f"{path.stem}.duckdb"))


def run_night(prepared: PreparedNight, *listeners: OnProgress) -> str:
    """The whole night without Prefect; returns the run_id. The flow does the same, stage by stage.

    Raises:
        PackrankError: see the stages.
    """
    with open_night(prepared, flow_run_id=None) as night:
        if not night.is_ranked:
            night.stage()
            night.rank(*listeners)
        if not night.is_done:  # also a run that was killed between its last query and its checks
            night.evaluate()
            night.check()
            night.publish()
        night.conclude()
    return night.run_id


def choose_run_id(base: str, repeats: Mapping[str, RunState], *, rerun: bool) -> str:
    """The run to take up: the latest repetition, or a new one where `rerun` asks for it and the latest is done.

    Args:
        base: the id that night, settings and input give.
        repeats: the run and its -rN repetitions by run_id.
        rerun: whether a finished run is to be repeated.
    """
    latest = max(repeats, key=_repetition, default=base)
    if rerun and latest in repeats and repeats[latest].is_ranked:
        return f"{base}-r{_repetition(latest) + 1}"
    return latest


def num_windows_of(recipe: Recipe, staged: StagedInput) -> int:
    """The most windows that the staged queries can ask, none of them twice."""
    depths = count_depths(staged, recipe)
    return sum(recipe.schedule.strategy.bound(depth).num_windows * count for depth, count in depths.items())


def size_of(recipe: Recipe, staged: StagedInput) -> RunSize:
    """What decides how much the run writes."""
    depths = count_depths(staged, recipe)
    bounds = [recipe.schedule.bound(depth).times(count, also_rounds=False) for depth, count in depths.items()]
    return RunSize(
        num_queries=staged.num_queries,
        num_candidates=staged.num_candidates,
        num_windows=sum(bound.num_windows for bound in bounds),
        num_slots=sum(bound.num_slots for bound in bounds),
        id_bytes=staged.doc_ids.nbytes / max(1, len(staged.doc_ids)),
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


def _repetition(run_id: str) -> int:
    """1 for a run, N for its repetition -rN."""
    tail = run_id.rpartition("-r")[2]
    return int(tail) if tail.isdigit() else 1


def _stored_outcomes(rows: pa.Table) -> dict[str, list[StoredOutcome]]:
    stored: dict[str, list[StoredOutcome]] = {}
    for row in rows.to_pylist():
        order = tuple(row["outcome_order"])
        logprobs = None if row["outcome_logprobs"] is None else tuple(row["outcome_logprobs"])
        outcome = Outcome(order, row["num_listed"], logprobs)
        key = WindowKey(row["round"], row["window_no"], row["attempt"])
        stored.setdefault(row["query_id"], []).append(StoredOutcome(key, outcome))
    return stored


def _new_run(prepared: PreparedNight, run_id: str, flow_run_id: str | None, reuse_run_id: str | None) -> NewRun:
    settings = prepared.settings
    return NewRun(
        run_id=run_id,
        name=settings.night.name,
        night=prepared.night,
        started_at=datetime.now(UTC),
        settings=settings.stored_json(),
        resolved=canonical_json(prepared.recipe.resolved),
        recipe=canonical_json(prepared.recipe_parts),
        input_digest=prepared.found.digest,
        input_partition=prepared.found.partition,
        model=settings.engine.model,
        model_identity=prepared.model_identity,
        strategy=settings.strategy.name,
        decode_mode=settings.strategy.decode_mode,
        versions=canonical_json(library_versions()),
        git_commit=git_commit(ROOT),
        host=socket.gethostname(),
        flow_run_id=flow_run_id,
        is_limited=prepared.limit_queries is not None,
        reuse_run_id=reuse_run_id,
    )


def _note_failure(store: Store, run_id: str, error: BaseException) -> None:
    """Cancelled by a signal, else failed; a database that cannot be written must not hide the error itself."""
    status = "failed" if isinstance(error, Exception) else "cancelled"
    told = hide_url_secrets(" ".join(f"{type(error).__name__}: {error}".split()).rstrip(":"))[:1_000]
    with suppress(StoreError):
        store.update("finish_run", {"run_id": run_id, "status": status, "error": told})
