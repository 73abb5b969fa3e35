"""What a study says of the claims that packrank stands on: each with its numbers, and whether it holds here.

A claim that does not hold on this hardware is shown as such. Figures come from the database alone, so that a query of
ours and a query of an analyst cannot disagree. Knows nothing of how arms were run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit  # Student's t; scipy.stats has it too, but takes two seconds to import

from tasks.judge.summary import SERVING_ROWS, SummaryTable, value_text
from tasks.study.arms import ArmRun, Study

CONFIDENCE = 0.95
FEW_STEPS = 8  # fewer say nothing of a slope


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """An arm with its row of sql/study/arm.sql and of the view serving_benchmark."""

    run: ArmRun
    values: dict[str, Any]
    serving: dict[str, Any]

    @property
    def label(self) -> str:
        """As tables call it: point-wise, list-wise 20, ..."""
        arm = self.run.arm
        return arm.side if arm.side == "point-wise" else f"{arm.side} {arm.window_size}"

    @property
    def waste_share(self) -> float:
        """Empty places of last blocks, of all places that the sequences' blocks have."""
        places = self.values["blocks_used"] * self.values["block_size"]
        return float(self.values["last_block_waste_tokens"] / places) if places else 0.0

    def figures(self, study: Study) -> dict[str, str]:
        """Its row of the arms' table: column -> text."""
        values, engine_s = self.values, self.values["engine_s"]
        quality = values["ndcg_at_10"]
        return {
            "sequences": f"{values['num_sequences']:,}",
            "prompt tokens": f"{values['prompt_tokens']:,}",
            "cached tokens": f"{values['cached_tokens']:,}",
            "tokens / passage token": f"{_tokens(self) / study.num_passage_tokens:.2f}",
            "blocks": f"{values['blocks_used']:,}",
            "last-block waste, tokens": f"{values['last_block_waste_tokens']:,}",
            "waste, %": f"{100 * self.waste_share:.1f}",
            "steps": f"{values['num_steps']:,}",
            "most scheduled": f"{values['max_scheduled_seqs']:,}",
            "most waiting": f"{values['max_waiting_seqs']:,}",
            "full steps": f"{values['num_full_steps']:,}",
            "peak blocks": f"{values['peak_blocks_used']:,}",
            "mean queue, ms": f"{(values['mean_queue_s'] or 0.0) * 1000:,.0f}",
            "engine s / query": f"{engine_s / study.num_queries:.2f}",
            "engine µs / passage token": f"{engine_s / study.num_passage_tokens * 1e6:,.0f}",
            "nDCG@10": "-" if quality is None else f"{quality:.3f}",
        }


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim and what became of it."""

    claim: str
    numbers: str
    holds: bool | None  # None: this study cannot say
    why: str

    @property
    def verdict(self) -> str:
        """In words."""
        return {True: "holds here", False: "does not hold here", None: "not decided here"}[self.holds]


@dataclass(frozen=True, slots=True)
class Slope:
    """A straight line through points: y = intercept + slope * x."""

    intercept: float
    slope: float
    low: float  # of the slope's 95 % interval
    high: float
    num_points: int


@dataclass(frozen=True, slots=True)
class Findings:
    """A study, read."""

    study: Study
    arms: tuple[ArmFigures, ...]
    claims: tuple[Claim, ...]

    def tables(self) -> list[SummaryTable]:
        """Arms, the serving benchmark under the base's settings, and the claims: what a terminal shows."""
        base = _same_conditions(self.arms, self.study)
        return [self.arms_table(), self.serving_table(base), self._claims_table()]

    def arms_table(self) -> SummaryTable:
        """One row an arm: sequences, tokens, blocks, steps, times."""
        figures = [each.figures(self.study) for each in self.arms]
        columns = ("arm", *figures[0])
        rows = [(each.run.arm.name, *named.values()) for each, named in zip(self.arms, figures, strict=True)]
        note = (
            f"{self.study.num_queries} queries, {self.study.num_passage_tokens:,} passage tokens to rank, the same in "
            "every arm. Full steps: scheduled = max_num_seqs while others wait."
        )
        return SummaryTable(f"Study {self.study.name}: arms", columns, tuple(rows), note)

    def serving_table(self, arms: Sequence[ArmFigures]) -> SummaryTable:
        """The rows that users know from `vllm bench serve`, one column an arm."""
        columns = ("", *(each.run.arm.name for each in arms))
        rows = [
            (label, *(_serving_text(each.serving[column], factor) for each in arms))
            for label, column, factor in SERVING_ROWS
        ]
        return SummaryTable("Serving benchmark by arm", columns, tuple(rows))

    def _claims_table(self) -> SummaryTable:
        rows = tuple((each.claim, each.verdict, each.numbers, each.why) for each in self.claims)
        return SummaryTable("Claims", ("claim", "verdict", "numbers", "why"), rows, wraps=True)


