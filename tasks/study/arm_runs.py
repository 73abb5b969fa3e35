"""Runs the arms of a study one after the other, as nights of their own.

    settings + [study] -> arms x repeats -> engines (one for each engine setting) -> a run in DuckDB for each

The arms of one engine take turns, so that a slow minute meets all of them. Each is an ordinary run, so a killed study
goes on with the first that is not complete. Knows nothing of what the figures mean.
"""

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np

from tasks.engine.engine_options import engine_options
from tasks.engine.process import engine_on_demand
from tasks.nightly.night import open_night, run_stages
from tasks.nightly.night_progress import OnProgress, Progress
from tasks.nightly.prepare import NightRequest, PreparedNight, prepare_night
from tasks.nightly.run_choice import store_of
from tasks.prompt.model_files import find_model_folder
from tasks.ranking.query import StagedQuery
from tasks.settings import Settings, load_settings
from tasks.store.night_store import Store
from tasks.study.arms import Arm, arms_of
from tasks.study.model_costs import ModelCosts, model_costs
from tasks.system.environment import ROOT
from tasks.system.errors import ConfigError

logger = logging.getLogger(__name__)


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
    repeat: int  # from 1
    run_id: str


@dataclass(frozen=True, slots=True)
class Study:
    """All arms, run."""

    name: str
    store: Store
    runs: tuple[ArmRun, ...]  # by arm, then by repeat
    num_queries: int
    num_passage_tokens: int  # of all candidates that are ranked, each once, as long as a prompt may show it
    max_model_len: int
    model_costs: ModelCosts | None  # None: the model's config does not have what it takes


def run_study(request: StudyRequest, *listeners: OnProgress) -> Study:
    """Runs every arm that is not complete; an engine lives through the arms that share its settings.

    Args:
        request: settings file with a [study] section.
        listeners: told how far the arm that runs is, and which it is.

    Raises:
        ConfigError: no [study], or an arm's settings cannot work.
        PackrankError: see the stages of a night; complete arms stay.
    """
    settings = load_settings(request.config, request.overrides)
    if settings.study is None:
        raise ConfigError(f"{request.config}: no [study] section. configs/study.toml has one.")
    planned = [
        (arm, repeat)
        for arm in arms_of(settings.study)
        for repeat in range(1, (settings.study.repeats if arm.condition.is_repeated else 1) + 1)
    ]
    prepared = {each: _prepare(request, settings, *each) for each in planned}
    done: dict[tuple[Arm, int], str] = {}
    groups = _by_engine(prepared)
    places = {each: place for place, each in enumerate([each for group in groups for each in group], 1)}
    told = {each: _telling(listeners, each, places[each], len(planned)) for each in planned}
    for together in groups:
        for arm_run in _run_together({each: prepared[each] for each in together}, told):
            done[arm_run.arm, arm_run.repeat] = arm_run.run_id
    first = prepared[planned[0]]
    num_queries, num_passage_tokens = _size_of_work(first)
    return Study(
        name=settings.night.name,
        store=store_of(first),
        runs=tuple(ArmRun(arm, repeat, done[arm, repeat]) for arm, repeat in planned),
        num_queries=num_queries,
        num_passage_tokens=num_passage_tokens,
        max_model_len=settings.engine.max_model_len,
        model_costs=_model_costs(settings),
    )


def _prepare(request: StudyRequest, settings: Settings, arm: Arm, repeat: int) -> PreparedNight:
    assert settings.study is not None
    name = {"night.name": f"{settings.night.name}-{arm.name}-{repeat}"}
    return prepare_night(
        NightRequest(
            config=request.config,
            night=request.night,
            limit_queries=arm.condition.limit_queries or settings.study.limit_queries,
            overrides={**request.overrides, **arm.overrides(), **name},
        )
    )


def _by_engine(prepared: Mapping[tuple[Arm, int], PreparedNight]) -> list[list[tuple[Arm, int]]]:
    """Arms with equal engine settings, in the order of the first of each; within them all first repeats come first."""
    groups: dict[str, list[tuple[Arm, int]]] = {}
    for each, night in prepared.items():
        groups.setdefault(repr(sorted(night.settings.engine_keywords().items())), []).append(each)
    return [sorted(group, key=lambda each: each[1]) for group in groups.values()]


def _telling(
    listeners: Sequence[OnProgress], arm_run: tuple[Arm, int], part_no: int, num_parts: int
) -> tuple[OnProgress, ...]:
    """Listeners for an arm's night, which tell `listeners` which arm it is."""
    arm, repeat = arm_run
    named = partial(replace, part=f"{arm.name} {repeat}", part_no=part_no, num_parts=num_parts)
    return tuple((lambda progress, listener=listener: listener(named(progress))) for listener in listeners)


def _run_together(
    prepared: Mapping[tuple[Arm, int], PreparedNight], told: Mapping[tuple[Arm, int], Sequence[OnProgress]]
) -> list[ArmRun]:
    """Runs arms on one engine, whose prefix cache is emptied between them; started only if an arm needs it."""
    first = next(iter(prepared.values()))
    scratch = first.workspace.folder / "tmp" / f"{first.settings.night.name}"
    options = engine_options(
        first.settings, first.recipe.driver, scratch, first.workspace.engine_log(first.base_run_id)
    )
    runs = []
    with engine_on_demand(options, first.settings.packing.max_engine_starts, lambda _: None) as engine:
        for (arm, repeat), night in prepared.items():
            with open_night(night, flow_run_id=None, engine=engine, listeners=told[arm, repeat]) as opened:
                if not opened.is_ranked:
                    engine.reset_prefix_cache()
                run_stages(opened, opened.rank)
            for listener in told[arm, repeat]:
                listener(Progress("publishing"))  # also of an arm that was complete before
            logger.info("arm=%s repeat=%d run_id=%s complete", arm.name, repeat, opened.run_id)
            runs.append(ArmRun(arm, repeat, opened.run_id))
    return runs


def _size_of_work(prepared: PreparedNight) -> tuple[int, int]:
    """Queries, and the tokens of all passages that they rank: the same for every arm that is repeated."""
    with tempfile.TemporaryDirectory(prefix="packrank-study-") as scratch:
        staged = prepared.stage(Path(scratch) / "staging")
        longest, tokens = prepared.recipe.main.sizes.max_passage_tokens, 0
        ready = [number for number, status in enumerate(staged.query_status) if status == "ready"]
        for number in ready:
            query = StagedQuery(staged, prepared.recipe, number)
            tokens += int(np.minimum(query.passage_tokens[: query.depth], longest).sum())
        return len(ready), tokens


def _model_costs(settings: Settings) -> ModelCosts | None:
    folder = find_model_folder(settings.engine.model, settings.engine.revision, ROOT)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    dtype = settings.engine.keywords().get("dtype", "auto")
    return model_costs(config if dtype == "auto" else config | {"dtype": dtype})
