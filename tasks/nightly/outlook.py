"""How long a night will take: its forecast, every other strategy's beside it, and what a larger GPU might do.

Rates come from a file that `packrank bench` wrote, from a finished run, or from the command line. Knows nothing of how
they were measured.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from tasks.decode import DECODE_MODES
from tasks.forecast.demand import AGREEMENTS, Demand, count_demand, draw_queries
from tasks.forecast.rates import DEVICES, Forecast, PrefillRate, Rates, forecast, parse_rates
from tasks.inputs.staging import StagedInput
from tasks.nightly.prepare import PreparedNight
from tasks.nightly.run_choice import store_of
from tasks.prompt.model_files import find_model_folder
from tasks.ranking.recipe import Recipe, build_recipe
from tasks.ranking.reuse import ReuseDecision, ReuseSource, find_standings
from tasks.report.summary_tables import SummaryTable, Worded, duration_text, pairs
from tasks.schedule.strategies import STRATEGIES
from tasks.schedule.strategies.named import SIMULATED, Variant
from tasks.settings import StrategySettings
from tasks.store.night_store import LOAD_WAIT_S, Store
from tasks.system.environment import ROOT
from tasks.system.errors import ConfigError, DatabaseLocked, PackrankError, first_line

logger = logging.getLogger(__name__)

DRAWN_QUERIES = 2_000  # of a run, for the share that is reused
COUNTED_QUERIES = 1_000  # of these, for the night's own strategy: the sample's own error is then some 1 %
COMPARED_QUERIES = 200  # for each other strategy, and while an engine waits

NO_RATES_NOTE = "packrank bench measures this machine; --estimate 8B estimates GPUs that you do not have."
ESTIMATE_NOTE = (
    "Estimate, not measured: bfloat16 on one GPU, prompts read at 35 to 60 % of the data sheet's dense FLOPs, answers "
    "written at 50 to 80 % of its memory bandwidth; no prefix caching; a Llama-like model with grouped keys."
)
STRATEGY_NOTE = (
    "Estimates from a sample of queries; a range holds the rates' spread and any agreement of the model with the first "
    "stage; windows and tokens assume a medium one. Only the night's own strategy can reuse queries. Strategies "
    "that ask the same share a row. Simulated nDCG@10 (docs/log.md): lists of 100, windows of 20, no real model; '-' "
    "where the night's sizes are others."
)
SIZE_COLUMNS = ("strategy", "window", "depth", "windows", "prompt tokens", "output tokens at most")
SIMULATED_LISTS = (80, 125)  # median list lengths for which numbers of lists of 100 are shown
VARIANTS = [(name, each) for name, kind in STRATEGIES.items() for each in list(kind.variants) or [Variant(name)]]
KEPT = ("decode_mode", "window_size", "top_k", "depth", "score_gap", "retries", "seed")  # of the night's own strategy


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a plan is asked about time."""

    rates: Rates | None = None  # those that lie beside the database if not given
    deadline_s: float | None = None
    num_parameters: float | None = None  # of a model to estimate for


@dataclass(frozen=True, slots=True)
class Option:
    """A strategy with what it takes."""

    label: str
    window_size: int
    depth: int | None  # None: the whole list
    simulated_ndcg: float | None
    demand: Demand
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class QuerySample:
    """The queries that a night asks, or a sample of them that stands for so many."""

    staged: StagedInput
    queries: Sequence[int]
    num_queries: int

    @property
    def median_length(self) -> float:
        """Candidates of a query."""
        return median(map(self.staged.list_length, self.queries)) if self.queries else 0.0

    def demands(self, recipe: Recipe, most: int = COUNTED_QUERIES) -> list[Demand]:
        """What they ask if the model agrees with the first stage in part, not at all, wholly; by `most` of them."""
        counted = draw_queries(self.queries, most)
        return [count_demand(self.staged, recipe, counted, self.num_queries, agreement) for agreement in AGREEMENTS]


def simulated_ndcg(variant: Variant, strategy: StrategySettings, recipe: Recipe, median_length: float) -> float | None:
    """The variant's simulated figure, where the lists, window and depth that it gets are the simulation's."""
    is_alike = (
        SIMULATED_LISTS[0] <= median_length <= SIMULATED_LISTS[1]
        and recipe.main.sizes.window_size == (strategy.record.prompt_size or SIMULATED.window_size)
        and strategy.depth == variant.changes.get("depth")
        and strategy.score_gap is None
        and strategy.top_k in (None, SIMULATED.top_k)
    )
    return variant.simulated_ndcg if is_alike else None


