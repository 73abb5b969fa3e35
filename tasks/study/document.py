"""Figures of a study in a document: `<!--name-->text<!--/-->` gets the figure of that name, whatever stood there.

So that a text in two languages quotes one run. Knows nothing of Markdown beyond its comments.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from tasks.study.arms import LIKELIHOOD, ONE_WINDOW, POINT_WISE
from tasks.study.claims.argument import BASE, SMALL_BLOCK, phase_rates, queue_time, scheduler_slope
from tasks.study.claims.figures import ArmFigures, Figures
from tasks.study.claims.findings import Findings
from tasks.study.claims.further import (
    QUALITY,
    computed_tokens,
    engine_time,
    prefix_caching,
    quality,
    total_blocks,
    true_tables,
)
from tasks.study.claims.verdicts import Claim, Verdict
from tasks.system.atomic_files import whole_file
from tasks.system.errors import InputError

MARK = re.compile(r"<!--(\w+)-->.*?<!--/-->", re.DOTALL)
KOREAN: Mapping[Verdict, str] = {
    "holds": "성립",
    "does not hold": "성립하지 않음",
    "holds in part": "일부만 성립",
    "not decided": "판정 보류",
}
NONE = "-"  # the study has no such arm


def fill_document(path: Path, figures: Mapping[str, str]) -> None:
    """Writes the figures between the document's marks.

    Raises:
        InputError: the document cannot be read, or names a figure that there is not.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    if unknown := sorted(set(MARK.findall(text)) - figures.keys()):
        raise InputError(f"{path}: no such figure: {', '.join(unknown)}. There are: {', '.join(sorted(figures))}.")
    filled = MARK.sub(lambda found: f"<!--{found[1]}-->{figures[found[1]]}<!--/-->", text)
    with whole_file(path) as stream:
        stream.write(filled.encode("utf-8"))


def named_figures(findings: Findings) -> dict[str, str]:
    """Every figure that a document may quote."""
    figures, study = findings.figures, findings.study
    first = figures.arms[0]
    named = {
        "provisional": "",  # what stands there until a study has run
        "provisional_ko": "",
        "date": f"{first.values['started_at']:%Y-%m-%d}",
        "queries": f"{study.num_queries}",
        "passage_tokens": f"{study.num_passage_tokens:,}",
        "repeats": f"{len(first.rows)}",
        "max_model_len": f"{study.max_model_len:,}",
        "block_size": f"{first.values['block_size']}",
        "base_tokens": f"{first.values['max_num_batched_tokens']:,}",
    }
    named |= {f"verdict_{name}{end}": NONE for name in ("prefix_caching", "quality_window") for end in ("", "_ko")}
    for name, claim in _named_claims(findings).items():
        named |= {f"verdict_{name}": claim.verdict, f"verdict_{name}_ko": KOREAN[claim.verdict]}
    named |= _phase_figures(figures) | _scheduler_figures(figures) | _step_figures(figures) | _quality_figures(figures)
    for short, arm in _sides(figures, BASE).items():
        named |= _base_figures(short, arm, figures)
    few = figures.few_at_once[0] if figures.few_at_once else ""
    for short, arm in _sides(figures, few).items():
        named[f"one_engine_s_{short}"] = arm.spread("engine_s", study.num_queries).text("{:,.2f}") if arm else NONE
        named[f"one_free_{short}"] = f"{arm.values['least_free_seqs']}" if arm else NONE
    for short, arm in {"point": figures.find(POINT_WISE.name, "cache"), "window": _window(figures, "cache")}.items():
        named[f"cached_{short}"] = f"{arm.values['cached_tokens'] / arm.values['prompt_tokens']:.1%}" if arm else NONE
        named["cache_block_size"] = f"{arm.values['block_size']}" if arm else NONE
    return {name: text.replace(" to ", "–") for name, text in named.items()}  # a spread in any language


def _named_claims(findings: Findings) -> dict[str, Claim]:
    """`3`, `queue`, `engine_time`, ...: names that do not change with the study's numbers."""
    figures = findings.figures
    few = figures.few_at_once[0] if figures.few_at_once else BASE
    named = {str(claim.step): claim for claim in reversed(findings.claims) if claim.step}  # the first claim of a step
    further = {
        "queue": queue_time(figures),
        "total_blocks": total_blocks(figures),
        "engine_time": engine_time(figures, BASE),
        "one_engine_time": engine_time(figures, few),
        "tokens": computed_tokens(figures),
        "tables": true_tables(figures),
    }
    several = {"prefix_caching": prefix_caching(figures)[:1], "quality_window": quality(figures)[:1]}
    return named | further | {name: found[0] for name, found in several.items() if found}


def _sides(figures: Figures, condition: str) -> dict[str, ArmFigures | None]:
    return {
        "point": figures.find(POINT_WISE.name, condition),
        "window": _window(figures, condition),
        "whole": figures.find(ONE_WINDOW.name, condition),
    }


