"""A strategy is one file and its name, a decode mode is one file and its name: nothing else knows them."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.makers import ROOT, make_inputs, make_settings

pytestmark = pytest.mark.slow  # one engine child

PODIUM = '''
"""Asks who is best of the first few; a strategy that only this test knows."""

from dataclasses import dataclass, replace
from typing import Literal, Self

from tasks.schedule.seeds import Seed
from tasks.schedule.strategies.named import Count, NamedStrategy, Size, StrategySizes
from tasks.schedule.windows import NOTHING, Bound, Ranked, Rounds, Window


@dataclass(frozen=True, slots=True)
class Podium(NamedStrategy):
    """Orders the head of the list, as often as it is told."""

    window_size: Size = 20
    ceremonies: Count = 1
    name: Literal["podium"] = "podium"

    def rounds(self, num_candidates: int, seed: Seed) -> Rounds:
        """Each round orders what the one before left at the head."""
        order = list(range(num_candidates))
        if num_candidates > 1:
            for _ in range(self.ceremonies):
                (outcome,) = yield [Window(tuple(order[: self.window_size]))]
                order[: self.window_size] = outcome.order
        return Ranked(tuple(order))

    def bound(self, num_candidates: int) -> Bound:
        """Exact."""
        one = Bound(1, min(num_candidates, self.window_size), 1)
        return NOTHING if num_candidates < 2 else one.times(self.ceremonies, also_rounds=True)

    def sized(self, sizes: StrategySizes) -> Self:
        """The head is a window."""
        return replace(self, window_size=sizes.window_size)
'''
LAST_LETTER = '''
"""Reads which letter is least likely; a decode mode that only this test knows."""

from dataclasses import replace

from tasks.decode.answer import DecodeMode, Reading
from tasks.decode.letters import fit_identifiers
from tasks.prompt.answer_forms import AnswerForm
from tasks.schedule.windows import Outcome


class LastLetter(DecodeMode):
    """The least likely letter ranks first."""

    name = "last_letter"
    question = "order"
    identifiers = ("letters",)

    def _fit(self, template, chat):
        self.identifier_form = fit_identifiers(self._tokens, template, chat)
        return self.identifier_form.template

    def form(self, window):
        return AnswerForm(1, self.identifier_form.token_ids[: len(window.docs)])

    def read(self, prompt, generation, prior=None):
        places = sorted(range(len(prompt.window.docs)), key=generation.logprobs.__getitem__)
        order = tuple(prompt.window.docs[place] for place in places)
        return Reading(Outcome(order, len(order)), "ok", id_mass=1.0)

    def pretend(self, prompt):
        return replace(super().pretend(prompt), logprobs=tuple(map(float, prompt.window.docs)))
'''
RUN = """
import json, sys
from datetime import date
from pathlib import Path
from tasks.system.errors import ConfigError
from tasks.nightly.night import run_night
from tasks.nightly.outlook import VARIANTS
from tasks.tools.plan import CacheAssumption, plan_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.nightly.run_choice import store_of
from tasks.study.simulation import CONTENDERS, SimulationRequest, simulate

def prepare(**overrides):
    return prepare_night(NightRequest(config=Path(sys.argv[1]), night=date(2026, 11, 29), publish=True, overrides=overrides))

told = {"file": __import__("tasks").__file__}
for wrong in ({"strategy.name": "sliding"}, {"strategy.podium.ceremonies": 0}, {"strategy.decode_mode": "select"}):
    try:
        prepare(**wrong)
    except ConfigError as error:
        told["refused"] = [*told.get("refused", []), str(error)]
prepared = prepare()
told["resolved"] = prepared.recipe.resolved["strategy"]
told["planned"] = dict(plan_night(prepared, CacheAssumption())[0].texts)["prompts"]
run_night(prepared)
with store_of(prepared).unit_of_work() as database:
    told["run"] = database.query_text("select status, strategy, decode_mode from runs").to_pylist()
    told["windows"] = database.query_text(
        "select query_id, round, len(docs) as docs, decode_mode, num_listed from windows order by all").to_pylist()
    told["scores"] = database.query_text("select count(*) as n from latest_scores").to_pylist()
