"""A night whose every prompt uses a LoRA adapter."""

import pytest

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tests.makers import WIDTH, make_adapter, make_inputs, make_settings, select


@pytest.fixture
def night(tmp_path, model_folder):
    inputs = make_inputs(tmp_path / "in", [3, 4])

    def prepare(name, **values):
        (tmp_path / name).mkdir(exist_ok=True)
        config = make_settings(tmp_path / name, model_folder, inputs | values)
        return prepare_night(NightRequest(config=config))

    return prepare


@pytest.mark.parametrize("driver", ["stream", pytest.param("generate", marks=pytest.mark.soak)])
def test_every_prompt_of_a_night_uses_the_adapter(tmp_path, night, fake_vllm, driver):
    fake_vllm()
    found = {}
    for name, values in (
        ("plain", {}),
        ("tuned", {"engine.lora": str(make_adapter(tmp_path / "adapter", width=WIDTH))}),
    ):
        prepared = night(name, **{"packing.driver": driver} | values)
        run_night(prepared)
        found[name] = select(prepared, "select query_id, doc_id, model_score from scores order by query_id, doc_id")

    assert len(found["plain"]) == len(found["tuned"]) == 7
    assert all(a["model_score"] != b["model_score"] for a, b in zip(found["plain"], found["tuned"], strict=True))
