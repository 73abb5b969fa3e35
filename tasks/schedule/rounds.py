"""Strategies run inside others: over some of the candidates, or several side by side."""

from collections.abc import Generator, Sequence
from dataclasses import replace

from tasks.schedule.windows import Outcome, Ranked, Rounds, Window


def over(docs: Sequence[int], inner: Rounds) -> Rounds:
    """Runs a strategy over the given candidates: its 0 is docs[0]."""
    place_of = {doc: place for place, doc in enumerate(docs)}
    told: list[Outcome] | None = None
    while True:
        try:
            windows = next(inner) if told is None else inner.send(told)
        except StopIteration as end:
            ranked: Ranked = end.value
            order = tuple(docs[place] for place in ranked.order)
            return Ranked(order, ranked.score_kind, {docs[place]: value for place, value in ranked.values.items()})
        outcomes = yield [_outward(window, docs) for window in windows]
        told = [replace(each, order=tuple(place_of[doc] for doc in each.order)) for each in outcomes]


def side_by_side(inners: Sequence[Rounds]) -> Generator[list[Window], list[Outcome], list[Ranked]]:
    """Runs strategies at once: each round holds the windows of all that have not ended."""
    results: dict[int, Ranked] = {}
    told: dict[int, list[Outcome] | None] = dict.fromkeys(range(len(inners)))
    while True:
        opened: dict[int, list[Window]] = {}
        for number in told:
            answer = told[number]
            try:
                opened[number] = next(inners[number]) if answer is None else inners[number].send(answer)
            except StopIteration as end:
                results[number] = end.value
        if not opened:
            return [results[number] for number in range(len(inners))]
        outcomes = yield [window for windows in opened.values() for window in windows]
        told, start = {}, 0
        for number, windows in opened.items():
            told[number] = outcomes[start : start + len(windows)]
            start += len(windows)


def _outward(window: Window, docs: Sequence[int]) -> Window:
    pivot = None if window.pivot is None else docs[window.pivot]
    return replace(window, docs=tuple(docs[place] for place in window.docs), pivot=pivot)
