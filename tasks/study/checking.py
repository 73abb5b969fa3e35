"""`packrank study --check-table FILE`: whether the figures of a serving benchmark can be true."""

from pathlib import Path

from tasks.engine.benchmark_table import read_vllm_results
from tasks.report.summary_tables import SummaryTable
from tasks.report.table_formats import RowForm, write_tables
from tasks.system.errors import CheckFailed


def check_results(path: Path, form: RowForm = "table") -> None:
    """Prints what the two rules say of each result of the file.

    Raises:
        InputError: the file is not what `vllm bench serve --save-result` writes.
        CheckFailed: a result breaks a rule.
    """
    broken = [table.broken_rules() for table in read_vllm_results(path)]
    rows = [
        (number, told)
        for number, rules in enumerate(broken, 1)
        for told in rules or ["Both rules hold: P99 E2EL and the duration, mean E2EL and its parts."]
    ]
    title = f"{path.name}: can it be true?"
    write_tables([SummaryTable(title, ("result", "finding"), tuple(rows), wraps=True, name="findings")], form)
    if num := sum(map(bool, broken)):
        raise CheckFailed(f"{path}: {num} of {len(broken)} results cannot be true.")