@dataclass(frozen=True, slots=True)
class RunToForecast:
    """A run that is about to ask its first batch."""

    run_id: str
    store: Store
    staged: StagedInput
    earlier: ReuseSource | None  # whose rows it may reuse


def rates_path(prepared: PreparedNight) -> Path:
    """Where `packrank bench` leaves the rates of the night's model: beside the database."""
    return prepared.workspace.rates(prepared.model_identity)


def known_rates(prepared: PreparedNight) -> Rates | None:
    """The rates of the night's model that lie beside the database.

    Raises:
        ConfigError: the file is no rates file.
    """
    path = rates_path(prepared)
    return read_rates(path) if path.exists() else None


def find_rates(prepared: PreparedNight, given: str, folder: Path) -> Rates:
    """Rates by hand, from a file seen from `folder`, or from a finished run of the night's database.

    Raises:
        ConfigError: it is none of these.
        PackrankError: the run's batches do not tell.
    """
    if "=" in given:
        return parse_rates(given)
    path = folder / given
    if path.exists():
        return read_rates(path)
    store = store_of(prepared)
    if store.find_run(given) is not None:
        return _rates_of_run(store.query("forecast/rates_of_run", {"run_id": given}).to_pylist(), given)
    raise ConfigError(
        f"--rates {given}: no such file, and no such run in {store.path}. Give prefill=50000,decode=3000, a file of "
        "packrank bench, or a run_id."
    )


def read_rates(path: Path) -> Rates:
    """A rates file.

    Raises:
        ConfigError: it cannot be read, or is none.
    """
    try:
        return Rates.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{path}: not a rates file: {first_line(error)}. Write one with packrank bench.") from error


def num_gpus(prepared: PreparedNight) -> int:
    """How many GPUs one engine takes."""
    keywords = prepared.settings.engine_keywords()
    return int(keywords.get("tensor_parallel_size") or 1) * int(keywords.get("pipeline_parallel_size") or 1)


def time_tables(
    prepared: PreparedNight, asked: QuerySample, outlook: Outlook, everything: QuerySample | None = None
) -> list[SummaryTable]:
    """What the plan says of time: by rates, where there are some, and for GPUs that are not at hand, where asked for.

    Args:
        prepared: the night.
        asked: its queries that are not reused.
        outlook: what to say of time.
        everything: all of its queries, which any other strategy asks; as `asked` if not given.

    Raises:
        ConfigError: the rates lack what the night needs.
    """
    rates = outlook.rates or known_rates(prepared)
    if rates is None and outlook.deadline_s is not None:
        raise ConfigError("--deadline needs --rates, or a rates file from packrank bench next to the database.")
    tables = []
    if rates is not None:
        demands = asked.demands(prepared.recipe)
        tables += [
            _time_table(prepared, rates, forecast(rates, demands), asked.num_queries),
            _strategy_table(_options(prepared, asked, everything or asked, rates), outlook.deadline_s),
        ]
    else:
        tables.append(pairs("Time", [("engine time", Worded(None, "not known"))], NO_RATES_NOTE))
    if outlook.num_parameters is not None:
        tables.append(_device_table(outlook.num_parameters, asked.demands(prepared.recipe)))
    return tables


def note_forecast(prepared: PreparedNight, run: RunToForecast, device: str) -> Forecast | None:
    """Stores what the run is expected to take by the rates beside its database; None where that cannot be told.

    A resumed run keeps its first forecast.
    """
    try:
        rates = known_rates(prepared)
        if rates is None:
            return None
        if rates.device not in (None, device):
            logger.warning("run_id=%s no forecast: the rates are of %s, not of %s", run.run_id, rates.device, device)
            return None
        expected = forecast(rates, _asked_of(prepared, run).demands(prepared.recipe, COMPARED_QUERIES))
    except (ConfigError, DatabaseLocked) as error:
        logger.warning("run_id=%s no forecast: %s", run.run_id, error)
        return None
    store_forecast(run.store, run.run_id, asdict(expected) | {"rates": rates.source})
    logger.info("run_id=%s forecast=%s rates=%s", run.run_id, _range_text(expected), rates.source)
    return expected


def store_forecast(store: Store, run_id: str, columns: Mapping[str, Any]) -> None:
    """Stores low_s, expected_s, high_s and rates of a run; the first that were stored stay."""
    store.write_later(lambda database: database.execute("forecast/insert", {"run_id": run_id, **columns}))


