"""The seven steps of the article's argument, each with its arm, its numbers and its verdict.

    1 prefill and decode   2 paging   3 max_num_seqs   4 block tables   5 the scheduler   6 one sequence   7 room

Knows nothing of how arms were run.
"""

from tasks.study.arms import LIKELIHOOD, ONE_WINDOW, POINT_WISE
from tasks.study.claims.figures import ArmFigures, Figures
from tasks.study.claims.verdicts import Claim, Slope, Spread, fit_slope, is_below, verdict_of
from tasks.study.model_costs import ModelCosts

BASE = "base"
NEARLY_ALL = 0.96  # used places: the article's source, the paper on PagedAttention, speaks of less than 4 % waste
NOTICED = 0.01  # of the steps' time: less is measured, but nobody waits for it
SMALL_BLOCK = 16  # vLLM's usual block on a GPU
ID_BYTES = 4  # a block's id in the worker's row, int32


def article_claims(figures: Figures) -> list[Claim]:
    """In the article's order; a step whose arm the study lacks is not decided."""
    steps = (phases, paging, running_and_waiting, queue_time, block_tables, scheduler, one_sequence, room_for_others)
    return [step(figures) for step in steps]


def phases(figures: Figures) -> Claim:
    """1: prefill is bound by arithmetic, decode by memory bandwidth."""
    name = "prefill is bound by arithmetic, decode by memory bandwidth"
    few, costs = figures.few_at_once, figures.study.model_costs
    arm = figures.find(ONE_WINDOW.name, few[0] if few else BASE)
    if arm is None or costs is None or not all(row["decode_s"] and row["prefill_s"] for row in arm.rows):
        return _no_arm(1, name, "no arm has steps of both kinds, or the model's config does not name its sizes")
    rates = phase_rates(arm, costs)
    values = arm.values
    answer_tokens = values["output_tokens"] / values["num_sequences"]
    decoded = Spread(tuple(row["decode_s"] / row["steps_ms"] * 1000 for row in arm.rows))
    one_token = figures.find(POINT_WISE.name, BASE)
    prompt_share = one_token.values["prompt_tokens"] / one_token.num_tokens if one_token else 0.0
    return Claim(
        1,
        name,
        verdict_of(
            [
                is_below(rates["decode"]["GFLOP/s"], rates["prefill"]["GFLOP/s"]),
                is_below(rates["prefill"]["GB/s"], rates["decode"]["GB/s"]),
            ]
        ),
        f"Prefill ran {rates['prefill']['tokens/s'].text('{:,.0f}')} tokens a second at "
        f"{rates['prefill']['GFLOP/s'].text('{:,.1f}')} GFLOP/s and {rates['prefill']['GB/s'].text('{:,.2f}')} GB/s of "
        f"weights; decode ran {rates['decode']['tokens/s'].text('{:,.1f}')} at "
        f"{rates['decode']['GFLOP/s'].text('{:,.1f}')} GFLOP/s and {rates['decode']['GB/s'].text('{:,.2f}')} GB/s.",
        "it holds where each phase drives more of what the article says binds it; a fixed cost of a step looks like "
        "bandwidth. "
        f"'Almost all prefill' is a definition: with one token of answer {prompt_share:.1%} of the tokens are prompt. "
        f"{arm.label} writes {answer_tokens:,.0f} tokens an answer: decode is {decoded.text('{:.0%}')} of its time",
    )


