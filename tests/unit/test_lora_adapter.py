"""A LoRA adapter: what is told of it before weights load, and that each run knows the one that it was ranked with."""

import json

import pytest

from tasks.engine.lora_adapter import read_lora_adapter, require_base_model
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.system.errors import ConfigError
from tests.makers import WIDTH, make_adapter, make_inputs, make_settings


@pytest.fixture
def base(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text(json.dumps({"hidden_size": 64, "num_hidden_layers": 2}))
    return tmp_path / "base"


@pytest.mark.parametrize(
    ("config", "max_lora_rank"), [({}, 8), ({"r": 64}, 64), ({"r": 8, "rank_pattern": {"q_proj": 33}}, 64)]
)
def test_memory_is_taken_for_the_rank_that_the_adapter_has(tmp_path, base, config, max_lora_rank):
    adapter = read_lora_adapter(make_adapter(tmp_path / "adapter", **config))

    require_base_model(adapter, base)

    assert adapter.engine_keywords == {"enable_lora": True, "max_loras": 1, "max_lora_rank": max_lora_rank}


def damaged(folder, name, content):
    (make_adapter(folder) / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: folder, "no such folder"),
        (lambda folder: folder.mkdir() or folder, "no adapter_model.safetensors in it"),
        (lambda folder: damaged(folder, "adapter_config.json", b"{"), "not readable as JSON"),
        (lambda folder: damaged(folder, "adapter_config.json", b"\xff"), "not readable as UTF-8"),
        (
            lambda folder: damaged(folder, "adapter_model.safetensors", b"torn"),
            "adapter_model.safetensors: not readable",
        ),
        (lambda folder: make_adapter(folder, peft_type="IA3"), "peft_type = 'IA3', expected 'LORA'"),
        (lambda folder: make_adapter(folder, r="4"), "expected whole numbers from 1 to 512"),
        (lambda folder: make_adapter(folder, r=1024), "expected whole numbers from 1 to 512"),
        (lambda folder: make_adapter(folder, width=32), r"made for another model \(tiny\).*2 layers of width 64"),
        (lambda folder: make_adapter(folder, layer=2), r"made for another model \(tiny\).*2 layers of width 64"),
    ],
)
def test_an_adapter_that_cannot_work_is_one_clear_line(tmp_path, base, make, words):
    with pytest.raises(ConfigError, match=words) as refused:
        require_base_model(read_lora_adapter(make(tmp_path / "adapter")), base)

    assert "\n" not in str(refused.value)


@pytest.fixture
def night(tmp_path, model_folder):
    inputs = make_inputs(tmp_path / "in", [3, 4])

    def prepare(name, **values):
        (tmp_path / name).mkdir(exist_ok=True)
        config = make_settings(tmp_path / name, model_folder, inputs | values)
        return prepare_night(NightRequest(config=config))

    return prepare


def test_the_adapter_is_part_of_the_runs_identity_wherever_it_lies(tmp_path, night):
    plain = night("plain").base_run_id
    first = night("first", **{"engine.lora": str(make_adapter(tmp_path / "a", width=WIDTH))})
    moved = night("moved", **{"engine.lora": str(make_adapter(tmp_path / "b", width=WIDTH))})
    other = night("other", **{"engine.lora": str(make_adapter(tmp_path / "c", width=WIDTH, fill=2.0))})

    assert first.base_run_id == moved.base_run_id
    assert len({plain, first.base_run_id, other.base_run_id}) == 3
    assert first.recipe.digest != other.recipe.digest  # no row of one is reused by the other
