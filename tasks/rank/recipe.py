"""How the queries of a run are ranked: settings and model files become a schedule and a builder for each question.

Knows nothing of inputs, engines or databases.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasks.environment import checkout_path
from tasks.prompt.answer_forms import QUESTIONS, DecodeMode
from tasks.prompt.prompts import PromptBuilder
from tasks.prompt.rankllm_templates import PACKAGE_PREFIX, find_rankllm_template, load_rankllm_template
from tasks.prompt.sizes import PromptSizes, SizeLimits, resolve_sizes
from tasks.prompt.templates import ChatTemplate, PromptTemplate, load_chat_template, load_prompt_template
from tasks.prompt.tokens import ModelTokens, load_model_tokens
from tasks.schedule.rankings import Schedule
from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.blitz import Blitz
from tasks.schedule.strategies.jointrank import JointRank
from tasks.schedule.strategies.pairwise import Pairwise
from tasks.schedule.strategies.pointwise import Pointwise
from tasks.schedule.strategies.setwise import Setwise
from tasks.schedule.strategies.single import Single
from tasks.schedule.strategies.sliding import Sliding
from tasks.schedule.strategies.tdpart import TDPart
from tasks.schedule.strategies.tourrank import TourRank
from tasks.schedule.windows import Question, Strategy
from tasks.schedule.wrappers.cascade import Cascade
from tasks.schedule.wrappers.consensus import Consensus
from tasks.schedule.wrappers.truncate import Truncate
from tasks.settings import (
    JointRankSettings,
    PackingSettings,
    PairwiseSettings,
    Settings,
    SetwiseSettings,
    SlidingSettings,
    StrategySettings,
    TourRankSettings,
)

DEFAULT_TOP_K = 10  # of strategies that only sort the best: the depth of nDCG@10
FEW_REPEATS = 2  # up to so many blocks a candidate PageRank spreads what is known better than the win rate


@dataclass(frozen=True, slots=True)
class Asking:
    """How one kind of window is asked."""

    builder: PromptBuilder
    template: PromptTemplate
    sizes: PromptSizes

    @property
    def question(self) -> Question:
        """What its windows are asked."""
        return QUESTIONS[self.builder.decode_mode]

    @property
    def most_answer_tokens(self) -> int:
        """The longest answer of the largest window."""
        return self.builder.answers.most_tokens(self.sizes.window_size)


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the queries of a run are ranked."""

    schedule: Schedule
    askings: Mapping[Question, Asking]  # the strategy's own first
    calibrates: bool  # first_token: what a content-free prompt gets is taken off
    packing: PackingSettings
    digest: int = 0  # 64 bits over all that a ranking depends on beside its texts

    @property
    def main(self) -> Asking:
        """The strategy's own way of asking."""
        return next(iter(self.askings.values()))

    @property
    def largest_need(self) -> tuple[int, int]:
        """Prompt and answer tokens of the largest sequence that may be asked."""
        sizes = [(asking.sizes.max_prompt_tokens, asking.most_answer_tokens) for asking in self.askings.values()]
        return max(sizes, key=sum)

    @property
    def resolved(self) -> dict[str, Any]:
        """Everything that was settled, for the run's row and identity."""
        sizes = {
            f"{asking.builder.decode_mode}_sizes": asdict(asking.sizes) for asking in list(self.askings.values())[1:]
        }
        return {
            **asdict(self.main.sizes),
            **sizes,
            "strategy": _as_dict(self.schedule.strategy),
            **asdict(self.schedule.truncate),
            "retries": self.schedule.retries,
        }


def build_recipe(settings: Settings, model_folder: Path) -> Recipe:
    """Everything that can be settled before data is read and weights load.

    Raises:
        ConfigError, PromptTooLong: settings, model and templates do not go together.
    """
    tokens = load_model_tokens(model_folder)
    chat = load_chat_template(model_folder, settings.prompt.chat_template_kwargs)
    askings = {QUESTIONS[mode]: _asking(settings, tokens, chat, mode) for mode in settings.decode_modes}
    main = next(iter(askings.values()))
    strategy = settings.strategy
    depth = strategy.depth
    if strategy.name == "single" and strategy.cascade is None:
        depth = min(depth or main.sizes.window_size, main.sizes.window_size)
    schedule = Schedule(
        strategy=build_strategy(strategy, main.sizes.window_size),
        truncate=Truncate(depth, strategy.score_gap),
        retries=strategy.retries,
        seed=Seed(str(strategy.seed)),
    )
    return Recipe(
        schedule=schedule,
        askings=askings,
        calibrates=strategy.calibrate == "content_free",
        packing=settings.packing,
    )


