"""Ranks the queries in flight: asks what is ready as far as the engine has room, reads, and commits what is whole.

    open windows -> prompts -> engine -> outcomes -> strategies -> more open windows, or final orders

Resuming is the same loop: stored outcomes are replayed first, and only windows without one are asked. Knows nothing
of files, schedules or Prefect.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tasks.decode.answer import Generation
from tasks.engine.batches import Batch
from tasks.engine.generations import BatchStats, Engine
from tasks.engine.kv_cache import KVCacheLimits
from tasks.inputs.staging import StagedInput
from tasks.prompt.prompts import Prompt
from tasks.ranking.content_free import Priors
from tasks.ranking.feed import Feed, PendingPrompt
from tasks.ranking.query import StagedQuery
from tasks.ranking.recipe import Recipe
from tasks.ranking.recovery import Recovery
from tasks.schedule.rankings import RankingInProgress, WindowKey
from tasks.schedule.ready import OpenWindow, ReadyWindows
from tasks.schedule.scores import ScoredDocs, first_stage_docs, ranking_status, score_docs
from tasks.schedule.windows import Outcome, Window
from tasks.store.tables import SCHEMAS, BatchId, BatchRows, batch_row, promptless_batch_row
from tasks.system.errors import DeadlinePassed, EngineLost, StoreError

logger = logging.getLogger(__name__)

ENGINE_DIED = "engine died"  # quarantine.reason


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """A window's outcome as an earlier start of the run committed it."""

    key: WindowKey
    outcome: Outcome


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
        self._unasked: list[dict[str, Any]] = []  # rankings rows of queries that cannot be ranked
        self._finished: list[RankingInProgress] = []  # final before any call
        self._priors = Priors(recipe)
        self._credited: dict[int, int] = {}  # query_index -> windows of its bound that are told as done
        self._recovery = Recovery(recipe.packing)
        self._limits: KVCacheLimits | None = None  # of the engine: asking a dead one would start another
        self._reuse_reasons: dict[int, str] = {}  # query_index -> why it is ranked although reuse was looked for

    def reuse_query(self, query_index: int, scores_run_id: str) -> int:
        """Points a query to the rows of an earlier run, and returns how many windows of its bound that saves."""
        depth = self._query(query_index).depth
        row = self._ranking_row(query_index, "reused") | {"depth": depth, "scores_run_id": scores_run_id}
        self._unasked.append(row)
        return self._recipe.schedule.strategy.bound(depth).num_windows

    def add_query(self, query_index: int, stored: Sequence[StoredOutcome], reuse_reason: str | None = None) -> int:
        """Takes a query in, replays what it was told before, and returns how many windows of its bound are done."""
        if reuse_reason is not None:
            self._reuse_reasons[query_index] = reuse_reason
        query = self._query(query_index)
        if query.status != "ready":
            self._unasked.append(self._ranking_row(query_index, query.status))
            return 0
        ranking = RankingInProgress(
            query_index,
            query.num_candidates,
            self._recipe.schedule,
            depth=query.depth,
            query_id=query.query_id,
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

        Each batch is committed while the engine works on the next one, and before any error is raised. The prompts of a
        lost engine are asked by themselves, then in halves, down to one prompt, whose query is set aside.

        Args:
            engine: what is asked.
            on_windows: told how many of the expected windows are done since.
            take_more: called after answers came, and may add queries.

        Raises:
            EngineError, StoreError: what was committed stays.
        """
        feed = Feed(engine, self._recipe.packing, self._recipe.driver)
        self._limits = engine.info.limits
        try:
            while self._recovery or self._ready or not feed.is_empty:
                on_windows(self._ask_part(engine) if self._recovery else self._go_on(engine, feed))
                take_more()
        except BaseException as error:
            if isinstance(error, DeadlinePassed):
                while not feed.is_idle:  # what is asked is paid for
                    self._land(feed)
            if not isinstance(error, StoreError):
                feed.lose()
                self._commit_closed(feed)
            raise
        finally:
            self._ledger.flush()

    def _go_on(self, engine: Engine, feed: Feed) -> int:
        """Gives the engine work, commits while it is at that, and takes what it answers; returns windows done since."""
        try:
            self._admit(engine, feed)
            self._commit_closed(feed)
            landed = [] if feed.is_idle else self._land(feed)
        except EngineLost as error:
            self._recover(feed, error)
            return 0
        return sum(self._newly_done(ranking) for ranking in _distinct(asked for asked, _ in landed))

    def _land(self, feed: Feed) -> list[tuple[PendingPrompt, Generation]]:
        """Waits for answers and takes them."""
        landed = feed.collect()
        for asked, generation in landed:
            self._take(asked, generation)
        return landed

    def _admit(self, engine: Engine, feed: Feed) -> None:
        """Gives the engine what it has room for."""
        if self._priors.missing:
            if not feed.is_idle:  # they are asked alone
                feed.send()
                return
            self._priors.learn(engine)
        while (kind := self._ready.kind_after(one_token=feed.one_token)) is not None:
            each = self._ready.first(one_token=kind)
            assert each is not None, kind
            request_id, prompt = self._prompt_of(each)
            if not feed.offer(PendingPrompt(prompt, each)):
                break
            self._ready.pop(one_token=kind)
            del self._prompts[request_id]
        feed.send()

    def _commit_closed(self, feed: Feed) -> None:
        for batch in feed.closed():
            # an interruption may come between an answer and its reading
            batch.answered = [each for each in batch.answered if each[0].reading is not None]
            if batch.answered:
                self._commit(batch.batch(), batch.answered, batch.stats())

    def _commit(self, batch: Batch, answered: Sequence[tuple[PendingPrompt, Generation]], stats: BatchStats) -> None:
        rows = BatchRows()
        for asked, generation in answered:
            ranking = asked.window.ranking
            assert asked.reading is not None, asked.prompt.request_id
            query_id = self._staged.query_ids[ranking.query_index]
            rows.add_window(query_id, asked.window.key, asked.prompt, generation, asked.reading)
            if asked.ends_query:
                self._add_finished(rows, [ranking])
        rows.add_steps(stats.steps)
        batch_id = self._ledger.next_id()
        rounds = [asked.window.key.round for asked, _ in answered]
        generations = [generation for _, generation in answered]
        row = batch_row(batch_id, batch, self._recipe.driver, rounds, generations, stats, self._known_limits)
        self._ledger.commit(batch_id, rows.tables(batch_id, row))
        if stats.engine_s > 0:  # none, where a plan only counts
            _log_batch(batch_id, batch, stats.engine_s, generations)

    @property
    def _known_limits(self) -> KVCacheLimits:
        assert self._limits is not None, "nothing was asked"
        return self._limits

    def _take(self, asked: PendingPrompt, generation: Generation) -> None:
        """Reads an answer, and moves its query on."""
        window, ranking = asked.window, asked.window.ranking
        mode = self._recipe.askings[window.window.question].mode
        reading = mode.read(asked.prompt, generation, self._priors.of(window.window))
        self._open(ranking, ranking.answer(window.key, reading.outcome))
        asked.reading, asked.ends_query = reading, ranking.is_done

    def _open(self, ranking: RankingInProgress, windows: Iterable[tuple[WindowKey, Window]]) -> None:
        for key, window in windows:
            self._priors.expect(window)
            form = self._recipe.askings[window.question].mode.form(window)
            self._ready.push(OpenWindow(ranking, key, window), one_token=form.max_tokens == 1)

    def _recover(self, feed: Feed, error: EngineLost) -> None:
        """After an engine was lost: what it was at is asked by itself, the rest again in its turn.

        Raises:
            EngineLost: it was asked often enough, and prompts are not to be set aside.
        """
        lost = feed.lose()
        self._commit_closed(feed)
        for asked in lost.untouched:
            self._prompts[asked.prompt.request_id] = asked.prompt
            self._ready.push(asked.window, one_token=asked.prompt.has_one_token_answer)
        poison = self._recovery.add(lost.suspects, error)
        if poison is not None:
            self._set_query_aside(poison, error)

    def _ask_part(self, engine: Engine) -> int:
        """Asks prompts that an engine was lost with by themselves; returns how many windows are done since."""
        part, tries = self._recovery.take()
        try:
            batch = part.batch(self._known_limits)
            generations, stats = engine.generate(batch, tries)
        except EngineLost as error:
            poison = self._recovery.isolate(part, error)
            if poison is not None:
                self._set_query_aside(poison, error)
        else:
            answered = list(zip(part.asked, generations, strict=True))
            for asked, generation in answered:
                self._take(asked, generation)
            self._commit(batch, answered, stats)
        return sum(self._newly_done(ranking) for ranking in _distinct(part.asked))

    def _set_query_aside(self, window: OpenWindow, error: EngineLost) -> None:
        """Commits the query in first-stage order and drops its other windows, which may kill the engine too."""
        ranking, request_id = window.ranking, self._request_id(window)
        self._recovery.set_aside(ranking, request_id, error)
        self._ready.drop(ranking)
        query, rows = self._query(ranking.query_index), BatchRows()
        rows.add_ranking(self._ranking_row(ranking.query_index, "quarantined", ranking))
        _add_scores(rows, query, first_stage_docs(ranking.num_candidates, ranking.depth))
        batch_id = self._ledger.next_id()
        tables = rows.tables(batch_id, promptless_batch_row(batch_id, datetime.now(UTC)))
        quarantined = {
            "run_id": batch_id.run_id,
            "source": "queries",
            "query_id": query.query_id,
            "reason": ENGINE_DIED,
            "detail": f"request {request_id}",
        }
        self._ledger.commit(
            batch_id, tables | {"quarantine": pa.Table.from_pylist([quarantined], SCHEMAS["quarantine"])}
        )

    def _prompt_of(self, window: OpenWindow) -> tuple[str, Prompt]:
        request_id = self._request_id(window)
        if request_id not in self._prompts:
            query = self._query(window.ranking.query_index)
            documents = query.documents[np.array(window.window.docs)]
            asking = self._recipe.askings[window.window.question]
            self._prompts[request_id] = asking.builder.build(
                request_id,
                window.window,
                query.text,
                self._staged.tokens.passages(documents),
                self._staged.tokens.lengths[documents],
                asking.sizes,
                query.fields_of(window.window.docs),
            )
        return request_id, self._prompts[request_id]

    def _request_id(self, window: OpenWindow) -> str:
        key, query_id = window.key, self._staged.query_ids[window.ranking.query_index]
        return f"{query_id}/{key.round}/{key.window_no}/{key.attempt}"

    def _query(self, query_index: int) -> StagedQuery:
        return StagedQuery(self._staged, self._recipe, query_index)

    def _add_finished(self, rows: BatchRows, rankings: Iterable[RankingInProgress]) -> None:
        for ranking in rankings:
            rows.add_ranking(self._ranking_row(ranking.query_index, ranking_status(ranking), ranking))
            _add_scores(rows, self._query(ranking.query_index), score_docs(ranking))

    def _ranking_row(self, query_index: int, status: str, ranking: RankingInProgress | None = None) -> dict[str, Any]:
        reason = self._reuse_reasons.get(query_index)
        return self._query(query_index).ranking_row(status, ranking) | {"reuse_reason": reason}

    def _newly_done(self, ranking: RankingInProgress) -> int:
        """Windows of the query's bound that were not told as done before; all of them once it has ended."""
        most = ranking.bound.num_windows
        has_ended = ranking.is_done or self._recovery.is_set_aside(ranking)
        done = most if has_ended else min(ranking.num_final_windows, most)
        newly = done - self._credited.pop(ranking.query_index, 0)
        if not has_ended:
            self._credited[ranking.query_index] = done
        return newly


def _add_scores(rows: BatchRows, query: StagedQuery, scored: ScoredDocs) -> None:
    rows.add_scores(query.query_id, query.doc_ids, query.first_stage_scores, scored)


def _distinct(asked: Iterable[PendingPrompt]) -> list[RankingInProgress]:
    return list({each.window.ranking.query_index: each.window.ranking for each in asked}.values())


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
