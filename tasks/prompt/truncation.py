"""How long each passage of a prompt may be: cut to a maximum, then shortened fairly until the prompt fits.

Water-filling: all passages above one level are cut to it, shorter ones stay whole. Knows nothing of texts.
"""

import numpy as np


def fair_lengths(lengths: np.ndarray, room: int, floor: int) -> np.ndarray | None:
    """The lengths, 1D int64, that fill at most `room` tokens; None if even `floor` tokens each do not fit.

    The level is the highest that fits; passages longer than it get it, and the tokens left over go one each to the
    first of them.

    >>> fair_lengths(np.array([10, 50, 90]), room=100, floor=5)
    array([10, 45, 45])
    """
    whole: np.ndarray = lengths.astype(np.int64)
    if whole.sum() <= room:
        return whole
    if np.minimum(whole, floor).sum() > room:
        return None
    level = _highest_level(whole, room)
    cut: np.ndarray = np.minimum(whole, level)
    longer = np.flatnonzero(whole > level)
    cut[longer[: room - cut.sum()]] += 1
    return cut


def _highest_level(lengths: np.ndarray, room: int) -> int:
    """The largest level with sum(min(lengths, level)) <= room, by the sorted prefix sums."""
    ordered = np.sort(lengths)
    below = np.concatenate([[0], np.cumsum(ordered)[:-1]])  # tokens of the passages shorter than the i-th
    sharing = np.arange(len(ordered), 0, -1)
    levels = (room - below) // sharing
    return int(levels[np.flatnonzero(levels < ordered)[0]])
