"""Keeps the engine fed: prompts on their way through it, in the batches that they are committed in.

    offered -> in the engine -> answered -> (all of its batch answered, and every batch before it closed) -> closed

Driver `stream`: a prompt goes to the engine as soon as its cache has room, and joins the newest batch. Driver
`generate`: a batch goes when it is full, or when the engine has nothing else; the next one waits behind it, so that
the engine does not wait for the host. Batches close in the order in which they were opened: a window is asked only
after what it depends on was answered, so whatever is committed can be replayed. Knows nothing of rankings or tables.
"""

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf

import numpy as np

from tasks.decode.answer import Generation, Reading
from tasks.engine.batches import Batch, Packer
from tasks.engine.generations import BatchStats, Engine
from tasks.engine.kv_cache import batch_budget
from tasks.engine.messages import Driver
from tasks.engine.step_stats import EngineStep
from tasks.prompt.prompts import Prompt
from tasks.schedule.ready import OpenWindow
from tasks.settings import PackingSettings
from tasks.system.errors import EngineError

STEPS_AHEAD = 4  # of the engine: prompts whose answer is one token long wait in it for so many, and no longer
CALLS_AHEAD = 2  # of `LLM.generate`: the one in progress, and the next


@dataclass(slots=True)
class PendingPrompt:
    """A window and the prompt that asks it, and in the end what was read in the answer."""

    prompt: Prompt
    window: OpenWindow
    reading: Reading | None = None
    ends_query: bool = False  # it was the last that its query needed


@dataclass(slots=True)
class OpenBatch:
    """Prompts that are committed together, from the first that was admitted to the last answer."""

    packer: Packer
    opened_s: float  # monotonic
    submitted_at: datetime  # UTC
    asked: dict[str, PendingPrompt] = field(default_factory=dict)  # by request_id
    answered: list[tuple[PendingPrompt, Generation]] = field(default_factory=list)
    is_sent: bool = False
    engine_s: float = 0.0
    itl_s: list[np.ndarray] = field(default_factory=list)
    steps: list[EngineStep] = field(default_factory=list)

    @property
    def is_answered(self) -> bool:
        """Whether none of its prompts is open."""
        return len(self.answered) == len(self.asked)

    @property
    def is_at_work(self) -> bool:
        """Whether the engine has prompts of it."""
        return self.is_sent and not self.is_answered

    def batch(self) -> Batch:
        """What of it was answered."""
        return Batch(
            tuple(each.prompt for each, _ in self.answered), self.packer.num_blocks, self.packer.budget.max_blocks
        )

    def stats(self) -> BatchStats:
        """What it took, up to now."""
        gaps = np.concatenate(self.itl_s) if self.itl_s else np.empty(0)
        return BatchStats(self.submitted_at, datetime.now(UTC), self.engine_s, gaps, tuple(self.steps))


@dataclass(frozen=True, slots=True)
class Lost:
    """What was on its way when an engine was lost."""

    suspects: list[list[PendingPrompt]]  # in the engine's hands, by batch
    untouched: list[PendingPrompt]  # it had not come to these