def _asked_of(prepared: PreparedNight, run: RunToForecast) -> QuerySample:
    """The queries of a run that are not reused, as a sample shows."""
    staged = run.staged
    drawn = draw_queries(range(staged.num_queries), DRAWN_QUERIES)
    standings: dict[str, ReuseDecision] = {}
    if run.earlier is not None:
        with run.store.reader(LOAD_WAIT_S) as database:  # an engine waits
            standings = find_standings(database, run.earlier, staged, prepared.recipe, drawn)
    reused = {query_id for query_id, standing in standings.items() if standing.reused_run_id is not None}
    asked = [query_index for query_index in drawn if staged.query_ids[query_index] not in reused]
    return QuerySample(staged, asked, round(len(asked) * staged.num_queries / max(1, len(drawn))))


def _time_table(prepared: PreparedNight, rates: Rates, alone: Forecast, num_queries: int) -> SummaryTable:
    """`alone`: what one engine would take for all."""
    gpus, num_shards = num_gpus(prepared), prepared.settings.packing.shards
    expected = alone.in_shards(num_shards, num_queries)
    slowest = "" if num_shards == 1 else f", the slowest of {num_shards} shards"
    figures = [
        (f"engine time{slowest}", _range(expected)),
        ("expected", Worded(expected.expected_s, duration_text(expected.expected_s))),
        ("GPU-hours" if gpus * num_shards == 1 else f"GPU-hours, {gpus * num_shards} GPUs", _hours(alone, gpus)),
        ("rates", rates.source),
        ("device", rates.device),
    ]
    other = rates.model_identity not in (None, prepared.model_identity)
    notes = ["Without the engine's start, staging and checks."]
    notes += ["The rates are another model's."] if other else []
    return pairs("Time", [(name, value) for name, value in figures if value is not None], " ".join(notes))


def _options(prepared: PreparedNight, asked: QuerySample, everything: QuerySample, rates: Rates) -> list[Option]:
    """The night's own strategy, then those that go with its decode mode and fit its prompts; equal ones are one."""
    strategy, median_length = prepared.settings.strategy, everything.median_length
    folder = find_model_folder(prepared.settings.engine.model, prepared.settings.engine.revision, ROOT)

    def option(
        label: str, ndcg: float | None, recipe: Recipe, demands: Sequence[Demand], queries: QuerySample
    ) -> Option:
        expected = forecast(rates, demands).in_shards(prepared.settings.packing.shards, queries.num_queries)
        depth = recipe.schedule.truncate.depth
        return Option(label, recipe.main.sizes.window_size, depth, ndcg, demands[0], expected)

    own_label: str = strategy.name
    own_ndcg, same_as_own = None, list[str]()
    num_reused = everything.num_queries - asked.num_queries
    others: dict[bytes, Option] = {}
    own_work = _work(everything.demands(prepared.recipe, COMPARED_QUERIES))
    for name, variant in VARIANTS:
        kept = {name: getattr(strategy, name) for name in KEPT}
        try:
            changed = StrategySettings.model_validate(kept | {"name": name} | dict(variant.changes))
            recipe = build_recipe(prepared.settings.model_copy(update={"strategy": changed}), folder, prepared.night)
        except (ConfigError, ValidationError):
            continue  # does not go with the decode mode, or its windows do not fit
        ndcg = simulated_ndcg(variant, changed, recipe, median_length)
        if changed.model_dump(exclude={"stride"}) == strategy.model_dump(exclude={"stride"}):
            own_label, own_ndcg = variant.label, ndcg
            continue
        demands = everything.demands(recipe, COMPARED_QUERIES)
        work = _work(demands)
        if work == own_work and not num_reused:  # reuse is for the very same settings
            same_as_own.append(variant.label)
        elif work in others:
            others[work] = replace(others[work], label=f"{others[work].label} or {variant.label}")
        else:
            others[work] = option(variant.label, ndcg, recipe, demands, everything)
    told = f"this night's, {num_reused:,} queries reused" if num_reused else "this night's"
    label = " or ".join([f"{own_label} ({told})", *same_as_own])
    own = option(label, own_ndcg, prepared.recipe, asked.demands(prepared.recipe), asked)
    return [own, *others.values()]


def _work(demands: Sequence[Demand]) -> bytes:
    """What tells whether two strategies ask the same: query and tokens of each window in turn, whatever is answered."""
    return b"|".join(
        numbers.tobytes()
        for demand in demands
        for numbers in (demand.query, demand.prompt_tokens, demand.output_tokens)
    )


