"""A study, read: claims with their verdicts, and the tables that a terminal, an artifact and the page show.

Figures come from the database alone, so that a query of ours and a query of an analyst cannot disagree. Knows nothing
of how arms were run.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.engine.benchmark_table import table_of_run
from tasks.report.summary import SERVING_ROWS
from tasks.report.summary_tables import SummaryTable, value_text
from tasks.study.arm_runs import Study
from tasks.study.arms import ONE_WINDOW, POINT_WISE
from tasks.study.claims.argument import BASE, SMALL_BLOCK, article_claims, phase_rates
from tasks.study.claims.figures import ArmFigures, Figures, read_figures
from tasks.study.claims.further import further_claims
from tasks.study.claims.verdicts import Claim

RATE_FORMS = {  # of tasks.study.claims.argument.phase_rates
    "tokens a step": "{:,.0f}",
    "tokens/s": "{:,.1f}",
    "GFLOP a token": "{:,.3f}",
    "MB a token": "{:,.3f}",
    "GFLOP/s": "{:,.1f}",
    "GB/s": "{:,.2f}",
}


@dataclass(frozen=True, slots=True)
class Findings:
    """A study's figures, and what they say."""

    figures: Figures
    claims: tuple[Claim, ...]

    @property
    def study(self) -> Study:
        """What ran."""
        return self.figures.study

    @property
    def counts(self) -> str:
        """How many claims have which verdict."""
        verdicts = Counter(claim.verdict for claim in self.claims)
        return ", ".join(f"{num} {verdict}" for verdict, num in verdicts.items())

    @property
    def where(self) -> str:
        """Model, device and date."""
        values = self.figures.arms[0].values
        return f"{values['model']} on {values['device'] or 'an unknown device'}, {values['started_at']:%Y-%m-%d}"

    def tables(self) -> list[SummaryTable]:
        """What a terminal shows: claims last, where people look."""
        return [
            *self.evidence(),
            *self.arms_tables(),
            *(self.serving_table(each) for each in self.figures.conditions),
            self.claims_table("The article's argument", [each for each in self.claims if each.step]),
            self.claims_table("Further than the article", [each for each in self.claims if not each.step]),
        ]

    def claims_table(self, title: str, claims: Sequence[Claim]) -> SummaryTable:
        """Step, claim, verdict and the sentence with its numbers."""
        rows = tuple(
            ("" if each.step is None else str(each.step), each.claim, each.verdict, each.sentence) for each in claims
        )
        columns, first = ("step", "claim", "verdict", "in one sentence"), 0 if any(each.step for each in claims) else 1
        return SummaryTable(title, columns[first:], tuple(row[first:] for row in rows), wraps=True)

    def evidence(self) -> list[SummaryTable]:
        """The tables behind the steps that a claim's sentence only sums up."""
        tables = (self.phases_table(), self.places_table(), self.steps_table(), self.room_table())
        return [table for table in tables if table is not None and table.rows]

    def phases_table(self) -> SummaryTable | None:
        """Prefill and decode side by side, of the arm that writes permutations."""
        few, costs = self.figures.few_at_once, self.study.model_costs
        arm = self.figures.find(ONE_WINDOW.name, few[0] if few else BASE)
        if arm is None or costs is None or not all(row["decode_s"] and row["prefill_s"] for row in arm.rows):
            return None
        rates = phase_rates(arm, costs)
        rows = tuple((name, *(rates[phase][name].text(form) for phase in rates)) for name, form in RATE_FORMS.items())
        note = "FLOPs and bytes by the model's config; medians of the repeats, least and largest in parentheses."
        return SummaryTable(f"Prefill and decode: {arm.arm.label}", ("", "prefill", "decode"), rows, note)

    def places_table(self) -> SummaryTable:
        """Places for tokens: used, in blocks, and had each sequence reserved max_model_len."""
        base, longest = self.figures.under(BASE), self.study.max_model_len
        sizes = dict.fromkeys((SMALL_BLOCK, base[0].values["block_size"]))
        rows = tuple(
            (
                each.label,
                f"{each.values['num_sequences']:,}",
                f"{each.values['used_places']:,}",
                *(f"{each.num_blocks(size) * size:,} ({each.used_share(size):.1%})" for size in sizes),
                f"{each.values['num_sequences'] * longest:,} ({each.reserved_share(longest):.1%})",
            )
            for each in base
        )
        blocks = (*(f"in blocks of {size}" for size in sizes), f"{longest:,} reserved a sequence")
        note = "In parentheses: the share that holds a token."
        return SummaryTable("Places in the KV cache", ("", "sequences", "used", *blocks), rows, note)

    def steps_table(self) -> SummaryTable:
        """The first steps of point-wise, where max_num_seqs binds and where a step's tokens do."""
        rows = []
        for condition in (*self.figures.few_at_once, BASE):
            arm = self.figures.find(POINT_WISE.name, condition)
            for number, step in enumerate(() if arm is None else arm.first_steps[:4], 1):
                assert arm is not None
                name = f"{arm.arm.condition.label}, max_num_batched_tokens {arm.values['max_num_batched_tokens']:,}"
                counts = (step["scheduled_seqs"], step["waiting_seqs"], step["num_tokens"], step["blocks_used"])
                rows.append((name if number == 1 else "", str(number), *(f"{each:,}" for each in counts)))
        columns = ("point-wise", "step", "running", "waiting", "tokens", "blocks in use")
        return SummaryTable("The first steps", columns, tuple(rows))

    def room_table(self) -> SummaryTable:
        """What is free while a study's arms run: least, and mean over time."""
        rows = tuple(
            (
                each.arm.label,
                f"{each.values['least_free_seqs']:,} of {each.values['max_num_seqs']:,}",
                f"{each.values['mean_free_seqs']:,.1f}",
                f"{each.values['least_free_blocks']:,} of {each.values['num_gpu_blocks'] - 1:,}",
                f"{each.values['mean_free_blocks']:,.1f}",
                f"{each.values['full_tokens_share'] or 0.0:.0%}",
                f"{each.values['waiting_share'] or 0.0:.0%}",
            )
            for condition in (*self.figures.few_at_once, BASE)
            for each in self.figures.under(condition)
            if each.values["num_steps"]
        )
        columns = (
            "",
            "free slots, least",
            "mean",
            "free blocks, least",
            "mean",
            "time in full steps",
            "time others wait",
        )
        return SummaryTable(
            "Room for others", columns, rows, "Full: at least 95 % of max_num_batched_tokens are used up."
        )

    def arms_tables(self) -> list[SummaryTable]:
        """One row an arm, in two tables: sequences, tokens and blocks; steps, times and quality."""
        num = self.study.num_queries
        repeated = (
            f"{num} queries and {self.study.num_passage_tokens:,} passage tokens, the same in all arms but those of "
            "quality. Counts of the first run; times are medians, least and largest in parentheses."
        )
        spans = (("Arms: sequences, tokens, blocks", _counts), ("Arms: steps, times, quality", _times))
        tables = []
        for title, figures_of in spans:
            rows = [(each, figures_of(each, self.study)) for each in self.figures.arms]
            columns = ("arm", *rows[0][1])
            tables.append(
                SummaryTable(title, columns, tuple((each.arm.label, *named.values()) for each, named in rows), repeated)
            )
        return tables

    def serving_table(self, condition: str) -> SummaryTable:
        """The rows that users know from `vllm bench serve`, one column an arm; of the first repeats."""
        arms = self.figures.under(condition)
        columns = ("", *(each.label for each in arms))
        rows = [
            (label, *(_serving_text(each.serving[0][column], factor) for each in arms))
            for label, column, factor in SERVING_ROWS
        ]
        broken = [f"{each.label}: {told}" for each in arms for told in table_of_run(each.serving[0]).broken_rules()]
        note = f"This table cannot be true. {' '.join(broken)}" if broken else None
        return SummaryTable(f"Serving benchmark: {arms[0].arm.condition.label}", columns, tuple(rows), note)


