"""Nights killed by SIGKILL again and again at drawn moments end as if they had never been disturbed.

make soak SEED=7    # 50 kills with the fake engine and 5 with the real one; `make test` has 10 with the fake
"""

import functools
import itertools
import json
import os
import random
import re
import signal
import time
from dataclasses import dataclass

import pytest

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tests.makers import SAMPLE_MODEL
from tests.soak.moments import PHASES, Moment, draw_moments
from tests.soak.nights import (
    LISTS,
    Committed,
    SoakNight,
    asked_batches,
    engines_of,
    make_ragged_inputs,
    num_begun,
    require_kept,
    sizes_of,
)
from tests.soak.starts import NIGHT, Starter

# One batch is being made durable, one is answered and waits for that, and the engine is at a third: a killed night asks
# three again at the most. A killed engine costs only the batch it was at: those before are committed meanwhile.
LOST_BY_A_KILLED_NIGHT = 3
LOST_BY_A_KILLED_ENGINE = 1
# Driver `stream`, in prompts: two such batches of two, and as many as a load of the engine has, answered out of turn or not.
LOST_BY_A_KILLED_STREAM = 8

SMALL_BATCHES = {
    "packing.driver": "generate",
    "packing.cohort_queries": 4,
    "packing.batch_loads": 1,
    "engine.max_num_seqs": 2,
    "store.load_every_s": 1,
    "store.max_load_share": 1,
}
BATCH_S = 0.08


@dataclass(frozen=True, slots=True)
class Kind:
    """A night to be killed."""

    publish: bool
    settings: dict[str, object]
    fake: dict[str, object] | None  # None: the real engine
    lists: tuple[int, ...] = tuple(LISTS)

    @property
    def streams(self):
        return self.settings.get("packing.driver") == "stream"


KINDS = {
    "published": Kind(True, SMALL_BATCHES, {"batch_s": BATCH_S}),
    "kept": Kind(  # not published, so outcomes can be compared too; a third of the answers are none, and asked again
        False,
        SMALL_BATCHES
        | {"strategy.name": "tdpart", "strategy.decode_mode": "permutation", "strategy.top_k": 2}
        | {"checks.max_fallback_share": 1.0, "checks.max_partial_share": 1.0},
        {"batch_s": BATCH_S, "answers": ["[2] > [1] > [3] > [4]", "[4] > [3] > [2] > [1]", "no"]},
    ),
    "streamed": Kind(  # batches overlap in the engine, and close in the order in which they were opened
        True,
        SMALL_BATCHES
        | {"packing.driver": "stream", "strategy.decode_mode": "permutation"}
        | {"checks.max_fallback_share": 1.0, "checks.max_partial_share": 1.0},
        {"batch_s": BATCH_S / 2, "answers": ["[2] > [1] > [3] > [4]", "[3] > [2]", "no"]},
    ),
    "real": Kind(
        True,
        {"packing.driver": "stream", "packing.deterministic": True}
        | {"packing.batch_loads": 1, "packing.cohort_queries": 4, "store.load_every_s": 1, "store.max_load_share": 1}
        | {"engine.enforce_eager": True, "engine.kv_cache_memory_bytes": 256 << 20},
        None,
        (0, 1, 6, 5, 9, 7),
    ),
}


class Soak:
    """Nights of one kind on one input, each in a folder and a database of its own."""

    def __init__(self, folder, starter, model, kind):
        self._folder, self._starter, self._model = folder, starter, model
        self.kind = kind
        self._inputs = make_ragged_inputs(folder / "in", kind.lists)
        self._num_nights = 0

    def night(self, **settings):
        self._num_nights += 1
        values = self._inputs | self.kind.settings | {name.replace("__", "."): each for name, each in settings.items()}
        return SoakNight(self._folder / f"night{self._num_nights}", self._model, values)

    def begin(self, night, log=None, moment=None, steps=None, **fake):
        told = None if self.kind.fake is None else self.kind.fake | {"log": str(log)} | fake
        self._starter.begin(night.folder, publish=self.kind.publish, fake=told, moment=moment, steps=steps)

    def end(self):
        return self._starter.end()

    def has_ended(self, within_s):
        return self._starter.has_ended(within_s)

    def wait_for_engine(self, night, known):
        """The process id of an engine child that is not known yet; None if the start ends without."""
        while not self.has_ended(0.005):
            found = set(engines_of(night.folder)) - set(known)
            if found:
                return found.pop()
        return None

    @functools.cached_property
    def undisturbed(self):
        """The rows that every night must end with, and life and steps of one start."""
        night = self.night()
        self.begin(night, log := night.folder / "asked", steps=night.folder / "steps")
        ended = self.end()
        assert ended.exit_code == 0, night.start_log()
        night.require_clean()
        prompts = [prompt for batch in asked_batches(log) for prompt in batch]
        assert len(set(prompts)) == len(prompts), "two windows have one prompt: a second asking cannot be told apart"
        return night.final_rows(), ended.life_s, (night.folder / "steps").read_text(encoding="utf-8").splitlines()

    def start(self, night, log, moment):
        """One start, killed at the moment unless it ends before."""
        self.begin(night, log, moment)
        if moment.phase is None and not self._starter.has_ended(moment.after_s):
            self._starter.kill()
        return self.end()


