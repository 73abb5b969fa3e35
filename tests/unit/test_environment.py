"""What the engine child is given, seen with the eyes of a host with a GPU and of one without."""

import os
from importlib import metadata
from pathlib import Path

import pytest

from tasks.engine.engine_options import engine_options
from tasks.settings import load_settings
from tasks.system import environment
from tasks.system.environment import MAX_SOCKET_PATH_BYTES, SOCKET_NAME_BYTES, engine_environment
from tests.makers import make_settings

OURS = {"VLLM_ENABLE_V1_MULTIPROCESSING", "TMPDIR"}


@pytest.fixture
def given(tmp_path, monkeypatch):
    """The environment that a child gets of a caller whose own is as told."""
    for name in engine_environment(tmp_path / "var", tmp_path / "tmp", model_is_folder=True, enforce_eager=True):
        monkeypatch.delenv(name, raising=False)

    def give(*, scratch=tmp_path / "tmp", model_is_folder=True, enforce_eager=False, is_cpu=False, **callers):
        for name, value in callers.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(metadata, "version", lambda name: "0.32.0+cpu" if is_cpu else "0.32.0")
        ours = engine_environment(
            tmp_path / "var", scratch, model_is_folder=model_is_folder, enforce_eager=enforce_eager
        )
        return {**os.environ, **ours}

    return give


@pytest.mark.parametrize(("is_cpu", "enforce_eager"), [(False, False), (False, True), (True, False)])
def test_dynamo_is_left_on_where_something_is_compiled(given, is_cpu, enforce_eager):
    """Off, vLLM 0.32 without enforce_eager raises 'aot_compile is not supported': every GPU preset is without."""
    assert "TORCHDYNAMO_DISABLE" not in given(is_cpu=is_cpu, enforce_eager=enforce_eager)


def test_dynamo_is_off_where_the_engine_is_eager_on_a_cpu_and_the_caller_says_nothing(given):
    assert given(is_cpu=True, enforce_eager=True)["TORCHDYNAMO_DISABLE"] == "1"
    assert given(is_cpu=True, enforce_eager=True, TORCHDYNAMO_DISABLE="0")["TORCHDYNAMO_DISABLE"] == "0"


def test_what_the_caller_set_stands_but_for_two(given, tmp_path):
    names = engine_environment(tmp_path / "var", tmp_path / "tmp", model_is_folder=True, enforce_eager=True)

    found = given(is_cpu=True, enforce_eager=True, **dict.fromkeys(names, "mine"))

    assert {name for name in names if found[name] != "mine"} == OURS


def test_a_hosts_own_variables_reach_the_engine(given):
    theirs = {
        "CUDA_VISIBLE_DEVICES": "3",
        "NCCL_P2P_DISABLE": "1",
        "HF_TOKEN": "t0ken",
        "HF_HOME": "/models/hub",
        "HTTPS_PROXY": "http://proxy:3128",
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64",
    }

    assert given(**theirs).items() >= theirs.items()


def test_the_hub_is_only_asked_for_a_model_that_lies_there(given):
    assert given(model_is_folder=True)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in given(model_is_folder=False)


def test_what_was_compiled_outlives_the_night(given, tmp_path):
    """TMPDIR goes with the run's scratch, and torch would keep its kernels there."""
    found = given()

    caches = {name: found[name] for name in found if name.endswith(("_CACHE_DIR", "_CACHE_ROOT"))}
    assert {"VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"} <= set(caches)
    assert all(Path(folder).is_relative_to(tmp_path / "var" / "vllm") for folder in caches.values())
    assert found["TMPDIR"] == str(tmp_path / "tmp")


@pytest.mark.parametrize("num_letters", [1, 120])
def test_workers_of_tensor_parallelism_meet_where_a_sockets_path_is_short_enough(given, tmp_path, num_letters):
    """A UNIX socket's path has at most 107 bytes; a checkout deep in a tree leaves no room for vLLM's 37."""
    scratch = tmp_path / ("x" * num_letters)

    found = given(scratch=scratch)

    assert found["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert len(found["VLLM_RPC_BASE_PATH"]) + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES
    assert Path(found["VLLM_RPC_BASE_PATH"]).is_dir()


def test_the_engines_options_say_whether_it_is_eager(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHDYNAMO_DISABLE", raising=False)
    monkeypatch.setattr(metadata, "version", lambda name: "0.32.0+cpu")

    def is_disabled(value):
        config = make_settings(tmp_path, tmp_path, {"inputs.nested": "-", "engine.enforce_eager": value})
        options = engine_options(load_settings(config), "stream", tmp_path / "tmp", tmp_path / "log")
        return "TORCHDYNAMO_DISABLE" in options.environment

    assert [is_disabled(value) for value in (True, False, None)] == [True, False, False]


@pytest.mark.parametrize(
    ("flags", "asked", "computed_in"),
    [
        ("avx2", None, "float32"),
        ("avx2", "auto", "float32"),
        ("avx2", "bfloat16", "bfloat16"),
        ("avx512_bf16", None, None),
        ("fphp asimdhp i8mm bf16", None, None),
    ],
)
def test_a_cpu_without_bfloat16_computes_in_float32_unless_told_otherwise(
    tmp_path, monkeypatch, flags, asked, computed_in
):
    """AMD EPYC Milan: 1,464 ms for 1024 x 576 x 1536 in bfloat16, 21 ms in float32."""
    (tmp_path / "cpuinfo").write_text(f"flags : sse4_2 {flags}\n")
    monkeypatch.setattr(environment, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(metadata, "version", lambda name: "0.32.0+cpu")
    config = make_settings(tmp_path, tmp_path, {"inputs.nested": "-", "engine.dtype": asked})

    options = engine_options(load_settings(config), "stream", tmp_path / "tmp", tmp_path / "log")

    assert options.keywords.get("dtype") == computed_in
