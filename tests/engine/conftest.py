"""Real engines beside each other."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def _a_core_for_each_worker(worker_id):
    """Engines that share cores wait for each other's threads: 222 s for a test that takes 44 alone."""
    if worker_id == "master":
        yield
        return
    cores = sorted(os.sched_getaffinity(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", str(cores[int(worker_id.removeprefix("gw")) % len(cores)]))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
