"""All sections of a settings file as one frozen `Settings`, and what of it a run depends on."""

import json
import math
import re
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tasks.decode import DECODE_MODES
from tasks.settings.engine_keys import CAPACITY, PREEMPTING, REFUSED, RefusedValues
from tasks.settings.input_section import ARRIVAL_SETTINGS, LATER_INPUT_SETTINGS, InputSettings
from tasks.settings.night_section import NightSettings
from tasks.settings.prompt_section import PromptSettings
from tasks.settings.section import PositiveInt, Section, Share
from tasks.settings.strategy_section import StrategySettings
from tasks.system.environment import checkout_path
from tasks.system.redaction import hide_setting_secrets
from tasks.system.workspace import Workspace


class EngineSettings(BaseModel):
    """vLLM's own settings, by vLLM's names; those not listed here pass through as they are."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    model: str  # a folder, or a name on the model hub
    revision: str | None = None  # of a model on the hub: branch, tag or commit
    max_model_len: Annotated[int, Field(ge=64)] = 4096  # tokens of a prompt and its answer; not the model's own 128k
    trust_remote_code: bool = False  # runs code that comes with the model
    lora: str | None = None  # ours: the folder of a LoRA adapter, which every prompt of the run uses

    @model_validator(mode="after")
    def _both_sides_honour_it(self) -> Self:
        for key, value in (self.model_extra or {}).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{key} = {value}: expected a finite number")
        for key, value, why in self.refused(REFUSED):
            raise ValueError(f"{key} = {value!r}: {why}")
        return self

    def refused(self, refusals: Mapping[str, RefusedValues]) -> Iterator[tuple[str, object, str]]:
        """Key, value and reason of each key whose value is refused."""
        for key, refusal in refusals.items():
            value = (self.model_extra or {}).get(key)
            if refusal.refuses(value):
                yield key, value, refusal.why

    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of vLLM's `LLM`."""
        return self.model_dump(exclude_none=True, exclude={"lora"})


class PackingSettings(Section):
    """How prompts are put into batches, and how long the engine may take over one."""

    driver: Literal["auto", "stream", "generate"] = "auto"  # prompts in turn, a call a batch, or as answers are long
    batch_loads: PositiveInt = 4  # of answers of one token: cache-loads committed together, of generate in one call
    max_batch_s: PositiveInt = 10  # of stream: seconds until a batch takes no more prompts; committed when it ends
    headroom_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.02  # of the usable KV blocks, left free
    promise: Literal["no_preemption", "none"] = "no_preemption"  # refuses what could make vLLM preempt
    deterministic: bool = False  # one sequence at a time, no prefix cache: same rows in every arrangement
    cohort_queries: PositiveInt = 5_000  # in flight at once: bounds memory
    shards: PositiveInt = 1  # parts of a night, each ranked by an engine of its own; a run keeps its number
    start_timeout_s: PositiveInt = 1_800  # of an engine, in seconds: weights may come from slow storage
    batch_timeout_s: PositiveInt = 1_800  # seconds without an answer after which the engine counts as hung
    max_engine_starts: PositiveInt = 2  # for the same batch; then it is asked in halves
    max_poison_prompts: Annotated[int, Field(ge=0)] = 3  # prompts that an engine dies of: set aside with their queries
    timeline: bool = False  # keeps a row of each engine step in engine_steps


class OutcomeSettings(Section):
    """How much of the windows' answers is kept once a night is published: for explain, and to train on."""

    nights: Annotated[int, Field(ge=0)] = 7  # newest nights of the series whose answers are kept
    logprobs: bool = False  # also the log-probability of each candidate, for nights published from now on


