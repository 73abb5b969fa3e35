"""What an engine child is started with, from the settings."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tasks.engine.lora_adapter import read_lora_adapter
from tasks.engine.messages import Driver
from tasks.settings import Settings
from tasks.system.environment import STATE, cache_environment, checkout_path, emulates_bfloat16, engine_environment

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How to start the child, and how long it may take."""

    keywords: Mapping[str, Any]  # of vllm.LLM
    environment: Mapping[str, str]
    log_path: Path
    start_timeout_s: float
    batch_timeout_s: float
    driver: Driver = "stream"
    timeline: bool = False  # whether every step is recorded
    lora: str | None = None  # the folder of the adapter that every prompt uses
    draws: bool = False  # whether tokens are drawn, with a seed

    @property
    def caches(self) -> str:
        """The folder of vLLM's caches; the caller's environment has it where ours does not set it."""
        return self.environment.get("VLLM_CACHE_ROOT") or os.environ["VLLM_CACHE_ROOT"]

    def with_empty_caches(self) -> "EngineOptions":
        """The same with caches of its own, among its temporary files."""
        empty = cache_environment(Path(self.environment["TMPDIR"]) / "caches")
        return replace(self, environment={**self.environment, **empty})


def engine_options(settings: Settings, driver: Driver, scratch: Path, log_path: Path) -> EngineOptions:
    """How the settings start an engine that is fed by `driver`; its temporary files go to `scratch`."""
    folder = checkout_path(settings.engine.model)
    keywords = settings.engine_keywords() | ({"model": str(folder)} if folder.is_dir() else {})
    adapter = None if settings.engine.lora is None else read_lora_adapter(checkout_path(settings.engine.lora))
    environment = engine_environment(
        STATE, scratch, model_is_folder=folder.is_dir(), enforce_eager=keywords.get("enforce_eager") is True
    )
    if keywords.get("dtype", "auto") == "auto" and emulates_bfloat16():  # vLLM takes float32 weights as bfloat16, too
        logger.info(
            "dtype=float32: this CPU would emulate bfloat16, some 69 times slower. Set [engine] dtype to override."
        )
        keywords["dtype"] = "float32"
    if isinstance(keywords.get("hf_token"), str):  # vLLM logs its arguments, and an error may show them
        environment["HF_TOKEN"] = keywords.pop("hf_token")
    return EngineOptions(
        keywords=keywords if adapter is None else keywords | adapter.engine_keywords,
        environment=environment,
        log_path=log_path,
        start_timeout_s=settings.packing.start_timeout_s,
        batch_timeout_s=settings.packing.batch_timeout_s,
        driver=driver,
        timeline=settings.packing.timeline,
        lora=None if adapter is None else str(adapter.folder),
        draws=settings.prompt.sampling is not None and settings.prompt.sampling.temperature > 0.0,
    )