def read_findings(study: Study) -> Findings:
    """Reads every arm's figures and holds the claims against them."""
    with study.store.unit_of_work() as database:
        arms = []
        for run in study.runs:
            (values,) = database.query("study/arm", {"run_id": run.run_id}).to_pylist()
            (serving,) = database.query("summary/serving", {"run_id": run.run_id}).to_pylist()
            arms.append(ArmFigures(run, values, serving))
        steps = {
            run.run_id: database.query("study/full_steps", {"run_id": run.run_id}).to_pydict() for run in study.runs
        }
    base = _same_conditions(arms, study)
    claims = [
        _prefill(base),
        *_queueing(arms, study),
        _block_tables(base, study),
        _last_blocks(base),
        _predicted_blocks(arms),
        _step_time(base, steps),
        *_cost(base, study),
        *_prefix_caching(arms, study),
        *_queries_at_once(arms, study),
        _quality(base, study),
    ]
    return Findings(study, tuple(arms), tuple(claims))


def fit_slope(x: Sequence[float], y: Sequence[float]) -> Slope | None:
    """Ordinary least squares with the slope's t-interval; None where x hardly varies or points are few."""
    xs, ys = np.array(x, float), np.array(y, float)
    if len(xs) < FEW_STEPS or np.ptp(xs) < 1:
        return None
    centred = xs - xs.mean()
    slope = float((centred * (ys - ys.mean())).sum() / (centred**2).sum())
    intercept = float(ys.mean() - slope * xs.mean())
    residual = ys - intercept - slope * xs
    error = float(np.sqrt((residual**2).sum() / (len(xs) - 2) / (centred**2).sum()))
    half = float(stdtrit(len(xs) - 2, (1 + CONFIDENCE) / 2)) * error
    return Slope(intercept, slope, slope - half, slope + half, len(xs))


def _same_conditions(arms: Sequence[ArmFigures], study: Study) -> list[ArmFigures]:
    """Point-wise and each window under the base's engine settings."""
    return [each for each in arms if each.run.arm.engine_and_load == study.base.engine_and_load]


def _prefill(base: Sequence[ArmFigures]) -> Claim:
    shares = {each.label: each.values["output_tokens"] / _tokens(each) for each in base}
    return Claim(
        "reranking is almost all prefill",
        _by_arm(shares, "{:.2%} of tokens are decoded"),
        max(shares.values()) < 0.05,
        "one token of answer a prompt, whichever way it is asked",
    )


def _queueing(arms: Sequence[ArmFigures], study: Study) -> list[Claim]:
    """One claim for each max_num_seqs, all queries at once."""
    claims = []
    for num in sorted({each.run.arm.max_num_seqs for each in arms}):
        same = [
            each
            for each in arms
            if each.run.arm.max_num_seqs == num
            and each.run.arm.queries_at_once is None
            and each.run.arm.enable_prefix_caching == study.base.enable_prefix_caching
        ]
        point, lists = same[0], same[1:]
        full = {each.label: each.values["num_full_steps"] for each in same}
        waits = {each.label: (each.values["mean_queue_s"] or 0.0) * 1000 for each in same}
        holds = full[point.label] > 0 and not any(full[each.label] for each in lists)
        tokens_bind = point.values["max_scheduled_seqs"] < num
        why = (
            f"max_num_batched_tokens ({point.values['max_num_batched_tokens']}) fills a step at "
            f"{point.values['max_scheduled_seqs']} sequences, before max_num_seqs does"
            if tokens_bind
            else "each candidate is a sequence, and sequences beyond the limit wait"
        )
        claims.append(
            Claim(
                f"point-wise queues at max_num_seqs = {num}, list-wise does not",
                f"{_by_arm(full, '{} full steps')}; {_by_arm(waits, 'queue {:,.0f} ms')}",
                holds,
                why,
            )
        )
    return claims


