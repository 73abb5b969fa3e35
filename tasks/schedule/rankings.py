"""The state of one query on its way through a strategy: which windows are open, which documents were named.

    ready -> asked -> answered -> (all of the round answered) -> the strategy's next round, or its final order

A resumed run replays stored outcomes into a fresh state: `answer` does not ask where they come from. Knows nothing
of texts, prompts or batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tasks.schedule.strategies import single, sliding
from tasks.schedule.windows import Bound, Outcome, Strategy, Window


@dataclass(frozen=True, slots=True)
class Schedule:
    """A strategy with its resolved sizes."""

    name: str  # single, sliding
    window_size: int
    stride: int
    depth: int | None  # the model ranks this many candidates of a list; all if None

    def start(self, num_candidates: int) -> Strategy:
        """A fresh generator of rounds over the candidates within depth."""
        depth = self.depth_of(num_candidates)
        if self.name == "single":
            return single.single(depth)
        return sliding.sliding(depth, self.window_size, self.stride)

    def bound(self, num_candidates: int) -> Bound:
        """The most that a list of this length can ask."""
        depth = self.depth_of(num_candidates)
        if self.name == "single":
            return single.bound(depth)
        return sliding.bound(depth, self.window_size, self.stride)

    def depth_of(self, num_candidates: int) -> int:
        """How many candidates of a list of this length the model ranks."""
        return num_candidates if self.depth is None else min(num_candidates, self.depth)


@dataclass(frozen=True, slots=True)
class WindowKey:
    """Names a window of a run, together with its query."""

    round: int
    window_no: int
    attempt: int = 0


class RankingInProgress:
    """One query's strategy, its open windows, and what the model has said so far."""

    def __init__(self, query_index: int, num_candidates: int, schedule: Schedule) -> None:
        self.query_index = query_index
        self.num_candidates = num_candidates
        self.num_windows = 0
        self.num_fallback_windows = 0
        self.order: tuple[int, ...] | None = None  # final, of all candidates; None while windows are open
        self._strategy = schedule.start(num_candidates)
        self._round = -1
        self._windows: list[Window] = []
        self._outcomes: dict[int, Outcome] = {}
        self._named: set[int] = set()
        self._last_logprob: dict[int, float] = {}
        self._advance(None)

    @property
    def num_rounds(self) -> int:
        """Rounds begun so far."""
        return self._round + 1

    @property
    def is_done(self) -> bool:
        """Whether the final order stands."""
        return self.order is not None

    def open_windows(self) -> Iterator[tuple[WindowKey, Window]]:
        """The windows of this round that have no outcome yet."""
        for window_no, window in enumerate(self._windows):
            if window_no not in self._outcomes:
                yield WindowKey(self._round, window_no), window

    def answer(self, key: WindowKey, outcome: Outcome) -> bool:
        """Takes the outcome of an open window; true if that ended the round.

        Raises:
            ValueError: the window is not open, or the outcome is not an order of its candidates.
        """
        window = self._windows[key.window_no] if key.window_no < len(self._windows) else None
        if key.round != self._round or window is None or key.window_no in self._outcomes:
            raise ValueError(f"query {self.query_index}: window {key} is not open in round {self._round}")
        if sorted(outcome.order) != sorted(window.docs):
            raise ValueError(f"query {self.query_index}: window {key}: the outcome is not an order of its candidates")
        self._outcomes[key.window_no] = outcome
        self._take(outcome)
        if len(self._outcomes) < len(self._windows):
            return False
        self._advance([self._outcomes[number] for number in range(len(self._windows))])
        return True

    def was_named(self, doc: int) -> bool:
        """Whether the model named the candidate in any window that showed it."""
        return doc in self._named

    def last_logprob(self, doc: int) -> float | None:
        """The candidate's log-probability in the last window that showed it: the one that placed it."""
        return self._last_logprob.get(doc)

    def _take(self, outcome: Outcome) -> None:
        self.num_windows += 1
        self.num_fallback_windows += outcome.fell_back
        self._named.update(outcome.order[: outcome.num_listed])
        if outcome.logprobs is not None:
            self._last_logprob.update(zip(outcome.order, outcome.logprobs, strict=True))

    def _advance(self, outcomes: list[Outcome] | None) -> None:
        try:
            self._windows = next(self._strategy) if outcomes is None else self._strategy.send(outcomes)
        except StopIteration as end:
            ranked: tuple[int, ...] = end.value
            self.order = ranked + tuple(range(len(ranked), self.num_candidates))
            self._windows = []
            return
        self._round += 1
        self._outcomes = {}
