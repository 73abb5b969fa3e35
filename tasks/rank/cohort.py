"""Ranks the queries in flight: asks what is ready as far as the engine has room, reads, and commits what is whole.

    open windows -> prompts -> engine -> outcomes -> strategies -> more open windows, or final orders

Resuming is the same loop: stored outcomes are replayed first, and only windows without one are asked. Knows nothing
of files, schedules or Prefect.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tasks.answer.outcomes import Reading, read_generation
from tasks.answer.scores import ScoredDocs, first_stage_docs, ranking_status, score_docs
from tasks.errors import DeadlinePassed, EngineError, EngineLost, StoreError
from tasks.generate.generations import BatchStats, Engine, Generation
from tasks.keep.tables import SCHEMAS, BatchId, BatchRows, batch_row, promptless_batch_row
from tasks.pack.batches import Batch, split
from tasks.pack.kv_budget import KVCacheLimits
from tasks.prompt.prompts import Prompt
from tasks.rank.calibration import Priors
from tasks.rank.dispatch import Asked, Dispatch
from tasks.rank.lists import list_depth, list_digests, list_doc_ids, list_span
from tasks.rank.recipe import Recipe
from tasks.read.staging import StagedInput
from tasks.schedule.rankings import RankingInProgress, WindowKey
from tasks.schedule.ready import OpenWindow, ReadyWindows
from tasks.schedule.windows import Outcome, Window

logger = logging.getLogger(__name__)

ENGINE_DIED = "engine died"  # quarantine.reason


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """A window's outcome as an earlier start of the run committed it."""

    key: WindowKey
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class LostBatch:
    """Prompts that an engine was lost with, to be asked by themselves."""

    batch: Batch
    asked: tuple[Asked, ...]  # in the same order


@dataclass(frozen=True, slots=True)
class Read:
    """What came of a prompt: the window's reading, and whether it was the last that its query needed."""

    reading: Reading
    ends_query: bool


class Commits(Protocol):
    """What a cohort needs of the ledger."""

    def next_id(self) -> BatchId:
        """Names the next batch."""
        ...

    def commit(self, batch_id: BatchId, tables: Mapping[str, pa.Table]) -> None:
        """Begins to make the batch durable, after those that came before."""
        ...

    def flush(self) -> None:
        """Waits until all that was committed is durable."""
        ...


