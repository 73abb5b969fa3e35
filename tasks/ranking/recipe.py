"""How the queries of a run are ranked: settings and model files become a schedule and a builder for each question.

Knows nothing of how inputs are read, of engines or databases.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from tasks.decode import DECODE_MODES
from tasks.decode.answer import DecodeMode, Thinking
from tasks.engine.messages import Driver
from tasks.inputs.fields import WantedFields
from tasks.prompt.answer_forms import Sampling
from tasks.prompt.chat_template import ChatTemplate, load_chat_template
from tasks.prompt.model_files import require_generative
from tasks.prompt.passage_form import decimals_of
from tasks.prompt.prompts import PromptBuilder
from tasks.prompt.rankllm_templates import PACKAGE_PREFIX, find_rankllm_template, load_rankllm_template
from tasks.prompt.sizes import PromptSizes, SizeLimits, resolve_sizes
from tasks.prompt.templates import PromptTemplate, load_prompt_template
from tasks.prompt.tokens import ModelTokens, load_model_tokens
from tasks.schedule.rankings import Schedule
from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import StrategySizes
from tasks.schedule.strategies.pointwise import Pointwise
from tasks.schedule.windows import Question, Strategy
from tasks.schedule.wrappers.cascade import Cascade
from tasks.schedule.wrappers.consensus import Consensus
from tasks.schedule.wrappers.truncate import Truncate
from tasks.settings import PackingSettings, Settings, StrategySettings
from tasks.system.environment import checkout_path
from tasks.system.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asking:
    """How one kind of window is asked and read."""

    mode: DecodeMode
    builder: PromptBuilder
    sizes: PromptSizes
    calibrates: bool = False  # what a content-free prompt gets is taken off

    @property
    def largest_need(self) -> tuple[int, int, int]:
        """Of the largest sequence: tokens of its prompt, of its answer, and of that what may be read again."""
        form = self.mode.form(self.mode.window(range(self.sizes.window_size)))
        return self.sizes.max_prompt_tokens, self.mode.most_tokens(self.sizes.window_size), form.reread_tokens


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the queries of a run are ranked."""

    schedule: Schedule
    askings: Mapping[Question, Asking]  # the strategy's own first
    packing: PackingSettings
    driver: Driver  # how the engine is fed
    prompt_date: date | None  # that the chat template writes; None: it writes none
    turn_prefix: str  # see [prompt] turn_prefix
    digest: int = 0  # 64 bits over all that a ranking depends on beside its texts

    @property
    def main(self) -> Asking:
        """The strategy's own way of asking."""
        return next(iter(self.askings.values()))

    @property
    def resolved(self) -> dict[str, Any]:
        """Everything that was settled, for the run's row and identity."""
        sizes = {f"{asking.mode.name}_sizes": asdict(asking.sizes) for asking in list(self.askings.values())[1:]}
        return {
            **asdict(self.main.sizes),
            **sizes,
            "strategy": asdict(self.schedule.strategy, dict_factory=_given),  # type: ignore[call-overload]
            **asdict(self.schedule.truncate),
            "retries": self.schedule.retries,
            **self._identifier_form,
            **({"prompt_date": self.prompt_date.isoformat()} if self.prompt_date is not None else {}),
            **({"turn_prefix": self.turn_prefix} if self.turn_prefix else {}),
            **self._fields,
        }

    @property
    def wanted_fields(self) -> WantedFields:
        """What stands beside its passages."""
        template = self.main.mode.template
        return WantedFields(template.fields, decimals_of(template.field))

    @property
    def _fields(self) -> dict[str, Any]:
        """Nothing where passages have none."""
        template = self.main.mode.template
        return {"fields": list(template.fields), "field": template.field} if template.fields else {}

    @property
    def _identifier_form(self) -> dict[str, str]:
        """Nothing where the answer is opened, as it always was: ids of those runs stay."""
        form = self.main.mode.identifier_form
        return {} if form is None or form.name == "opened" else {"identifier_form": form.name}


def build_recipe(settings: Settings, model_folder: Path, night: date | None = None) -> Recipe:
    """Everything that can be settled before data is read and weights load.

    Args:
        settings: of the run.
        model_folder: where the model's small files are.
        night: what a chat template that writes the date is told.

    Raises:
        ConfigError, PromptTooLong: settings, model and templates do not go together, or the model writes no text.
    """
    require_generative(model_folder)
    tokens = load_model_tokens(model_folder)
    told_date = settings.prompt.chat_template_date or night
    chat = load_chat_template(model_folder, settings.prompt.chat_template_kwargs, told_date)
    chat = replace(chat, turn_prefix=settings.prompt.turn_prefix)
    if chat.source is None:
        logger.warning("%s: no chat template, so the model is asked in plain text", model_folder)
    askings = {DECODE_MODES[name].question: _asking(settings, tokens, chat, name) for name in settings.decode_modes}
    main = next(iter(askings.values()))
    _check_passages(askings)
    writes_date = any(asking.builder.writes_date for asking in askings.values())
    if writes_date and settings.prompt.chat_template_date is None:
        logger.info(
            "prompt_date=%s: the chat template writes the night's date, so no row of another night is reused. Set "
            "[prompt] chat_template_date to any fixed date",
            night,
        )
    strategy = settings.strategy
    depth = strategy.depth
    if strategy.record.asks_once and strategy.cascade is None:
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
        packing=settings.packing,
        driver=_driver(settings.packing, askings.values()),
        prompt_date=told_date if writes_date else None,
        turn_prefix=settings.prompt.turn_prefix,
    )


