"""Where the study goes further than the article: cost, total blocks, prefix caching, quality, and its own tables.

Knows nothing of how arms were run.
"""

from collections.abc import Sequence

import pandas as pd

from tasks.evaluation.measures import compare
from tasks.study.arms import LIKELIHOOD
from tasks.study.claims.argument import BASE
from tasks.study.claims.figures import ArmFigures, Figures
from tasks.study.claims.verdicts import Claim, Spread, is_below, verdict_of

QUALITY = "quality"


def further_claims(figures: Figures) -> list[Claim]:
    """Those that the study has arms for."""
    return [
        total_blocks(figures),
        *(engine_time(figures, condition) for condition in (BASE, *figures.few_at_once)),
        computed_tokens(figures),
        *other_limits(figures),
        *prefix_caching(figures),
        *quality(figures),
        predicted_blocks(figures),
        true_tables(figures),
    ]


def total_blocks(figures: Figures) -> Claim:
    """The article: the total of KV memory is not the point."""
    base = [each for each in figures.under(BASE) if each.arm.asking != LIKELIHOOD]
    blocks = {each.label: each.values["blocks_used"] for each in base}
    point, lists = blocks[base[0].label], [blocks[each.label] for each in base[1:]]
    is_same = max(lists) > 0.9 * point
    return Claim(
        None,
        "point-wise and list-wise need about as many KV blocks in total, only the number of sequences differs",
        "holds" if is_same and min(lists) > 0.9 * point else "does not hold" if not is_same else "holds in part",
        f"In total {_by_label(blocks, '{:,}')} KV blocks.",
        "the article says that the total is not the point. It is not what queues here either, but it differs: "
        "list-wise shows the query and the words around a passage once a window, and has fewer last blocks",
    )


def engine_time(figures: Figures, condition: str) -> Claim:
    """List-wise against point-wise, under one load."""
    arms, study = figures.under(condition), figures.study
    at_once = arms[0].arm.condition.queries_at_once or study.num_queries
    seconds = {each.label: each.spread("engine_s", study.num_queries) for each in arms}
    point = seconds[arms[0].label]
    lists = [seconds[each.label] for each in arms if each.arm.asking.side == "list-wise"]
    times = "query" if at_once == 1 else "queries"
    told = [f"{label} {spread.text('{:,.2f}')} s" for label, spread in seconds.items()]
    return Claim(
        None,
        f"list-wise takes less engine time, with {at_once} {times} in flight",
        verdict_of([is_below(each, point) for each in lists]),
        f"With {at_once} {times} in flight a query took {', '.join(told)}.",
        "of one model on one device; windows overlap and wait for each other, while point-wise repeats the words "
        "around each passage",
    )


def computed_tokens(figures: Figures) -> Claim:
    """Of the base's arms, for a token of a passage."""
    base, passage_tokens = figures.under(BASE), figures.study.num_passage_tokens
    tokens = {each.label: each.num_tokens / passage_tokens for each in base}
    point = min(tokens[each.label] for each in base if each.arm.asking.side == "point-wise")
    lists = [tokens[each.label] < point for each in base if each.arm.asking.side == "list-wise"]
    return Claim(
        None,
        "list-wise computes fewer tokens for a passage token",
        verdict_of(lists),
        f"For each token of a passage {_by_label(tokens, '{:.2f}')} tokens were computed.",
        "it depends on how long a passage is against the words around it, and on how much windows overlap",
    )


def other_limits(figures: Figures) -> list[Claim]:
    """Where the study varies max_num_seqs: who fills a step while others wait."""
    claims = []
    for condition in (each for each in figures.conditions if each.startswith("seqs")):
        arms = figures.under(condition)
        full = {each.label: each.values["num_full_steps"] for each in arms}
        limit = arms[0].values["max_num_seqs"]
        claims.append(
            Claim(
                None,
                f"point-wise queues at max_num_seqs = {limit}, list-wise does not",
                "holds" if full[arms[0].label] and not any(full[each.label] for each in arms[1:]) else "does not hold",
                f"Steps with {limit} sequences and others waiting: {_by_label(full, '{}')}.",
                f"with max_num_batched_tokens = {arms[0].values['max_num_batched_tokens']:,} at most "
                f"{arms[0].values['max_scheduled_seqs']} point-wise sequences were scheduled together",
            )
        )
    return claims