def phase_rates(arm: ArmFigures, costs: ModelCosts) -> dict[str, dict[str, Spread]]:
    """By phase: tokens a second, GFLOP and MB a token by the model's config, and what follows; one value a repeat."""
    found: dict[str, dict[str, list[float]]] = {"prefill": {}, "decode": {}}
    for row in arm.rows:
        prompt_context = row["prompt_tokens"] / row["num_sequences"] / 2
        context = row["mean_decode_context_tokens"] or 0.0
        for phase in found:
            tokens, seconds = row[f"{phase}_only_tokens"], row[f"{phase}_s"]
            a_step = tokens / row[f"{phase}_steps"]
            is_prefill = phase == "prefill"
            flops = costs.prefill_flops(prompt_context) if is_prefill else costs.decode_flops(context)
            num_bytes = costs.prefill_bytes(a_step) if is_prefill else costs.decode_bytes(a_step, context)
            rate = tokens / seconds
            for name, value in (
                ("tokens a step", a_step),
                ("tokens/s", rate),
                ("GFLOP a token", flops / 1e9),
                ("MB a token", num_bytes / 1e6),
                ("GFLOP/s", rate * flops / 1e9),
                ("GB/s", rate * num_bytes / 1e9),
            ):
                found[phase].setdefault(name, []).append(value)
    return {phase: {name: Spread(tuple(each)) for name, each in rows.items()} for phase, rows in found.items()}


def paging(figures: Figures) -> Claim:
    """2: contiguous allocation wastes memory, paging uses nearly all of it."""
    base, longest = figures.under(BASE), figures.study.max_model_len
    size = base[0].values["block_size"]
    reserved = {each.label: each.reserved_share(longest) for each in base}
    parts: list[bool | None] = [reserved[base[0].label] < 0.5]
    told = []
    for block_size in dict.fromkeys((size, SMALL_BLOCK)):
        shares = {each.label: each.used_share(block_size) for each in base}
        parts += [share >= NEARLY_ALL for share in shares.values()]
        nearly = [label for label, share in shares.items() if share >= NEARLY_ALL]
        told.append(f"'nearly all' at blocks of {block_size}: {', '.join(nearly) if nearly else 'no arm'}")
    point, last = base[0], base[-1]
    full = [
        f"blocks of {each} are {point.used_share(each):.1%} and {last.used_share(each):.1%} full"
        for each in dict.fromkeys((size, SMALL_BLOCK))
    ]
    return Claim(
        2,
        "contiguous allocation wastes memory, paging uses nearly all of it",
        verdict_of(parts) if parts[0] else "does not hold",
        f"With {longest:,} places reserved for each sequence, {point.label} would fill {reserved[point.label]:.1%} of "
        f"them and {last.label} {reserved[last.label]:.1%}; {', '.join(full)}.",
        f"nearly all is {NEARLY_ALL:.0%} here; {'; '.join(told)}. About half of each sequence's last block stays empty",
    )


def running_and_waiting(figures: Figures) -> Claim:
    """3: of 100 requests 64 run and 36 wait."""
    arm = figures.find(POINT_WISE.name, figures.few_at_once[0]) if figures.few_at_once else None
    name = "of a query's requests as many run as max_num_seqs allows, and the others wait"
    if arm is None or not arm.first_steps:
        return _no_arm(3, name, "no arm asks few queries at a time with a timeline")
    limit, step = arm.values["max_num_seqs"], arm.first_steps[0]
    running, waiting = step["scheduled_seqs"], step["waiting_seqs"]
    base = figures.find(POINT_WISE.name, BASE)
    beside = "" if base is None or not base.first_steps else " " + _what_binds(base)
    if running + waiting <= limit:
        return _no_arm(3, name, f"the first call has {running + waiting} requests, and max_num_seqs is {limit}")
    then = [each["scheduled_seqs"] for each in arm.first_steps[1:] if each["new_seqs"]][:1]
    return Claim(
        3,
        name,
        "holds" if running == limit else "does not hold",
        f"Of {running + waiting} requests {running} ran in the first step and {waiting} waited"
        f"{f'; the next step ran {then[0]}' if then else ''}.",
        f"the limits were max_num_seqs = {limit} and max_num_batched_tokens = "
        f"{arm.values['max_num_batched_tokens']:,}.{beside}",
    )


def _what_binds(base: ArmFigures) -> str:
    """Of the base's first step."""
    values, step = base.values, base.first_steps[0]
    binds = "max_num_seqs" if step["scheduled_seqs"] == values["max_num_seqs"] else "the tokens of a step"
    return (
        f"With max_num_batched_tokens = {values['max_num_batched_tokens']:,}, {step['scheduled_seqs']} ran and "
        f"{step['waiting_seqs']} waited in the first step: {binds} bound"
    )


