"""One TOML file and `section.key = value` overrides make one frozen `Settings`: unknown keys are refused.

Defaults live in the models below, never at the point of use. `[engine]` keys are vLLM's own names and pass through
unrenamed; those that this module does not know are judged by vLLM, before weights load. Relative paths are taken
from the checkout. Knows nothing of what the settings are used for.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from tasks.database import DatabaseLimits
from tasks.environment import ROOT, checkout_path
from tasks.errors import ConfigError, first_line
from tasks.redaction import MASK, hide_setting_secrets

PositiveInt = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
MarkerName = Annotated[str, Field(pattern=r"^[^/]+$")] | None
InputName = Literal["queries", "documents", "candidates", "nested", "qrels"]

StrategyName = Literal[
    "pointwise", "single", "sliding", "tdpart", "setwise", "tourrank", "jointrank", "blitz", "pairwise"
]
DecodeMode = Literal["first_token", "permutation", "reasoning", "select", "yes_no", "query_likelihood"]

LISTWISE: tuple[DecodeMode, ...] = ("first_token", "permutation", "reasoning")
DECODE_MODES: dict[StrategyName, tuple[DecodeMode, ...]] = {
    "pointwise": ("yes_no", "query_likelihood"),
    "single": LISTWISE,
    "sliding": LISTWISE,
    "tdpart": LISTWISE,
    "jointrank": LISTWISE,
    "blitz": LISTWISE,
    "setwise": ("select",),
    "tourrank": ("select",),
    "pairwise": ("select",),
}
PROMPT_LOGPROB_BATCHED_TOKENS = 2048  # logits over the whole vocabulary for so many positions fit beside the cache

PATH_SETTINGS = (
    "preset",
    "inputs.queries",
    "inputs.documents",
    "inputs.candidates",
    "inputs.nested",
    "inputs.qrels",
    "prompt.template",
    "prompt.cascade_template",
    "engine.model",
    "store.database",
    "store.export",
    "store.spool",
)

SECRET_SETTING = "night.alert_url"  # Prefect stores a flow run's parameters, and with them its overrides
PRESET_SECTIONS = ("strategy", "prompt", "engine", "packing", "checks")

# Engine settings that bound speed and memory, not what the model computes: outside the run's identity.
CAPACITY_SETTINGS = frozenset(
    {
        "async_scheduling",
        "block_size",
        "disable_log_stats",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "enforce_eager",
        "gpu_memory_utilization",
        "kv_cache_memory_bytes",
        "max_num_batched_tokens",
        "max_num_seqs",
        "pipeline_parallel_size",
        "tensor_parallel_size",
    }
)


ARRIVAL_SETTINGS = ("wait_s", "markers", "may_be_older")  # when an input is taken, not which


class Section(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)  # logs show those


class NightSettings(Section):
    """Which night this is, and when it starts."""

    name: str = Field(default="", pattern=r"^[A-Za-z0-9_.-]*$")  # of the published series; the file's stem if empty
    cron: str | None = None  # the deployment's schedule, five fields
    timezone: str = "UTC"
    finish_by: str = Field(
        default="", pattern=r"^(([01]\d|2[0-3]):[0-5]\d)?$"
    )  # '06:30': asks nothing after it; '': all
    alert_url: SecretStr | None = None  # a night of a deployment that failed or crashed POSTs one JSON document there

    @field_validator("alert_url")
    @classmethod
    def _web_address(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not _is_web_address(value.get_secret_value()):
            raise ValueError("wanted an http:// or https:// URL; its value is a secret, so it is not shown")
        return value

    @field_validator("timezone")
    @classmethod
    def _known_timezone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"{value!r} is not an IANA time zone such as 'Asia/Seoul'") from error
        return value

    @field_validator("cron")
    @classmethod
    def _known_cron(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                CronSim(value, datetime(2026, 1, 1))
            except CronSimError as error:
                raise ValueError(f"{value!r} is not a cron line of five fields ({error})") from error
        return value

    def night_at(self, now: datetime) -> date:
        """The date of the schedule's last fire time not after `now` (aware), in the night's own time zone."""
        local = now.astimezone(ZoneInfo(self.timezone))
        if self.cron is None:
            return local.date()
        just_after = local.replace(second=59, microsecond=0)  # a reverse search excludes its start
        fired: datetime = next(CronSim(self.cron, just_after, reverse=True))
        return fired.date()

    def ends_at(self, start: datetime) -> datetime | None:
        """The first `finish_by` after `start` (aware), in the night's own time zone; None without one."""
        if not self.finish_by:
            return None
        local, finish_by = start.astimezone(ZoneInfo(self.timezone)), time.fromisoformat(self.finish_by)
        ends_at = local.replace(hour=finish_by.hour, minute=finish_by.minute, second=0, microsecond=0)
        return ends_at if ends_at > local else ends_at + timedelta(days=1)