class Feed:
    """The prompts of one engine."""

    def __init__(self, engine: Engine, packing: PackingSettings, driver: Driver) -> None:
        self._engine = engine
        self._packing = packing
        self._streams = driver == "stream"
        self._batches: deque[OpenBatch] = deque()  # oldest first
        self._batch_of: dict[str, OpenBatch] = {}  # by request_id: what is not answered yet
        self._outgoing: list[Prompt] = []  # stream: admitted, not sent yet
        self._in_engine: Packer  # stream: what is not answered yet; from the first prompt on

    @property
    def is_empty(self) -> bool:
        """Whether every prompt was answered and its batch closed."""
        return not self._batches

    @property
    def is_idle(self) -> bool:
        """Whether every prompt was answered."""
        return not self._batch_of

    @property
    def one_token(self) -> bool | None:
        """Whether the newest prompts have answers of one token; None where there are none."""
        return self._batches[-1].packer.budget.one_token_answers if self._batches else None

    def offer(self, asked: PendingPrompt) -> bool:
        """Admits a window's prompt; false: not now. An engine that has nothing to do takes any prompt."""
        prompt = asked.prompt
        batch = self._streamed(prompt) if self._streams else self._called(prompt)
        if batch is None:
            return False
        batch.asked[prompt.request_id] = asked
        self._batch_of[prompt.request_id] = batch
        return True

    def send(self) -> None:
        """Hands over what was admitted; a call that is not full only where the engine has nothing else.

        Raises:
            EngineLost: see `Engine.submit`.
        """
        outgoing, self._outgoing = self._outgoing, []
        if outgoing:
            self._engine.submit(outgoing)
        elif self._batches and not self._batches[-1].is_sent and not any(batch.is_at_work for batch in self._batches):
            self._call(self._batches[-1])

    def collect(self) -> list[tuple[PendingPrompt, Generation]]:
        """Waits for answers.

        Raises:
            EngineLost: see `Engine.collect`.
            EngineError: an answer belongs to no prompt.
        """
        answered = self._engine.collect()
        oldest = self._batches[0]  # time and gaps cannot be told apart by prompt
        oldest.engine_s += answered.engine_s
        oldest.itl_s.append(answered.itl_s)
        oldest.steps += answered.steps
        return [self._land(generation) for generation in answered.generations]

    def closed(self) -> Iterator[OpenBatch]:
        """Batches that are answered and were not closed before, oldest first; to be asked for when all was offered."""
        while self._batches and self._batches[0].is_answered:
            yield self._batches.popleft()

    def lose(self) -> Lost:
        """Empties itself after the engine was lost; what had been answered closes now."""
        sent = [batch for batch in self._batches if batch.is_at_work]
        at_work = sent if self._streams else sent[:1]  # a call begins when the one before it has ended
        suspects, untouched = [], []
        for batch in self._batches:
            open_ones = [each for request_id, each in batch.asked.items() if request_id in self._batch_of]
            if any(batch is each for each in at_work):
                suspects.append(open_ones)
            else:
                untouched += open_ones
            batch.asked = {each.prompt.request_id: each for each, _ in batch.answered}
        self._batches = deque(batch for batch in self._batches if batch.answered)
        self._batch_of, self._outgoing = {}, []
        return Lost([each for each in suspects if each], untouched)

    def _streamed(self, prompt: Prompt) -> OpenBatch | None:
        """Sends the prompt where the engine has room beside what it has, and returns its batch; None: no room.

        Longer answers grow: all that are in the engine fit into its cache at once, so that none is preempted. Answers
        of one token do not: they may wait in the engine, for a few steps.
        """
        if self.is_idle:
            self._in_engine = self._packer(prompt, STEPS_AHEAD)
        if not self._in_engine.try_add(prompt):
            return None
        self._outgoing.append(prompt)
        newest = self._batches[-1] if self._batches else None
        is_old = newest is None or time.monotonic() - newest.opened_s > self._packing.max_batch_s
        if newest is None or is_old or not newest.packer.try_add(prompt):
            newest = self._open(prompt)
            newest.is_sent = True
        return newest

    def _called(self, prompt: Prompt) -> OpenBatch | None:
        """The batch that the prompt waits in for its call; None: a full one waits already."""
        newest = self._batches[-1] if self._batches else None
        if newest is None or newest.is_sent:
            return self._open(prompt)
        if newest.packer.try_add(prompt):
            return newest
        if sum(batch.is_at_work for batch in self._batches) >= CALLS_AHEAD:
            return None
        self._call(newest)
        return self._open(prompt)

    def _open(self, prompt: Prompt) -> OpenBatch:
        packer = self._packer(prompt)
        packer.try_add(prompt)
        self._batches.append(OpenBatch(packer, time.monotonic(), datetime.now(UTC)))
        return self._batches[-1]

    def _packer(self, prompt: Prompt, steps_ahead: float = inf) -> Packer:
        """For prompts whose answers are of this one's kind; those of one token may be of so many steps in all."""
        limits, packing, one_token = self._engine.info.limits, self._packing, prompt.has_one_token_answer
        budget = batch_budget(
            limits, packing.headroom_share, one_token_answers=one_token, batch_loads=packing.batch_loads
        )
        if one_token:
            budget = replace(budget, max_prompt_tokens=steps_ahead * limits.max_num_batched_tokens)
        return Packer(limits, budget)

    def _call(self, batch: OpenBatch) -> None:
        batch.is_sent = True
        batch.submitted_at = datetime.now(UTC)
        self._engine.submit([each.prompt for each in batch.asked.values()])

    def _land(self, generation: Generation) -> tuple[PendingPrompt, Generation]:
        batch = self._batch_of.pop(generation.request_id, None)
        if batch is None:
            raise EngineError(
                f"an answer for {generation.request_id}, which was not asked or was already answered. Uncommitted "
                "work is lost; run the same command again."
            )
        asked = batch.asked[generation.request_id]
        if self._streams:
            self._in_engine.remove(asked.prompt)
        batch.answered.append((asked, generation))
        return asked, generation