def _block_tables(base: Sequence[ArmFigures], study: Study) -> Claim:
    tables = {each.label: each.values["num_sequences"] / study.num_queries for each in base}
    point = tables[base[0].label]
    return Claim(
        "list-wise has one block table for many candidates",
        _by_arm(tables, "{:,.1f} block tables a query"),
        all(tables[each.label] < point for each in base[1:]),
        "a sequence owns a block table, and a window is one sequence",
    )


def _last_blocks(base: Sequence[ArmFigures]) -> Claim:
    shares = {each.label: each.waste_share for each in base}
    tokens = {each.label: each.values["last_block_waste_tokens"] for each in base}
    size = base[0].values["block_size"]
    return Claim(
        "point-wise wastes more of its last blocks",
        f"{_by_arm(tokens, '{:,} places')}; {_by_arm(shares, '{:.1%} of all')}",
        all(shares[base[0].label] > shares[each.label] for each in base[1:]),
        f"about half a block of {size} tokens a sequence, and point-wise has the most sequences",
    )


def _predicted_blocks(arms: Sequence[ArmFigures]) -> Claim:
    ratios = [each.values["predicted_blocks"] / each.values["blocks_used"] for each in arms]
    worst = max(arms, key=lambda each: each.values["peak_blocks_used"] / each.values["num_gpu_blocks"])
    preempted = sum(each.values["num_preemptions"] for each in arms)
    return Claim(
        "blocks can be counted beforehand",
        f"predicted {min(ratios):.3f} to {max(ratios):.3f} times what was used; fullest cache "
        f"{worst.values['peak_blocks_used']} of {worst.values['num_gpu_blocks']} blocks; {preempted} preemptions",
        min(ratios) >= 1.0 and preempted == 0,
        "an upper bound: the answer's longest length is counted, and shared prefixes are not taken off",
    )


def _step_time(base: Sequence[ArmFigures], steps: dict[str, dict[str, list[float]]]) -> Claim:
    """At equal tokens, so that only the number of sequences differs; the model's own time is in it."""
    xs = [value for each in base for value in steps[each.run.run_id]["num_seqs"]]
    ys = [value for each in base for value in steps[each.run.run_id]["elapsed_ms"]]
    fit = fit_slope(xs, ys)
    name = "a step takes longer the more sequences it schedules, at equal tokens"
    if fit is None:
        return Claim(name, f"{len(xs)} steps filled the token budget", None, "too few full steps to fit a line")
    return Claim(
        name,
        f"step = {fit.intercept:,.0f} ms + {fit.slope:,.2f} ms x sequences, 95 % interval {fit.low:,.2f} to "
        f"{fit.high:,.2f} ms, {fit.num_points} steps",
        fit.low > 0,
        "scheduling, sampling and output work of each sequence"
        if fit.low > 0
        else "on this device the model's own time hides it: long prompts cost more attention a token than short ones",
    )


def _cost(base: Sequence[ArmFigures], study: Study) -> list[Claim]:
    seconds = {each.label: each.values["engine_s"] / study.num_queries for each in base}
    per_token = {each.label: each.values["engine_s"] / study.num_passage_tokens * 1e6 for each in base}
    tokens = {each.label: _tokens(each) / study.num_passage_tokens for each in base}
    rate = {each.label: _tokens(each) / each.values["engine_s"] for each in base}
    point = base[0].label
    return [
        Claim(
            "list-wise takes less engine time a query",
            f"{_by_arm(seconds, '{:,.2f} s a query')}; {_by_arm(per_token, '{:,.0f} µs a passage token')}",
            all(seconds[each.label] < seconds[point] for each in base[1:]),
            "windows overlap and show passages twice, while point-wise repeats the words around each passage",
        ),
        Claim(
            "list-wise computes fewer tokens for a passage token",
            f"{_by_arm(tokens, '{:,.2f} tokens')}; {_by_arm(rate, '{:,.0f} tokens/s')}",
            all(tokens[each.label] < tokens[point] for each in base[1:]),
            "depends on how long a passage is against the words around it, and on how much windows overlap",
        ),
    ]


