"""Strategies against each other with a synthetic comparator that errs: quality against cost, no engine and no files.

A query is a list of candidates whose true relevance is standard normal. The first stage's scores are that relevance
blurred by FIRST_STAGE_NOISE, so that the costs come out as in the literature for a BM25 start. Grades 0 to 3 are cut
from the true relevance at fixed shares of the standard normal. The comparator sees relevance plus noise, drawn anew for
every window and candidate, and answers with log-probabilities: a softmax over the window, or for a candidate alone what
it sees. Everything is drawn by names, so that a seed gives the same table on every machine. Knows nothing of prompts
or models: tokens are counted by `prompt_tokens_of`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev

import numpy as np
import pyarrow as pa
from rich.console import Console
from scipy.special import stdtrit  # scipy.stats has it too, but takes two seconds to import

from tasks.report.sql_shell import write_result
from tasks.report.summary_tables import SummaryTable, print_tables
from tasks.report.table_formats import RowForm
from tasks.schedule.rankings import RankingInProgress, Schedule, WindowKey
from tasks.schedule.seeds import Seed
from tasks.schedule.strategies import STRATEGIES
from tasks.schedule.strategies.named import SIMULATED
from tasks.schedule.strategies.pointwise import Pointwise
from tasks.schedule.strategies.single import Single
from tasks.schedule.strategies.sliding import Sliding
from tasks.schedule.windows import Outcome, Window
from tasks.schedule.wrappers.cascade import Cascade
from tasks.schedule.wrappers.consensus import Consensus
from tasks.schedule.wrappers.truncate import Truncate
from tasks.system.errors import ConfigError

FIRST_STAGE_NOISE = 1.35  # standard deviations of relevance: costs as published for BM25's first hundred
GRADE_SHARES = (0.03, 0.08, 0.18)  # of a standard normal: grade 3, at least 2, at least 1
GRADE_LIMITS = tuple(NormalDist().inv_cdf(1 - share) for share in GRADE_SHARES)
PASSAGE_TOKENS = 120
FRAME_TOKENS = 5  # the identifier and line end around a passage
LISTWISE_TOKENS = 125  # system, instruction and query of a window that is ordered
SHORT_TOKENS = 90  # the same where one candidate is judged or the best is picked
CUTOFF = 10
CONFIDENCE = 0.95
MANY_WINDOWS = 1_000  # a strategy that may ask more of a list is tried on a tenth of the queries
CONDITIONS_NOTE = (
    "i.i.d.: noise drawn anew in every window, costs are of this; systematic: half of its variance is the same for a "
    "candidate in every window; random start: i.i.d. noise, and first-stage scores that know nothing of relevance."
)
TOKENS_NOTE = (
    f"prompt_tokens = slots x ({PASSAGE_TOKENS} + {FRAME_TOKENS}) + {LISTWISE_TOKENS} a list-wise window or "
    f"{SHORT_TOKENS} a point-wise, setwise or pairwise one; output_tokens: one a window."
)


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """What is drawn.

    Raises:
        ConfigError: sizes that give no table.
    """

    seed: int = 0
    queries: int = 200
    candidates: int = 100  # of each query
    noise: float = 0.5  # of the comparator, in standard deviations of relevance

    def __post_init__(self) -> None:
        for name in ("queries", "candidates"):
            if (value := getattr(self, name)) < 2:
                raise ConfigError(f"--num-{name} {value}: at least 2 are needed.")
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise ConfigError(f"--noise {self.noise}: a finite number of at least 0 is needed.")


@dataclass(frozen=True, slots=True)
class Condition:
    """How the comparator errs, and what it starts from."""

    name: str
    label: str
    systematic_share: float = 0.0  # of the noise's variance: the same for a candidate in every window
    random_start: bool = False  # first-stage scores that know nothing of relevance


CONDITIONS = (
    Condition("iid", "i.i.d."),
    Condition("systematic", "systematic", systematic_share=0.5),
    Condition("random_start", "random start", random_start=True),
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A way of ranking lists, and what the table calls it."""

    name: str
    schedule: Schedule


SLIDING = Sliding(20, 10)
CONTENDERS = (
    *(
        Contender(label, Schedule(kind(*values) if values else kind().sized(SIMULATED)))
        for name, kind in STRATEGIES.items()
        for label, values in (kind.contenders or {name: ()}).items()
    ),
    Contender("first stage", Schedule(Single(), Truncate(depth=1))),  # a list of one is not asked
    Contender("sliding w20 s10, depth 30", Schedule(SLIDING, Truncate(depth=30))),
    Contender("sliding w20 s10, score gap 0.8", Schedule(SLIDING, Truncate(score_gap=0.8))),
    Contender("cascade 30, sliding w20 s10", Schedule(Cascade(Pointwise(), 30, SLIDING))),
    Contender("consensus 3 x sliding w20 s10", Schedule(Consensus(SLIDING, 3))),
)


