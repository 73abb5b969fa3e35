"""A study as one page: a single HTML file that opens from disk anywhere and asks the network for nothing.

It opens with the argument as a picture, then come the claims, then the tables. Frame and charts are those of a run's
page. Knows nothing of how arms were run or claims were weighed.
"""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.report import run_report as report
from tasks.report.drawing import Chart
from tasks.report.summary_tables import SummaryTable
from tasks.study.arms import LIKELIHOOD
from tasks.study.claims.argument import BASE
from tasks.study.claims.figures import ArmFigures
from tasks.study.claims.findings import Findings
from tasks.study.claims.verdicts import Claim
from tasks.study.picture import ArmTimeline, draw_timelines
from tasks.system.atomic_files import whole_file
from tasks.system.workspace import Workspace

MAX_STEPS = 400  # points of a timeline


def write_study_page(findings: Findings) -> Path:
    """Writes the page beside the reports of runs and returns its path.

    Raises:
        PackrankError: it cannot be written.
    """
    study = findings.study
    output = Workspace(study.store.path).report(f"study-{study.name}")
    output.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(output) as stream:
        stream.write(render_study(findings).encode("utf-8", "replace"))
    return output


def render_study(findings: Findings) -> str:
    """The page's HTML; everything from data is escaped."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        loader=FileSystemLoader([Path(__file__).parent, Path(report.__file__).parent]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = findings.figures
    few = figures.few_at_once[0] if figures.few_at_once else BASE
    first, *_, last = figures.under(few)
    page = {
        "findings": findings,
        "study": findings.study,
        "passage_tokens": f"{findings.study.num_passage_tokens:,}",
        "argument": _charts(findings, [first, last]),
        "condition": first.arm.condition.label,
        "limits": f"max_num_seqs {first.values['max_num_seqs']:,}, max_num_batched_tokens "
        f"{first.values['max_num_batched_tokens']:,}",
        "verdicts": SummaryTable("At a glance", ("claim", "verdict"), tuple(map(_verdict, findings.claims))),
        "claims": [claim for claim in findings.claims if claim.step],
        "further": [claim for claim in findings.claims if not claim.step],
        "evidence": findings.evidence(),
        "arms": findings.arms_tables(),
        "timelines": _charts(findings, [each for each in figures.under(BASE) if each.arm.asking != LIKELIHOOD]),
        "serving": [findings.serving_table(condition) for condition in figures.conditions],
        "database": str(findings.study.store.path.name),
    }
    return environment.get_template("study.html.jinja").render(page)


def _verdict(claim: Claim) -> tuple[str, str]:
    return f"{claim.step}. {claim.claim}" if claim.step else claim.claim, claim.verdict


def _charts(findings: Findings, arms: list[ArmFigures]) -> list[Chart]:
    timelines = [
        ArmTimeline(
            name=each.arm.name,
            title=each.arm.label[:1].upper() + each.arm.label[1:],
            max_num_seqs=each.values["max_num_seqs"],
            steps=findings.study.store.query(
                "page/timeline", {"run_id": each.run_ids[0], "max_points": MAX_STEPS}
            ).to_pylist(),
        )
        for each in arms
    ]
    return draw_timelines(timelines)
