"""Feeding the engine: nothing is lost or doubled, its cache is never promised twice, batches close in their order."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.decode.answer import Generation
from tasks.engine.generations import Answered, EngineInfo
from tasks.engine.kv_cache import KVCacheGroup, KVCacheLimits
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.prompts import Prompt
from tasks.ranking.feed import CALLS_AHEAD, STEPS_AHEAD, Feed, PendingPrompt
from tasks.schedule.rankings import RankingInProgress, Schedule, WindowKey
from tasks.schedule.ready import OpenWindow, ReadyWindows
from tasks.schedule.strategies.sliding import Sliding
from tasks.schedule.windows import Window
from tasks.settings import PackingSettings
from tasks.system.errors import EngineError

LIMITS = KVCacheLimits(
    num_gpu_blocks=101,
    block_size=16,
    max_num_seqs=6,
    max_num_batched_tokens=256,
    max_model_len=1024,
    groups=(KVCacheGroup("full_attention", 16),),
)


@dataclass
class QueueEngine:
    """Holds prompts until it is told which of them end; knows what it had at once."""

    driver: str
    info: EngineInfo = field(default_factory=lambda: EngineInfo(LIMITS, "none", "none", False))
    calls: list = field(default_factory=list)
    ended: list = field(default_factory=list)
    most_blocks: int = 0

    @property
    def prompts(self):
        return [prompt for call in self.calls for prompt in call]

    def submit(self, prompts):
        self.calls.append(list(prompts))
        blocks = [LIMITS.needed_blocks(each.prompt_tokens, each.max_tokens) for each in self.prompts]
        self.most_blocks = max(self.most_blocks, sum(blocks))

    def collect(self, choose=lambda prompts: prompts[:1]):
        chosen = choose(self.prompts) if self.driver == "stream" else list(self.calls[0])
        names = {each.request_id for each in chosen}
        self.calls = [left for call in self.calls if (left := [each for each in call if each.request_id not in names])]
        self.ended += names
        return Answered(tuple(make_generation(each.request_id) for each in chosen), 1.0, np.empty(0))


def make_generation(request_id):
    return Generation(request_id, "", "stop", 1, 0, None, None, None, 0)


def make_asked(number, num_tokens, max_tokens):
    ranking = RankingInProgress(number, 4, Schedule(Sliding(4, 2)))
    window = OpenWindow(ranking, WindowKey(0, 0), Window((0, 1, 2, 3)))
    ids = np.zeros(num_tokens, np.int32)
    return PendingPrompt(
        Prompt(f"q{number}", window.window, "first_token", ids, AnswerForm(max_tokens), 0, "", 0, 0), window
    )


works = st.lists(st.tuples(st.integers(1, 900), st.sampled_from([1, 1, 40])), min_size=1, max_size=40)


@given(works, st.sampled_from(["stream", "generate"]), st.integers(1, 3), st.randoms(use_true_random=False))
def test_every_prompt_is_asked_once_and_batches_close_in_their_order(work, driver, batch_loads, random):
    waiting = [make_asked(number, *each) for number, each in enumerate(work)]
    order = [each.prompt.request_id for each in waiting]
    engine = QueueEngine(driver)
    feed = Feed(engine, PackingSettings(batch_loads=batch_loads), driver)
    closed = []

    while waiting or not feed.is_empty:
        while waiting and feed.offer(waiting[0]):
            waiting.pop(0)
        feed.send()
        if driver == "stream":
            kinds = {prompt.max_tokens == 1 for prompt in engine.prompts}
            assert len(kinds) <= 1
            if kinds == {False} and len(engine.prompts) > 1:
                needed = sum(LIMITS.needed_blocks(each.prompt_tokens, each.max_tokens) for each in engine.prompts)
                assert needed <= LIMITS.usable_blocks
                assert len(engine.prompts) <= LIMITS.max_num_seqs
        else:
            assert len(engine.calls) <= CALLS_AHEAD
        closed += [[asked.prompt.request_id for asked, _ in batch.answered] for batch in feed.closed()]
        if not feed.is_idle:
            engine.collect = lambda: QueueEngine.collect(
                engine, lambda ps: random.sample(ps, random.randint(1, len(ps)))
            )
            feed.collect()

    assert sorted(engine.ended) == sorted(order)
    assert sorted(name for batch in closed for name in batch) == sorted(order)
    firsts = [min(order.index(name) for name in batch) for batch in closed]
    assert firsts == sorted(firsts)
    assert feed.is_idle


def test_one_token_prompts_wait_in_the_engine_for_a_few_steps_only():
    engine = QueueEngine("stream")
    feed = Feed(engine, PackingSettings(batch_loads=100), "stream")
    offered = 0
    while feed.offer(make_asked(offered, 64, 1)):
        offered += 1

    assert offered * 64 == STEPS_AHEAD * LIMITS.max_num_batched_tokens


def test_a_call_that_is_not_full_waits_while_the_engine_works_and_goes_when_it_does_not():
    engine = QueueEngine("generate")
    feed = Feed(engine, PackingSettings(batch_loads=1), "generate")
    numbers = iter(range(100))
    for _ in range(2):
        assert feed.offer(make_asked(next(numbers), 10, 1))
    feed.send()
    assert [len(call) for call in engine.calls] == [2]

    assert feed.offer(make_asked(next(numbers), 10, 1))
    feed.send()
    assert [len(call) for call in engine.calls] == [2]
    while feed.offer(make_asked(next(numbers), 10, 1)):
        pass
    feed.send()
    assert [len(call) for call in engine.calls] == [2, LIMITS.max_num_seqs]  # full: it waits behind the first

    feed.collect()
    feed.collect()
    assert [len(batch.answered) for batch in feed.closed()] == [2, LIMITS.max_num_seqs]
    feed.send()
    assert [len(call) for call in engine.calls] == [LIMITS.max_num_seqs]


@pytest.mark.fault(10)
@pytest.mark.parametrize("driver", ["stream", "generate"])
def test_what_an_engine_was_lost_with_is_told_from_what_it_had_not_come_to(driver):
    engine = QueueEngine(driver)
    feed = Feed(engine, PackingSettings(batch_loads=1), driver)
    asked = [make_asked(number, 10, 40) for number in range(2 * LIMITS.max_num_seqs)]
    admitted = [each.prompt.request_id for each in asked if feed.offer(each)]
    feed.send()
    answered = [pair[0].prompt.request_id for pair in feed.collect()] if driver == "stream" else []

    lost = feed.lose()

    suspects = [each.prompt.request_id for batch in lost.suspects for each in batch]
    untouched = [each.prompt.request_id for each in lost.untouched]
    assert sorted(answered + suspects + untouched) == sorted(admitted)
    assert len(lost.suspects) == 1
    assert [len(batch.answered) for batch in feed.closed()] == ([1] if answered else [])
    assert feed.is_empty
    if driver == "generate":
        assert suspects == admitted[: LIMITS.max_num_seqs]


@pytest.mark.fault(9)
def test_an_answer_that_nobody_asked_for_is_an_error():
    engine = QueueEngine("stream")
    feed = Feed(engine, PackingSettings(), "stream")
    feed.offer(make_asked(1, 10, 1))
    feed.send()
    engine.collect = lambda: Answered((make_generation("q7"),), 1.0, np.empty(0))

    with pytest.raises(EngineError, match="q7, which was not asked"):
        feed.collect()


def test_the_longest_way_to_go_comes_first_and_one_querys_windows_stay_together():
    ready = ReadyWindows()
    lengths = [20, 60, 20, 60]
    for number, length in enumerate(lengths):
        ranking = RankingInProgress(number, length, Schedule(Sliding(20, 10)))
        for key, window in ranking.open_windows():
            ready.push(OpenWindow(ranking, key, window), one_token=True)
    order = []
    while (each := ready.first(one_token=True)) is not None:
        ready.pop(one_token=True)
        order.append(each.ranking.query_index)

    assert order == [1, 3, 0, 2]
    assert len(ready) == 0


def test_one_kind_of_answer_is_asked_out_before_the_other_begins():
    ready = ReadyWindows()
    for number, one_token in enumerate([True, False, True]):
        ranking = RankingInProgress(number, 4, Schedule(Sliding(4, 2)))
        ((key, window),) = ranking.open_windows()
        ready.push(OpenWindow(ranking, key, window), one_token=one_token)

    assert ready.kind_after(one_token=False) is False
    assert ready.kind_after(one_token=True) is True
    assert ready.kind_after(one_token=None) is True
    ready.pop(one_token=False)
    assert ready.kind_after(one_token=False) is True