@pytest.fixture(scope="module")
def starter():
    made = Starter()
    yield made
    made.close()


@pytest.fixture(scope="module")
def soak(tmp_path_factory, starter, model_folder):
    @functools.cache
    def make(kind):
        model = SAMPLE_MODEL if KINDS[kind].fake is None else model_folder
        return Soak(tmp_path_factory.mktemp(kind), starter, model, KINDS[kind])

    return make


def require_asked_once(log, before, after, done, *, streams):
    """Of one start: its committed batches are the first that it asked, and none of their prompts was committed before.

    Returns:
        How much it asked for nothing: batches, or prompts of a stream.
    """
    batches = asked_batches(log)
    new = after.asked_batches[len(before.asked_batches) :]
    prompts = [prompt for batch in batches for prompt in batch]
    kept = prompts[: sum(num_prompts for num_prompts, _ in new)]
    if streams:  # a step of the engine is no batch
        assert sum(map(len, kept)) == sum(num_tokens for _, num_tokens in new)
    else:
        assert sizes_of(batches)[: len(new)] == new
    assert not done & set(prompts), "a committed window was asked again"
    assert len(set(prompts)) == len(prompts)
    done.update(kept)
    return len(prompts) - len(kept) if streams else max(len(batches), num_begun(log)) - len(new)


def kill_until(soak, num_kills, seed, told):
    """Nights one after the other, each killed and started again until it ends by itself; `told` collects what was done."""
    whole, life_s, steps = soak.undisturbed
    moments = draw_moments(seed, num_kills, life_s, steps)
    told |= {"life_s": round(life_s, 2), "steps": len(steps), "nights": []}
    kills = 0
    while kills < num_kills:
        night = soak.night()
        struck = []
        told["nights"].append(struck)
        done, before, has_ended, starts = set(), Committed({}, {}), False, 0
        while not has_ended:
            moment = next(moments) if kills < num_kills else Moment(600.0)
            log = night.folder / f"asked-{starts}"
            starts += 1
            struck.append(str(moment))
            ended = soak.start(night, log, moment)
            gone_s = night.require_nothing_left_running()
            after = night.committed()
            require_kept(before, after)
            if soak.kind.fake is not None:
                streams = soak.kind.streams
                lost = require_asked_once(log, before, after, done, streams=streams)
                most = LOST_BY_A_KILLED_STREAM if streams else LOST_BY_A_KILLED_NIGHT
                assert lost <= (most if ended.was_killed else 0), lost
                told["lost"] = told.get("lost", 0) + lost
            told["gone_s"] = round(max(told.get("gone_s", 0.0), gone_s), 3)
            before, has_ended = after, not ended.was_killed
            kills += ended.was_killed
            assert ended.was_killed or ended.exit_code == 0, f"exit code {ended.exit_code}\n{night.start_log()}"
        struck.pop()  # the moment that was not reached
        night.require_clean()
        assert night.final_rows() == whole
    return kills


@pytest.mark.fault(10, 11, 12, 14, 63, 86)
@pytest.mark.parametrize(
    ("kind", "share"),
    [("published", 0.3), ("kept", 0.3), ("streamed", 0.4), pytest.param("real", None, marks=pytest.mark.soak)],
)
def test_a_night_killed_at_any_moment_ends_as_if_it_never_was(soak, request, kind, share):
    seed = request.config.getoption("seed")
    num_kills = 5 if share is None else round(request.config.getoption("kills") * share)
    told = {"soak": kind, "seed": seed, "kills": num_kills}
    began = time.monotonic()
    try:
        assert kill_until(soak(kind), num_kills, seed, told) == num_kills
    finally:  # pytest shows it with a failure: the same seed draws the same moments again
        print(json.dumps(told | {"took_s": round(time.monotonic() - began, 1)}))


