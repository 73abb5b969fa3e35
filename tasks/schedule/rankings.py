r"""The state of one query on its way through a strategy: which windows are open, which documents were named.

    ready -> asked -> answered -> (all of the round answered) -> the strategy's next round, or its final order
                         \-> asked again in another order, where too little was named

A resumed run replays stored outcomes into a fresh state: `answer` does not ask where they come from. Knows nothing
of texts, prompts or batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tasks.schedule.seeds import Seed
from tasks.schedule.windows import NOTHING, Bound, Outcome, Ranked, Strategy, Window, fell_back, is_answered
from tasks.schedule.wrappers.truncate import Truncate

WHOLE_LIST, UNSEEDED = Truncate(), Seed()


@dataclass(frozen=True, slots=True)
class Schedule:
    """How lists are ranked: a strategy, how deep, and how often a window is asked again."""

    strategy: Strategy
    truncate: Truncate = WHOLE_LIST
    retries: int = 1
    seed: Seed = UNSEEDED

    def bound(self, depth: int) -> Bound:
        """The most that ranking so many candidates can ask, retries included."""
        if depth < 2:
            return NOTHING
        return self.strategy.bound(depth).times(1 + self.retries, also_rounds=True)


@dataclass(frozen=True, slots=True)
class WindowKey:
    """Names a window of a run, together with its query."""

    round: int
    window_no: int
    attempt: int = 0


class RankingInProgress:
    """One query's strategy, its open windows, and what the model has said so far."""

    def __init__(
        self, query_index: int, num_candidates: int, schedule: Schedule, *, depth: int | None = None, query_id: str = ""
    ) -> None:
        """Args as the names say; `depth` candidates are ranked (all if None), `query_id` names what is drawn."""
        self.query_index = query_index
        self.num_candidates = num_candidates
        self.depth = num_candidates if depth is None else depth
        self.num_windows = 0  # answers taken, retries included
        self.num_final_windows = 0
        self.num_fallback_windows = 0  # of the final ones
        self.result: Ranked | None = None  # of the candidates within depth; None while windows are open
        self.bound = schedule.strategy.bound(self.depth)  # the most that it can ask, retries left out
        self._retries = schedule.retries
        self._seed = schedule.seed.of(query_id)
        self._strategy = schedule.strategy.rounds(self.depth, self._seed)
        self._round = -1
        self._windows: list[Window] = []
        self._attempts: list[int] = []
        self._best: dict[int, Outcome] = {}  # of the attempts so far, the one that named most
        self._outcomes: dict[int, Outcome] = {}
        self._placed: set[int] = set()
        self._last_logprob: dict[int, float] = {}
        self._advance(None)

    @property
    def num_rounds(self) -> int:
        """Rounds begun so far."""
        return self._round + 1

    @property
    def rounds_left(self) -> int:
        """The most rounds that are still to come, the one in progress included."""
        return max(1, self.bound.num_rounds - self._round)

    @property
    def is_done(self) -> bool:
        """Whether the final order stands."""
        return self.result is not None

    @property
    def order(self) -> tuple[int, ...] | None:
        """The final order of all candidates, what lies below depth at the end; None while windows are open."""
        if self.result is None:
            return None
        return self.result.order + tuple(range(self.depth, self.num_candidates))

    def open_windows(self) -> Iterator[tuple[WindowKey, Window]]:
        """The windows of this round that have no final outcome yet."""
        for window_no in range(len(self._windows)):
            if window_no not in self._outcomes:
                yield self._opened(window_no)

    def answer(self, key: WindowKey, outcome: Outcome) -> list[tuple[WindowKey, Window]]:
        """Takes the outcome of an open window; returns the windows that it opened.

        Raises:
            ValueError: the window is not open, or the outcome is not an order of its candidates.
        """
        number = key.window_no
        if key.round != self._round or number >= len(self._windows) or number in self._outcomes:
            raise ValueError(f"query {self.query_index}: window {key} is not open in round {self._round}")
        if key.attempt != self._attempts[number]:
            raise ValueError(f"query {self.query_index}: window {key} is not open: attempt {self._attempts[number]} is")
        if sorted(outcome.order) != sorted(self._windows[number].docs):
            raise ValueError(f"query {self.query_index}: window {key}: the outcome is not an order of its candidates")
        outcome = _left_out_as(self._windows[number], outcome)
        self.num_windows += 1
        if self._is_worth_a_retry(number, outcome):
            self._attempts[number] += 1
            return [self._opened(number)]
        self._take(number, outcome)
        if len(self._outcomes) < len(self._windows):
            return []
        self._advance([self._outcomes[number] for number in range(len(self._windows))])
        return list(self.open_windows())

    def was_placed(self, doc: int) -> bool:
        """Whether the model placed the candidate in any window: named it, or named all that had to be better."""
        return doc in self._placed

    def value_of(self, doc: int) -> float | None:
        """The model's number for the candidate: the strategy's, else the last log-probability; None without one."""
        assert self.result is not None, f"query {self.query_index} is not finished"
        return self.result.values.get(doc, self._last_logprob.get(doc))

    def _opened(self, window_no: int) -> tuple[WindowKey, Window]:
        """A repeated window has its candidates in another order: a greedy model repeats its answer to the same one."""
        attempt, window = self._attempts[window_no], self._windows[window_no]
        if attempt:
            seed = self._seed.of("retry", self._round, window_no, attempt)
            window = replace(window, docs=seed.shuffled(window.docs))
        return WindowKey(self._round, window_no, attempt), window

    def _is_worth_a_retry(self, window_no: int, outcome: Outcome) -> bool:
        window = self._windows[window_no]
        best = self._best.get(window_no)
        if best is None or outcome.num_listed > best.num_listed:
            self._best[window_no] = outcome
        left = self._retries - self._attempts[window_no]
        return left > 0 and len(window.docs) > 1 and fell_back(window, outcome)

    def _take(self, window_no: int, outcome: Outcome) -> None:
        window = self._windows[window_no]
        final = self._best[window_no] if fell_back(window, outcome) else outcome
        self._outcomes[window_no] = final
        self.num_final_windows += 1
        self.num_fallback_windows += fell_back(window, final)
        self._placed.update(final.order if is_answered(window, final) else final.listed)
        self._last_logprob.update(final.logprob_of())

    def _advance(self, outcomes: list[Outcome] | None) -> None:
        self._windows, self._attempts, self._best, self._outcomes = [], [], {}, {}
        try:
            windows = next(self._strategy) if outcomes is None else self._strategy.send(outcomes)
        except StopIteration as end:
            self.result = end.value
            return
        self._windows, self._attempts = windows, [0] * len(windows)
        self._round += 1


def _left_out_as(window: Window, outcome: Outcome) -> Outcome:
    """What the model left out in the window's own order: a repeated window showed another one."""
    named = set(outcome.listed)
    order = (*outcome.listed, *(doc for doc in window.docs if doc not in named))
    if order == outcome.order:
        return outcome
    logprob_of = outcome.logprob_of()
    return Outcome(order, outcome.num_listed, tuple(logprob_of[doc] for doc in order) if logprob_of else None)