def _strategy_table(options: Sequence[Option], deadline_s: float | None) -> SummaryTable:
    rows = [_strategy_row(option, deadline_s) for option in sorted(options, key=lambda each: each.forecast.expected_s)]
    columns = (*SIZE_COLUMNS, "engine time", "simulated nDCG@10")
    if deadline_s is None:
        return SummaryTable("Strategies", columns, tuple(row[:-1] for row in rows), STRATEGY_NOTE)
    title = f"Strategies, to end within {duration_text(deadline_s)}"
    return SummaryTable(title, (*columns, "in time"), tuple(rows), f"{advise(options, deadline_s)} {STRATEGY_NOTE}")


def _strategy_row(option: Option, deadline_s: float | None) -> tuple[object, ...]:
    demand, scale, ndcg = option.demand, option.demand.scale, option.simulated_ndcg
    return (
        option.label,
        option.window_size,
        Worded(None, "all") if option.depth is None else option.depth,
        round(len(demand.query) * scale),
        round(demand.prompt_tokens.sum() * scale),
        round(demand.output_tokens.sum() * scale),
        _range(option.forecast),
        None if ndcg is None else Worded(ndcg, f"{ndcg:.3f}"),
        "" if deadline_s is None else option.forecast.meets(deadline_s),
    )


def advise(options: Sequence[Option], deadline_s: float) -> str:
    """Which strategy to take: the best in the simulation of those that end in time."""
    in_time = [option for option in options if option.forecast.meets(deadline_s) == "yes"]
    if not in_time:
        fastest = min(options, key=lambda each: each.forecast.high_s)
        return f"None is sure to end in time; {fastest.label} is the fastest. Lower depth or top_k, or add a GPU."
    known = [option for option in in_time if option.simulated_ndcg is not None]
    if not known:
        return (
            f"{len(in_time)} of {len(options)} end in time; which of them ranks best at these sizes is not known. "
            "Compare runs with packrank evaluate."
        )
    best = max(known, key=lambda each: (each.simulated_ndcg or 0.0, -each.forecast.high_s))
    return f"Take {best.label}."


def _device_table(num_parameters: float, demands: Sequence[Demand]) -> SummaryTable:
    rows: list[tuple[object, ...]] = []
    mean_tokens = float(demands[0].prompt_tokens.mean()) if len(demands[0].query) else 1.0
    for device in DEVICES:
        rates = device.estimate(num_parameters, mean_tokens)
        if rates is None:
            rows.append((device.name, None, "does not fit into one", None))
            continue
        expected = forecast(rates, demands)
        speed = round(demands[0].prompt_tokens.sum() * demands[0].scale / max(expected.expected_s, 1e-9))
        rows.append((device.name, _hours(expected, 1), _range(expected), speed))
    columns = ("one GPU", "GPU-hours", "engine time", "prompt tokens a second")
    return SummaryTable(f"GPUs, a model of {num_parameters / 1e9:g}B parameters", columns, tuple(rows), ESTIMATE_NOTE)


def _rates_of_run(rows: list[dict[str, Any]], run_id: str) -> Rates:
    """Rates of a run whose answers were one token long: others mix reading and writing."""
    if not rows or any(row["output_tokens"] > row["num_prompts"] for row in rows):
        raise PackrankError(
            f"run {run_id}: its batches do not tell how fast prompts are read: none was asked, or answers were longer "
            "than one token. Use packrank bench."
        )
    points = tuple(PrefillRate(prompt_tokens=row["mean_tokens"], tokens_per_s=row["tokens_per_s"]) for row in rows)
    is_scored = DECODE_MODES[rows[0]["decode_mode"]].scores_query
    return Rates(
        prefill=points,
        scored_prefill=points if is_scored else (),
        source=f"run {run_id}",
        model_identity=rows[0]["model_identity"],
        device=rows[0]["device"],
    )


def _range_text(expected: Forecast) -> str:
    return f"{duration_text(expected.low_s)} to {duration_text(expected.high_s)}"


def _range(expected: Forecast) -> Worded:
    return Worded({"low_s": expected.low_s, "high_s": expected.high_s}, _range_text(expected))


def _hours(expected: Forecast, gpus: int) -> Worded:
    low, high = expected.gpu_hours(gpus)
    return Worded({"low": low, "high": high}, f"{low:.3g} to {high:.3g}")
