"""Ranks the queries in flight: pack what is ready, ask, read, and commit while the engine is at the next batch.

    open windows -> prompts -> batch -> engine -> outcomes -> strategies -> more open windows, or final orders

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
from tasks.errors import EngineError, EngineLost
from tasks.generate.generations import Engine, Generation
from tasks.keep.tables import SCHEMAS, BatchId, BatchRows, batch_row, promptless_batch_row
from tasks.pack.batches import Batch, BatchPacker, split
from tasks.pack.kv_budget import batch_budget
from tasks.prompt.prompts import Prompt
from tasks.rank.calibration import Priors
from tasks.rank.lists import list_depth, list_digests, list_doc_ids, list_span
from tasks.rank.recipe import Recipe
from tasks.read.staging import StagedInput
from tasks.schedule.rankings import RankingInProgress, WindowKey
from tasks.schedule.windows import Outcome, Window

logger = logging.getLogger(__name__)

ENGINE_DIED = "engine died"  # quarantine.reason


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """A window's outcome as an earlier start of the run committed it."""

    key: WindowKey
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class OpenWindow:
    """A window that is ready to be asked."""

    ranking: RankingInProgress
    key: WindowKey
    window: Window


@dataclass(frozen=True, slots=True)
class Asked:
    """A batch, and the windows that its prompts ask, in the same order."""

    batch: Batch
    windows: tuple[OpenWindow, ...]


class Commits(Protocol):
    """What a cohort needs of the ledger."""

    def next_id(self) -> BatchId:
        """Names the next batch."""
        ...

    def commit(self, batch_id: BatchId, tables: Mapping[str, pa.Table]) -> None:
        """Makes the batch durable."""
        ...


