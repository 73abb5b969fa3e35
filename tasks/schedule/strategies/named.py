"""What a strategy that `[strategy] name` selects tells about itself: its settings, its sizes, what it is compared as.

A strategy is one frozen record. Its fields are the keys of `[strategy.NAME]`, but for those marked `RESOLVED`, which
`sized` sets from `[strategy]` itself. Knows nothing of files or of other strategies.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field

from tasks.schedule.windows import Question, ScoreKind

RESOLVED = Field(validation_alias="[strategy]", exclude=True)  # under this name no table has it
Size = Annotated[int, RESOLVED]
TopK = Annotated[int | None, RESOLVED]  # so many places have to be right; all that the model can see if None
Count = Annotated[int, Field(ge=1, strict=True)]
DEFAULT_TOP_K = 10  # of strategies that only sort the best: the depth of nDCG@10


@dataclass(frozen=True, slots=True)
class StrategySizes:
    """What `[strategy]` tells every strategy, once the window is resolved."""

    window_size: int
    stride: int | None = None
    top_k: int | None = None
    score_kind: ScoreKind = "reciprocal_rank"  # of the decode mode

    @property
    def best(self) -> int:
        """How many places are sorted by a strategy that only sorts the best."""
        return self.top_k or DEFAULT_TOP_K


SIMULATED = StrategySizes(20, top_k=DEFAULT_TOP_K)


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to use a strategy, which plans show beside the night's own settings."""

    label: str
    simulated_ndcg: float | None = None  # docs/log.md, lists of 100, SIMULATED, independent noise; None: not simulated
    changes: Mapping[str, Any] = field(default_factory=dict)  # of [strategy], beside its name


class NamedStrategy:
    """The defaults suit a list-wise strategy without settings of its own."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid")  # strict would refuse a table; the fields are strict by themselves
    name: str
    question: ClassVar[Question] = "order"  # the decode modes that ask it go with the strategy
    prompt_size: ClassVar[int | None] = None  # candidates of a prompt, whatever window_size is
    asks_once: ClassVar[bool] = False  # one window holds the whole list
    variants: ClassVar[tuple[Variant, ...]] = ()  # what plans compare; the strategy by its name if empty
    contenders: ClassVar[Mapping[str, tuple[Any, ...]]] = {}  # what the simulation tries: its first fields by label

    def sized(self, sizes: StrategySizes) -> Self:
        """The strategy for a window that has been resolved: its fields of these names are set."""
        given = asdict(sizes) | {"top_k": sizes.best}
        return replace(self, **{name: value for name, value in given.items() if hasattr(self, name)})  # type: ignore[type-var]

    def check(self, window_size: int, top_k: int | None) -> None:
        """Raises ValueError where sizes that the settings give do not go together."""
