"""A study as one page: a single HTML file that opens from disk anywhere and asks the network for nothing.

Frame, tables and charts are those of a run's page. Knows nothing of how arms were run or claims were weighed.
"""

from collections import Counter
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.judge import charts, report
from tasks.judge.report import Cell, Table
from tasks.judge.summary import SummaryTable
from tasks.judge.trec_files import whole_file
from tasks.study.claims import ArmFigures, Findings

MAX_STEPS = 2_000  # points of a timeline


def write_study_page(findings: Findings) -> Path:
    """Writes the page beside the reports of runs and returns its path.

    Raises:
        PackrankError: it cannot be written.
    """
    study = findings.study
    output = report.report_path(study.store.path, f"study-{study.name}")
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
    arms, serving = findings.arms_table(), findings.serving_table(findings.arms)
    verdicts = Counter(claim.verdict for claim in findings.claims)
    page = {
        "study": findings.study,
        "passage_tokens": f"{findings.study.num_passage_tokens:,}",
        "counts": ", ".join(f"{num} claims: {verdict}" for verdict, num in verdicts.items()) + ".",
        "claims": findings.claims,
        "arms": _as_cells(arms, "arm"),
        "arms_note": arms.note,
        "serving": _as_cells(serving, "serving"),
        "charts": [chart for each in _drawn(findings) for chart in _charts(findings, each)],
        "database": str(findings.study.store.path.name),
    }
    return environment.get_template("study.html.jinja").render(page)


def _drawn(findings: Findings) -> list[ArmFigures]:
    """Every side under the base's settings, and point-wise with the fewest sequences at once."""
    base = findings.study.base
    same = [each for each in findings.arms if _is_like(each, base.max_num_seqs)]
    fewest = min(each.run.arm.max_num_seqs for each in findings.arms)
    few = [each for each in findings.arms if _is_like(each, fewest)][:1] if fewest != base.max_num_seqs else []
    return [*few, *same]


def _is_like(each: ArmFigures, max_num_seqs: int) -> bool:
    arm = each.run.arm
    return arm.max_num_seqs == max_num_seqs and arm.enable_prefix_caching and arm.queries_at_once is None


def _charts(findings: Findings, each: ArmFigures) -> list[charts.Chart]:
    parameters = {"run_id": each.run.run_id, "max_points": MAX_STEPS}
    steps = findings.study.store.query("report/engine_steps", parameters).to_pylist()
    if not steps:
        return []
    name, values = each.run.arm.name, each.values
    label = f"{each.label}, max_num_seqs {each.run.arm.max_num_seqs}"
    return [
        charts.sequences_chart(steps, values["max_num_seqs"], f"sequences-{name}", f"Sequences: {label}"),
        charts.blocks_chart(steps, values["num_gpu_blocks"], f"blocks-{name}", f"KV-cache blocks: {label}"),
    ]


def _as_cells(table: SummaryTable, source: str) -> Table:
    """A table of texts; a cell's key is source, the row's name, the column."""
    rows = [
        [Cell(row[0]), *(Cell(text, f"{source}.{row[0]}.{name}") for text, name in _named(row, table.columns))]
        for row in table.rows
    ]
    return Table(table.title, table.columns, rows)


def _named(row: tuple[str, ...], columns: tuple[str, ...]) -> list[tuple[str, str]]:
    return list(zip(row[1:], columns[1:], strict=True))