@dataclass(frozen=True, slots=True)
class SyntheticQuery:
    """A list in first-stage order; all three are parallel."""

    relevance: tuple[float, ...]  # true, standard normal
    bias: tuple[float, ...]  # what a systematic comparator always sees beside it, standard normal
    scores: np.ndarray  # the first stage's, falling

    @property
    def grades(self) -> tuple[int, ...]:
        """Judgments, 0 to 3."""
        return tuple(map(grade_of, self.relevance))


@dataclass(frozen=True, slots=True)
class Comparator:
    """Answers windows of one query. Same window, same answer."""

    query: SyntheticQuery
    noise: float
    systematic_share: float
    seed: Seed

    def answer(self, key: WindowKey, window: Window) -> Outcome:
        """Names every candidate, best first, by what it sees of them."""
        rng = self.seed.of(key.round, key.window_no, key.attempt).random()
        fixed = self.noise * math.sqrt(self.systematic_share)
        passing = self.noise * math.sqrt(1 - self.systematic_share)
        seen = {
            doc: self.query.relevance[doc] + fixed * self.query.bias[doc] + rng.gauss(0.0, passing)
            for doc in window.docs
        }
        order = sorted(window.docs, key=lambda doc: -seen[doc])
        shift = _log_sum_exp([seen[doc] for doc in order]) if len(window.docs) > 1 else 0.0
        return Outcome(tuple(order), len(order), tuple(seen[doc] - shift for doc in order))


@dataclass(frozen=True, slots=True)
class Trial:
    """What ranking one query cost and gave."""

    windows: int
    rounds: int
    slots: int  # candidates over all windows
    prompt_tokens: int
    ndcg: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over queries, and half the width of its confidence interval."""

    mean: float
    half_width: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A contender's row: costs are means a query under the first condition, quality is parallel to CONDITIONS."""

    name: str
    queries: int
    windows: float
    rounds: float
    slots: float
    prompt_tokens: float
    output_tokens: float
    ndcg: tuple[Estimate, ...]


@dataclass(frozen=True, slots=True)
class Simulation:
    """All rows, the cheapest first."""

    request: SimulationRequest
    standings: tuple[Standing, ...]

    def table(self) -> SummaryTable:
        """As people read it."""
        request = self.request
        columns = ("strategy", "queries", "windows", "rounds", "slots", "prompt_tokens", "output_tokens")
        labels = tuple(f"nDCG@{CUTOFF} {condition.label}" for condition in CONDITIONS)
        title = (
            f"Strategies with a noisy comparator: {request.queries} queries of {request.candidates}, "
            f"noise {request.noise:g}, seed {request.seed}"
        )
        return SummaryTable(title, columns + labels, tuple(map(_texts, self.standings)), self._note())

    def rows(self) -> pa.Table:
        """As programs read it: half-widths in columns of their own."""
        return pa.Table.from_pylist([_record(standing) for standing in self.standings])

    def _note(self) -> str:
        fewer = [f"{each.name} ({each.queries})" for each in self.standings if each.queries < self.request.queries]
        told = f" On fewer queries, so not the same mean: {', '.join(fewer)}." if fewer else ""
        return (
            f"Means a query; ± is the {CONFIDENCE:.0%} half-width over queries. {CONDITIONS_NOTE} {TOKENS_NOTE}{told}"
        )


def simulate(request: SimulationRequest, contenders: Iterable[Contender] = CONTENDERS) -> Simulation:
    """Ranks the same queries by every contender, under every condition."""
    seed, numbers = Seed(str(request.seed)).of("simulation"), range(request.queries)
    queries = {
        condition: [draw_query(request.candidates, seed.of("query", number), condition) for number in numbers]
        for condition in CONDITIONS
    }
    standings = []
    for contender in contenders:
        used = _num_queries(contender, request)
        trials = [
            list(_trials(contender, queries[condition][:used], condition, request.noise, seed))
            for condition in CONDITIONS
        ]
        standings.append(_standing(contender.name, trials))
    return Simulation(request, tuple(sorted(standings, key=lambda each: each.prompt_tokens)))


def write_simulation(simulation: Simulation, form: RowForm) -> None:
    """To stdout."""
    if form == "table":
        print_tables([simulation.table()], Console())
    else:
        write_result(simulation.rows(), form, None)


def draw_query(num_candidates: int, seed: Seed, condition: Condition) -> SyntheticQuery:
    """A list with at least one relevant candidate: one without has no nDCG and is drawn again.

    A random start has other first-stage scores for the same candidates, as widely spread.
    """
    rng = seed.random()
    while True:
        relevance = [rng.gauss(0.0, 1.0) for _ in range(num_candidates)]
        if any(map(grade_of, relevance)):
            break
    bias = [rng.gauss(0.0, 1.0) for _ in range(num_candidates)]
    blurred = [each + rng.gauss(0.0, FIRST_STAGE_NOISE) for each in relevance]
    spread = math.hypot(1.0, FIRST_STAGE_NOISE)
    scores = [rng.gauss(0.0, spread) for _ in range(num_candidates)] if condition.random_start else blurred
    order = sorted(range(num_candidates), key=lambda doc: -scores[doc])
    return SyntheticQuery(
        tuple(relevance[doc] for doc in order),
        tuple(bias[doc] for doc in order),
        np.array([scores[doc] for doc in order]),
    )


