"""What the arms of a study measured, as the database has it: claims, tables and the page all read from here.

Counts are those of an arm's first run, times those of all its repeats. Knows nothing of verdicts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.engine.benchmark_table import table_of_run
from tasks.study.arm_runs import Study
from tasks.study.arms import Arm
from tasks.study.claims.verdicts import Spread

Row = dict[str, Any]
FIRST_STEPS = 6  # of an arm, shown one by one


@dataclass(frozen=True, slots=True)
class ArmFigures:
    """One arm: for each repeat its rows of study/arm, summary/serving and study/full_steps."""

    arm: Arm
    run_ids: tuple[str, ...]
    rows: tuple[Row, ...]
    serving: tuple[Row, ...]
    full_steps: tuple[Mapping[str, Sequence[float]], ...]
    first_steps: tuple[Row, ...]  # of the first repeat
    quality: Mapping[str, float]  # query_id -> nDCG@10, of the first repeat

    @property
    def values(self) -> Row:
        """Of the first repeat: what is counted."""
        return self.rows[0]

    @property
    def label(self) -> str:
        """The way of asking, as tables call it."""
        return self.arm.asking.label

    @property
    def num_tokens(self) -> int:
        """Prompt and answers."""
        return int(self.values["prompt_tokens"] + self.values["output_tokens"])

    def spread(self, column: str, divisor: float = 1.0) -> Spread:
        """A column of every repeat; a run without a timeline counts as 0."""
        return Spread(tuple((row[column] or 0.0) / divisor for row in self.rows))

    def num_blocks(self, block_size: int) -> int:
        """Of all sequences; `block_size` is the engine's, or 16."""
        return int(self.values["blocks_of_16"] if block_size == 16 else self.values["blocks_used"])

    def used_share(self, block_size: int) -> float:
        """Places with a token, of all places of the sequences' blocks."""
        blocks = self.num_blocks(block_size)
        return float(self.values["used_places"] / (blocks * block_size)) if blocks else 0.0

    def reserved_share(self, max_model_len: int) -> float:
        """Places with a token, had each sequence reserved the longest length."""
        places = self.values["num_sequences"] * max_model_len
        return float(self.values["used_places"] / places) if places else 0.0

    def broken_rules(self) -> list[str]:
        """What its benchmark tables say that cannot be true."""
        return [told for row in self.serving for told in table_of_run(row).broken_rules()]


@dataclass(frozen=True, slots=True)
class Figures:
    """All arms of a study."""

    study: Study
    arms: tuple[ArmFigures, ...]

    def under(self, condition: str) -> list[ArmFigures]:
        """The arms of a condition; none where the study has no such condition."""
        return [each for each in self.arms if each.arm.condition.name == condition]

    def find(self, asking: str, condition: str) -> ArmFigures | None:
        """One arm."""
        return next((each for each in self.under(condition) if each.arm.asking.name == asking), None)

    @property
    def conditions(self) -> list[str]:
        """Their names, in the order of the arms."""
        return list(dict.fromkeys(each.arm.condition.name for each in self.arms))

    @property
    def few_at_once(self) -> list[str]:
        """The conditions with a number of queries in flight."""
        return list(dict.fromkeys(each.arm.condition.name for each in self.arms if each.arm.condition.queries_at_once))


def read_figures(study: Study) -> Figures:
    """Reads every arm's figures."""
    by_arm: dict[Arm, list[str]] = {}
    for run in study.runs:
        by_arm.setdefault(run.arm, []).append(run.run_id)
    with study.store.reader() as database:

        def rows_of(name: str, run_id: str, **parameters: object) -> list[Row]:
            rows: list[Row] = database.query(f"study/{name}", {"run_id": run_id} | parameters).to_pylist()
            return rows

        arms = [
            ArmFigures(
                arm=arm,
                run_ids=tuple(run_ids),
                rows=tuple(rows_of("arm", run_id)[0] for run_id in run_ids),
                serving=tuple(
                    database.query("summary/serving", {"run_id": run_id}).to_pylist()[0] for run_id in run_ids
                ),
                full_steps=tuple(
                    database.query("study/full_steps", {"run_id": run_id}).to_pydict() for run_id in run_ids
                ),
                first_steps=tuple(rows_of("first_steps", run_ids[0], num_steps=FIRST_STEPS)),
                quality={row["query_id"]: row["value"] for row in rows_of("quality", run_ids[0])},
            )
            for arm, run_ids in by_arm.items()
        ]
    return Figures(study, tuple(arms))
