"""docs/faults.md, made of tests/faults.toml and the `fault` marks of the tests: `python -m tests.faults` writes it.

Marks are found in the source, nothing is imported.
"""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "faults.md"
HEAD = """# Known faults

What others ran into and told of in public while they reranked, ran an engine offline, read Parquet, kept scores in DuckDB
or scheduled nights with Prefect, each with the tests that hold packrank to the right behaviour. Made by `make faults` from
`tests/faults.toml` and the tests' marks; `make check` fails when it is stale or a row has neither a test nor a reason.

| | what goes wrong | tests, or why there is none |
| --- | --- | --- |
"""


def load_faults() -> tuple[dict[int, str], dict[int, str]]:
    """Number -> what goes wrong, and number -> what cannot be tested here."""
    document = tomllib.loads((ROOT / "tests" / "faults.toml").read_text(encoding="utf-8"))
    faults, reasons = (
        {int(number): words for number, words in document[name].items()} for name in ("faults", "reasons")
    )
    return faults, reasons


def find_marks(folder: Path = ROOT / "tests") -> dict[int, list[str]]:
    """Number -> the marked tests as 'file::function', in order of path and line; a module's or class's marks are its tests'."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted(folder.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_module = [number for node in tree.body if _is_pytestmark(node) for number in _numbers([node.value])]
        for name, numbers in _marked(tree.body, of_module):
            for number in numbers:
                found[number].append(f"{path.relative_to(ROOT).as_posix()}::{name}")
    return found


def render_page() -> str:
    """The page's text."""
    faults, reasons = load_faults()
    marks = find_marks()
    rows = []
    for number, words in sorted(faults.items()):
        tests = [f"`{test.removeprefix('tests/')}`" for test in marks.get(number, [])]
        cell = "<br>".join(tests + ([reasons[number]] if number in reasons else []))
        rows.append(f"| {number} | {words} | {cell} |")
    return HEAD + "\n".join(rows) + "\n"


def _marked(body: list[ast.stmt], inherited: list[int]) -> Iterator[tuple[str, list[int]]]:
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            yield node.name, sorted({*inherited, *_numbers(node.decorator_list)})
        elif isinstance(node, ast.ClassDef):
            yield from _marked(node.body, [*inherited, *_numbers(node.decorator_list)])


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)


def _numbers(expressions: list[ast.expr]) -> list[int]:
    """The arguments of every `pytest.mark.fault(...)` in the expressions; a case's `marks=` included.

    Raises:
        ValueError: an argument that is no number.
    """
    numbers = []
    for call in (node for each in expressions for node in ast.walk(each) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Attribute) and ast.unparse(call.func) == "pytest.mark.fault":
            for argument in call.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, int)):
                    raise ValueError(
                        f"line {call.lineno}: pytest.mark.fault takes numbers, not {ast.unparse(argument)}"
                    )
                numbers.append(argument.value)
    return numbers


if __name__ == "__main__":
    PAGE.write_text(render_page(), encoding="utf-8")