def rank(query: SyntheticQuery, schedule: Schedule, comparator: Comparator, query_id: str) -> Trial:
    """One query from its first window to its order."""
    num_candidates = len(query.relevance)
    depth = schedule.truncate.depth_of(num_candidates, query.scores)
    ranking = RankingInProgress(0, num_candidates, schedule, depth=depth, query_id=query_id)
    slots = prompt_tokens = 0
    while not ranking.is_done:
        for key, window in list(ranking.open_windows()):
            ranking.answer(key, comparator.answer(key, window))
            slots += len(window.docs)
            prompt_tokens += prompt_tokens_of(window)
    assert ranking.order is not None
    grades = query.grades
    quality = ndcg([grades[doc] for doc in ranking.order])
    return Trial(ranking.num_windows, ranking.num_rounds, slots, prompt_tokens, quality)


def grade_of(relevance: float) -> int:
    """The judgment of a true relevance, 0 to 3."""
    return sum(relevance > limit for limit in GRADE_LIMITS)


def ndcg(grades: Sequence[int], cutoff: int = CUTOFF) -> float:
    """nDCG as trec_eval has it: linear gain, the ideal from all judgments; 0 without a relevant candidate."""
    ideal = _gain(sorted(grades, reverse=True)[:cutoff])
    return _gain(grades[:cutoff]) / ideal if ideal else 0.0


def prompt_tokens_of(window: Window) -> int:
    """Tokens of a window's prompt: its passages, their frame, and what stands around them."""
    fixed = SHORT_TOKENS if window.num_asked == 1 else LISTWISE_TOKENS
    return len(window.docs) * (PASSAGE_TOKENS + FRAME_TOKENS) + fixed


def _num_queries(contender: Contender, request: SimulationRequest) -> int:
    is_large = contender.schedule.strategy.bound(request.candidates).num_windows > MANY_WINDOWS
    return max(request.queries // 10, 2) if is_large else request.queries


def _trials(
    contender: Contender, queries: Sequence[SyntheticQuery], condition: Condition, noise: float, seed: Seed
) -> Iterator[Trial]:
    schedule = replace(contender.schedule, seed=seed)
    for number, query in enumerate(queries):
        noise_seed = seed.of("noise", contender.name, number)
        yield rank(query, schedule, Comparator(query, noise, condition.systematic_share, noise_seed), str(number))


def _standing(name: str, trials: Sequence[Sequence[Trial]]) -> Standing:
    costs = trials[0]
    windows = fmean(trial.windows for trial in costs)
    return Standing(
        name=name,
        queries=len(costs),
        windows=windows,
        rounds=fmean(trial.rounds for trial in costs),
        slots=fmean(trial.slots for trial in costs),
        prompt_tokens=fmean(trial.prompt_tokens for trial in costs),
        output_tokens=windows,
        ndcg=tuple(_estimate([trial.ndcg for trial in each]) for each in trials),
    )


def _estimate(values: Sequence[float]) -> Estimate:
    factor = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))  # Student's t
    return Estimate(fmean(values), factor * stdev(values) / math.sqrt(len(values)))


def _texts(standing: Standing) -> tuple[str, ...]:
    quality = tuple(f"{each.mean:.3f} ± {each.half_width:.3f}" for each in standing.ndcg)
    counts = (standing.windows, standing.rounds, standing.slots)
    tokens = (f"{standing.prompt_tokens:,.0f}", f"{standing.output_tokens:,.1f}")
    return (standing.name, str(standing.queries), *(f"{each:,.1f}" for each in counts), *tokens, *quality)


def _record(standing: Standing) -> dict[str, object]:
    record: dict[str, object] = {
        "strategy": standing.name,
        "num_queries": standing.queries,
        "windows": round(standing.windows, 4),
        "rounds": round(standing.rounds, 4),
        "slots": round(standing.slots, 4),
        "prompt_tokens": round(standing.prompt_tokens, 4),
        "output_tokens": round(standing.output_tokens, 4),
    }
    for condition, each in zip(CONDITIONS, standing.ndcg, strict=True):
        record[f"ndcg_at_10_{condition.name}"] = round(each.mean, 4)
        record[f"ndcg_at_10_{condition.name}_half_width"] = round(each.half_width, 4)
    return record


def _gain(grades: Sequence[int]) -> float:
    return math.fsum(grade / math.log2(place + 2) for place, grade in enumerate(grades))


def _log_sum_exp(values: Sequence[float]) -> float:
    """The logarithm of a softmax's denominator; the first value is the largest."""
    return values[0] + math.log(math.fsum(math.exp(value - values[0]) for value in values))