def build_strategy(settings: StrategySettings, window_size: int) -> Strategy:
    """The strategy with its wrappers, for a window that has been resolved."""
    strategy = _inner_strategy(settings, window_size)
    if settings.consensus is not None:
        strategy = Consensus(strategy, settings.consensus.shuffles)
    if settings.cascade is not None:
        keep = min(settings.cascade.keep, window_size) if settings.name == "single" else settings.cascade.keep
        return Cascade(_pointwise(settings.cascade.decode_mode), keep, strategy)
    return strategy


def _inner_strategy(settings: StrategySettings, window_size: int) -> Strategy:
    top_k = settings.top_k or DEFAULT_TOP_K
    match settings.name:
        case "pointwise":
            return _pointwise(settings.decode_mode)
        case "single":
            return Single(settings.top_k)
        case "sliding":
            sliding = settings.sliding or SlidingSettings()
            stride = min(settings.stride or max(window_size // 2, 1), window_size)
            return Sliding(window_size, stride, sliding.passes, sliding.early_exit, settings.top_k)
        case "tdpart":
            return TDPart(window_size, min(top_k, window_size - 1))
        case "setwise":
            return Setwise(window_size, top_k, (settings.setwise or SetwiseSettings()).method)
        case "tourrank":
            return TourRank(window_size, (settings.tourrank or TourRankSettings()).tournaments)
        case "jointrank":
            joint = settings.jointrank or JointRankSettings()
            few = joint.repeats <= FEW_REPEATS
            return JointRank(window_size, joint.repeats, joint.aggregate or ("page_rank" if few else "win_rate"))
        case "blitz":
            return Blitz(window_size, top_k)
        case "pairwise":
            return Pairwise(top_k, (settings.pairwise or PairwiseSettings()).method)


def _pointwise(decode_mode: DecodeMode) -> Pointwise:
    return Pointwise("p_yes" if decode_mode == "yes_no" else "query_likelihood")


def load_template(settings: Settings, decode_mode: DecodeMode) -> PromptTemplate:
    """The words for a decode mode: our TOML, or an owner's YAML by path or as `rank_llm:NAME`.

    Raises:
        ConfigError: see the loaders.
    """
    given = settings.template_path(decode_mode)
    if given.startswith(PACKAGE_PREFIX):
        return load_rankllm_template(find_rankllm_template(given), decode_mode)
    path = checkout_path(given)
    if path.suffix in (".yaml", ".yml"):
        return load_rankllm_template(path, decode_mode)
    return load_prompt_template(path)


def _asking(settings: Settings, tokens: ModelTokens, chat: ChatTemplate, decode_mode: DecodeMode) -> Asking:
    prompt = settings.prompt
    template = load_template(settings, decode_mode)
    builder = PromptBuilder(tokens, template, chat, decode_mode, prompt.thinking_budget_tokens)
    limits = SizeLimits(
        max_model_len=settings.engine.max_model_len,
        max_prompt_tokens=prompt.max_prompt_tokens,
        max_query_tokens=prompt.max_query_tokens,
        max_passage_tokens=prompt.max_passage_tokens,
        min_passage_tokens=prompt.min_passage_tokens,
    )
    if QUESTIONS[decode_mode] == "judge":
        return Asking(builder, template, resolve_sizes(builder, 1, limits))
    size = 2 if settings.strategy.name == "pairwise" else settings.strategy.window_size
    return Asking(builder, template, resolve_sizes(builder, size, limits))


def _as_dict(strategy: Strategy) -> dict[str, Any]:
    """The strategy's sizes, with its name; wrappers hold what they wrap."""
    values = {
        name: _as_dict(value) if hasattr(value, "rounds") else value
        for name in strategy.__dataclass_fields__  # type: ignore[attr-defined]
        if (value := getattr(strategy, name)) is not None
    }
    return {"name": type(strategy).__name__.lower(), **values}