def _prefix_caching(arms: Sequence[ArmFigures], study: Study) -> list[Claim]:
    without = [each for each in arms if each.run.arm.enable_prefix_caching != study.base.enable_prefix_caching]
    if not without:
        return []
    base = _same_conditions(arms, study)
    cached = {each.label: each.values["cached_tokens"] / each.values["prompt_tokens"] for each in base}
    saved = {
        plain.label: 1 - each.values["engine_s"] / plain.values["engine_s"]
        for plain, each in zip(without, base, strict=True)
    }
    point = base[0].label
    return [
        Claim(
            "prefix caching helps point-wise, which repeats the query, more than list-wise",
            f"{_by_arm(cached, '{:.1%} of prompt tokens cached')}; {_by_arm(saved, '{:+.1%} engine time saved')}",
            all(cached[point] > cached[each.label] for each in base[1:])
            and all(saved[point] > saved[each.label] for each in base[1:]),
            f"only whole blocks of {base[0].values['block_size']} tokens are shared, from the first token on",
        )
    ]


def _queries_at_once(arms: Sequence[ArmFigures], study: Study) -> list[Claim]:
    claims = []
    base = _same_conditions(arms, study)
    for num in sorted({each.run.arm.queries_at_once for each in arms if each.run.arm.queries_at_once is not None}):
        few = [each for each in arms if each.run.arm.queries_at_once == num]
        slower = {
            each.label: each.values["engine_s"] / whole.values["engine_s"]
            for each, whole in zip(few, base, strict=True)
        }
        claims.append(
            Claim(
                f"with {num} of the queries at a time list-wise leaves the engine idle, point-wise does not",
                _by_arm(slower, "{:.2f} times the engine time of all at once"),
                all(slower[each.label] > slower[few[0].label] for each in few[1:]),
                "a window waits for the one before it; with few queries in flight a step is not full",
            )
        )
    return claims


def _quality(base: Sequence[ArmFigures], study: Study) -> Claim:
    """Better where every list-wise interval lies above point-wise's, worse where every mean is below its mean."""
    known = [each for each in base if each.values["num_judged"] > 1]
    if len(known) < len(base):
        return Claim("list-wise ranks better", "no judgments", None, "name [inputs] qrels")
    means = [each.values["ndcg_at_10"] for each in known]
    halves = [_half_width(each) for each in known]
    numbers = ", ".join(
        f"{each.label} {mean:.3f} ± {half:.3f}" for each, mean, half in zip(known, means, halves, strict=True)
    )
    lows = [mean - half for mean, half in zip(means[1:], halves[1:], strict=True)]
    is_better, is_worse = min(lows) > means[0] + halves[0], max(means[1:]) < means[0]
    return Claim(
        "list-wise ranks better",
        f"nDCG@10 {numbers}, 95 % intervals of {study.num_queries} queries",
        True if is_better else False if is_worse else None,
        "of this model, asked in these words; few queries decide nothing of others",
    )


def _half_width(each: ArmFigures) -> float:
    num = each.values["num_judged"]
    return float(stdtrit(num - 1, (1 + CONFIDENCE) / 2)) * float(each.values["ndcg_standard_error"])


def _tokens(each: ArmFigures) -> int:
    return int(each.values["prompt_tokens"] + each.values["output_tokens"])


def _by_arm(values: dict[str, Any], form: str) -> str:
    return ", ".join(f"{label}: {form.format(value)}" for label, value in values.items())


def _serving_text(value: Any, factor: float) -> str:
    return "n/a" if value is None else value_text(value * factor)