told["compared"] = [each.label for _, each in VARIANTS]
mine = [each for each in CONTENDERS if each.name == "podium"]
told["simulated"] = [each.windows for each in simulate(SimulationRequest(queries=2, candidates=30), mine).standings]
print(json.dumps(told))
"""


@pytest.fixture
def checkout(tmp_path):
    """A copy of what a night reads."""
    for name in ("tasks", "sql", "configs"):
        shutil.copytree(ROOT / name, tmp_path / "checkout" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "checkout"


def add_line(path, before, line):
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1
    path.write_text(text.replace(before, line + before), encoding="utf-8")


def changed_files(checkout):
    """Source files that differ from ours, or are new."""
    return {
        str(path.relative_to(checkout))
        for path in checkout.rglob("*.py")
        if not (ROOT / path.relative_to(checkout)).exists()
        or (ROOT / path.relative_to(checkout)).read_bytes() != path.read_bytes()
    }


def test_a_new_strategy_and_a_new_decode_mode_rank_a_night_and_touch_two_files_each(
    checkout, tmp_path, model_folder, fake_vllm
):
    strategies, decode = checkout / "tasks" / "schedule" / "strategies", checkout / "tasks" / "decode"
    (strategies / "podium.py").write_text(PODIUM, encoding="utf-8")
    add_line(strategies / "__init__.py", "\nAnyStrategy = ", "from tasks.schedule.strategies.podium import Podium\n")
    add_line(strategies / "__init__.py", "Pointwise | Single", "Podium | ")
    of_strategy = changed_files(checkout)
    (decode / "last_letter.py").write_text(LAST_LETTER, encoding="utf-8")
    add_line(
        decode / "__init__.py", "from tasks.decode.letters import", "from tasks.decode.last_letter import LastLetter\n"
    )
    add_line(decode / "__init__.py", "FirstToken, Permutation", "LastLetter, ")
    of_both = changed_files(checkout)
    values = {
        "strategy.name": "podium",
        "strategy.podium.ceremonies": 2,
        "strategy.decode_mode": "last_letter",
        "strategy.stride": None,
        "prompt.template": str(checkout / "configs/prompts/first_token.toml"),
        "packing.driver": "stream",
    }
    config = make_settings(tmp_path, model_folder, make_inputs(tmp_path / "in", [0, 1, 3, 7]) | values)

    answer = subprocess.run(
        [sys.executable, "-c", RUN, str(config)],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(checkout), os.environ["PYTHONPATH"]])},
        capture_output=True,
        text=True,
    )

    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout.splitlines()[-1])
    assert told["file"].startswith(str(checkout))
    assert of_strategy == {"tasks/schedule/strategies/__init__.py", "tasks/schedule/strategies/podium.py"}
    assert of_both - of_strategy == {"tasks/decode/__init__.py", "tasks/decode/last_letter.py"}
    other, few, asked = told["refused"]
    assert "podium is set, but the strategy is sliding" in other
    assert "[strategy] podium.ceremonies = 0: expected a whole number of 1 or more" in few
    assert "which needs last_letter or first_token or permutation or reasoning" in asked
    assert told["resolved"] == {"name": "podium", "window_size": 4, "ceremonies": 2}
    assert told["planned"] == "4"
    assert told["run"] == [{"status": "published", "strategy": "podium", "decode_mode": "last_letter"}]
    assert told["windows"] == [
        {"query_id": query, "round": number, "docs": size, "decode_mode": "last_letter", "num_listed": size}
        for query, size in (("q002", 3), ("q003", 4))
        for number in (0, 1)
    ]
    assert told["scores"] == [{"n": 11}]
    assert "podium" in told["compared"]
    assert told["simulated"] == [1.0]
