"""The KV budget: a batch never needs more blocks than there are, and what was used is counted to the token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.decode.answer import Generation, RequestTimes
from tasks.engine.batches import Packer, pack
from tasks.engine.kv_cache import BatchBudget, KVCacheGroup, KVCacheLimits, batch_budget, check_promise
from tasks.system.errors import ConfigError
from tests.makers import make_prompt


def make_limits(**given):
    base = {
        "num_gpu_blocks": 101,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "max_model_len": 512,
        "groups": (KVCacheGroup("full_attention", 16),),
    }
    return KVCacheLimits(**(base | given))


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "blocks"),
    [(15, 1, 1), (16, 1, 2), (31, 1, 2), (32, 1, 3), (16, 16, 2), (16, 17, 3)],
)
def test_a_prompt_needs_whole_blocks_for_prompt_and_answer(prompt_tokens, max_tokens, blocks):
    assert make_limits().needed_blocks(prompt_tokens, max_tokens) == blocks


@given(st.integers(1, 500), st.integers(1, 90))
def test_used_and_wasted_places_make_whole_blocks(prompt_tokens, output_tokens):
    limits = make_limits()

    stored = prompt_tokens + output_tokens - 1  # the last token is sampled, never stored
    assert limits.used_blocks(prompt_tokens, output_tokens) * 16 == stored + limits.wasted_tokens(
        prompt_tokens, output_tokens
    )
    assert limits.used_blocks(prompt_tokens, output_tokens) <= limits.needed_blocks(prompt_tokens, output_tokens)


def test_one_block_is_vllms_own_and_headroom_stays_free():
    budget = batch_budget(make_limits(), 0.1, one_token_answers=False, batch_loads=4)

    assert budget == BatchBudget(90, 8, one_token_answers=False)


def test_one_token_answers_may_queue_several_loads():
    assert batch_budget(make_limits(), 0.0, one_token_answers=True, batch_loads=4) == BatchBudget(
        400, 32, one_token_answers=True
    )


@pytest.mark.fault(34)
@given(
    st.lists(st.tuples(st.integers(1, 480), st.integers(1, 30)), max_size=60),
    st.integers(33, 200),
    st.integers(1, 16),
    st.floats(0, 0.04),
)
def test_no_batch_is_over_its_budget_and_no_prompt_is_lost(lengths, num_gpu_blocks, max_num_seqs, headroom):
    limits = make_limits(num_gpu_blocks=num_gpu_blocks, max_num_seqs=max_num_seqs)
    budget = batch_budget(limits, headroom, one_token_answers=False, batch_loads=1)
    prompts = [make_prompt(*each, number=number) for number, each in enumerate(lengths)]

    batches = pack(prompts, limits, budget)

    assert [prompt for batch in batches for prompt in batch.prompts] == prompts
    for batch in batches:
        needed = sum(limits.needed_blocks(each.prompt_tokens, each.max_tokens) for each in batch.prompts)
        assert needed == batch.needed_blocks
        assert len(batch.prompts) == 1 or (needed <= budget.max_blocks <= limits.usable_blocks)
        assert len(batch.prompts) <= max_num_seqs


def test_a_full_batch_says_no_and_stays_as_it_is():
    packer = Packer(make_limits(), BatchBudget(4, 8, one_token_answers=True))

    assert packer.try_add(make_prompt(40))
    assert not packer.try_add(make_prompt(20))
    assert packer.try_add(make_prompt(15))
    assert packer.num_blocks == 4


@pytest.mark.fault(35)
def test_a_prompt_larger_than_the_cache_is_refused_with_one_that_would_fit():
    with pytest.raises(
        ConfigError, match=r"needs 32 KV blocks, but 20 are usable.*max_prompt_tokens to (\d+)"
    ) as refused:
        check_promise(make_limits(num_gpu_blocks=21), 0.0, 511, 1)

    fitting = int(str(refused.value).split("max_prompt_tokens to ")[1].split(",")[0])
    check_promise(make_limits(num_gpu_blocks=21), 0.0, fitting, 1)
    with pytest.raises(ConfigError):
        check_promise(make_limits(num_gpu_blocks=21), 0.0, fitting + 1, 1)


def test_a_cache_group_that_cannot_be_counted_is_refused_by_name_with_the_way_out():
    groups = (KVCacheGroup("full_attention", 16), KVCacheGroup("HiSparseHotManager", 16))

    with pytest.raises(ConfigError, match=r"manages by HiSparseHotManager,.*promise = 'none'"):
        check_promise(make_limits(groups=groups), 0.0, 100, 1)


@pytest.mark.fault(40, 41)
def test_durations_come_from_one_clock_and_are_never_negative():
    good = RequestTimes(10.0, 10.5, 12.0, 14.0, 2.2).latency(output_tokens=5)
    assert (good.queue_s, good.prefill_s, good.ttft_s, good.tpot_s, good.e2el_s) == (0.5, 1.5, 2.2, 0.5, 4.2)

    back = RequestTimes(10.0, 9.0, 12.0, 11.0, -3_600.0).latency(output_tokens=5)
    assert (back.queue_s, back.ttft_s, back.tpot_s, back.e2el_s) == (None, None, None, None)
    assert back.prefill_s == 3.0

    missing = RequestTimes(0.0, 0.0, 12.0, 12.0, 1.0).latency(output_tokens=1)
    assert (missing.queue_s, missing.tpot_s, missing.e2el_s) == (None, None, 1.0)
    unknown = Generation("q", "", "stop", 3, 0, None, None, None, 0)
    assert unknown.latency == RequestTimes(0, 0, 0, 0, 0).latency(3)