def queue_time(figures: Figures) -> Claim:
    """3: waiting makes the latency."""
    arms = [each for each in figures.under(BASE) if each.arm.asking in (POINT_WISE, ONE_WINDOW)]
    name = "point-wise requests spend their latency in the queue"
    if len(arms) < 2 or not all(row["mean_e2el_s"] for each in arms for row in each.rows):
        return _no_arm(3, name, "the engine gave no latencies")
    point, whole = arms
    shares = [Spread(tuple(row["mean_queue_s"] / row["mean_e2el_s"] for row in each.rows)) for each in arms]
    queue_s = [each.spread("mean_queue_s") for each in arms]
    return Claim(
        3,
        name,
        verdict_of(
            [
                min(shares[0].values) > 0.5 or (False if max(shares[0].values) < 0.5 else None),
                is_below(queue_s[1], queue_s[0]),
            ]
        ),
        f"A {point.label} request waited {queue_s[0].text('{:,.2f}')} s, {shares[0].text('{:.0%}')} of its latency; a "
        f"{whole.label} one {queue_s[1].text('{:,.2f}')} s, {shares[1].text('{:.0%}')}.",
        f"all queries at once: {point.values['num_sequences']:,} requests against {whole.values['num_sequences']:,}",
    )


def block_tables(figures: Figures) -> Claim:
    """4: 100 requests are 100 block tables of metadata."""
    study, name = figures.study, "100 requests are 100 block tables, and keeping them costs"
    point, whole = figures.find(POINT_WISE.name, BASE), figures.find(ONE_WINDOW.name, BASE)
    if point is None or whole is None:
        return _no_arm(4, name, "no arm of one window")
    ms = [each.spread("block_table_ms", study.num_queries) for each in (point, whole)]
    shares = [
        Spread(tuple((row["block_table_ms"] or 0.0) / (row["steps_ms"] or 1.0) for row in each.rows))
        for each in (point, whole)
    ]
    is_more = is_below(ms[1], ms[0])
    is_noticed = min(shares[0].values) >= NOTICED
    row_bytes = ID_BYTES * -(-study.max_model_len // point.values["block_size"])
    tables = [each.values["num_sequences"] / study.num_queries for each in (point, whole)]
    ids = [each.values["blocks_used"] * ID_BYTES / study.num_queries for each in (point, whole)]
    return Claim(
        4,
        name,
        verdict_of([is_more, is_noticed]) if is_more is not None else "not decided",
        f"A query has {tables[0]:,.0f} block tables point-wise and {tables[1]:,.0f} in {whole.label}: {ids[0]:,.0f} "
        f"against {ids[1]:,.0f} bytes of block ids in rows of {row_bytes} bytes, and {ms[0].text('{:,.2f}')} against "
        f"{ms[1].text('{:,.2f}')} ms of host time.",
        f"that is {shares[0].text('{:.3%}')} and {shares[1].text('{:.3%}')} of the steps' time; {NOTICED:.0%} would be "
        "noticed. Host time: allocating and freeing blocks, and writing the worker's rows",
    )


def scheduler(figures: Figures) -> Claim:
    """5: the scheduler's loop slows as sequences grow."""
    name = "the scheduler takes longer the more sequences a step has, at equal tokens"
    base = figures.under(BASE)
    fit = scheduler_slope(figures)
    if fit is None:
        return _no_arm(5, name, "too few steps filled the token budget with different numbers of sequences")
    most, least = base[0], base[-1]
    candidate_us = [_scheduler_us(each, figures.study.num_queries) for each in (most, least)]
    step_ms = [row["steps_ms"] / row["num_steps"] for row in most.rows]
    scheduler_ms = Spread(tuple(row["scheduler_ms"] / row["num_steps"] for row in most.rows))
    return Claim(
        5,
        name,
        "holds" if fit.low > 0 else "does not hold",
        f"Each further sequence in a step costs {fit.slope * 1000:,.1f} µs inside schedule() and update_from_output(), "
        f"95 % interval {fit.low * 1000:,.1f} to {fit.high * 1000:,.1f} µs, {fit.num_points} steps of equal tokens.",
        f"a query's candidates take {candidate_us[0].text('{:,.0f}')} µs of it {most.label} and "
        f"{candidate_us[1].text('{:,.0f}')} µs {least.label}; a {most.label} step spends "
        f"{scheduler_ms.text('{:,.2f}')} ms of some {sorted(step_ms)[len(step_ms) // 2]:,.0f} ms there",
    )


def scheduler_slope(figures: Figures) -> Slope | None:
    """Scheduler time, ms, by sequences, over the full steps of all arms of the base and their repeats."""
    steps = [each for arm in figures.under(BASE) if arm.arm.asking != LIKELIHOOD for each in arm.full_steps]
    pairs = [
        pair
        for each in steps
        for pair in zip(each["num_seqs"], each["scheduler_ms"], strict=True)
        if pair[1] is not None
    ]
    return fit_slope([num for num, _ in pairs], [ms for _, ms in pairs])


def _scheduler_us(arm: ArmFigures, num_queries: int) -> Spread:
    return Spread(tuple((row["scheduler_ms"] or 0.0) * 1000 / num_queries for row in arm.rows))


def one_sequence(figures: Figures) -> Claim:
    """6: list-wise is one sequence for 100 candidates."""
    name, study = "list-wise is one sequence for 100 candidates", figures.study
    base = figures.under(BASE)
    whole = figures.find(ONE_WINDOW.name, BASE)
    if whole is None:
        return _no_arm(6, name, "no arm of one window")
    sequences = {each.label: each.values["num_sequences"] / study.num_queries for each in base}
    is_one = sequences[whole.label] <= 1.0  # a query of one candidate is not asked
    windows = [each for each in base if each.arm.asking.side == "list-wise" and each is not whole]
    told = ", ".join(f"{sequences[each.label]:,.1f} in {each.label}" for each in windows)
    longest = whole.values["longest_prompt_tokens"]
    return Claim(
        6,
        name,
        "holds" if is_one else "does not hold",
        f"A query is {sequences[whole.label]:,.1f} sequences in one window of all candidates"
        f"{f', {told}' if told else ''}, and {sequences[base[0].label]:,.0f} {base[0].label}.",
        f"the longest prompt of one window has {longest:,} tokens; its candidates have numbers, for want of letters",
    )


def room_for_others(figures: Figures) -> Claim:
    """7: meanwhile others can come in."""
    name = "while list-wise runs, others can come in"
    few = figures.few_at_once[0] if figures.few_at_once else None
    pairs = [(figures.find(POINT_WISE.name, each), figures.find(ONE_WINDOW.name, each)) for each in (few, BASE) if each]
    arms = [(point, whole) for point, whole in pairs if point is not None and whole is not None]
    if not arms or any(each.values["num_steps"] == 0 for pair in arms for each in pair):
        return _no_arm(7, name, "no arm of one window with a timeline")
    parts: list[bool | None] = []
    for point, whole in arms:
        parts.append(whole.values["least_free_seqs"] > point.values["least_free_seqs"])
        parts.append((whole.values["full_tokens_share"] or 0.0) < 0.5)
    told = [
        f"with {point.arm.condition.label} {whole.label} leaves at least {whole.values['least_free_seqs']} of "
        f"{whole.values['max_num_seqs']} sequence slots free and point-wise {point.values['least_free_seqs']}"
        for point, whole in arms
    ]
    _, whole = arms[-1]
    return Claim(
        7,
        name,
        verdict_of(parts),
        f"{_capitalised('; '.join(told))}.",
        "a slot is one door of three: blocks are free too (at least "
        f"{whole.values['least_free_blocks']} of {whole.values['num_gpu_blocks'] - 1}, {whole.arm.label}), but "
        f"{whole.values['full_tokens_share'] or 0.0:.0%} of that time was spent in steps whose tokens were used up",
    )


def _capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def _no_arm(step: int, name: str, why: str) -> Claim:
    return Claim(step, name, "not decided", "This study has no numbers for it.", why)