class ColumnNames(Section):
    """For each input, our column name -> the column's name in the file."""

    queries: dict[str, str] = {}
    documents: dict[str, str] = {}
    candidates: dict[str, str] = {}
    nested: dict[str, str] = {}
    qrels: dict[str, str] = {}

    @model_validator(mode="after")
    def _known_columns(self) -> Self:
        known = {
            "queries": {"query_id", "text"},
            "documents": {"doc_id", "text", "title"},
            "candidates": {"query_id", "doc_id", "rank", "score"},
            "nested": {"query_id", "text", "candidates"},
            "qrels": {"query_id", "doc_id", "relevance"},
        }
        for source, names in known.items():
            for column in getattr(self, source):
                if column not in names:
                    raise ValueError(f"{source}.{column}: {source} has the columns {', '.join(sorted(names))}")
        return self


class MarkerNames(Section):
    """For each input, the file that its writer leaves when all is written, such as '_SUCCESS'."""

    queries: MarkerName = None
    documents: MarkerName = None
    candidates: MarkerName = None
    nested: MarkerName = None
    qrels: MarkerName = None


class InputSettings(Section):
    """Where the first stage's output is: three flat inputs, or one nested."""

    queries: str | None = None  # file, folder, glob or Hive folder; local or any fsspec URL
    documents: str | None = None
    candidates: str | None = None
    nested: str | None = None  # (query_id, text, candidates list<struct<doc_id, text, score>>)
    qrels: str | None = None  # judgments, for the run's nDCG@10: Parquet, a TREC qrels file, or BEIR's tsv
    partition: str | None = Field(default=None, pattern=r"^[^=/]+=[^/]+$")  # 'dt=2026-11-28'; else the newest by night
    columns: ColumnNames = ColumnNames()
    wait_s: Annotated[int, Field(ge=0)] = 0  # how long an input that is missing or half-written is waited for
    markers: MarkerNames = MarkerNames()  # in the files' or the partition's folder; without it an input is not whole
    may_be_older: list[InputName] = []  # with wait_s the night's own partition is waited for, but not of these
    top_k: PositiveInt | None = None  # cuts each query's list at the door
    rank_base: Literal[0, 1] = 1  # the first stage's best rank
    allow_empty: bool = False  # an input without rows is an error unless this says otherwise

    @model_validator(mode="after")
    def _one_layout(self) -> Self:
        flat = {"queries": self.queries, "documents": self.documents, "candidates": self.candidates}
        missing = [name for name, path in flat.items() if path is None]
        if self.nested is not None and len(missing) < len(flat):
            raise ValueError("give either nested, or queries, documents and candidates")
        if self.nested is None and missing:
            raise ValueError(f"{', '.join(missing)} missing: give queries, documents and candidates, or nested")
        return self


class SlidingSettings(Section):
    """More than one pass over the list."""

    passes: PositiveInt = 1
    early_exit: bool = False  # no further pass after one that left the head as it was