class StoreSettings(Section):
    """The database, and what DuckDB may take from the host."""

    database: str = "var/packrank.duckdb"  # runs, scores and statistics; lock, log and spool lie beside it
    memory_limit: str = Field(default="1GB", pattern=r"^\d+(\.\d+)?\s*[KMGT]i?B$", examples=["1GB"])  # of DuckDB
    threads: PositiveInt = 2  # of DuckDB
    lock_wait_s: Annotated[int, Field(ge=0)] = 14_400  # seconds that a night waits for a file that is open elsewhere
    load_every_s: PositiveInt = 5  # seconds between two loads of committed batches from the spool, at least
    max_load_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005  # of a night's time: longer loads become rarer
    spool: str | None = None  # folder of committed batches, shared by all hosts with shards; else beside the database
    export: str | None = None  # folder; published scores go to {export}/{name}/night=YYYY-MM-DD/scores.parquet
    published_copy: bool = False  # a copy beside it, for tools that keep a connection open; doubles the disk use

    keep_nights: PositiveInt | None = None  # published nights of the series to keep; all if not given
    keep_window_nights: PositiveInt | None = None  # nights whose windows and batches are kept; latency comes from them
    keep_outcomes: OutcomeSettings = OutcomeSettings()

    @field_validator("memory_limit")
    @classmethod
    def _some_memory(cls, value: str) -> str:
        if not re.search(r"[1-9]", value):
            raise ValueError("DuckDB cannot work without memory; 1GB is the default")
        return value

    @field_validator("export", "spool")
    @classmethod
    def _local_folder(cls, value: str | None) -> str | None:
        if value is not None and "://" in value:
            raise ValueError("expected a local folder, where renames are atomic; copy the files on from there")
        return value

    def spool_folder(self, database: Path) -> Path:
        """Where the batches of a database's runs lie."""
        return (Workspace(database).spool if self.spool is None else checkout_path(self.spool)) / database.stem


class CheckSettings(Section):
    """Limits: above one of them a run is stored but not published, or not started at all."""

    max_unmatched_share: Share = 0.2  # of candidates, without document or query; above it nothing is ranked
    max_quarantined_share: Share = 0.2  # of candidates, set aside
    max_without_candidates_share: Share = 0.25  # of queries: some find nothing; with a dead first stage most do
    max_volume_fall: Share = 0.5  # below the median of seven nights: half lets a quiet weekend pass
    max_volume_growth: Annotated[float, Field(gt=0.0)] = 1.0  # above that median (1: twice as many); only a warning
    max_fallback_share: Share = 0.05  # of queries that the model did not rank at all
    max_partial_share: Share = 0.2  # of queries of which a window fell back
    max_truncated_share: Share = 1.0  # of the passages that were shown, cut
    max_constant_share: Share = 0.05  # of queries with four of the model's numbers or more, all the same
    max_as_given_share: Share = 1.0  # of queries with four ranked documents or more, left in the first stage's order
    min_overlap_at_10: Share = 0.5  # with the night before, mean over 20 or more queries that nothing changed for
    canary: Literal["stop", "warn", "off"] = "stop"  # too many missed: stop ranks nothing, warn fails the check
    max_missed_canary_share: Share = 0.4  # of the canary pairs, in each decode mode: two of five
    max_canary_drift: Annotated[float, Field(gt=0.0)] = 1.0  # of a margin from earlier nights' median, in its own unit


class StudySettings(Section):
    """The arms of `packrank study`. The middle value of `max_num_seqs` is the base."""

    limit_queries: PositiveInt = 3  # of each arm
    repeats: PositiveInt = 3  # of each arm, in turn with the others of its engine; fewer than 3 decide nothing timed
    quality_queries: Annotated[int, Field(ge=0)] = 10  # of the arms that are compared by nDCG@10; 0: none
    window_sizes: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=1)] = [20]  # of the list-wise arms
    max_num_seqs: Annotated[list[PositiveInt], Field(min_length=1)] = [64]  # of vLLM, an engine each
    queries_at_once: list[PositiveInt] = [1]  # queries in flight, of the arms that compare that
    max_num_batched_tokens: PositiveInt | None = None  # so large that max_num_seqs binds; [engine]'s if not given
    without_prefix_caching: bool = True  # adds an arm without vLLM's prefix cache
    prefix_block_size: PositiveInt | None = (
        None  # of the arms about prefix caches: the smallest; [engine]'s if not given
    )


