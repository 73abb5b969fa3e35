"""Point-wise against list-wise on one engine: the arms of a study, run one after the other as nights of their own.

    settings + [study] -> arms -> engines (one for each engine setting) -> a run in DuckDB for each arm

Only one setting differs from the base arm at a time. Each arm is an ordinary run, so a killed study goes on with the
first arm that is not complete. Knows nothing of what the figures mean.
"""

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Literal

import numpy as np

from tasks.errors import ConfigError
from tasks.generate.process import engine_on_demand, engine_options
from tasks.keep.store import Store
from tasks.night.night import find_night, open_night
from tasks.night.ranking import OnProgress
from tasks.night.request import NightRequest, PreparedNight, prepare_night
from tasks.night.runs import store_of
from tasks.rank.lists import list_depth
from tasks.settings import Settings, StudySettings, load_settings

logger = logging.getLogger(__name__)

Side = Literal["point-wise", "list-wise"]
ALL_AT_ONCE = 1_000_000  # queries in flight, and cache-loads in one call: nothing of an arm waits outside the engine


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of asking, under one engine setting."""

    side: Side
    window_size: int  # candidates a prompt
    max_num_seqs: int
    enable_prefix_caching: bool
    queries_at_once: int | None  # all if None

    @property
    def engine_and_load(self) -> tuple[int, bool, int | None]:
        """All but how it asks: arms that agree in this are compared."""
        return self.max_num_seqs, self.enable_prefix_caching, self.queries_at_once

    @property
    def name(self) -> str:
        """`listwise-50-seqs64-cache-q1`: unique in its study."""
        caching = "cache" if self.enable_prefix_caching else "nocache"
        queries = "all" if self.queries_at_once is None else f"q{self.queries_at_once}"
        side = self.side.replace("-", "")
        return f"{side}-{self.window_size}-seqs{self.max_num_seqs}-{caching}-{queries}"

    def overrides(self) -> dict[str, object]:
        """What differs from the study's settings."""
        strategy: dict[str, object] = {"strategy.name": "pointwise", "strategy.decode_mode": "yes_no"}
        if self.side == "list-wise":
            strategy = {
                "strategy.name": "sliding",
                "strategy.decode_mode": "first_token",
                "strategy.window_size": self.window_size,
                "strategy.stride": max(self.window_size // 2, 1),
            }
        return strategy | {
            "engine.max_num_seqs": self.max_num_seqs,
            "engine.enable_prefix_caching": self.enable_prefix_caching,
            "packing.cohort_queries": self.queries_at_once or ALL_AT_ONCE,
            "packing.driver": "generate",  # all prompts wait inside the engine, where queue time is measured
            "packing.batch_loads": ALL_AT_ONCE,
            "packing.timeline": True,
            "packing.shards": 1,
            "checks.canary": "off",
            "checks.max_fallback_share": 1.0,
            "checks.max_partial_share": 1.0,
        }


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """What a caller asks for."""

    config: Path
    night: date | None = None
    overrides: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ArmRun:
    """An arm whose run is complete."""

    arm: Arm
    run_id: str


@dataclass(frozen=True, slots=True)
class Study:
    """All arms, run."""

    name: str
    store: Store
    base: Arm  # of each side, the arm with the base's settings is compared first
    runs: tuple[ArmRun, ...]
    num_queries: int
    num_passage_tokens: int  # of all candidates that are ranked, each once, as long as a prompt may show it


def arms_of(study: StudySettings) -> list[Arm]:
    """Point-wise and each window under the base's settings, then with one setting changed at a time."""
    base_seqs = study.max_num_seqs[len(study.max_num_seqs) // 2]
    conditions: list[tuple[int, bool, int | None]] = [(base_seqs, True, None)]
    conditions += [(num, True, None) for num in study.max_num_seqs if num != base_seqs]
    conditions += [(base_seqs, False, None)] if study.without_prefix_caching else []
    conditions += [(base_seqs, True, num) for num in study.queries_at_once]
    sides: list[tuple[Side, int]] = [("point-wise", 1), *(("list-wise", size) for size in study.window_sizes)]
    return [Arm(side, size, *condition) for condition in conditions for side, size in sides]


def run_study(request: StudyRequest, *listeners: OnProgress) -> Study:
    """Runs every arm that is not complete; an engine lives through the arms that share its settings.

    Args:
        request: settings file with a [study] section.
        listeners: each is told (arms done, arms in all).

    Raises:
        ConfigError: no [study], or an arm's settings cannot work.
        PackrankError: see the stages of a night; complete arms stay.
    """
    settings = load_settings(request.config, request.overrides)
    if settings.study is None:
        raise ConfigError(f"{request.config}: no [study] section. configs/study.toml has one.")
    arms = arms_of(settings.study)
    prepared = {arm: _prepare(request, settings, arm) for arm in arms}
    runs: dict[Arm, str] = {}
    for together in _by_engine(prepared):
        runs |= _run_together({arm: prepared[arm] for arm in together})
        for listener in listeners:
            listener(len(runs), len(arms))
    first = prepared[arms[0]]
    num_queries, num_passage_tokens = _size_of_work(first)
    ordered = tuple(ArmRun(arm, runs[arm]) for arm in arms)
    return Study(settings.night.name, store_of(first), arms[0], ordered, num_queries, num_passage_tokens)


def _prepare(request: StudyRequest, settings: Settings, arm: Arm) -> PreparedNight:
    assert settings.study is not None
    name = {"night.name": f"{settings.night.name}-{arm.name}"}
    return prepare_night(
        NightRequest(
            config=request.config,
            night=request.night,
            limit_queries=settings.study.limit_queries,
            overrides={**request.overrides, **arm.overrides(), **name},
        )
    )


def _by_engine(prepared: Mapping[Arm, PreparedNight]) -> list[list[Arm]]:
    """Arms with equal engine settings, in the order of the first of each."""
    groups: dict[str, list[Arm]] = {}
    for arm, night in prepared.items():
        groups.setdefault(repr(sorted(night.settings.engine_keywords().items())), []).append(arm)
    return list(groups.values())


def _run_together(prepared: Mapping[Arm, PreparedNight]) -> dict[Arm, str]:
    """Runs arms on one engine, whose prefix cache is emptied between them; started only if an arm needs it."""
    first = next(iter(prepared.values()))
    scratch = first.work_folder / "tmp" / f"{first.settings.night.name}"
    options = engine_options(first.settings, scratch, first.work_folder / "logs" / f"{first.base_run_id}.engine.log")
    runs = {}
    with engine_on_demand(options, first.settings.packing.max_engine_starts, lambda _: None) as engine:
        for arm, night in prepared.items():
            if not find_night(night).is_ranked:
                engine.reset_prefix_cache()
            with open_night(night, flow_run_id=None) as opened:
                if not opened.is_ranked:
                    opened.stage()
                    opened.rank(engine=engine)
                    opened.evaluate()
                    opened.check()
            logger.info("arm=%s run_id=%s complete", arm.name, opened.run_id)
            runs[arm] = opened.run_id
    return runs


def _size_of_work(prepared: PreparedNight) -> tuple[int, int]:
    """Queries, and the tokens of all passages that they rank: the same for every arm."""
    with tempfile.TemporaryDirectory(prefix="packrank-study-") as scratch:
        staged = prepared.stage(Path(scratch) / "staging")
        longest, tokens = prepared.recipe.main.sizes.max_passage_tokens, 0
        ready = [number for number, status in enumerate(staged.query_status) if status == "ready"]
        for number in ready:
            first = int(staged.offsets[number])
            documents = staged.doc_index[first : first + list_depth(staged, prepared.recipe, number)]
            tokens += int(np.minimum(staged.tokens.lengths[documents], longest).sum())
        return len(ready), tokens