class SetwiseSettings(Section):
    """The sort whose comparisons are windows."""

    method: Literal["heapsort", "insertion"] = "heapsort"


class TourRankSettings(Section):
    """How many independent tournaments are played."""

    tournaments: PositiveInt = 2


class JointRankSettings(Section):
    """Blocks of window_size, and how their orders are joined."""

    repeats: PositiveInt = 2  # blocks that show each candidate
    aggregate: Literal["win_rate", "page_rank"] | None = None  # page_rank up to 2 repeats, else win_rate


class PairwiseSettings(Section):
    """The sort whose comparisons are pairs."""

    method: Literal["all_pairs", "heapsort", "sliding"] = "heapsort"


class CascadeSettings(Section):
    """Point-wise over the whole depth first; the strategy gets the best of it."""

    keep: Annotated[int, Field(ge=2)] = 30
    decode_mode: Literal["yes_no", "query_likelihood"] = "yes_no"


class ConsensusSettings(Section):
    """Every window in several orders, answered as one."""

    shuffles: Annotated[int, Field(ge=2)] = 3


class StrategySettings(Section):
    """Which windows are asked, and how. `DECODE_MODES` has the pairs that exist."""

    name: StrategyName = "sliding"
    decode_mode: DecodeMode = "first_token"
    window_size: Annotated[int, Field(ge=2)] | Literal["auto"] = 20
    stride: PositiveInt | None = None  # sliding: half of the window if not given
    top_k: PositiveInt | None = None  # first places that have to be right; all, or 10 where only the best are sorted
    depth: PositiveInt | None = None  # how deep the model ranks; the rest keeps first-stage order
    score_gap: Annotated[float, Field(gt=0.0)] | None = None  # nor below top - score_gap * |top| of first-stage scores
    retries: Annotated[int, Field(ge=0)] = 1  # of a window of which less than half was named, each in another order
    calibrate: Literal["none", "content_free"] = "none"  # first_token: less what the letters get without passages
    seed: int = 0
    sliding: SlidingSettings | None = None
    setwise: SetwiseSettings | None = None
    tourrank: TourRankSettings | None = None
    jointrank: JointRankSettings | None = None
    pairwise: PairwiseSettings | None = None
    cascade: CascadeSettings | None = None
    consensus: ConsensusSettings | None = None

    @model_validator(mode="after")
    def _pair_exists(self) -> Self:
        allowed = DECODE_MODES[self.name]
        if self.decode_mode not in allowed:
            raise ValueError(
                f"decode_mode = {self.decode_mode!r} does not go with strategy {self.name}, which takes "
                f"{' or '.join(allowed)}"
            )
        if self.calibrate != "none" and self.decode_mode != "first_token":
            raise ValueError(f"calibrate = {self.calibrate!r} needs decode_mode = 'first_token'")
        for wrapper in ("cascade", "consensus"):
            if self.name == "pointwise" and getattr(self, wrapper) is not None:
                raise ValueError(f"{wrapper} goes around a strategy with windows; pointwise has none")
        for name in ("sliding", "setwise", "tourrank", "jointrank", "pairwise"):
            if getattr(self, name) is not None and name != self.name:
                raise ValueError(f"{name} is set, but the strategy is {self.name}")
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
        if self.name == "single" and shown is not None and shown > self.window_size:
            raise ValueError(
                f"{'depth' if self.cascade is None else 'cascade.keep'} = {shown} must be at most window_size = "
                f"{self.window_size} with strategy single, which asks one window; use sliding for deeper lists"
            )
        if self.name == "tdpart" and self.top_k is not None and self.top_k >= self.window_size:
            raise ValueError(
                f"top_k = {self.top_k} must be below window_size = {self.window_size} with strategy tdpart: "
                "the pivot is the top_k-th of a window"
            )
        return self


