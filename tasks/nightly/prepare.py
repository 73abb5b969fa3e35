"""What a night is asked to do, and everything that can be checked before data is read and weights load.

Reads settings, the model's small files and the input's footers; writes nothing. Knows nothing of databases.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from tasks.engine.lora_adapter import read_lora_adapter, require_base_model
from tasks.inputs.arrival import await_night_input
from tasks.inputs.candidates import CandidateLimits
from tasks.inputs.query_subsets import IsOwn
from tasks.inputs.staging import NightInput, OnMatched, StagedInput, stage_input
from tasks.prompt.model_files import find_model_folder
from tasks.ranking.recipe import Recipe, build_recipe
from tasks.ranking.reuse import ReuseFrom
from tasks.settings import NightSettings, Settings, load_settings
from tasks.store.identity import model_identity, recipe_digest, run_id
from tasks.store.night_store import database_limits
from tasks.system.disk import require_space, staging_bytes
from tasks.system.environment import ROOT, checkout_path
from tasks.system.errors import ConfigError
from tasks.system.garbage import collected_rarely
from tasks.system.workspace import Workspace


@dataclass(frozen=True, slots=True)
class NightRequest:
    """What a caller asks for: the flow's parameters."""

    config: Path
    night: date | None = None  # the schedule's last fire time if not given
    limit_queries: int | None = None
    dry_run: bool = False
    publish: bool = False
    rerun: bool = False
    full: bool = False  # no query is reused
    requeue: bool = False  # repeat a finished run, but ask only what it set aside
    overrides: Mapping[str, object] = field(default_factory=dict)

    @property
    def reuse(self) -> ReuseFrom:
        """What may be reused: a trial and a repetition are there to see the model at work."""
        if self.requeue:
            return "repeated"
        return "nothing" if self.full or self.rerun or self.limit_queries is not None else "published"