class Cohort:
    """A slice of the staged queries, in flight together."""

    def __init__(self, staged: StagedInput, recipe: Recipe, ledger: Commits) -> None:
        self._staged = staged
        self._recipe = recipe
        self._ledger = ledger
        self._ready = ReadyWindows()
        self._prompts: dict[str, Prompt] = {}  # built, but not admitted yet
        self._read: dict[str, Read] = {}  # by request_id, until the batch closes
        self._unasked: list[dict[str, Any]] = []  # rankings rows of queries that cannot be ranked
        self._finished: list[RankingInProgress] = []  # final before any call
        self._priors = Priors(recipe)
        self._credited: dict[int, int] = {}  # query_index -> windows of its bound that are told as done
        self._parts: deque[LostBatch] = deque()
        self._set_aside: set[int] = set()  # query_index: an engine was lost with a prompt of theirs alone
        self._limits: KVCacheLimits | None = None  # of the engine: asking a dead one would start another
        self._reuse_reasons: dict[int, str] = {}  # query_index -> why it is ranked although reuse was looked for

    def reuse_query(self, query_index: int, scores_run_id: str) -> int:
        """Points a query to the rows of an earlier run, and returns how many windows of its bound that saves."""
        depth = list_depth(self._staged, self._recipe, query_index)
        row = self._ranking_row(query_index, status="reused", depth=depth)
        self._unasked.append(row | {"scores_run_id": scores_run_id})
        return self._recipe.schedule.strategy.bound(depth).num_windows

    def add_query(self, query_index: int, stored: Sequence[StoredOutcome], reuse_reason: str | None = None) -> int:
        """Takes a query in, replays what it was told before, and returns how many windows of its bound are done."""
        if reuse_reason is not None:
            self._reuse_reasons[query_index] = reuse_reason
        if self._staged.query_status[query_index] != "ready":
            self._unasked.append(self._ranking_row(query_index, status=self._staged.query_status[query_index]))
            return 0
        ranking = RankingInProgress(
            query_index,
            self._staged.list_length(query_index),
            self._recipe.schedule,
            depth=list_depth(self._staged, self._recipe, query_index),
            query_id=self._staged.query_ids[query_index],
        )
        for each in stored:
            ranking.answer(each.key, each.outcome)
        if ranking.is_done:
            self._finished.append(ranking)
        else:
            self._open(ranking, ranking.open_windows())
        return self._newly_done(ranking)

    @property
    def needs_engine(self) -> bool:
        """Whether any window is open."""
        return len(self._ready) > 0

    def commit_unasked(self) -> None:
        """Commits the queries that need no call."""
        if not self._unasked and not self._finished:
            return
        rows = BatchRows()
        for ranking_row in self._unasked:
            rows.add_ranking(ranking_row)
        self._add_finished(rows, self._finished)
        batch_id = self._ledger.next_id()
        self._ledger.commit(batch_id, rows.tables(batch_id, promptless_batch_row(batch_id, datetime.now(UTC))))
        self._unasked, self._finished = [], []

    @property
    def num_in_flight(self) -> int:
        """Queries that are not finished."""
        return len(self._credited)

    def rank(
        self, engine: Engine, on_windows: Callable[[int], None], take_more: Callable[[], None] = lambda: None
    ) -> None:
        """Asks until every query has its final order.

        Each batch is committed while the engine is at the next one, and in any case before an error leaves here. What
        an engine is lost with is asked by itself, then in halves, down to the prompt, whose query is set aside.

        Args:
            engine: what is asked.
            on_windows: told how many of the expected windows are done since.
            take_more: called after answers came, and may add queries.

        Raises:
            EngineError, StoreError: what was committed stays.
        """
        dispatch = Dispatch(engine, self._recipe.packing)
        self._limits = engine.info.limits
        try:
            while self._parts or self._ready or not dispatch.is_empty:
                on_windows(self._ask_part(engine) if self._parts else self._go_on(engine, dispatch))
                take_more()
        except BaseException as error:
            if isinstance(error, DeadlinePassed):
                while not dispatch.is_idle:  # what is asked is paid for
                    self._land(dispatch)
            if not isinstance(error, StoreError):
                dispatch.lose()
                self._commit_closed(dispatch)
            raise
        finally:
            self._ledger.flush()

    def _go_on(self, engine: Engine, dispatch: Dispatch) -> int:
        """Gives the engine work, commits while it is at that, and takes what it answers; returns windows done since."""
        try:
            self._admit(engine, dispatch)
            self._commit_closed(dispatch)
            landed = [] if dispatch.is_idle else self._land(dispatch)
        except EngineLost as error:
            self._recover(dispatch, error)
            return 0
        return sum(self._newly_done(ranking) for ranking in _distinct(asked for asked, _ in landed))

    def _land(self, dispatch: Dispatch) -> list[tuple[Asked, Generation]]:
        """Waits for answers and takes them."""
        landed = dispatch.collect()
        for asked, generation in landed:
            self._take(asked, generation)
        return landed

    def _admit(self, engine: Engine, dispatch: Dispatch) -> None:
        """Gives the engine what it has room for."""
        if self._priors.is_missing(self._ready.order_sizes):
            if not dispatch.is_idle:  # they are asked alone
                dispatch.send()
                return
            self._priors.learn(engine, self._ready.order_sizes)
        while (kind := self._ready.kind_after(one_token=dispatch.one_token)) is not None:
            each = self._ready.first(one_token=kind)
            assert each is not None, kind
            request_id, prompt = self._prompt_of(each)
            if not dispatch.offer(Asked(prompt, each)):
                break
            self._ready.pop(one_token=kind)
            del self._prompts[request_id]
        dispatch.send()

    def _commit_closed(self, dispatch: Dispatch) -> None:
        for batch in dispatch.closed():
            # an interruption may come between an answer and its reading
            batch.answered = [each for each in batch.answered if each[0].prompt.request_id in self._read]
            if batch.answered:
                self._commit(batch.batch(), batch.answered, batch.stats())

    def _commit(self, batch: Batch, answered: Sequence[tuple[Asked, Generation]], stats: BatchStats) -> None:
        rows = BatchRows()
        for asked, generation in answered:
            read = self._read.pop(asked.prompt.request_id)
            ranking = asked.window.ranking
            query_id = self._staged.query_ids[ranking.query_index]
            rows.add_window(query_id, asked.window.key, asked.prompt, generation, read.reading)
            if read.ends_query:
                self._add_finished(rows, [ranking])
        rows.add_steps(stats.steps)
        batch_id = self._ledger.next_id()
        rounds = [asked.window.key.round for asked, _ in answered]
        generations = [generation for _, generation in answered]
        driver = self._recipe.packing.driver
        row = batch_row(batch_id, batch, driver, rounds, generations, stats, self._known_limits)
        self._ledger.commit(batch_id, rows.tables(batch_id, row))
        _log_batch(batch_id, batch, stats.engine_s, generations)

    @property
    def _known_limits(self) -> KVCacheLimits:
        assert self._limits is not None, "nothing was asked"
        return self._limits

    def _take(self, asked: Asked, generation: Generation) -> None:
        """Reads an answer, and moves its query on."""
        window, ranking = asked.window, asked.window.ranking
        builder = self._recipe.askings[window.window.question].builder
        prior = self._priors.of(len(window.window.docs)) if window.window.question == "order" else None
        reading = read_generation(builder, asked.prompt, generation, prior)
        self._open(ranking, ranking.answer(window.key, reading.outcome))
        self._read[asked.prompt.request_id] = Read(reading, ends_query=ranking.is_done)

    def _open(self, ranking: RankingInProgress, windows: Iterable[tuple[WindowKey, Window]]) -> None:
        for key, window in windows:
            form = self._recipe.askings[window.question].builder.answers.form(window)
            self._ready.push(OpenWindow(ranking, key, window), one_token=form.max_tokens == 1)

    def _recover(self, dispatch: Dispatch, error: EngineLost) -> None:
        """After an engine was lost: what it was at is asked by itself, the rest again in its turn.

        Raises:
            EngineLost: it was asked often enough, and prompts are not to be set aside.
        """
        lost = dispatch.lose()
        self._commit_closed(dispatch)
        for asked in lost.untouched:
            self._prompts[asked.prompt.request_id] = asked.prompt
            self._ready.push(asked.window, one_token=asked.prompt.max_tokens == 1)
        tries = self._recipe.packing.max_engine_starts - 1  # one is used up
        parts = [_lost_batch(suspects, self._known_limits) for suspects in lost.suspects]
        if tries == 0 and (len(parts) == 1 or not self._recipe.packing.max_poison_prompts):
            self._isolate(parts[0], error)
            return
        logger.warning(
            "engine lost with %d prompts, starting another: %s", sum(len(each.asked) for each in parts), error
        )
        self._parts += parts

    def _ask_part(self, engine: Engine) -> int:
        """Asks prompts that an engine was lost with by themselves; returns how many windows are done since."""
        part = self._parts.popleft()
        tries = max(1, self._recipe.packing.max_engine_starts - 1) if part.batch.part_of is None else 1
        try:
            generations, stats = engine.generate(part.batch, tries)
        except EngineLost as error:
            self._isolate(part, error)
        else:
            answered = list(zip(part.asked, generations, strict=True))
            for each in answered:
                self._take(*each)
            self._commit(part.batch, answered, stats)
        return sum(self._newly_done(ranking) for ranking in _distinct(part.asked))

    def _isolate(self, lost: LostBatch, error: EngineLost) -> None:
        """Puts the halves of a lost batch next in turn; a prompt alone sets its query aside.

        Raises:
            EngineLost: prompts are not to be set aside.
            EngineError: they are more than may be.
        """
        if not self._recipe.packing.max_poison_prompts:
            starts = self._recipe.packing.max_engine_starts
            raise EngineLost(f"{error} It was asked {starts} times, each time of a fresh engine.") from error
        if len(lost.asked) == 1:
            self._set_query_aside(lost.asked[0].window, error)
            return
        halves = split(lost.batch, self._known_limits)
        middle = len(halves[0].prompts)
        logger.warning("engine lost with %d prompts, asking them in halves: %s", len(lost.asked), error)
        self._parts.extendleft([LostBatch(halves[1], lost.asked[middle:]), LostBatch(halves[0], lost.asked[:middle])])

    def _set_query_aside(self, window: OpenWindow, error: EngineLost) -> None:
        """Commits the query in first-stage order and drops its other windows, which may kill the engine too."""
        ranking = window.ranking
        self._set_aside.add(ranking.query_index)
        request_id, most = self._request_id(window), self._recipe.packing.max_poison_prompts
        if len(self._set_aside) > most:
            raise EngineError(
                f"{error} It was lost with prompts of {len(self._set_aside)} queries one by one, the last is "
                f"{request_id}, and [packing] max_poison_prompts = {most}: the fault is the engine's."
            )
        logger.warning("request_id=%s set aside, its query keeps first-stage order: %s", request_id, error)
        self._ready.drop(ranking)
        self._parts = deque(kept for each in self._parts if (kept := _without(each, ranking)) is not None)
        rows = BatchRows()
        rows.add_ranking(
            self._ranking_row(
                ranking.query_index,
                status="quarantined",
                depth=ranking.depth,
                num_windows=ranking.num_windows,
                num_rounds=ranking.num_rounds,
            )
        )
        self._add_scores(rows, ranking.query_index, first_stage_docs(ranking.num_candidates, ranking.depth))
        batch_id = self._ledger.next_id()
        tables = rows.tables(batch_id, promptless_batch_row(batch_id, datetime.now(UTC)))
        quarantined = {
            "run_id": batch_id.run_id,
            "source": "queries",
            "query_id": self._staged.query_ids[ranking.query_index],
            "reason": ENGINE_DIED,
            "detail": f"request {request_id}",
        }
        self._ledger.commit(
            batch_id, tables | {"quarantine": pa.Table.from_pylist([quarantined], SCHEMAS["quarantine"])}
        )

    def _prompt_of(self, each: OpenWindow) -> tuple[str, Prompt]:
        query_index, request_id = each.ranking.query_index, self._request_id(each)
        if request_id not in self._prompts:
            documents = self._staged.doc_index[self._staged.offsets[query_index] + np.array(each.window.docs)]
            asking = self._recipe.askings[each.window.question]
            self._prompts[request_id] = asking.builder.build(
                request_id,
                each.window,
                self._staged.query_texts[query_index] or "",
                self._staged.tokens.passages(documents),
                self._staged.tokens.lengths[documents],
                asking.sizes,
            )
        return request_id, self._prompts[request_id]

    def _request_id(self, each: OpenWindow) -> str:
        query_id = self._staged.query_ids[each.ranking.query_index]
        return f"{query_id}/{each.key.round}/{each.key.window_no}/{each.key.attempt}"

    def _add_finished(self, rows: BatchRows, rankings: Iterable[RankingInProgress]) -> None:
        for ranking in rankings:
            query_index = ranking.query_index
            rows.add_ranking(
                self._ranking_row(
                    query_index,
                    status=ranking_status(ranking),
                    depth=ranking.depth,
                    num_windows=ranking.num_windows,
                    num_rounds=ranking.num_rounds,
                )
            )
            self._add_scores(rows, query_index, score_docs(ranking))

    def _add_scores(self, rows: BatchRows, query_index: int, scored: ScoredDocs) -> None:
        span = list_span(self._staged, query_index)
        rows.add_scores(
            self._staged.query_ids[query_index],
            list_doc_ids(self._staged, query_index),
            np.asarray(self._staged.first_stage_score[span]),
            scored,
        )

    def _ranking_row(
        self, query_index: int, *, status: str, depth: int = 0, num_windows: int = 0, num_rounds: int = 0
    ) -> dict[str, Any]:
        return list_digests(self._staged, self._recipe, query_index) | {
            "query_id": self._staged.query_ids[query_index],
            "num_candidates": self._staged.list_length(query_index),
            "depth": depth,
            "num_windows": num_windows,
            "num_rounds": num_rounds,
            "status": status,
            "reuse_reason": self._reuse_reasons.get(query_index),
        }

    def _newly_done(self, ranking: RankingInProgress) -> int:
        """Windows of the query's bound that were not told as done before; all of them once it has ended."""
        most = ranking.bound.num_windows
        has_ended = ranking.is_done or ranking.query_index in self._set_aside
        done = most if has_ended else min(ranking.num_final_windows, most)
        newly = done - self._credited.pop(ranking.query_index, 0)
        if not has_ended:
            self._credited[ranking.query_index] = done
        return newly


