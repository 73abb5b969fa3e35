"""The whole list in one window (RankMistral100, arXiv:2412.14574): one call, one round."""

from tasks.schedule.windows import Bound, Strategy, Window


def single(num_candidates: int) -> Strategy:
    """Asks once about all candidates; 0 or 1 of them need no call."""
    order = tuple(range(num_candidates))
    if num_candidates < 2:
        return order
    (outcome,) = yield [Window(order)]
    return outcome.order


def bound(num_candidates: int) -> Bound:
    """One window of all."""
    if num_candidates < 2:
        return Bound(0, 0, 0)
    return Bound(num_windows=1, num_slots=num_candidates, num_rounds=1)
