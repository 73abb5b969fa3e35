"""What a study runs: ways of asking under conditions, each pair an arm. Knows nothing of engines and figures.

base      the settings as they are, all queries at once: a step's tokens bind
one query at a time, and a step so wide that max_num_seqs binds: the example of 100 requests
cache     with and without prefix caching, at the engine's smallest block
quality   more queries, once: answers hardly change from run to run
"""

from dataclasses import dataclass
from typing import Literal

from tasks.settings import StudySettings

Side = Literal["point-wise", "list-wise"]
ALL_AT_ONCE = 1_000_000  # queries in flight, and cache-loads in one call: nothing of an arm waits outside the engine
WHOLE_LIST = 100  # candidates of the one window
TOP_K = 10  # identifiers that the whole list's answer has


@dataclass(frozen=True, slots=True)
class RankingWay:
    """One way to rank a query's candidates."""

    name: str
    label: str  # as tables call it
    side: Side
    window_size: int  # candidates a prompt
    overrides: tuple[tuple[str, object], ...]


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Engine settings and load."""

    name: str
    label: str
    overrides: tuple[tuple[str, object], ...] = ()
    queries_at_once: int | None = None  # all if None
    limit_queries: int | None = None  # the study's if None
    is_repeated: bool = True


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of asking, under one condition."""

    asking: RankingWay
    condition: EngineLoad

    @property
    def name(self) -> str:
        """`listwise-20-base`: unique in its study."""
        return f"{self.asking.name}-{self.condition.name}"

    @property
    def label(self) -> str:
        """As tables call it."""
        return f"{self.asking.label}, {self.condition.label}"

    def overrides(self) -> dict[str, object]:
        """What differs from the study's settings."""
        fixed: dict[str, object] = {
            "packing.cohort_queries": self.condition.queries_at_once or ALL_AT_ONCE,
            "packing.driver": "generate",  # all prompts wait inside the engine, where queue time is measured
            "packing.batch_loads": ALL_AT_ONCE,
            "packing.timeline": True,
            "packing.shards": 1,
            "checks.canary": "off",
            "checks.max_fallback_share": 1.0,
            "checks.max_partial_share": 1.0,
        }
        return fixed | dict(self.asking.overrides) | dict(self.condition.overrides)


POINT_WISE = RankingWay(
    "pointwise",
    "point-wise",
    "point-wise",
    1,
    (("strategy.name", "pointwise"), ("strategy.decode_mode", "yes_no")),
)
LIKELIHOOD = RankingWay(
    "likelihood",
    "point-wise, query likelihood",
    "point-wise",
    1,
    (("strategy.name", "pointwise"), ("strategy.decode_mode", "query_likelihood")),
)
ONE_WINDOW = RankingWay(
    f"listwise-{WHOLE_LIST}",
    f"list-wise {WHOLE_LIST}",
    "list-wise",
    WHOLE_LIST,
    (
        ("strategy.name", "single"),
        ("strategy.decode_mode", "permutation"),  # numbers as identifiers: there are not so many letters
        ("strategy.window_size", WHOLE_LIST),
        ("strategy.top_k", TOP_K),
        ("strategy.retries", 0),
    ),
)


def sliding(window_size: int) -> RankingWay:
    """Windows that overlap by half, one token of answer each."""
    return RankingWay(
        f"listwise-{window_size}",
        f"list-wise {window_size}",
        "list-wise",
        window_size,
        (
            ("strategy.name", "sliding"),
            ("strategy.decode_mode", "first_token"),
            ("strategy.window_size", window_size),
            ("strategy.stride", max(window_size // 2, 1)),
        ),
    )


def arms_of(study: StudySettings) -> list[Arm]:
    """Every arm, those of the base first and point-wise first of each condition."""
    windows = [sliding(size) for size in study.window_sizes]
    seqs = study.max_num_seqs[len(study.max_num_seqs) // 2]
    base = ("engine.max_num_seqs", seqs)
    wide = (
        ()
        if study.max_num_batched_tokens is None
        else (("engine.max_num_batched_tokens", study.max_num_batched_tokens),)
    )
    arms = [
        Arm(each, EngineLoad("base", "all queries at once", (base,)))
        for each in (POINT_WISE, LIKELIHOOD, *windows, ONE_WINDOW)
    ]
    for num in study.queries_at_once:
        label = "one query at a time" if num == 1 else f"{num} queries at a time"
        condition = EngineLoad(f"q{num}", label, (base, *wide), queries_at_once=num)
        arms += [Arm(each, condition) for each in (POINT_WISE, *windows, ONE_WINDOW)]
    for num in study.max_num_seqs:
        if num != seqs:
            condition = EngineLoad(f"seqs{num}", f"max_num_seqs {num}", (("engine.max_num_seqs", num),))
            arms += [Arm(each, condition) for each in (POINT_WISE, windows[0])]
    if study.without_prefix_caching:
        size = study.prefix_block_size
        block = () if size is None else (("engine.block_size", size),)
        for name, is_on in (("cache", True), ("nocache", False)):
            overrides = (base, *block, ("engine.enable_prefix_caching", is_on))
            condition = EngineLoad(name, f"prefix cache {'on' if is_on else 'off'}", overrides)
            arms += [Arm(each, condition) for each in (POINT_WISE, windows[0])]
    if study.quality_queries:
        condition = EngineLoad(
            "quality",
            f"{study.quality_queries} queries",
            (base,),
            limit_queries=study.quality_queries,
            is_repeated=False,
        )
        arms += [Arm(each, condition) for each in (LIKELIHOOD, *windows, ONE_WINDOW)]
    return arms