def _distinct(asked: Iterable[Asked]) -> list[RankingInProgress]:
    return list({each.window.ranking.query_index: each.window.ranking for each in asked}.values())


def _lost_batch(asked: Sequence[Asked], limits: KVCacheLimits) -> LostBatch:
    needed = sum(limits.needed_blocks(each.prompt.prompt_tokens, each.prompt.max_tokens) for each in asked)
    return LostBatch(Batch(tuple(each.prompt for each in asked), needed, needed), tuple(asked))


def _without(lost: LostBatch, ranking: RankingInProgress) -> LostBatch | None:
    """Prompts that an engine was lost with, without a query's; None if nothing is left."""
    left = [number for number, each in enumerate(lost.asked) if each.window.ranking is not ranking]
    if not left:
        return None
    prompts = tuple(lost.batch.prompts[number] for number in left)
    return LostBatch(replace(lost.batch, prompts=prompts), tuple(lost.asked[number] for number in left))


def _log_batch(batch_id: BatchId, batch: Batch, engine_s: float, generations: Sequence[Generation]) -> None:
    logger.info(
        "batch=%d prompts=%d prompt_tokens=%d cached_tokens=%d output_tokens=%d blocks=%d/%d engine_s=%.2f "
        "preemptions=%d",
        batch_id.batch_no,
        len(batch.prompts),
        sum(prompt.prompt_tokens for prompt in batch.prompts),
        sum(generation.cached_tokens for generation in generations),
        sum(generation.output_tokens for generation in generations),
        batch.needed_blocks,
        batch.block_budget,
        engine_s,
        sum(generation.num_preemptions for generation in generations),
    )