@dataclass(frozen=True, slots=True)
class PreparedNight:
    """A night that can run: settings checked, sizes resolved, input found. Nothing is written yet."""

    settings: Settings
    night: date
    limit_queries: int | None
    publish: bool
    rerun: bool
    reuse: ReuseFrom
    base_run_id: str
    found: NightInput
    recipe: Recipe
    recipe_parts: Mapping[str, str]  # digest by part of what a ranking depends on beside its texts
    model_identity: str
    input_warnings: tuple[str, ...]  # what of the input is not of the night

    @property
    def workspace(self) -> Workspace:
        """Where run-time files of this database lie."""
        return Workspace(self.settings.database_path)

    @property
    def candidate_limits(self) -> CandidateLimits:
        """What staging keeps to."""
        return CandidateLimits(
            rank_base=self.settings.inputs.rank_base,
            order_by=self.settings.inputs.order_by,
            lower_score_is_better=self.settings.inputs.lower_score_is_better,
            top_k=self.settings.inputs.top_k,
            max_unmatched_share=self.settings.checks.max_unmatched_share,
            limit_queries=self.limit_queries,
            max_query_tokens=self.recipe.main.sizes.max_query_tokens,
        )

    def require_space_to_stage(self, num_shards: int = 1) -> None:
        """Refuses to lay out what the disk has no room for; a shard's lists are its share, its documents may be all.

        Raises:
            StoreError: the disk has no room for it.
        """
        num_candidates = self.found.num_candidate_rows
        if num_candidates is not None:  # unknown in the nested layout
            max_tokens = self.recipe.main.sizes.max_passage_tokens
            num_documents = self.found.inputs["documents"].num_rows
            num_fields = len(self.found.fields.names)
            needed = staging_bytes(num_candidates // num_shards, num_documents, max_tokens, num_fields)
            require_space(self.workspace.folder, needed, "laying out the input")

    @collected_rarely()
    def stage(
        self,
        folder: Path,
        is_own: IsOwn | None = None,
        *,
        only_named: bool = False,
        on_matched: OnMatched | None = None,
    ) -> StagedInput:
        """Reads and lays out the input in `folder`, of all queries or of those that are a shard's or a sample's own.

        Args:
            folder: emptied first.
            is_own: which queries; all if not given.
            only_named: whether documents that none of them names are read past, their duplicates uncounted.
            on_matched: called before passages are tokenised; see `stage_input`.

        Raises:
            InputError: see `stage_input`.
        """
        return stage_input(
            self.found,
            folder,
            self.recipe.main.builder,
            replace(self.candidate_limits, is_own=is_own, only_named=only_named),
            self.recipe.main.sizes.max_passage_tokens,
            database_limits(self.settings.store, folder / "spill"),
            on_matched,
        )


def prepare_night(request: NightRequest, moment: datetime | None = None) -> PreparedNight:
    """Checks everything that can be known before data is read and weights load.

    Args:
        request: what is asked for.
        moment: whose night is meant where the request names none; now if not given.

    Raises:
        ConfigError, PromptTooLong: settings, model or prompt cannot work, or the night has not come yet.
        InputError: files or schemas cannot be this night's input.
    """
    settings = load_settings(request.config, request.overrides)
    if request.requeue and (request.full or request.dry_run):
        raise ConfigError("requeue asks only what was set aside: full and dry_run cannot be combined with it.")
    if request.publish and (request.dry_run or request.limit_queries is not None):
        raise ConfigError("publish cannot be combined with limit_queries or dry_run: latest_scores would lose queries.")
    if request.limit_queries is not None and settings.packing.shards > 1 and not request.dry_run:
        raise ConfigError(
            f"limit_queries needs [packing] shards = 1, not {settings.packing.shards}: one process ranks a trial. "
            "Add --set packing.shards=1."
        )
    now = datetime.now(UTC)
    if request.night is not None and not request.dry_run:
        _refuse_future(request.night, settings.night, now)
    night = request.night or settings.night.night_at(moment or now)
    model_folder = find_model_folder(settings.engine.model, settings.engine.revision, ROOT)
    recipe = build_recipe(settings, model_folder, night)
    wait_s = 0 if request.dry_run else settings.inputs.wait_s
    found = await_night_input(settings.inputs, night, wait_s, recipe.wanted_fields)
    identity = model_identity(model_folder)
    asked = settings.ranking_settings()
    asked["engine"].pop("model")  # its identity stands for it, wherever it lies
    if "lora" in asked["engine"]:
        adapter = read_lora_adapter(checkout_path(asked["engine"]["lora"]))
        require_base_model(adapter, model_folder)
        asked["engine"]["lora"] = adapter.digest()
    depends_on: dict[str, dict[str, Any]] = {
        "model": {"model_identity": identity, "engine": asked["engine"]},
        "prompt": {
            "templates": [asking.mode.template.words for asking in recipe.askings.values()],
            "chat_template_kwargs": asked["prompt"]["chat_template_kwargs"],
            "thinking_budget_tokens": asked["prompt"]["thinking_budget_tokens"],
            **({"sampling": asked["prompt"]["sampling"]} if asked["prompt"]["sampling"] is not None else {}),
        },
        "settings": {"strategy": asked["strategy"], "resolved": recipe.resolved},
    }
    ranking = depends_on | {"inputs": asked["inputs"], "limit_queries": request.limit_queries}
    return PreparedNight(
        settings=settings,
        night=night,
        limit_queries=request.limit_queries,
        publish=request.publish,
        rerun=request.rerun or request.requeue,
        reuse=request.reuse,
        base_run_id=run_id(night, settings.night.name, ranking, found.digest),
        found=found,
        recipe=replace(recipe, digest=recipe_digest(depends_on)),
        recipe_parts={part: f"{recipe_digest(values):016x}" for part, values in depends_on.items()},
        model_identity=identity,
        input_warnings=tuple(_input_warnings(found, night, settings.night.night_at(now), settings.inputs.may_be_older)),
    )


def _refuse_future(night: date, settings: NightSettings, now: datetime) -> None:
    """A published night of the future would hide all others until it comes.

    Raises:
        ConfigError: naming the newest night that can be run.
    """
    newest = settings.newest_night(now)
    if night > newest:
        raise ConfigError(
            f"night {night}: has not come yet; the newest is {newest} in [night] timezone {settings.timezone}. "
            "`packrank plan` takes any night."
        )


def _input_warnings(found: NightInput, night: date, last_night: date, may_be_older: Collection[str]) -> Iterator[str]:
    """What of the input is not of the night, a sentence each."""
    days = found.dates()
    if not days and night < last_night:
        yield f"The input has no date: its current files are ranked as the night {night}."
    for source, day in days.items():
        num_days = abs((night - day).days)
        told = f"{source}: {found.inputs[source].partition} is {num_days} {'day' if num_days == 1 else 'days'}"
        if day < night and source not in may_be_older:
            yield f"{told} older than the night {night}. Name {source} in [inputs] may_be_older if that is intended."
        if day > night:
            yield f"{told} younger than the night {night}: [inputs] partition names it."