class Cohort:
    """A slice of the staged queries, in flight together."""

    def __init__(self, staged: StagedInput, recipe: Recipe, ledger: Commits) -> None:
        self._staged = staged
        self._recipe = recipe
        self._ledger = ledger
        self._ready: deque[OpenWindow] = deque()
        self._prompts: dict[str, Prompt] = {}  # built, but left over by a full batch
        self._unasked: list[dict[str, Any]] = []  # rankings rows of queries that cannot be ranked
        self._finished: list[RankingInProgress] = []  # final before any call
        self._priors = Priors(recipe)
        self._credited: dict[int, int] = {}  # query_index -> windows of its bound that are told as done
        self._parts: deque[Asked] = deque()  # of a batch that an engine was lost with
        self._set_aside: set[int] = set()  # query_index: an engine was lost with a prompt of theirs alone
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
            self._ready += [OpenWindow(ranking, key, window) for key, window in ranking.open_windows()]
        return self._newly_done(ranking)

    @property
    def needs_engine(self) -> bool:
        """Whether any window is open."""
        return bool(self._ready)

    def commit_unasked(self) -> None:
        """Commits the queries that need no call."""
        if not self._unasked and not self._finished:
            return
        batch_id = self._ledger.next_id()
        rows = BatchRows(batch_id)
        for ranking_row in self._unasked:
            rows.add_ranking(ranking_row)
        self._add_finished(rows, self._finished)
        self._ledger.commit(batch_id, rows.tables(promptless_batch_row(batch_id, datetime.now(UTC))))

    def rank(self, engine: Engine, on_windows: Callable[[int], None]) -> None:
        """Asks until every query has its final order; `on_windows` is told how many of the expected windows are done.

        Each batch is committed while the engine is at the next one, and in any case before an error leaves here. One
        that an engine is lost with is asked in halves, down to the prompt, whose query is set aside.

        Raises:
            EngineError, StoreError: what was committed stays.
        """
        self._ready = deque(sorted(self._ready, key=lambda each: -each.ranking.num_candidates))  # long lists first
        commit = Pending(self._ledger)
        try:
            while self._parts or self._ready:
                self._priors.learn(engine, self._ordered_sizes())
                asked = self._next_asked(engine)
                batch = asked.batch
                try:
                    generations, stats = engine.generate(batch, meanwhile=commit.flush)
                except EngineLost as error:
                    commit.flush()
                    self._isolate(asked, engine, error)
                    on_windows(sum(self._newly_done(ranking) for ranking in _distinct(asked.windows)))
                    continue
                commit.flush()
                batch_id = self._ledger.next_id()
                ordered = in_prompt_order(batch, generations, batch_id)
                rows = BatchRows(batch_id)
                self._read(asked, ordered, rows)
                rows.add_steps(stats.steps)
                rounds = [each.key.round for each in asked.windows]
                commit.put(
                    batch_id, rows.tables(batch_row(batch_id, batch, rounds, ordered, stats, engine.info.limits))
                )
                _log_batch(batch_id, batch, stats.engine_s, ordered)
                on_windows(sum(self._newly_done(ranking) for ranking in _distinct(asked.windows)))
        finally:
            commit.flush()

    def _ordered_sizes(self) -> set[int]:
        return {len(each.window.docs) for each in self._ready if each.window.question == "order"}

    def _next_asked(self, engine: Engine) -> Asked:
        return self._parts.popleft() if self._parts else self._next_batch(engine)

    def _isolate(self, asked: Asked, engine: Engine, error: EngineLost) -> None:
        """Puts the halves of a lost batch next in turn; a prompt alone sets its query aside.

        Raises:
            EngineLost: prompts are not to be set aside.
            EngineError: they are more than may be.
        """
        if not self._recipe.max_poison_prompts:
            raise error
        if len(asked.windows) == 1:
            self._set_query_aside(asked.windows[0], error)
            return
        halves = split(asked.batch, engine.info.limits)
        middle = len(halves[0].prompts)
        logger.warning("engine lost with %d prompts, asking them in halves: %s", len(asked.windows), error)
        self._parts.extendleft([Asked(halves[1], asked.windows[middle:]), Asked(halves[0], asked.windows[:middle])])

    def _set_query_aside(self, window: OpenWindow, error: EngineLost) -> None:
        """Commits the query in first-stage order and drops its other windows, which may kill the engine too."""
        ranking = window.ranking
        self._set_aside.add(ranking.query_index)
        request_id, most = self._request_id(window), self._recipe.max_poison_prompts
        if len(self._set_aside) > most:
            raise EngineError(
                f"{error} It was lost with prompts of {len(self._set_aside)} queries one by one, the last is "
                f"{request_id}, and [packing] max_poison_prompts = {most}: the fault is the engine's."
            )
        logger.warning("request_id=%s set aside, its query keeps first-stage order: %s", request_id, error)
        self._ready = deque(each for each in self._ready if each.ranking is not ranking)
        self._parts = deque(kept for each in self._parts if (kept := _without(each, ranking)) is not None)
        batch_id = self._ledger.next_id()
        rows = BatchRows(batch_id)
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
        tables = rows.tables(promptless_batch_row(batch_id, datetime.now(UTC)))
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

    def _next_batch(self, engine: Engine) -> Asked:
        """Prompts whose answers are one token long and longer ones never share a batch: their budgets differ."""
        limits = engine.info.limits
        one_token = self._prompt_of(self._ready[0])[1].max_tokens == 1
        budget = batch_budget(
            limits,
            self._recipe.headroom_share,
            one_token_answers=one_token,
            batch_loads=self._recipe.batch_loads,
        )
        packer, asked = BatchPacker(limits, budget), []
        while self._ready:
            request_id, prompt = self._prompt_of(self._ready[0])
            if (prompt.max_tokens == 1) != one_token or not packer.try_add(prompt):
                break
            self._prompts.pop(request_id, None)
            asked.append(self._ready.popleft())
        return Asked(packer.close(), tuple(asked))

    def _prompt_of(self, each: OpenWindow) -> tuple[str, Prompt]:
        query_index, request_id = each.ranking.query_index, self._request_id(each)
        if request_id not in self._prompts:
            first = self._staged.offsets[query_index]
            documents = [int(self._staged.doc_index[first + doc]) for doc in each.window.docs]
            asking = self._recipe.askings[each.window.question]
            self._prompts[request_id] = asking.builder.build(
                request_id,
                each.window,
                self._staged.query_texts[query_index] or "",
                [self._staged.tokens.passage(document) for document in documents],
                [int(self._staged.tokens.lengths[document]) for document in documents],
                asking.sizes,
            )
        return request_id, self._prompts[request_id]

    def _request_id(self, each: OpenWindow) -> str:
        query_id = self._staged.query_ids[each.ranking.query_index]
        return f"{query_id}/{each.key.round}/{each.key.window_no}/{each.key.attempt}"

    def _read(self, asked: Asked, generations: Sequence[Generation], rows: BatchRows) -> None:
        for prompt, each, generation in zip(asked.batch.prompts, asked.windows, generations, strict=True):
            builder = self._recipe.askings[each.window.question].builder
            prior = self._priors.of(len(each.window.docs)) if each.window.question == "order" else None
            reading: Reading = read_generation(builder, prompt, generation, prior)
            rows.add_window(self._staged.query_ids[each.ranking.query_index], each.key, prompt, generation, reading)
            opened = each.ranking.answer(each.key, reading.outcome)
            self._ready += [OpenWindow(each.ranking, *window) for window in opened]
            if each.ranking.is_done:
                self._add_finished(rows, [each.ranking])

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
        most = self._recipe.schedule.strategy.bound(ranking.depth).num_windows
        has_ended = ranking.is_done or ranking.query_index in self._set_aside
        done = most if has_ended else min(ranking.num_final_windows, most)
        newly = done - self._credited.get(ranking.query_index, 0)
        self._credited[ranking.query_index] = done
        return newly