class Settings(Section):
    """Everything that a run depends on but its inputs."""

    preset: str | None = None  # a settings file for the model, under this one: a path, or one of configs/models by name
    night: NightSettings
    inputs: InputSettings
    strategy: StrategySettings = StrategySettings()
    prompt: PromptSettings = Field(default=PromptSettings(), validate_default=True)
    engine: EngineSettings
    packing: PackingSettings = Field(default=PackingSettings(), validate_default=True)
    store: StoreSettings = StoreSettings()
    checks: CheckSettings = CheckSettings()
    study: StudySettings | None = None  # only for `packrank study`

    @field_validator("prompt")
    @classmethod
    def _draws_only_thoughts(cls, value: PromptSettings, info: ValidationInfo) -> PromptSettings:
        strategy = info.data.get("strategy")  # missing where it was refused
        if value.sampling is not None and strategy is not None and not DECODE_MODES[strategy.decode_mode].thinks:
            raise ValueError(
                f"sampling is for decode_mode = 'reasoning', not {strategy.decode_mode!r}, which reads "
                "log-probabilities or the likeliest order"
            )
        return value

    @field_validator("prompt")
    @classmethod
    def _fields_have_inputs(cls, value: PromptSettings, info: ValidationInfo) -> PromptSettings:
        inputs = info.data.get("inputs")  # missing where it was refused
        if inputs is not None:
            inputs.check_fields(value.fields)
        return value

    @field_validator("packing")
    @classmethod
    def _can_be_promised(cls, value: PackingSettings, info: ValidationInfo) -> PackingSettings:
        engine = info.data.get("engine")  # missing where it was refused
        if value.promise == "no_preemption" and engine is not None:
            for key, found, why in engine.refused(PREEMPTING):
                raise ValueError(
                    f"promise = 'no_preemption' cannot be kept with [engine] {key} = {found!r}: {why}. Leave it out, "
                    "or set promise = 'none'"
                )
        return value

    @property
    def templates(self) -> dict[str, str]:
        """The prompt template's file of each decode mode, the strategy's first: a path, or `package:name`."""
        given = {self.strategy.decode_mode: self.prompt.template}
        if self.strategy.cascade is not None:
            given[self.strategy.cascade.decode_mode] = self.prompt.cascade_template
        folder = "configs/prompts" if self.prompt.language == "en" else f"configs/prompts/{self.prompt.language}"
        return {mode: path or f"{folder}/{mode}.toml" for mode, path in given.items()}

    @property
    def decode_modes(self) -> tuple[str, ...]:
        """How the run's windows are asked: the strategy's mode, and the cascade's where there is one."""
        return tuple(self.templates)

    @property
    def database_path(self) -> Path:
        """The database's file, not a link to it: lock, log, journal and spool lie beside the file."""
        return checkout_path(self.store.database).resolve()

    @property
    def spool_folder(self) -> Path:
        """Where committed batches lie until they are in the database."""
        return self.store.spool_folder(self.database_path)

    def engine_keywords(self) -> dict[str, Any]:
        """`[engine]` as vLLM takes it, with what the decode modes need and what `[packing] deterministic` asks for."""
        asked = {"max_num_seqs": 1, "enable_prefix_caching": False} if self.packing.deterministic else {}
        longest = self.prompt.max_query_tokens + self.prompt.max_passage_tokens  # the frame adds a few
        defaults = [DECODE_MODES[name].engine_defaults(longest) for name in self.decode_modes]
        return {**dict(ChainMap(*defaults)), **self.engine.keywords(), **asked}

    def stored_json(self) -> str:
        """All settings as JSON without secrets, as a run keeps them; what is hidden is marked `MASK`."""
        return json.dumps(hide_setting_secrets(self.model_dump(mode="json")), ensure_ascii=False)

    def ranking_settings(self) -> dict[str, Any]:
        """What a ranking depends on: packing, store, checks and the engine's capacity left out."""
        kept = self.model_dump(mode="json", include={"inputs", "strategy", "prompt"})
        for name in ARRIVAL_SETTINGS:
            kept["inputs"].pop(name)
        for name in LATER_INPUT_SETTINGS:
            if kept["inputs"][name] == InputSettings.model_fields[name].default:
                kept["inputs"].pop(name)
        kept["inputs"] = hide_setting_secrets(kept["inputs"])  # another key or signature is the same input
        given = self.engine.model_dump(exclude_none=True)
        engine = {key: value for key, value in given.items() if key not in CAPACITY}
        return {**kept, "engine": engine}