def test_a_night_killed_between_its_last_query_and_its_checks_is_measured_and_checked_by_the_next_start(soak):
    """It is complete then, and nobody asks to publish it: yet it is not done."""
    soak = soak("kept")
    whole, _, steps = soak.undisturbed
    in_publish = [step for step in steps if re.search(PHASES["publish"], step)]
    after_the_end = in_publish.index("statement runs/complete_run") + 1
    night = soak.night()

    assert soak.start(night, night.folder / "asked", Moment(0.0, "publish", after_the_end)).was_killed
    assert night.final_rows()["runs"][0]["status"] == "complete"
    assert soak.start(night, night.folder / "asked-again", Moment(600.0)).exit_code == 0

    assert night.final_rows() == whole


@pytest.mark.fault(10, 14, 88)
def test_engines_killed_at_any_moment_are_replaced_and_cost_the_batch_they_were_at(soak, request):
    """Also while a later one starts, and between two batches."""
    seed, num_kills = request.config.getoption("seed"), max(4, request.config.getoption("kills") // 5)
    rng = random.Random(seed)
    soak = soak("published")
    whole, life_s, _ = soak.undisturbed
    night = soak.night(packing__max_engine_starts=num_kills + 1)
    moments = [rng.uniform(0.0, life_s / num_kills) for _ in range(num_kills)]
    print(json.dumps({"soak": "engines", "seed": seed, "moments_s": moments}))

    soak.begin(night, log := night.folder / "asked")
    while not (num_begun(log) or soak.has_ended(0.005)):
        pass
    killed = []
    for after_s in moments:
        engine = soak.wait_for_engine(night, killed)
        if engine is None or soak.has_ended(after_s):
            break
        try:
            os.kill(engine, signal.SIGKILL)
        except ProcessLookupError:  # the night has just ended it
            break
        killed.append(engine)
    ended = soak.end()

    assert ended.exit_code == 0, night.start_log()
    assert num_kills >= len(killed) > 0
    require_lost_at_most(log, night, len(killed) * LOST_BY_A_KILLED_ENGINE)
    night.require_nothing_left_running()
    assert night.final_rows() == whole


@pytest.mark.fault(10)
def test_an_engine_that_dies_between_two_batches_is_replaced(soak, fake_vllm):
    """Nobody waits for it then: it is the next batch that finds its pipe closed."""
    night = soak("published").night(inputs__qrels=None)
    killed = []

    def kill_once(progress):
        if progress.num_asked and not killed:
            killed.extend(engines_of(night.folder))
            os.kill(killed[0], signal.SIGKILL)
            while engines_of(night.folder):
                time.sleep(0.005)

    run_night(prepare_night(NightRequest(config=night.folder / "nightly.toml", night=NIGHT, publish=True)), kill_once)

    assert len(killed) == 1
    assert len(night.committed().tables["rankings"]) == len(LISTS)


@pytest.mark.fault(47, 88)
def test_an_engine_that_hangs_anywhere_is_killed_and_its_batch_asked_again(soak, request):
    seed = request.config.getoption("seed")
    soak = soak("published")
    whole, _, _ = soak.undisturbed
    night = soak.night(packing__batch_timeout_s=3)

    soak.begin(night, log := night.folder / "asked", hang_at=random.Random(seed).randrange(10))
    ended = soak.end()

    assert ended.exit_code == 0, night.start_log()
    require_lost_at_most(log, night, LOST_BY_A_KILLED_ENGINE)
    assert num_begun(log) == len(night.committed().asked_batches) + 1
    night.require_nothing_left_running()
    assert night.final_rows() == whole


def require_lost_at_most(log, night, most):
    """A batch is asked again only next after itself, and not more often than that."""
    batches = asked_batches(log)
    kept = [batch for batch, following in itertools.pairwise([*batches, None]) if batch != following]
    assert sizes_of(kept) == night.committed().asked_batches
    prompts = [prompt for batch in kept for prompt in batch]
    assert len(set(prompts)) == len(prompts)
    assert num_begun(log) - len(kept) <= most