def prefix_caching(figures: Figures) -> list[Claim]:
    """At the smallest block, prompts that begin with the query: where something can be shared."""
    on, off = figures.under("cache"), figures.under("nocache")
    if not on or not off:
        return []
    cached = [each.values["cached_tokens"] / each.values["prompt_tokens"] for each in on]
    saved = [
        Spread(tuple(1 - a / b for a, b in zip(_seconds(x), _seconds(y), strict=True)))
        for x, y in zip(on, off, strict=True)
    ]
    faster = is_below(on[0].spread("engine_s"), off[0].spread("engine_s"))
    told = ", ".join(
        f"{each.label} {share:.1%} of the prompt tokens and {spread.text('{:+.1%}')} of the engine time"
        for each, share, spread in zip(on, cached, saved, strict=True)
    )
    name = "prefix caching helps point-wise, which repeats the query, more than list-wise"
    is_shared = cached[0] > cached[1]
    return [
        Claim(
            None,
            name,
            verdict_of([is_shared, faster if cached[0] else None]),
            f"With blocks of {on[0].values['block_size']} tokens the prefix cache saved {told}.",
            "only whole blocks are shared, from the first token on, and both ways of asking begin with the query; with "
            "and without are two engines, one after the other",
        )
    ]


def quality(figures: Figures) -> list[Claim]:
    """Each list-wise arm against point-wise as the model can judge: by the query's likelihood."""
    arms = figures.under(QUALITY)
    point = figures.find(LIKELIHOOD.name, QUALITY)
    if point is None:
        return []
    claims = []
    for each in (arm for arm in arms if arm.arm.asking.side == "list-wise"):
        judged = sorted(point.quality.keys() & each.quality.keys())
        name = f"{each.label} ranks better than point-wise by query likelihood"
        if len(judged) < 2:
            claims.append(Claim(None, name, "not decided", "This study has no judgments.", "name [inputs] qrels"))
            continue
        ours, theirs = (pd.Series([arm.quality[query] for query in judged], judged) for arm in (each, point))
        found = compare("nDCG@10", ours, theirs)
        low, high = found.interval or (0.0, 0.0)
        claims.append(
            Claim(
                None,
                name,
                "holds" if low > 0 else "does not hold" if high < 0 else "not decided",
                f"nDCG@10 {found.ours:.3f} against {found.theirs:.3f}: {found.difference:+.3f}, 95 % interval "
                f"{low:+.3f} to {high:+.3f} over {len(judged)} queries, paired.",
                f"{found.wins} queries better, {found.losses} worse; of this model, asked in these words",
            )
        )
    return claims


def predicted_blocks(figures: Figures) -> Claim:
    """Every arm."""
    ratios = [each.values["predicted_blocks"] / each.values["blocks_used"] for each in figures.arms]
    preempted = sum(row["num_preemptions"] for each in figures.arms for row in each.rows)
    return Claim(
        None,
        "blocks can be counted beforehand",
        "holds" if min(ratios) >= 1.0 and preempted == 0 else "does not hold",
        f"Predicted were {min(ratios):.3f} to {max(ratios):.3f} times the blocks used, with {preempted} preemptions.",
        "an upper bound: the answer's longest length is counted, and shared prefixes are not taken off",
    )


def true_tables(figures: Figures) -> Claim:
    """Every benchmark table of the study, by the two rules of tasks/engine/benchmark_table.py."""
    broken = [told for each in figures.arms for told in each.broken_rules()]
    num = sum(len(each.serving) for each in figures.arms)
    return Claim(
        None,
        "the benchmark tables can be true",
        "does not hold" if broken else "holds",
        f"{num - len(broken)} of {num} tables obey both rules."
        if not broken
        else f"{len(broken)} sentences: {broken[0]}",
        "P99 E2EL is not above the duration, and mean E2EL not below mean TTFT + (mean output tokens - 1) x mean TPOT; "
        "the article's own table breaks both: `packrank study --check-table FILE` checks any",
    )


def _seconds(arm: ArmFigures) -> Sequence[float]:
    return arm.spread("engine_s").values


def _by_label(values: dict[str, float], form: str) -> str:
    return ", ".join(f"{label} {form.format(value)}" for label, value in values.items())
