"""The one name of vllm.sampling_params that the engine child takes."""

from enum import IntEnum


class RequestOutputKind(IntEnum):
    FINAL_ONLY = 2
