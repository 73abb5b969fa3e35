"""Pairs whose order is known, asked in the run's own way before it ranks anything.

A chat template that thinks first, a wrong verdict token or a broken build ranks every list without an error; here it
shows in seconds (lilbee#503: every score 0.0; vllm#27857: every score 0.5). Knows nothing of databases.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.answer.outcomes import read_generation
from tasks.environment import ROOT
from tasks.generate.generations import Engine
from tasks.pack.batches import pack
from tasks.pack.kv_budget import batch_budget
from tasks.prompt.prompts import Prompt
from tasks.rank.recipe import Asking, Recipe
from tasks.schedule.windows import Outcome, Window

CANARIES = ROOT / "configs" / "canary.toml"
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
        outcomes = _ask(prompts, asking, engine, recipe.packing.headroom_share)
        for number, pair in enumerate(pairs):
            margin = _margin(outcomes[2 * number], outcomes[2 * number + 1])
            answered.append(CanaryAnswer(f"{asking.builder.decode_mode}/{pair.name}", margin, passed=margin > 0))
    return answered


def wrong_canaries(answered: Sequence[CanaryAnswer]) -> str:
    """What is wrong, in one sentence for each decode mode; empty if all is well.

    A mode is well if the relevant passage is above the other one on the whole, and in more than half of the pairs: a
    small model may miss one.
    """
    told = []
    for mode in dict.fromkeys(each.pair.split("/")[0] for each in answered):
        mine = [each for each in answered if each.pair.startswith(f"{mode}/")]
        margins = [each.margin for each in mine]
        missed = [each.pair.split("/")[1] for each in mine if not each.passed]
        if not any(margins):
            told.append(f"canaries in {mode}: all {len(mine)} pairs score the same, whatever the passage says.")
        elif sum(margins) <= 0 or 2 * len(missed) >= len(mine):
            told.append(
                f"canaries in {mode}: an irrelevant passage is above the relevant one in {len(missed)} of {len(mine)} "
                f"pairs ({', '.join(missed)}), mean margin {sum(margins) / len(mine):.3f}."
            )
    return " ".join(told)


def _prompts(asking: Asking, pair: CanaryPair) -> list[Prompt]:
    builder, sizes = asking.builder, asking.sizes
    pieces = builder.encode_passages([pair.relevant, pair.irrelevant])
    cut = [piece[: sizes.max_passage_tokens] for piece in pieces]
    question = asking.question
    orders = [(RELEVANT,), (IRRELEVANT,)] if question == "judge" else [(RELEVANT, IRRELEVANT), (IRRELEVANT, RELEVANT)]
    return [
        builder.build(
            f"canary/{pair.name}/{number}",
            Window(docs, question, ask=1 if question == "select" else None),
            pair.query,
            [cut[doc] for doc in docs],
            [len(pieces[doc]) for doc in docs],
            sizes,
        )
        for number, docs in enumerate(orders)
    ]


def _ask(prompts: Sequence[Prompt], asking: Asking, engine: Engine, headroom_share: float) -> list[Outcome]:
    limits = engine.info.limits
    one_token = all(prompt.max_tokens == 1 for prompt in prompts)
    budget = batch_budget(limits, headroom_share, one_token_answers=one_token, batch_loads=1)
    outcomes = []
    for batch in pack(prompts, limits, budget):
        generations, _ = engine.generate(batch)
        for prompt, generation in zip(batch.prompts, generations, strict=True):
            outcomes.append(read_generation(asking.builder, prompt, generation).outcome)
    return outcomes


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
