"""Pairs whose order is known, asked in the run's own way before it ranks anything.

A chat template that thinks first, a wrong verdict token or a broken build ranks every list without an error; here it
shows in seconds (lilbee#503: every score 0.0; vllm#27857: every score 0.5). Knows nothing of databases.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.decode.answer import LOW_ID_MASS
from tasks.engine.generations import Engine, ask_alone
from tasks.prompt.prompts import Prompt
from tasks.ranking.recipe import Asking, Recipe
from tasks.schedule.windows import Outcome
from tasks.system.environment import FILES

CANARIES = FILES / "configs" / "canary.toml"
RELEVANT, IRRELEVANT = 0, 1


@dataclass(frozen=True, slots=True)
class CanaryPair:
    """A query with a passage that answers it and one that has nothing to do with it."""

    name: str
    query: str
    relevant: str
    irrelevant: str


@dataclass(frozen=True, slots=True)
class CanaryAnswer:
    """What the model made of a pair."""

    pair: str  # decode mode and name
    margin: float  # of the relevant over the irrelevant passage, in the decode mode's own unit
    passed: bool  # margin > 0
    id_mass: float | None = None  # mean of its prompts; one-token modes only


def load_canaries(path: Path = CANARIES) -> list[CanaryPair]:
    """The project's own pairs."""
    return [CanaryPair(**pair) for pair in tomllib.loads(path.read_text(encoding="utf-8"))["pairs"]]


def ask_canaries(pairs: Sequence[CanaryPair], recipe: Recipe, engine: Engine) -> list[CanaryAnswer]:
    """Each pair in each way that the run asks: alone one by one, or as a window in both orders.

    Raises:
        EngineError: see `Engine.generate`.
    """
    answered = []
    for asking in recipe.askings.values():
        prompts = [prompt for pair in pairs for prompt in _prompts(asking, pair)]
        answers = ask_alone(engine, prompts, recipe.packing.headroom_share)
        readings = [asking.mode.read(prompt, generation) for prompt, generation in answers]
        for number, pair in enumerate(pairs):
            both = readings[2 * number : 2 * number + 2]
            margin = _margin(*(each.outcome for each in both))
            masses = [each.id_mass for each in both if each.id_mass is not None]
            name = f"{asking.mode.name}/{pair.name}"
            answered.append(CanaryAnswer(name, margin, margin > 0, sum(masses) / len(masses) if masses else None))
    return answered


def wrong_canaries(answered: Sequence[CanaryAnswer], max_missed_share: float) -> str:
    """What is wrong, in one sentence for each decode mode; empty if all is well.

    A mode is well if the relevant passage is above the other one on the whole, and no more than `max_missed_share` of
    the pairs are missed: a small model may miss one. The check `canary_margins` says the same.
    """
    told = []
    for mode, mine in _by_mode(answered).items():
        margins = [each.margin for each in mine]
        missed = [each.pair.split("/")[1] for each in mine if not each.passed]
        if not any(margins):
            told.append(f"canaries in {mode}: all {len(mine)} pairs score the same, whatever the passage says.")
        elif sum(margins) <= 0 or len(missed) / len(mine) > max_missed_share:
            told.append(
                f"canaries in {mode}: an irrelevant passage is above the relevant one in {len(missed)} of {len(mine)} "
                f"pairs ({', '.join(missed)}), mean margin {sum(margins) / len(mine):.3f}."
            )
    return " ".join(told)


def outside_identifiers(answered: Sequence[CanaryAnswer]) -> str:
    """One sentence for each decode mode whose identifiers have less than LOW_ID_MASS; empty if all is well."""
    told = []
    for mode, mine in _by_mode(answered).items():
        masses = [each.id_mass for each in mine if each.id_mass is not None]
        mean = sum(masses) / len(masses) if masses else 1.0
        if mean < LOW_ID_MASS:
            told.append(
                f"canaries in {mode}: what the model is asked for has {mean:.3f} of the probability at the first "
                f"token, below {LOW_ID_MASS}: the model prefers other tokens, and its orders mean little."
            )
    return " ".join(told)


def _by_mode(answered: Sequence[CanaryAnswer]) -> dict[str, list[CanaryAnswer]]:
    modes: dict[str, list[CanaryAnswer]] = {}
    for each in answered:
        modes.setdefault(each.pair.split("/")[0], []).append(each)
    return modes


def _prompts(asking: Asking, pair: CanaryPair) -> list[Prompt]:
    builder, sizes = asking.builder, asking.sizes
    pieces = builder.encode_passages([pair.relevant, pair.irrelevant])
    cut = [piece[: sizes.max_passage_tokens] for piece in pieces]
    both = [(RELEVANT, IRRELEVANT), (IRRELEVANT, RELEVANT)]
    orders = [(RELEVANT,), (IRRELEVANT,)] if asking.mode.max_passages == 1 else both
    return [
        builder.build(
            f"canary/{pair.name}/{number}",
            asking.mode.window(docs),
            pair.query,
            [cut[doc] for doc in docs],
            [len(pieces[doc]) for doc in docs],
            sizes,
        )
        for number, docs in enumerate(orders)
    ]


def _margin(first: Outcome, second: Outcome) -> float:
    """Of two windows of one each, the difference; of two orders of a window, the mean of both.

    A model that looks only at places comes out at 0.
    """
    if len(first.order) == 1:
        values = [each.logprobs[0] if each.logprobs and each.num_listed else 0.0 for each in (first, second)]
        return values[0] - values[1]
    return (_lead(first) + _lead(second)) / 2


def _lead(outcome: Outcome) -> float:
    """By log-probability where there is one, else one place; 0 where the answer named neither."""
    logprob_of = outcome.logprob_of()
    if logprob_of and outcome.num_listed == len(outcome.order):
        return logprob_of[RELEVANT] - logprob_of[IRRELEVANT]
    if not outcome.num_listed:
        return 0.0
    return 1.0 if outcome.order[0] == RELEVANT else -1.0
