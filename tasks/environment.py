"""Where the checkout is, and the environment variables that Prefect, vLLM and matplotlib read.

The variables are set before any of those is imported; packrank reads none of its own. What the caller has set already
stands, but for what keeps a night quiet and local. `prefect.yaml` repeats the ones that a worker's flow process needs
before its first line of ours runs.
"""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATE = ROOT / "var"


def checkout_path(path: str | Path) -> Path:
    """A relative path, taken from the checkout: the same file from whatever folder a command or worker starts."""
    return ROOT / path


def prefect_environment(state: Path = STATE) -> dict[str, str]:
    """Prefect's files under `state`, no telemetry, no prompts.

    3.7.7 ignores PREFECT_HOME for results and the memo store (PrefectHQ/prefect#23046), so those two are named.
    """
    home = state / "prefect"
    return {
        "PREFECT_HOME": str(home),
        "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(home / "storage"),
        "PREFECT_SERVER_MEMO_STORE_PATH": str(home / "memo_store.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "PREFECT_CLI_PROMPT": "false",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "tasks",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",  # a command logs before and after its flow as well
        "PREFECT_LOGGING_COLORS": "false",
        "DO_NOT_TRACK": "1",
    }


def engine_environment(state: Path, scratch: Path, *, model_is_folder: bool) -> dict[str, str]:
    """vLLM in one quiet process whose caches lie under `state` and whose temporary files lie in `scratch`."""
    scratch.mkdir(parents=True, exist_ok=True)
    hub = {"HF_HUB_OFFLINE": "1"} if model_is_folder else {}
    return hub | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in our child: nothing of vLLM's to orphan
        "TORCHDYNAMO_DISABLE": "1",  # else the first log-prob request on a CPU compiles C++ for 10 to 18 s
        "VLLM_CACHE_ROOT": str(state / "vllm"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore::FutureWarning",
        "MPLCONFIGDIR": str(state / "matplotlib"),
        "TMPDIR": str(scratch),  # a killed engine leaves vllm_dist_* files there
    }


def set_prefect_environment() -> None:
    """Fills in what the caller has not set; to be called before `import prefect`."""
    for name, value in prefect_environment().items():
        os.environ.setdefault(name, value)


def set_chart_environment(state: Path = STATE) -> None:
    """Fills in where matplotlib keeps its font list; to be called before `import matplotlib`."""
    os.environ.setdefault("MPLCONFIGDIR", str(state / "matplotlib"))