class PromptSettings(Section):
    """The words of a prompt and the lengths that they may have."""

    template: str | None = None  # TOML, or RankLLM's YAML; configs/prompts/{decode_mode}.toml if not given
    cascade_template: str | None = None  # of the point-wise step of a cascade
    chat_template_kwargs: dict[str, bool | int | float | str] = {}  # what the model's chat template may be told
    max_prompt_tokens: PositiveInt | None = None  # max_model_len less the answer if not given
    max_query_tokens: PositiveInt = 256  # a longer query is set aside
    max_passage_tokens: PositiveInt = 256  # a longer passage is cut
    min_passage_tokens: PositiveInt = 32  # passages are not shortened below this to make a prompt fit
    thinking_budget_tokens: PositiveInt = 1024  # reasoning: then the think block is closed by force

    @model_validator(mode="after")
    def _min_not_above_max(self) -> Self:
        if self.min_passage_tokens > self.max_passage_tokens:
            raise ValueError(
                f"min_passage_tokens = {self.min_passage_tokens} must be at most "
                f"max_passage_tokens = {self.max_passage_tokens}"
            )
        return self


class EngineSettings(BaseModel):
    """vLLM's own settings, by vLLM's names; those not listed here pass through as they are."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    model: str  # a folder, or a name on the model hub
    revision: str | None = None
    max_model_len: Annotated[int, Field(ge=64)] = 4096  # the window's budget, not the model's 128k default
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _not_in_v1(self) -> Self:
        given = self.model_extra or {}
        for key in ("speculative_config", "spec_method", "spec_model", "spec_tokens"):
            if given.get(key) is not None:
                raise ValueError(f"{key}: speculative decoding is refused, its KV blocks are not in the budget")
        if given.get("data_parallel_size", 1) != 1:
            raise ValueError("data_parallel_size: vLLM's offline engine refuses it; run shards instead")
        if given.get("runner", "generate") not in ("auto", "generate"):
            raise ValueError("runner: only generative models are reranked with; pooling models are not")
        return self

    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of vLLM's `LLM`."""
        return self.model_dump(exclude_none=True)


class PackingSettings(Section):
    """How prompts are put into batches, and how long the engine may take over one."""

    driver: Literal["stream", "generate"] = "stream"  # stream: a prompt joins the engine when there is room
    batch_loads: PositiveInt = 4  # cache-loads committed together, of `generate` in one call: answers of one token only
    max_batch_s: PositiveInt = 10  # stream: a batch takes no more prompts after so long, and is committed when it ends
    headroom_share: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.02  # of the usable blocks, left free
    promise: Literal["no_preemption", "none"] = "no_preemption"
    deterministic: bool = False  # one sequence at a time, no prefix cache: same rows in every arrangement
    cohort_queries: PositiveInt = 5_000  # queries in flight: bounds memory
    shards: PositiveInt = (
        1  # parts of a night, each ranked by an engine of its own; a run keeps the number it began with
    )
    start_timeout_s: PositiveInt = 1_800  # weights may come from slow storage
    batch_timeout_s: PositiveInt = 1_800
    max_engine_starts: PositiveInt = 2  # for the same batch; then it is asked in halves
    max_poison_prompts: Annotated[int, Field(ge=0)] = 3  # that an engine dies of: set aside with their queries
    timeline: bool = False  # one row an engine step in engine_steps


