"""The lengths that every prompt of a run keeps to, settled once from settings and template alone.

A ranking never depends on how much memory is free. Knows nothing of texts.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tasks.system.errors import ConfigError, PromptTooLong

if TYPE_CHECKING:
    from tasks.prompt.prompts import PromptBuilder

DEFAULT_WINDOW_SIZE = 20  # where "auto" starts: RankGPT's
JOIN_SLACK_TOKENS = 8  # a query joined to the words around it may take a token more than alone


@dataclass(frozen=True, slots=True)
class PromptSizes:
    """The lengths that every prompt of one decode mode keeps to: part of the run's identity."""

    window_size: int
    max_model_len: int
    max_prompt_tokens: int
    max_query_tokens: int
    max_passage_tokens: int
    min_passage_tokens: int


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """What the settings ask for."""

    max_model_len: int
    max_prompt_tokens: int | None  # max_model_len less the answer if None
    max_query_tokens: int
    max_passage_tokens: int
    min_passage_tokens: int


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


def resolve_sizes(builder: "PromptBuilder", window_size: int | Literal["auto"], limits: SizeLimits) -> PromptSizes:
    """Settles the window and the prompt's length.

    Raises:
        ConfigError: more passages a window than identifiers, or a prompt longer than the engine takes.
        PromptTooLong: the window does not fit; the message says which one would.
    """
    most = builder.mode.max_passages
    if window_size != "auto" and most is not None and window_size > most:
        raise ConfigError(
            f"[strategy] window_size = {window_size} must be at most {most}: the prompt has {most} identifiers of "
            "one token. Use a smaller window, or decode_mode = 'permutation' with numbers."
        )
    wanted = min(DEFAULT_WINDOW_SIZE, most or DEFAULT_WINDOW_SIZE) if window_size == "auto" else window_size
    _check_prompt_limit(builder, wanted, limits)
    smallest = min(wanted, 2) if window_size == "auto" else wanted
    sizes = range(wanted, smallest - 1, -1)
    fitting = next((size for size in sizes if _fits(builder, size, limits)), None)
    if fitting is None:
        would = next((size for size in range(wanted - 1, 1, -1) if _fits(builder, size, limits)), None)
        advice = f"window_size <= {would} would fit" if would else "no window fits: raise max_model_len"
        raise PromptTooLong(
            f"[strategy] window_size = {wanted}: a prompt may need {_needed(builder, wanted, limits)} tokens (query up "
            f"to {limits.max_query_tokens}, each passage at least {limits.min_passage_tokens}), but only "
            f"{_room(builder, wanted, limits)} fit. {advice}, or lower [prompt] max_query_tokens or min_passage_tokens."
        )
    return PromptSizes(
        window_size=fitting,
        max_model_len=limits.max_model_len,
        max_prompt_tokens=_room(builder, fitting, limits),
        max_query_tokens=limits.max_query_tokens,
        max_passage_tokens=limits.max_passage_tokens,
        min_passage_tokens=limits.min_passage_tokens,
    )


def _check_prompt_limit(builder: "PromptBuilder", window_size: int, limits: SizeLimits) -> None:
    answer = builder.mode.most_tokens(window_size)
    if limits.max_prompt_tokens is not None and limits.max_prompt_tokens > limits.max_model_len - answer:
        raise ConfigError(
            f"[prompt] max_prompt_tokens = {limits.max_prompt_tokens} and an answer of {answer} tokens do not fit into "
            f"[engine] max_model_len = {limits.max_model_len}. At most {limits.max_model_len - answer} would."
        )


def _fits(builder: "PromptBuilder", window_size: int, limits: SizeLimits) -> bool:
    return _needed(builder, window_size, limits) <= _room(builder, window_size, limits)


def _needed(builder: "PromptBuilder", window_size: int, limits: SizeLimits) -> int:
    return builder.fixed_tokens(window_size, limits.max_query_tokens) + window_size * limits.min_passage_tokens


def _room(builder: "PromptBuilder", window_size: int, limits: SizeLimits) -> int:
    longest = limits.max_model_len - builder.mode.most_tokens(window_size)
    return longest if limits.max_prompt_tokens is None else min(limits.max_prompt_tokens, longest)
