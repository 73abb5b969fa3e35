"""`[strategy]`: which windows are asked, and in which decode mode."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    GetPydanticSchema,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic_core.core_schema import literal_schema

from tasks.decode import DECODE_MODES
from tasks.schedule.strategies import STRATEGIES, AnyStrategy, TaggedStrategy
from tasks.schedule.windows import Question
from tasks.settings.section import PositiveInt, Section


def _one_of(names: Iterable[str]) -> GetPydanticSchema:
    return GetPydanticSchema(lambda *_: literal_schema([*names]))


def modes_asking(question: Question) -> list[str]:
    """The decode modes that a strategy with this question goes with."""
    return [name for name, mode in DECODE_MODES.items() if mode.question == question]


StrategyName = Annotated[str, _one_of(STRATEGIES)]
DecodeModeName = Annotated[str, _one_of(DECODE_MODES)]
JudgedModeName = Annotated[str, _one_of(modes_asking("judge"))]
OWN_TABLE = "[strategy.NAME]"
FIRST_TABLES = ("sliding", "setwise", "tourrank", "jointrank", "pairwise")  # named in the identity of every run


class CascadeSettings(Section):
    """Point-wise over the whole depth first; the strategy gets the best of it."""

    keep: Annotated[int, Field(ge=2)] = 30  # how many of the best the strategy gets
    decode_mode: JudgedModeName = "yes_no"  # how a candidate alone is asked about


class ConsensusSettings(Section):
    """Every window in several orders, answered as one."""

    shuffles: Annotated[int, Field(ge=2)] = 3  # orders of each window


class StrategySettings(Section):
    """Which windows are asked, and how. A strategy goes with the decode modes that ask its question."""

    name: StrategyName = "sliding"  # which windows of a list are asked, and in which rounds
    decode_mode: DecodeModeName = "first_token"  # how a window is asked and its answer read
    window_size: Annotated[int, Field(ge=2)] | Literal["auto"] = 20  # candidates of one prompt; 'auto': as many as fit
    stride: PositiveInt | None = None  # of sliding: how far the next window moves; half of the window if not given
    top_k: PositiveInt | None = None  # first places that have to be right; all, or 10 where only the best are sorted
    depth: PositiveInt | None = None  # how deep the model ranks; the rest keeps first-stage order
    score_gap: Annotated[float, Field(gt=0.0)] | None = None  # nor below top - score_gap * |top| of first-stage scores
    retries: Annotated[int, Field(ge=0)] = 1  # of a window with fewer than half named, each in another order
    calibrate: Literal["none", "content_free"] = "none"  # of first_token: minus what the letters get without passages
    seed: int = 0  # of shuffled orders, tournaments and drawn thoughts
    table: TaggedStrategy | None = Field(default=None, validation_alias=OWN_TABLE)
    cascade: CascadeSettings | None = None
    consensus: ConsensusSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _own_table(cls, given: Any) -> Any:
        """`[strategy.NAME]` becomes `table`, tagged by the name."""
        if not isinstance(given, Mapping):
            return given
        name, shared = str(given.get("name", "sliding")), {key: given[key] for key in given if key not in STRATEGIES}
        for key in given:
            if key in STRATEGIES and given[key] is not None and name in STRATEGIES:
                if key != name:
                    raise ValueError(f"{key} is set, but the strategy is {name}")
                if not isinstance(given[key], Mapping) or "name" in given[key]:
                    raise ValueError(f"{key} must be a table of the strategy's own keys")
                shared[OWN_TABLE] = {"name": name, **given[key]}
        return shared

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        dumped: dict[str, Any] = handler(self) | dict.fromkeys(FIRST_TABLES)
        if own := dumped.pop("table", None):
            dumped[own.pop("name")] = own
        return dumped

    @property
    def record(self) -> AnyStrategy:
        """The strategy with its own settings, but not yet its sizes."""
        return STRATEGIES[self.name]() if self.table is None else self.table

    def stages(self, window_size: int) -> list[str]:
        """What ranks, in words, one step after the other; `window_size` as resolved."""
        first, over = [], "all candidates" if self.depth is None else f"the first {self.depth}"
        if self.cascade is not None:
            first, over = [f"pointwise by {self.cascade.decode_mode} over {over}"], f"the best {self.cascade.keep}"
        size = self.record.prompt_size or window_size
        orders = "" if self.consensus is None else f", each in {self.consensus.shuffles} orders"
        windows = "" if size == 1 else f", windows of {size}{orders}"
        return [*first, f"{self.name} by {self.decode_mode} over {over}{windows}"]

    @model_validator(mode="after")
    def _pair_exists(self) -> Self:
        allowed = modes_asking(self.record.question)
        if self.decode_mode not in allowed:
            raise ValueError(
                f"decode_mode = {self.decode_mode!r} does not work with strategy {self.name}, which needs "
                f"{' or '.join(allowed)}"
            )
        if self.calibrate != "none" and not DECODE_MODES[self.decode_mode].can_calibrate:
            raise ValueError(f"calibrate = {self.calibrate!r} needs decode_mode = 'first_token'")
        for wrapper in ("cascade", "consensus"):
            if self.record.prompt_size == 1 and getattr(self, wrapper) is not None:
                raise ValueError(
                    f"{wrapper} needs windows, {self.name} has none: leave it out, or --set strategy.{wrapper}=none"
                )
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> Self:
        if self.window_size == "auto":
            return self
        if self.stride is not None and self.stride > self.window_size:
            raise ValueError(
                f"stride = {self.stride} must be between 1 and window_size = {self.window_size}: "
                "a larger one leaves documents that no window looks at"
            )
        shown = self.depth if self.cascade is None else self.cascade.keep
        if self.record.asks_once and shown is not None and shown > self.window_size:
            raise ValueError(
                f"{'depth' if self.cascade is None else 'cascade.keep'} = {shown} must be at most window_size = "
                f"{self.window_size} with strategy {self.name}, which asks one window; use sliding for deeper lists"
            )
        self.record.check(self.window_size, self.top_k)
        return self