def build_strategy(settings: StrategySettings, window_size: int) -> Strategy:
    """The strategy with its wrappers, for a window that has been resolved."""
    score_kind = DECODE_MODES[settings.decode_mode].score_kind
    sizes = StrategySizes(window_size, settings.stride, settings.top_k, score_kind)
    strategy: Strategy = settings.record.sized(sizes)
    if settings.consensus is not None:
        strategy = Consensus(strategy, settings.consensus.shuffles)
    if settings.cascade is None:
        return strategy
    keep = min(settings.cascade.keep, window_size) if settings.record.asks_once else settings.cascade.keep
    return Cascade(Pointwise(DECODE_MODES[settings.cascade.decode_mode].score_kind), keep, strategy)


def load_template(settings: Settings, mode: type[DecodeMode]) -> PromptTemplate:
    """The words for a decode mode: our TOML, or an owner's YAML by path or as `rank_llm:NAME`.

    Raises:
        ConfigError: see the loaders.
    """
    given = settings.templates[mode.name]
    if given.startswith(PACKAGE_PREFIX):
        return load_rankllm_template(find_rankllm_template(given), mode)
    path = checkout_path(given)
    if path.suffix in (".yaml", ".yml"):
        return load_rankllm_template(path, mode)
    return load_prompt_template(path)


def _asking(settings: Settings, tokens: ModelTokens, chat: ChatTemplate, name: str) -> Asking:
    prompt, strategy = settings.prompt, settings.strategy
    template = _with_fields(load_template(settings, DECODE_MODES[name]), prompt.fields, settings.templates[name])
    if prompt.thoughts is not None:
        template = replace(template, thoughts=prompt.thoughts)
    drawn = {} if prompt.sampling is None else prompt.sampling.model_dump()
    thinking = Thinking(prompt.thinking_budget_tokens, Sampling(**drawn, seed=strategy.seed))
    mode = DECODE_MODES[name](tokens, template, chat, thinking)
    form = mode.identifier_form
    if form is not None and form.name != "opened":
        logger.info(
            "decode_mode=%s identifier_form=%s num_identifiers=%d: this model writes %r as one token",
            name,
            form.name,
            len(form.token_ids),
            form.example,
        )
    builder = PromptBuilder(tokens, chat, mode)
    limits = SizeLimits(
        max_model_len=settings.engine.max_model_len,
        max_prompt_tokens=prompt.max_prompt_tokens,
        max_query_tokens=prompt.max_query_tokens,
        max_passage_tokens=prompt.max_passage_tokens,
        min_passage_tokens=prompt.min_passage_tokens,
    )
    size = 1 if mode.max_passages == 1 else strategy.record.prompt_size or strategy.window_size
    calibrates = mode.can_calibrate and strategy.calibrate == "content_free"
    return Asking(mode, builder, resolve_sizes(builder, size, limits), calibrates)


def _with_fields(template: PromptTemplate, fields: Sequence[str], where: str) -> PromptTemplate:
    """The template with the run's fields beside its passages; those that it names itself where the run has none.

    Raises:
        ConfigError: it has words for fields of its own only.
    """
    if not fields or tuple(fields) == template.fields:
        return template
    if template.fields or ("{name}" not in template.field and len(fields) > 1):
        own = ", ".join(template.fields) or "one field"
        raise ConfigError(
            f"[prompt] fields = {list(fields)}: the prompt template {where} writes {own} as {template.field!r}, and no "
            "other. Leave fields out, or take a template that says {name} in its `field`."
        )
    return replace(template, fields=tuple(fields))


def _driver(packing: PackingSettings, askings: Iterable[Asking]) -> Driver:
    """The one asked for; `auto`: calls where every answer is one token, a stream where some are longer (ADR 12)."""
    if packing.driver != "auto":
        return packing.driver
    return "generate" if all(asking.largest_need[1] == 1 for asking in askings) else "stream"


def _check_passages(askings: Mapping[Question, Asking]) -> None:
    """Checks that both steps of a cascade use the same passages, which are tokenised once.

    Raises:
        ConfigError: one keeps line breaks, ends passages otherwise, or writes other fields.
    """
    if len({asking.builder.passage_form for asking in askings.values()}) > 1:
        told = "; ".join(
            f"{asking.mode.name} has passage = {asking.mode.template.passage!r}, lines = {asking.mode.template.lines!r}"
            + (f", field = {asking.mode.template.field!r}" if asking.mode.template.fields else "")
            for asking in askings.values()
        )
        raise ConfigError(
            f"[prompt] cascade_template: passages are tokenised once, for both steps of a cascade, and {told}. Take "
            "templates whose passages begin and end in the same way."
        )


def _given(values: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in values if value is not None}
