"""Every key of vLLM's engine has been looked at: what it does to a run's identity and to its promises."""

import pytest

from tasks.engine.engine_options import engine_options
from tasks.settings import load_settings
from tasks.settings.engine_keys import CAPACITY, COMPUTED, PREEMPTING, REFUSED
from tasks.system.errors import ConfigError
from tests.makers import make_settings


@pytest.fixture
def settings_file(tmp_path):
    return make_settings(tmp_path, "models/sample", {"inputs.nested": "-"})


def test_a_key_is_listed_once_and_what_is_refused_is_listed():
    assert set() == COMPUTED & CAPACITY
    assert REFUSED.keys() | PREEMPTING.keys() <= COMPUTED | CAPACITY
    assert REFUSED.keys() & PREEMPTING.keys() == set()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gpu_memory_utilization", 0.5),
        ("num_gpu_blocks_override", 100),
        ("disable_hybrid_kv_cache_manager", True),
        ("max_num_active_seqs", 8),
        ("download_dir", "/models"),
        ("load_format", "runai_streamer"),
        ("safetensors_load_strategy", "prefetch"),
        ("compilation_config", {"cudagraph_mode": "NONE"}),
        ("cudagraph_capture_sizes", [1, 2]),
        ("cpu_offload_gb", 4.0),
        ("attention_backend", "FLASHINFER"),
        ("distributed_executor_backend", "mp"),
        ("device_ids", [1]),
        ("limit_mm_per_prompt", {"image": 0}),
        ("kv_cache_metrics", True),
    ],
)
def test_a_night_is_taken_up_on_another_machine_with_its_id(settings_file, key, value):
    """They were part of the identity: a night resumed on another GPU began anew."""
    moved = load_settings(settings_file, {f"engine.{key}": value})

    assert moved.ranking_settings() == load_settings(settings_file).ranking_settings()
    assert moved.engine_keywords()[key] == value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kv_cache_dtype", "fp8"),
        ("quantization", "fp8"),
        ("hf_overrides", {"rope_theta": 1e6}),
        ("model_impl", "transformers"),
        ("generation_config", "vllm"),
    ],
)
def test_what_changes_the_numbers_makes_another_run(settings_file, key, value):
    changed = load_settings(settings_file, {f"engine.{key}": value}).ranking_settings()

    assert changed != load_settings(settings_file).ranking_settings()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("load_format", "dummy", "the weights would be random"),
        ("convert", "classify", "needs a generative model"),
        ("hf_config_path", "other", "the files in the model's folder"),
        ("kv_sharing_fast_prefill", True, "log-probabilities of prompts would be wrong"),
        ("watermark_config", {"key": 1}, "moves the tokens"),
        ("data_parallel_rank", 1, "run shards instead"),
        ("tokens_only", True, "answers are read as text"),
        ("enable_lora", True, 'give lora = "folder"'),
        ("max_loras", 4, "one adapter"),
        ("enable_fault_tolerance", True, "only with data parallelism"),
    ],
)
def test_a_value_that_would_spoil_a_run_is_refused_with_the_reason(settings_file, key, value, words):
    with pytest.raises(ConfigError, match=words):
        load_settings(settings_file, {f"engine.{key}": value})


def test_a_token_of_the_model_hub_is_no_part_of_a_run_and_no_argument_of_vllms(tmp_path, settings_file):
    """vLLM logs its arguments at INFO and shows them in errors; Prefect stores overrides."""
    plain = load_settings(settings_file)
    settings_file.write_text(settings_file.read_text().replace("[engine]", '[engine]\nhf_token = "hf_s3cret"'))
    settings = load_settings(settings_file)

    options = engine_options(settings, "stream", tmp_path / "tmp", tmp_path / "engine.log")

    assert settings.ranking_settings() == plain.ranking_settings()
    assert "hf_s3cret" not in settings.stored_json() + repr(options.keywords)
    assert options.environment["HF_TOKEN"] == "hf_s3cret"
    with pytest.raises(ConfigError, match="Prefect would store the secret"):
        load_settings(settings_file, {"engine.hf_token": "hf_s3cret"})
