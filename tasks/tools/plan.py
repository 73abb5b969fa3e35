"""What a night would ask, without an engine: real staging, prompts and packing, over an engine that changes no order.

Counts are exact but for one thing: which passages later windows show depends on the model, so their tokens are those
of the first-stage order. Of more than EXACT_CANDIDATES only a sample of the queries is staged and packed, and its
counts stand for all with their 95 % interval. Writes only to a scratch folder that goes with it.
"""

import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.decode.answer import Generation
from tasks.engine.batches import Batch
from tasks.engine.generations import Answered, BatchStats, EngineInfo
from tasks.engine.kv_cache import FULL, KVCacheGroup, KVCacheLimits, check_promise
from tasks.forecast.rates import half_width
from tasks.inputs.query_subsets import IsOwn, sample_of_queries
from tasks.inputs.staging import StagedInput
from tasks.nightly.outlook import Outlook, QuerySample, time_tables
from tasks.nightly.prepare import PreparedNight
from tasks.nightly.run_choice import find_reuse_source, store_of
from tasks.prompt.prompts import Prompt
from tasks.ranking.cohort import Cohort
from tasks.ranking.recipe import Recipe
from tasks.ranking.reuse import ReuseDecision, find_standings
from tasks.report.summary_tables import SummaryTable, Worded, listing, pairs
from tasks.store.tables import BatchId
from tasks.system.redaction import printable

EXACT_CANDIDATES = 1_000_000
SAMPLED_QUERIES = 2_000
CANDIDATES_A_QUERY = 100  # guessed for the nested layout, whose footers do not say
ASSUMED_CACHE = (
    "KV blocks are counted as if every layer had full attention in one cache group; a model with windows, chunks or "
    "Mamba layers needs other numbers, which only its engine knows."
)
NO_RATES = Outlook()
SUMMED = ("prompts", "passages", "prompt_tokens", "output_tokens", "truncated_passages", "truncated_tokens")


@dataclass(frozen=True, slots=True)
class CacheAssumption:
    """The KV cache to plan for; a cache that holds everything if no number of blocks is given."""

    num_gpu_blocks: int | None = None
    block_size: int = 16
    max_num_seqs: int = 256


class FirstStageEngine:
    """Answers every window with the first stage's order."""

    def __init__(self, limits: KVCacheLimits, recipe: Recipe) -> None:
        self.info = EngineInfo(limits, device="none", dtype="none", enable_prefix_caching=False)
        self._askings = recipe.askings
        self._submitted: list[Prompt] = []
        self.first_prompts: dict[str, Prompt] = {}  # by question: one decode mode each

    def submit(self, prompts: Sequence[Prompt]) -> None:
        """See `Engine.submit`."""
        for prompt in prompts:
            self.first_prompts.setdefault(prompt.window.question, prompt)
        self._submitted += prompts

    def collect(self) -> Answered:
        """See `Engine.collect`: answers all at once; output tokens are the most that the answer may have."""
        generations = tuple(self._generation(prompt) for prompt in self._submitted)
        self._submitted = []
        return Answered(generations, 0.0, np.empty(0))

    def generate(self, batch: Batch, tries: int = 1) -> tuple[list[Generation], BatchStats]:  # noqa: ARG002 (of Engine)
        """See `Engine.generate`."""
        now = datetime.now(UTC)
        return [self._generation(prompt) for prompt in batch.prompts], BatchStats(now, now, 0.0, np.empty(0))

    def _generation(self, prompt: Prompt) -> Generation:
        return self._askings[prompt.window.question].mode.pretend(prompt)