def read_findings(study: Study) -> Findings:
    """Reads every arm's figures and holds the claims against them."""
    figures = read_figures(study)
    return Findings(figures, (*article_claims(figures), *further_claims(figures)))


def _counts(each: ArmFigures, study: Study) -> dict[str, str]:
    values = each.values
    per_token = "-" if each.arm.condition.limit_queries else f"{each.num_tokens / study.num_passage_tokens:.2f}"
    return {
        "repeats": str(len(each.rows)),
        "sequences": f"{values['num_sequences']:,}",
        "prompt tokens": f"{values['prompt_tokens']:,}",
        "cached": f"{values['cached_tokens']:,}",
        "answer tokens": f"{values['output_tokens']:,}",
        "tokens / passage token": per_token,
        "blocks": f"{values['blocks_used']:,}",
        "places wasted": f"{values['last_block_waste_tokens']:,} ({1 - each.used_share(values['block_size']):.1%})",
    }


def _times(each: ArmFigures, study: Study) -> dict[str, str]:
    values = each.values
    num = each.arm.condition.limit_queries or study.num_queries
    quality = values["ndcg_at_10"]
    return {
        "steps": f"{values['num_steps']:,}",
        "most running": _count(values["max_scheduled_seqs"]),
        "most waiting": _count(values["max_waiting_seqs"]),
        "peak blocks": _count(values["peak_blocks_used"]),
        "mean queue, s": each.spread("mean_queue_s").text("{:,.2f}"),
        "engine s / query": each.spread("engine_s", num).text("{:,.2f}"),
        "scheduler ms / step": each.spread("scheduler_ms", max(values["num_steps"], 1)).text("{:,.2f}"),
        "nDCG@10": "-" if quality is None else f"{quality:.3f}",
    }


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _serving_text(value: Any, factor: float) -> str:
    return "n/a" if value is None else value_text(value * factor)
