"""docs/models.md, made of docs/models.json: what tests/engine/test_zoo.py measured of each model family.

A run of some families renews their rows and leaves the others as they were.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from tasks.ranking.recipe import Asking
from tests.makers import ROOT
from tests.tiny_models import FAMILIES

PAGE = ROOT / "docs" / "models.md"
DATA = ROOT / "docs" / "models.json"
GENERATIVE = [name for name, family in FAMILIES.items() if family.is_generative]
STRATEGY_OF = {
    "first_token": "sliding",
    "permutation": "sliding",
    "reasoning": "sliding",
    "select": "setwise",
    "yes_no": "pointwise",
    "query_likelihood": "pointwise",
}
COLUMNS = ("family", "preset", "tokenizer", "identifiers", "decode modes", "cache groups", "blocks", "ratio", "on")
HEAD = """# Models

What packrank was seen to do with each model family: the real architecture, tokenizer and chat template, with random weights
of some 20 to 90 MB, on vLLM's CPU engine (two cores, no GPU). It says nothing about how well a family ranks. Made by
`make zoo` of `docs/models.json`; `make test` checks that no family, preset or row is missing.

- identifiers: how many passages `first_token` and `select` tell apart by one token each, and the first of those tokens
- decode modes: those that were asked, one prompt each with nothing else in the engine, by the preset; reasoning by the preset
  `reasoning`
- cache groups: the layers that share a block table; blocks are summed over the groups
- blocks: predicted before the prompts were asked, and the most used at once while they were, summed over the decode modes;
  the ratio is predicted / used

"""
TAIL = """
Refused before their weights load, since they give a score and write no text: {pooling}.

Presets for models whose tokenizer or words are not at hand here are tried otherwise, as their heads say: {others}.
"""


@dataclass
class Measured:
    """What was seen of one family."""

    family: str
    groups: Sequence[str]  # kind of each cache group
    blocks: dict[str, tuple[int, int]] = field(default_factory=dict)  # decode mode -> predicted, used at most
    identifier: str = ""
    num_identifiers: int = 0

    def add(self, decode_mode: str, predicted: int, used: int) -> None:
        """One prompt's blocks; of several in one mode, the largest."""
        self.blocks[decode_mode] = max(self.blocks.get(decode_mode, (0, 0)), (predicted, used))

    def identifiers(self, asking: Asking) -> None:
        """What stands for a passage where one token answers."""
        ids, opened = asking.mode.identifier_form.token_ids, asking.builder.template.answer_prefix
        self.num_identifiers = len(ids)
        self.identifier = asking.builder.tokens.decode(ids[:1]) + (f" behind {opened}" if opened else "")


def print_table(measured: Iterable[Measured]) -> None:
    """The families' rows on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*COLUMNS[:-1], title="Model families", title_justify="left")
    for each in measured:
        table.add_row(*_cells(each.family, asdict(each)))
    print()
    Console(width=160).print(table)


def save(measured: Iterable[Measured]) -> None:
    """Renews the families' rows in docs/models.json, and the page."""
    rows = load_rows()
    today = datetime.now(UTC).date().isoformat()
    for each in measured:
        row = asdict(each)
        rows[row.pop("family")] = row
        row["measured_on"] = today
    ordered = {family: rows[family] for family in FAMILIES if family in rows}
    lines = [f"{json.dumps(family)}: {json.dumps(row, ensure_ascii=False)}" for family, row in ordered.items()]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    PAGE.write_text(render_page(ordered), encoding="utf-8")


def load_rows() -> dict[str, dict[str, Any]]:
    """Family -> what was measured of it last."""
    return json.loads(DATA.read_text(encoding="utf-8")) if DATA.exists() else {}


def render_page(rows: dict[str, dict[str, Any]]) -> str:
    """The page's text."""
    body = [
        (*_cells(family, rows[family]), rows[family]["measured_on"]) if family in rows else _unmeasured(family)
        for family, made in FAMILIES.items()
        if made.is_generative
    ]
    lines = [COLUMNS, ("---",) * len(COLUMNS), *body]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    pooling = [family for family, made in FAMILIES.items() if not made.is_generative]
    asked = {"reasoning", *(made.preset for made in FAMILIES.values())}
    others = sorted({path.stem for path in (ROOT / "configs" / "models").glob("*.toml")} - asked)
    return HEAD + table + TAIL.format(pooling=_names(pooling), others=_names(others))


def _cells(family: str, row: dict[str, Any]) -> tuple[str, ...]:
    """A family's row, by COLUMNS but for the day."""
    predicted, used = (sum(pair[place] for pair in row["blocks"].values()) for place in (0, 1))
    groups = ", ".join(kind if num == 1 else f"{num} x {kind}" for kind, num in Counter(row["groups"]).items())
    return (
        family,
        FAMILIES[family].preset,
        FAMILIES[family].tokenizer,
        f"{row['num_identifiers']}: `{row['identifier']}`",
        ", ".join(row["blocks"]),
        groups,
        f"{predicted} / {used}",
        f"{predicted / used:.3f}" if used else "",
    )


def _unmeasured(family: str) -> tuple[str, ...]:
    made = FAMILIES[family]
    return (family, made.preset, made.tokenizer, *[""] * (len(COLUMNS) - 4), "not yet")


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    save([])