class Pending:
    """At most one batch that is read but not yet durable."""

    def __init__(self, ledger: Commits) -> None:
        self._ledger = ledger
        self._batch: tuple[BatchId, dict[str, pa.Table]] | None = None

    def put(self, batch_id: BatchId, tables: dict[str, pa.Table]) -> None:
        """Keeps a batch for the next flush."""
        self._batch = (batch_id, tables)

    def flush(self) -> None:
        """Commits what is kept, if anything."""
        if self._batch is not None:
            self._ledger.commit(*self._batch)
            self._batch = None


def _distinct(asked: Iterable[OpenWindow]) -> list[RankingInProgress]:
    return list({each.ranking.query_index: each.ranking for each in asked}.values())


def _without(asked: Asked, ranking: RankingInProgress) -> Asked | None:
    """A part of a lost batch without a query's windows; None if nothing is left."""
    left = [number for number, each in enumerate(asked.windows) if each.ranking is not ranking]
    if not left:
        return None
    prompts = tuple(asked.batch.prompts[number] for number in left)
    return Asked(replace(asked.batch, prompts=prompts), tuple(asked.windows[number] for number in left))


def in_prompt_order(batch: Batch, generations: Sequence[Generation], batch_id: BatchId) -> list[Generation]:
    """The generations by their request_id, never by position alone.

    Raises:
        EngineError: a prompt has none, or several, or one belongs to no prompt.
    """
    by_id = {generation.request_id: generation for generation in generations}
    wanted = [prompt.request_id for prompt in batch.prompts]
    if len(generations) != len(wanted) or by_id.keys() != set(wanted):
        raise EngineError(
            f"run {batch_id.run_id}, batch {batch_id.batch_no}: {len(generations)} answers for {len(wanted)} prompts, "
            f"or answers for others; it is not committed. First prompt {wanted[0]}. Run the same command again."
        )
    return [by_id[request_id] for request_id in wanted]


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
