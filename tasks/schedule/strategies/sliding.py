"""Sliding windows from the back of the list to its front (RankGPT, arXiv:2304.09542).

Each window is one round, since the next one holds the best of it. With a perfect comparator one pass puts the best
`window_size - stride` in order.
"""

from tasks.schedule.windows import Bound, Strategy, Window, sliding_spans


def sliding(num_candidates: int, window_size: int, stride: int) -> Strategy:
    """One pass over the list; 0 or 1 candidates need no call."""
    order = list(range(num_candidates))
    if num_candidates >= 2:
        for start, end in sliding_spans(num_candidates, window_size, stride):
            (outcome,) = yield [Window(tuple(order[start:end]))]
            order[start:end] = outcome.order
    return tuple(order)


def bound(num_candidates: int, window_size: int, stride: int) -> Bound:
    """Exact: 1 + ceil((n - w) / s) windows, as many rounds."""
    if num_candidates < 2:
        return Bound(0, 0, 0)
    spans = sliding_spans(num_candidates, window_size, stride)
    return Bound(len(spans), sum(end - start for start, end in spans), len(spans))