class StoreSettings(Section):
    """The database, and what DuckDB may take from the host."""

    database: str = "var/packrank.duckdb"
    memory_limit: str = Field(default="1GB", pattern=r"^\d+(\.\d+)?\s*[KMGT]i?B$")
    threads: PositiveInt = 2
    load_every_s: PositiveInt = 5  # between two loads of committed batches from the spool, at least
    max_load_share: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005  # of a night's time: longer loads become rarer
    spool: str | None = (
        None  # folder of committed batches, shared by all hosts with shards; beside the database if not given
    )
    export: str | None = None  # folder: published scores go to {export}/{name}/night=YYYY-MM-DD/scores.parquet
    published_copy: bool = False  # beside it, for tools that keep a connection open; off: it takes the disk twice

    keep_nights: PositiveInt | None = None  # published nights of the series; older runs are deleted; all if not given
    keep_window_nights: PositiveInt | None = None  # the same, but only windows and batches, which latency comes from

    @field_validator("export", "spool")
    @classmethod
    def _local_folder(cls, value: str | None) -> str | None:
        if value is not None and "://" in value:
            raise ValueError("wanted a local folder, whose files take their names at once; copy on from there")
        return value

    def spool_folder(self, database: Path) -> Path:
        """Where the batches of a database's runs lie."""
        return (database.parent / "spool" if self.spool is None else checkout_path(self.spool)) / database.stem


class CheckSettings(Section):
    """Limits: above one of them a run is stored but not published, or not started at all."""

    max_unmatched_share: Share = 0.2  # candidates without document or query; above: stops before the engine
    max_quarantined_share: Share = 0.2  # candidates set aside
    max_fallback_share: Share = 0.05  # queries that the model did not rank at all
    max_partial_share: Share = 0.2  # queries of which a window fell back
    max_truncated_share: Share = 1.0  # passages cut, of all that were shown
    max_constant_share: Share = 0.05  # queries with four of the model's numbers or more, all the same
    max_as_given_share: Share = 1.0  # queries with four ranked documents or more, left in the first stage's order
    min_overlap_at_10: Share = 0.5  # mean, with the night before, of queries that nothing changed for; of 20 or more
    canary: Literal["stop", "warn", "off"] = "stop"  # where the model puts an irrelevant passage above a relevant one
    max_canary_drift: Annotated[float, Field(gt=0.0)] = 1.0  # of a margin from earlier nights' median, in its own unit


class StudySettings(Section):
    """The arms of `packrank study`: each list's middle value is the base, from which one setting differs at a time."""

    limit_queries: PositiveInt = 6
    window_sizes: Annotated[list[Annotated[int, Field(ge=2)]], Field(min_length=1)] = [20, 50]
    max_num_seqs: Annotated[list[PositiveInt], Field(min_length=1)] = [16, 64, 256]
    without_prefix_caching: bool = True
    queries_at_once: list[PositiveInt] = [1]


class Settings(Section):
    """Everything that a run depends on but its inputs."""

    preset: str | None = None  # a settings file for the model, under this one: configs/models/
    night: NightSettings
    inputs: InputSettings
    strategy: StrategySettings = StrategySettings()
    prompt: PromptSettings = PromptSettings()
    engine: EngineSettings
    packing: PackingSettings = PackingSettings()
    store: StoreSettings = StoreSettings()
    checks: CheckSettings = CheckSettings()
    study: StudySettings | None = None  # only for `packrank study`

    def template_path(self, decode_mode: DecodeMode) -> str:
        """The prompt template's file for a decode mode of the run: a path, or `package:name`."""
        in_cascade = self.strategy.cascade is not None and decode_mode == self.strategy.cascade.decode_mode
        given = self.prompt.cascade_template if in_cascade else self.prompt.template
        return given or f"configs/prompts/{decode_mode}.toml"

    @property
    def decode_modes(self) -> tuple[DecodeMode, ...]:
        """How the run's windows are asked: the strategy's mode, and the cascade's where there is one."""
        cascade = self.strategy.cascade
        return (self.strategy.decode_mode, *([cascade.decode_mode] if cascade is not None else []))

    @property
    def database_path(self) -> Path:
        """The database's file."""
        return checkout_path(self.store.database)

    @property
    def spool_folder(self) -> Path:
        """Where committed batches lie until they are in the database."""
        return self.store.spool_folder(self.database_path)

    def database_limits(self, scratch: Path) -> DatabaseLimits:
        """DuckDB's share of the host, spilling into `scratch`."""
        return DatabaseLimits(self.store.memory_limit, self.store.threads, scratch)

    def engine_keywords(self) -> dict[str, Any]:
        """`[engine]` as vLLM takes it, with what `[packing] deterministic` asks for."""
        asked = {"max_num_seqs": 1, "enable_prefix_caching": False} if self.packing.deterministic else {}
        lowered = "query_likelihood" in self.decode_modes
        default = {"max_num_batched_tokens": PROMPT_LOGPROB_BATCHED_TOKENS} if lowered else {}
        return {**default, **self.engine.keywords(), **asked}

    def stored_json(self) -> str:
        """All settings as JSON without secrets, as a run keeps them; what is hidden is marked `MASK`."""
        return json.dumps(hide_setting_secrets(self.model_dump(mode="json")), ensure_ascii=False)

    def ranking_settings(self) -> dict[str, Any]:
        """What a ranking depends on: packing, store, checks and the engine's capacity left out."""
        kept = self.model_dump(mode="json", include={"inputs", "strategy", "prompt"})
        for name in ARRIVAL_SETTINGS:
            kept["inputs"].pop(name)
        kept["inputs"] = hide_setting_secrets(kept["inputs"])  # another key or signature is the same input
        engine = {key: value for key, value in self.engine.keywords().items() if key not in CAPACITY_SETTINGS}
        return {**kept, "engine": engine}