def _window(figures: Figures, condition: str) -> ArmFigures | None:
    """The first sliding one."""
    known = (POINT_WISE, LIKELIHOOD, ONE_WINDOW)
    return next((each for each in figures.under(condition) if each.arm.asking not in known), None)


def _base_figures(short: str, arm: ArmFigures | None, figures: Figures) -> dict[str, str]:
    if arm is None:
        return {}
    values, num, longest = arm.values, figures.study.num_queries, figures.study.max_model_len
    steps_ms = sum(row["steps_ms"] or 0.0 for row in arm.rows) or 1.0
    return {
        f"sequences_{short}": f"{values['num_sequences']:,}",
        f"tables_{short}": f"{values['num_sequences'] / num:,.0f}",
        f"tokens_{short}": f"{arm.num_tokens / figures.study.num_passage_tokens:.2f}",
        f"blocks_{short}": f"{values['blocks_used']:,}",
        f"full_{short}": f"{arm.used_share(values['block_size']):.1%}",
        f"full_16_{short}": f"{arm.used_share(SMALL_BLOCK):.1%}",
        f"reserved_{short}": f"{arm.reserved_share(longest):.1%}",
        f"queue_s_{short}": arm.spread("mean_queue_s").text("{:,.2f}"),
        f"table_bytes_{short}": f"{values['blocks_used'] * 4 / num:,.0f}",
        f"table_ms_{short}": arm.spread("block_table_ms", num).text("{:,.2f}"),
        f"table_share_{short}": f"{sum(row['block_table_ms'] or 0.0 for row in arm.rows) / steps_ms:.3%}",
        f"scheduler_us_{short}": arm.spread("scheduler_ms", num / 1000).text("{:,.0f}"),
        f"scheduler_share_{short}": f"{sum(row['scheduler_ms'] or 0.0 for row in arm.rows) / steps_ms:.3%}",
        f"engine_s_{short}": arm.spread("engine_s", num).text("{:,.2f}"),
        f"free_{short}": f"{values['least_free_seqs']}",
        f"full_steps_{short}": f"{values['full_tokens_share'] or 0.0:.0%}",
    }


def _phase_figures(figures: Figures) -> dict[str, str]:
    few, costs = figures.few_at_once, figures.study.model_costs
    arm = figures.find(ONE_WINDOW.name, few[0] if few else BASE)
    is_known = arm is not None and costs is not None and all(row["decode_s"] and row["prefill_s"] for row in arm.rows)
    rates = phase_rates(arm, costs) if is_known and arm is not None and costs is not None else {}
    names = {"rate": "tokens/s", "gflop": "GFLOP a token", "mb": "MB a token", "gflops": "GFLOP/s", "gbs": "GB/s"}
    return {
        f"{phase}_{short}": rates[phase][name].text("{:,.3g}" if short != "rate" else "{:,.0f}") if rates else NONE
        for phase in ("prefill", "decode")
        for short, name in names.items()
    }


def _scheduler_figures(figures: Figures) -> dict[str, str]:
    fit = scheduler_slope(figures)
    if fit is None:
        return dict.fromkeys(("slope_us", "slope_low_us", "slope_high_us", "slope_steps"), NONE)
    values = {"slope_us": fit.slope, "slope_low_us": fit.low, "slope_high_us": fit.high}
    return {name: f"{value * 1000:,.1f}" for name, value in values.items()} | {"slope_steps": f"{fit.num_points}"}


def _step_figures(figures: Figures) -> dict[str, str]:
    """Running and waiting in the first step of point-wise: where max_num_seqs binds, and where a step's tokens do."""
    few = figures.few_at_once[0] if figures.few_at_once else ""
    named = {}
    for short, condition in (("one", few), ("base", BASE)):
        arm = figures.find(POINT_WISE.name, condition)
        step = arm.first_steps[0] if arm is not None and arm.first_steps else None
        named[f"{short}_running"] = f"{step['scheduled_seqs']}" if step else NONE
        named[f"{short}_waiting"] = f"{step['waiting_seqs']}" if step else NONE
        named[f"{short}_step_tokens"] = f"{arm.values['max_num_batched_tokens']:,}" if arm else NONE
    return named


def _quality_figures(figures: Figures) -> dict[str, str]:
    arms = {
        "likelihood": figures.find(LIKELIHOOD.name, QUALITY),
        "window": _window(figures, QUALITY),
        "whole": figures.find(ONE_WINDOW.name, QUALITY),
    }
    named = {
        f"ndcg_{short}": f"{arm.values['ndcg_at_10']:.3f}" if arm and arm.values["ndcg_at_10"] is not None else NONE
        for short, arm in arms.items()
    }
    point = arms["likelihood"]
    return named | {"quality_queries": f"{len(point.quality)}" if point else NONE}
