"""The one name of vllm.sampling_params that the engine child takes."""

from enum import Enum


class RequestOutputKind(Enum):
    FINAL_ONLY = 2
