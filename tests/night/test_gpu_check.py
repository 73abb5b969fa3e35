"""The steps of `make gpu-check` on a fake engine: their settings, statements and what they look for."""

import pytest

from tests import gpu_check


def test_a_night_with_a_tiny_model_is_ranked(tmp_path, fake_vllm):
    fake_vllm()

    seen = gpu_check.night("qwen3", enforce_eager=True)(tmp_path, 300)

    assert seen.startswith("14 candidates ranked")
    assert seen.endswith("0 preemptions")


@pytest.mark.soak
def test_a_night_that_was_killed_leaves_no_engine(tmp_path, fake_vllm):
    fake_vllm(step_cost_s=(0.2, 0.0, 0.0))

    assert gpu_check.kill(tmp_path, 300).startswith("engine gone 0.")