@dataclass(slots=True)
class PlanLedger:
    """Adds up what a night would commit, instead of committing it."""

    num_batches: int = 0
    num_blocks: int = 0
    max_batch_blocks: int = 0
    num_reused_queries: int = 0
    rounds: dict[int, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    queries: dict[str, np.ndarray] | None = None  # of a sample: SUMMED by query_id

    def next_id(self) -> BatchId:
        """A batch that nobody keeps."""
        return BatchId("plan", 0, self.num_batches)

    def commit(self, batch_id: BatchId, tables: Mapping[str, pa.Table]) -> None:  # noqa: ARG002 (Commits names it)
        """Counts the batch's windows by round."""
        (batch,) = tables["batches"].to_pylist()
        self.num_batches += batch["num_prompts"] > 0
        self.num_blocks += batch["num_blocks"]
        self.max_batch_blocks = max(self.max_batch_blocks, batch["num_blocks"])
        for window in tables["windows"].to_pylist():
            counts = self.rounds[window["round"]]
            counts["prompts"] += 1
            counts["passages"] += len(window["docs"])
            for name in ("prompt_tokens", "output_tokens", "truncated_passages", "truncated_tokens"):
                counts[name] += window[name]
            if self.queries is not None:
                values = np.array([1, len(window["docs"]), *(window[name] for name in SUMMED[2:])], np.int64)
                self.queries[window["query_id"]] = self.queries.get(window["query_id"], 0) + values
            counts["longest_prompt_tokens"] = max(counts["longest_prompt_tokens"], window["prompt_tokens"])

    def flush(self) -> None:
        """Nothing waits."""


def plan_night(
    prepared: PreparedNight, cache: CacheAssumption, *, outlook: Outlook = NO_RATES, with_prompt: bool = False
) -> list[SummaryTable]:
    """Stages the input, or a sample of it, in a scratch folder and packs it.

    Args:
        prepared: the night.
        cache: what to plan for.
        outlook: what to say of time.
        with_prompt: whether to show the first prompt of each decode mode, word for word.

    Raises:
        InputError: the input cannot be a night's.
        ConfigError: the largest prompt does not fit the assumed cache, or the rates lack what the night needs.
    """
    limits = assumed_limits(prepared, cache)
    if cache.num_gpu_blocks is not None:
        for asking in prepared.recipe.askings.values():
            check_promise(limits, prepared.settings.packing.headroom_share, *asking.largest_need)
    with tempfile.TemporaryDirectory(prefix="packrank-plan-") as scratch:
        sample = sample_of(prepared)
        staged = prepared.stage(Path(scratch) / "staging", sample, only_named=sample is not None)
        num_queries = staged.num_queries if sample is None else _num_query_rows(prepared)
        ledger = PlanLedger(queries=None if sample is None else {})
        asked: list[int] = []
        engine = FirstStageEngine(limits, prepared.recipe)
        for first in range(0, staged.num_queries, prepared.settings.packing.cohort_queries):
            cohort = Cohort(staged, prepared.recipe, ledger)
            queries = range(first, min(first + prepared.settings.packing.cohort_queries, staged.num_queries))
            standings = _standings(prepared, staged, queries)
            for query_index in queries:
                standing = standings.get(staged.query_ids[query_index])
                if standing is not None and standing.reused_run_id is not None:
                    ledger.num_reused_queries += 1
                else:
                    cohort.add_query(query_index, [])
                    asked.append(query_index)
            cohort.rank(engine, on_windows=lambda _: None)
        prompts = engine.first_prompts.values() if with_prompt else ()
        shown = [_prompt_table(prepared.recipe, prompt) for prompt in prompts]
        scale = num_queries / max(1, staged.num_queries)
        told = Told(prepared, staged, ledger, scale)
        waiting = QuerySample(staged, asked, round(len(asked) * scale))
        times = time_tables(prepared, waiting, outlook, QuerySample(staged, range(staged.num_queries), num_queries))
        return told.tables(limits, cache) + times + shown


def _identifiers(recipe: Recipe) -> list[tuple[str, str]]:
    """How many passages one token can name, and how the model writes the first."""
    modes = [asking.mode for asking in recipe.askings.values()]
    return [
        (f"identifiers of {mode.name}", f"{len(form.token_ids)}, {form.name}: {form.example!r} is one token")
        for mode in modes
        if (form := mode.identifier_form) is not None
    ]


def sample_of(prepared: PreparedNight) -> IsOwn | None:
    """Which of the queries a plan looks at; None: all of them, up to EXACT_CANDIDATES candidates."""
    num_queries, num_candidates = _num_query_rows(prepared), prepared.found.num_candidate_rows
    if num_candidates is None:
        num_candidates = num_queries * CANDIDATES_A_QUERY
    if num_candidates <= EXACT_CANDIDATES or num_queries <= SAMPLED_QUERIES or prepared.limit_queries is not None:
        return None
    return sample_of_queries(SAMPLED_QUERIES / num_queries, str(prepared.settings.strategy.seed))


def _num_query_rows(prepared: PreparedNight) -> int:
    inputs = prepared.found.inputs
    return (inputs.get("queries") or inputs["nested"]).num_rows


def _prompt_table(recipe: Recipe, prompt: Prompt) -> SummaryTable:
    """The prompt's tokens as text, the template's own included: what the model reads, line by line."""
    asking = recipe.askings[prompt.window.question]
    text = asking.builder.tokens.decode(prompt.prompt_token_ids.tolist())
    lines = "\n".join(printable(line) for line in text.split("\n"))
    title = f"Prompt of {asking.mode.name}, {prompt.request_id}, {prompt.prompt_tokens} tokens"
    return SummaryTable(title, ("text",), ((lines,),), is_raw=True, name="prompt")


def _standings(prepared: PreparedNight, staged: StagedInput, queries: range) -> dict[str, ReuseDecision]:
    """What a night that began now would reuse."""
    with store_of(prepared).runs() as runs:
        earlier = None if runs is None else find_reuse_source(prepared, runs, {}, None)
        if runs is None or earlier is None:
            return {}
        return find_standings(runs.database, earlier, staged, prepared.recipe, queries)


def assumed_limits(prepared: PreparedNight, cache: CacheAssumption) -> KVCacheLimits:
    """The limits of an engine that was not started: those given, or settings of [engine] where they are there.

    Only an engine knows its cache groups: one of full attention is assumed.
    """
    keywords = prepared.settings.engine_keywords()
    block_size = int(keywords.get("block_size") or cache.block_size)
    return KVCacheLimits(
        num_gpu_blocks=cache.num_gpu_blocks or 2**31,
        block_size=block_size,
        max_num_seqs=int(keywords.get("max_num_seqs") or cache.max_num_seqs),
        max_num_batched_tokens=int(keywords.get("max_num_batched_tokens") or 8192),
        max_model_len=prepared.recipe.main.sizes.max_model_len,
        groups=(KVCacheGroup(FULL, block_size),),
    )


@dataclass(frozen=True, slots=True)
class Told:
    """A plan's tables; of a sample, every count times `scale`."""

    prepared: PreparedNight
    staged: StagedInput
    ledger: PlanLedger
    scale: float

    def tables(self, limits: KVCacheLimits, cache: CacheAssumption) -> list[SummaryTable]:
        """The plan, its prompts by round, and what would be set aside or repaired."""
        staged, given = self.staged, cache.num_gpu_blocks is not None
        aside = staged.quarantine.group_by(["source", "reason"]).aggregate([([], "count_all")]).to_pylist()
        notes = [ASSUMED_CACHE] + ([] if given else ["Give --num-gpu-blocks (and --block-size) to see batches."])
        if self.ledger.queries is not None:
            notes.append(f"From a sample of {staged.num_queries:,} queries, with 95 % intervals.")
        rounds = [
            {"round": number, **{name: self._scaled(name, value) for name, value in counts.items()}}
            for number, counts in sorted(self.ledger.rounds.items())
        ]
        tables = [
            pairs(
                "Plan", [each for each in self._figures(limits, given=given) if each[1] is not None], " ".join(notes)
            ),
            listing("Prompts by round, passages in first-stage order", rounds),
            listing("Would be set aside", [row | {"rows": self._all(row.pop("count_all"))} for row in aside]),
            listing("Repairs", [{"what": note, "rows": self._all(rows)} for note, rows in staged.notes.items()]),
        ]
        return [table for table in tables if table is not None]

    def _figures(self, limits: KVCacheLimits, *, given: bool) -> list[tuple[str, Any]]:
        prepared, staged, ledger = self.prepared, self.staged, self.ledger
        statuses = staged.query_status
        counts = ledger.rounds.values()
        total = {
            name: self._with_interval(place, sum(each[name] for each in counts)) for place, name in enumerate(SUMMED)
        }
        return [
            ("run_id", prepared.base_run_id),
            ("night", str(prepared.night)),
            ("input_partition", prepared.found.partition),
            ("queries", self._all(staged.num_queries)),
            ("queries without candidates", self._all(statuses.count("no_candidates"))),
            ("queries set aside", self._all(statuses.count("quarantined"))),
            ("queries reused", self._all(ledger.num_reused_queries)),
            ("candidates", self._all(staged.num_candidates)),
            ("documents named" if self.scale == 1 else "documents named, of the sample", len(staged.doc_ids)),
            *[(name, value) for name, value in prepared.recipe.resolved.items() if value is not None],
            *_identifiers(prepared.recipe),
            ("prompts", total["prompts"]),
            ("passages shown", total["passages"]),
            ("prompt tokens", total["prompt_tokens"]),
            ("longest prompt, tokens", max((each["longest_prompt_tokens"] for each in counts), default=0)),
            ("output tokens at most", total["output_tokens"]),
            ("passages cut", total["truncated_passages"]),
            ("passage tokens left out", total["truncated_tokens"]),
            ("block_size", limits.block_size),
            ("KV blocks of all prompts", self._all(ledger.num_blocks)),
            ("batches", self._all(ledger.num_batches) if given else None),
            ("KV blocks of the largest batch", ledger.max_batch_blocks if given else None),
        ]

    def _all(self, value: int) -> int:
        return round(value * self.scale)

    def _scaled(self, name: str, value: int) -> int:
        return value if name.startswith("longest") else self._all(value)

    def _with_interval(self, place: int, value: int) -> int | Worded:
        """A count for all queries; of a sample with half of its interval."""
        if self.ledger.queries is None:
            return value
        drawn = np.zeros(self.staged.num_queries)
        for number, values in enumerate(self.ledger.queries.values()):
            drawn[number] = values[place]
        half, whole = round(half_width(drawn, round(self.staged.num_queries * self.scale))), self._all(value)
        return Worded({"count": whole, "half_width": half}, f"{whole:,} ± {half:,}")