def load_settings(path: Path, overrides: Mapping[str, object] | None = None) -> Settings:
    """Reads the file and lays `overrides`, dotted paths to values, over it.

    Raises:
        ConfigError: naming file, section, key, the value found and what is allowed.
    """
    if SECRET_SETTING in (overrides or {}):
        raise ConfigError(f"override {SECRET_SETTING}: Prefect would store the secret; put it into {path}.")
    document = _over_preset(_read_toml(path), (overrides or {}).get("preset"))
    for dotted, value in (overrides or {}).items():
        _lay_over(document, dotted, value)
    night = document.setdefault("night", {})
    if isinstance(night, dict) and not night.get("name"):
        night["name"] = path.stem
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{path}: {'; '.join(_complaint(detail) for detail in error.errors())}") from error


def stored_inputs(run_id: str, run_settings: Mapping[str, Any], needed: Sequence[InputName]) -> InputSettings:
    """`[inputs]` of settings that are stored with a run, for reading those that are `needed` again.

    Raises:
        ConfigError: they are not this packrank's, or a needed one was a URL with secrets, which are not stored.
    """
    stored = run_settings.get("inputs", {})
    hidden = [name for name in needed if "://" in str(stored.get(name)) and MASK in str(stored.get(name))]
    if hidden:
        raise ConfigError(f"run {run_id}: [inputs] {', '.join(hidden)} had a URL with secrets, which are not stored.")
    try:
        return InputSettings.model_validate(stored)
    except ValidationError as error:
        details = [dict(detail, loc=("inputs", *detail["loc"])) for detail in error.errors()]
        told = "; ".join(_complaint(detail) for detail in details)
        raise ConfigError(f"run {run_id}: its stored [inputs] are not this packrank's ({told}).") from error


def alert_settings(path: Path) -> NightSettings:
    """`[night]` of a settings file whatever is wrong elsewhere in it, or in `[night]` beside its alert_url.

    Raises:
        ConfigError: the file cannot be read, or alert_url is no URL.
    """
    section = _read_toml(path).get("night", {})
    section = section if isinstance(section, dict) else {}
    name = {} if section.get("name") else {"name": path.stem}
    try:
        return NightSettings.model_validate(section | name)
    except ValidationError:
        pass
    try:
        return NightSettings.model_validate(name | {"alert_url": section.get("alert_url")})
    except ValidationError as error:
        raise ConfigError(f"{path}: [night] alert_url: wanted an http:// or https:// URL") from error


