"""What a step records of itself: counts from behind the scheduler, and the time of its parts."""

from types import SimpleNamespace

import pytest

from tasks.engine import step_stats as timeline
from tasks.engine.step_stats import Filled, StepRecorder
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(timeline, "time", made)
    return made


def run_steps(clock, *parts_s, work_s=0.0):
    """Steps of an engine whose scheduler, output and block tables take so long."""
    recorder = StepRecorder()
    details = SimpleNamespace(num_ctx_requests=2, num_generation_requests=1, num_ctx_tokens=30, num_generation_tokens=1)
    allocate = recorder.block_tables.around(clock.sleep)
    schedule = recorder.schedule.around(lambda parts: clock.sleep(parts[0]) or allocate(parts[2]))
    update = recorder.update.around(lambda parts: clock.sleep(parts[1]))
    waiting = iter(parts_s)

    def step():
        parts = next(waiting)
        schedule(parts)
        recorder.scheduled(Filled(num_waiting_seqs=7, num_new_seqs=2, stored_tokens=61, blocks_used=3))
        clock.sleep(work_s)
        update(parts)
        recorder.record(SimpleNamespace(iteration_details=details), None)

    timed = recorder.timed(step)
    for _ in parts_s:
        timed()
    return recorder.take()


def test_a_steps_parts_are_timed_apart_from_the_models_work(clock):
    (step,) = run_steps(clock, (0.004, 0.002, 0.003), work_s=0.02)

    assert step.elapsed_ms == pytest.approx(29)
    assert step.schedule_ms == pytest.approx(7)
    assert step.update_ms == pytest.approx(2)
    assert step.block_table_ms == pytest.approx(3)
    assert (step.num_new_seqs, step.stored_tokens, step.num_waiting_seqs, step.blocks_used) == (2, 61, 7, 3)


def test_a_step_starts_with_clocks_at_zero(clock):
    first, second = run_steps(clock, (0.01, 0.01, 0.01), (0.0, 0.0, 0.0))

    assert first.schedule_ms == pytest.approx(20)
    assert second.schedule_ms == second.update_ms == 0.0
