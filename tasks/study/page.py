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
    arms = findings.arms_table()
    num_sides = len(_drawn_sides(findings))
    together = [findings.arms[first : first + num_sides] for first in range(0, len(findings.arms), num_sides)]
    verdicts = Counter(claim.verdict for claim in findings.claims)
    page = {
        "study": findings.study,
        "passage_tokens": f"{findings.study.num_passage_tokens:,}",
        "counts": ", ".join(f"{num} claims: {verdict}" for verdict, num in verdicts.items()) + ".",
        "claims": findings.claims,
        "arms": [_as_cells(part, "arm") for part in _halves(arms)],
        "arms_note": arms.note,
        "serving": [_as_cells(findings.serving_table(each), "serving") for each in together],
        "charts": [chart for each in _drawn(findings) for chart in _charts(findings, each)],
        "database": str(findings.study.store.path.name),
    }
    return environment.get_template("study.html.jinja").render(page)


def _drawn(findings: Findings) -> list[ArmFigures]:
    """Every side under the base's settings, and point-wise with the fewest sequences at once."""
    fewest = min(each.run.arm.max_num_seqs for each in findings.arms)
    is_base = fewest == findings.study.base.max_num_seqs
    few = [] if is_base else [each for each in findings.arms if _is_like(each, fewest)][:1]
    return [*few, *_drawn_sides(findings)]


def _drawn_sides(findings: Findings) -> list[ArmFigures]:
    return [each for each in findings.arms if _is_like(each, findings.study.base.max_num_seqs)]


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


def _halves(table: SummaryTable) -> list[SummaryTable]:
    """A wide table as two that fit a page, each with the first column."""
    middle = (len(table.columns) + 1) // 2
    spans = (("Sequences, tokens, blocks", slice(1, middle)), ("Steps, time, quality", slice(middle, None)))
    return [
        SummaryTable(title, (table.columns[0], *table.columns[span]), tuple((row[0], *row[span]) for row in table.rows))
        for title, span in spans
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