def store_settings(run_settings: Mapping[str, Any], overrides: Mapping[str, object]) -> StoreSettings:
    """`[store]` of settings that are stored with a run, `store.key` overrides laid over it.

    Raises:
        ConfigError: an override of another section, or a value that is not allowed.
    """
    document: dict[str, Any] = {"store": dict(run_settings.get("store", {}))}
    for dotted, value in overrides.items():
        if not dotted.startswith("store."):
            raise ConfigError(f"--set {dotted}: a finished run has its settings; wanted store.KEY=VALUE.")
        _lay_over(document, dotted, value)
    try:
        return StoreSettings.model_validate(document["store"])
    except ValidationError as error:
        details = [dict(detail, loc=("store", *detail["loc"])) for detail in error.errors()]
        raise ConfigError("; ".join(_complaint(detail) for detail in details)) from error


def parse_override(text: str) -> tuple[str, object]:
    """`section.key=value` as a dotted path and a TOML value; a value that is no TOML is text.

    >>> parse_override("strategy.window_size=10"), parse_override("night.name=trial")
    (('strategy.window_size', 10), ('night.name', 'trial'))
    """
    dotted, sign, value = text.partition("=")
    if not sign or ("." not in dotted and dotted != "preset"):
        raise ConfigError(f"--set {text}: wanted section.key=value, such as strategy.window_size=10")
    try:
        return dotted.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return dotted.strip(), value


def overrides_from(texts: Sequence[str], folder: Path) -> dict[str, object]:
    """Several `section.key=value`; a path that exists seen from `folder`, where it was typed, is taken from there.

    Raises:
        ConfigError: one is not of that form.
    """
    overrides = dict(parse_override(text) for text in texts)
    for dotted, value in overrides.items():
        if dotted in PATH_SETTINGS and isinstance(value, str) and "://" not in value and folder != ROOT:
            overrides[dotted] = str(folder / value) if _starts_in(folder, value) else value
    return overrides


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable() and " " not in url
    except ValueError:
        return False


def _starts_in(folder: Path, path: str) -> bool:
    """Whether the path, or the folder of a file or glob still to be made, is there."""
    return (folder / path).exists() or (folder / path).parent.is_dir()


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path.absolute()}: no such settings file. Give a TOML file as in configs/.") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not readable as TOML: {first_line(error)}") from error


def _over_preset(document: dict[str, Any], override: object) -> dict[str, Any]:
    """The file's values over those of the preset that it names: section by section, key by key."""
    preset = override or document.get("preset")
    if not isinstance(preset, str):
        return document
    under = _read_toml(checkout_path(preset))
    for section in under:
        if section not in PRESET_SECTIONS:
            raise ConfigError(
                f"{preset}: {section}: a preset has the sections {', '.join(PRESET_SECTIONS)} only; a night's own go "
                "into its settings file."
            )
    return _merged(under, document)


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(under.get(key), Mapping)
        merged[key] = _merged(under[key], value) if both else value
    return merged


def _lay_over(document: dict[str, Any], dotted: str, value: object) -> None:
    *sections, key = dotted.split(".")
    table = document
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"override {dotted}: {section} is a value, not a table")
    table[key] = value


def _complaint(detail: Any) -> str:
    section, *rest = [str(part) for part in detail["loc"] if part not in ("int", "literal['auto']", "constrained-int")]
    where = f"[{section}]" + (f" {'.'.join(rest)}" if rest else "")
    if detail["type"] == "extra_forbidden":
        return f"{where}: unknown key"
    if detail["type"] == "missing":
        return f"{where}: missing"
    value = hide_setting_secrets(detail["input"], rest[-1] if rest else section)
    is_shown = ".".join((section, *rest)) != SECRET_SETTING and not isinstance(detail["input"], dict | BaseModel)
    found = f" = {value!r}" if is_shown else ""
    return f"{where}{found}: {detail['msg'].removeprefix('Value error, ')}"
