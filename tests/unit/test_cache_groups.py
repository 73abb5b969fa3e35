"""Blocks by cache group: what is predicted covers every way in which an engine may cut a prompt into steps."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.engine.batches import needed_blocks
from tasks.engine.kv_cache import BatchBudget, KVCacheGroup, KVCacheLimits, batch_budget
from tasks.prompt.answer_forms import ForcedClose
from tests.makers import make_prompt

ATTENTION = KVCacheGroup("full_attention", 16)
LAYOUTS = {
    "full": (ATTENTION,),
    "window": (KVCacheGroup("sliding_window", 16, span_tokens=64),),
    "gemma3": (*[KVCacheGroup("sliding_window", 16, span_tokens=64)] * 3, ATTENTION),
    "odd window": (KVCacheGroup("sliding_window", 16, span_tokens=57), ATTENTION),
    "llama4": (*[KVCacheGroup("chunked_local_attention", 16, span_tokens=64)] * 3, ATTENTION),
    "odd chunk": (KVCacheGroup("chunked_local_attention", 16, span_tokens=57), ATTENTION),
    "qwen3_next": (*[KVCacheGroup("mamba", 16)] * 3, ATTENTION),
    "unlike blocks": (KVCacheGroup("mamba", 512), KVCacheGroup("sliding_window", 32, span_tokens=64), ATTENTION),
}


def make_limits(groups, **given):
    base = {
        "num_gpu_blocks": 101,
        "block_size": 16,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 128,
        "max_model_len": 512,
    }
    return KVCacheLimits(groups=groups, **(base | given))


def held_blocks(group, ends, num_steps):
    """What a sequence holds of a group after each step, by the rule that says which tokens' blocks are freed.

    `ends` has the tokens with places after each step; the last `num_steps` steps are under way, and a step frees what lies
    behind the tokens that had been computed before them.
    """
    held = []
    for number, end in enumerate(ends):
        computed = ends[number - num_steps] if number >= num_steps else 0
        if group.kind == "mamba":
            states = ends[max(0, number - num_steps) : number + 1]
            held.append(len({(each - 1) // group.block_size for each in states}))
            continue
        freed = {
            "full_attention": 0,
            "sliding_window": max(0, computed - group.span_tokens + 1),
            "chunked_local_attention": computed // group.span_tokens * group.span_tokens if group.span_tokens else 0,
        }[group.kind]
        held.append(-(-end // group.block_size) - freed // group.block_size)
    return held


def most_held(limits, ends):
    """The most that it holds at once, over all groups."""
    groups = [held_blocks(group, ends, limits.max_concurrent_batches) for group in limits.groups]
    return max(map(sum, zip(*groups, strict=True)))


@given(
    st.sampled_from(sorted(LAYOUTS)),
    st.integers(1, 400),
    st.integers(1, 100),
    st.lists(st.integers(1, 128), min_size=1, max_size=12),
    st.integers(1, 3),
)
def test_a_sequence_never_holds_more_than_predicted_however_its_prompt_is_cut(name, prompt, output, cuts, num_steps):
    limits = make_limits(LAYOUTS[name], max_concurrent_batches=num_steps)
    ends = []
    while not ends or ends[-1] < prompt:
        ends.append(min(prompt, (ends[-1] if ends else 0) + cuts[len(ends) % len(cuts)]))
    ends += range(prompt + 1, prompt + output)  # the last token is sampled, never stored

    assert most_held(limits, ends) <= limits.used_blocks(prompt, output) <= limits.needed_blocks(prompt, output)


@pytest.mark.parametrize("output", [1, 90])
@pytest.mark.parametrize("name", sorted(set(LAYOUTS) - {"qwen3_next", "unlike blocks"}))
def test_a_prompt_that_is_read_in_one_step_holds_what_is_predicted(name, output):
    limits = make_limits(LAYOUTS[name], max_num_batched_tokens=512)
    used = {prompt: most_held(limits, range(prompt, prompt + output)) for prompt in range(1, 400, 7)}

    predicted = {prompt: limits.used_blocks(prompt, output) for prompt in used}

    assert sum(predicted.values()) <= 1.05 * sum(used.values())


@pytest.mark.parametrize("output", [1, 90])
def test_a_linear_attention_layer_holds_two_states_where_its_prompt_fills_a_block(output):
    """vLLM ends a step at the prompt's last whole block, whose state is kept for the prefix cache."""
    limits = make_limits(LAYOUTS["qwen3_next"], max_num_batched_tokens=512)

    for prompt in range(17, 400, 5):
        ends = [(prompt - 1) // 16 * 16, *range(prompt, prompt + output)]
        assert limits.used_blocks(prompt, output) == most_held(limits, ends) == 3 * 2 + -(-(prompt + output - 1) // 16)


def test_windows_shrink_when_the_prompt_has_been_read():
    limits = make_limits(LAYOUTS["gemma3"], max_num_batched_tokens=512)

    assert limits.needed_blocks(prompt_tokens=160, max_tokens=1) == 4 * 10
    assert limits.needed_blocks(prompt_tokens=160, max_tokens=140) == 4 * 10  # then 3 * 5 + 19
    assert limits.needed_blocks(prompt_tokens=160, max_tokens=340) == 3 * 5 + 32


def test_a_thought_that_is_closed_by_force_is_read_again_as_prompt():
    limits = make_limits(LAYOUTS["gemma3"], max_num_batched_tokens=512)
    thought, close = 290, ForcedClose("</think>", tuple(range(10)), max_tokens=40)
    prompt = make_prompt(160, thought + 10 + 40)

    closed = replace(prompt, form=replace(prompt.form, close=close))

    assert needed_blocks(prompt, limits) == 3 * 5 + 32
    assert needed_blocks(closed, limits) == 4 * 29  # of 160 + 290 + 10 tokens


def test_a_state_has_no_empty_places_and_every_other_group_has_its_last_block():
    limits = make_limits(LAYOUTS["unlike blocks"])

    assert limits.wasted_tokens(prompt_tokens=49, output_tokens=1) == (64 - 49) + (64 - 49)


def test_prompts_that_vllm_cuts_at_block_ends_are_in_flight_together():
    """It begins a second prompt before it has read the first, whose next state then finds no block."""
    cut, whole = make_limits(LAYOUTS["qwen3_next"]), make_limits(LAYOUTS["gemma3"])
    one_block = make_limits((KVCacheGroup("mamba", 512), ATTENTION))  # without prefix caching: nothing to cut at

    budgets = [batch_budget(each, 0.0, one_token_answers=True, batch_loads=4) for each in (cut, whole, one_block)]

    assert budgets == [BatchBudget(*each, one_token_answers=True) for each in ((100, 8), (400, 32), (400, 32))]
