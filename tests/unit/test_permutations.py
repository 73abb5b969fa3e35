"""The parser: any text gives a complete order and a status, and no identifier is guessed."""

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.decode.judged import read_verdict
from tasks.decode.letters import order_by_logprobs, usable_prior
from tasks.decode.parser import parse_permutation, place_of_letter, place_of_number


def parse(text, num_passages, *, was_cut=False, by_letter=False):
    place_of = place_of_letter if by_letter else place_of_number
    return parse_permutation(text, num_passages, place_of, by_letter=by_letter, was_cut=was_cut)


def names(permutation):
    """The order as people write it: from 1."""
    return [place + 1 for place in permutation.order]


@pytest.mark.fault(3, 4, 5, 6, 28, 29)
@pytest.mark.parametrize(
    ("text", "num_passages", "order", "status"),
    [
        ("[2] > [1] > [3]", 3, [2, 1, 3], "ok"),
        ("[2]>[1]>[3]\n", 3, [2, 1, 3], "ok"),
        ("[ 2 ] > [ 1 ] > [ 3 ]", 3, [2, 1, 3], "ok"),
        ("[2]", 5, [2, 1, 3, 4, 5], "missing"),
        ("[3] > [1]", 3, [3, 1, 2], "missing"),
        ("[0] > [4] > [-2] > [2]", 3, [2, 1, 3], "out_of_range"),
        ("[11] > [3] > [2] > [1]", 11, [11, 3, 2, 1, 4, 5, 6, 7, 8, 9, 10], "missing"),
        ("[2] > [2] > [1]", 2, [2, 1], "repetition"),
        ("[1] > [1] > [1] > [1]", 3, [1, 2, 3], "repetition"),
        ("Here is the ranking of the 20 passages: [3] > [1]", 3, [3, 1, 2], "missing"),
        ("Passage 3 is from 2019, so it is best: [3] > [1]. Doc 2, because it is old.", 3, [3, 1, 2], "missing"),
        ("2, 3, 1", 3, [2, 3, 1], "wrong_format"),
        ("The order of the 3 is:\n2 > 3 > 1", 3, [2, 3, 1], "wrong_format"),
        ("Document 3, Document 1", 3, [3, 1, 2], "wrong_format"),
        ("3-1-2", 3, [3, 1, 2], "wrong_format"),
        ("1. 3. 2.", 3, [1, 3, 2], "wrong_format"),
        ("[２] > ［３］ > [①]", 3, [2, 3, 1], "ok"),
        ("[²] > [❸] > [１]", 3, [2, 3, 1], "ok"),
        ("[٢] > [١]", 2, [2, 1], "ok"),
        ("<think>[1] > [2]</think> [2] > [1]", 2, [2, 1], "ok"),
        ("<think>\n\n</think>\n\n[2] > [1]", 2, [2, 1], "ok"),
        ("<think>a</think>b<think>[1]</think>[2] > [1]", 2, [2, 1], "ok"),
        ("<answer>[2] > [1]</answer> rather than [1] > [2]", 2, [2, 1], "ok"),
        ("<answer>[1]</answer> no: <answer>[2] > [1]", 2, [2, 1], "ok"),
        ("I cannot help with that.", 3, [1, 2, 3], "refusal"),
        ("", 3, [1, 2, 3], "refusal"),
        ("   \n\t ", 3, [1, 2, 3], "refusal"),
        ("<think> [2] > [1] and so on", 2, [1, 2], "refusal"),
        ("The scores are 0.95 and 2.5.", 3, [1, 2, 3], "refusal"),
        ("[4] > [5]", 3, [1, 2, 3], "out_of_range"),
        ("9" * 5_000, 3, [1, 2, 3], "refusal"),
        (f"[{'9' * 5_000}] > [2] > [1]", 2, [2, 1], "out_of_range"),
        ("[2] [3] [1]", 3, [2, 3, 1], "ok"),
        ("[3] > [2] = [1]", 3, [3, 2, 1], "ok"),
        ("[2", 3, [2, 1, 3], "wrong_format"),
    ],
)
def test_what_the_model_wrote_becomes_a_complete_order_and_a_status(text, num_passages, order, status):
    parsed = parse(text, num_passages)

    assert names(parsed) == order
    assert parsed.status == status


@pytest.mark.fault(29)
@pytest.mark.parametrize(
    ("text", "order", "num_listed", "status"),
    [
        ("[1] > [7] > [1", [1, 7], 2, "truncated"),
        ("[1] > [7] > [", [1, 7], 2, "truncated"),
        ("[1] > [7] >", [1, 7], 2, "truncated"),
        ("[1] > [7]", [1, 7], 2, "truncated"),
        ("[3] > [1", [3], 1, "truncated"),
        ("2, 7, 1", [2, 7], 2, "truncated"),
        ("<think> it goes on and on", [], 0, "truncated"),
        ("", [], 0, "truncated"),
    ],
)
def test_an_identifier_torn_by_max_tokens_is_dropped_not_guessed(text, order, num_listed, status):
    parsed = parse(text, 20, was_cut=True)

    assert names(parsed)[:num_listed] == order
    assert parsed.num_listed == num_listed
    assert parsed.status == status


def test_a_list_that_is_whole_at_the_cut_is_well():
    assert parse("[3] > [1] > [2]", 3, was_cut=True).status == "ok"


def test_counts_say_what_the_status_does_not():
    parsed = parse("[2] > [2] > [9] > [0] > [1]", 4)

    assert (parsed.num_listed, parsed.num_missing, parsed.num_duplicate, parsed.num_out_of_range) == (2, 2, 1, 2)


@pytest.mark.parametrize(
    ("text", "num_passages", "order", "status"),
    [
        ("[B] > [A] > [C]", 3, [2, 1, 3], "ok"),
        ("[a] > [A]", 27, [27, 1], "missing"),
        ("B > A > C", 3, [2, 1, 3], "wrong_format"),
        ("I think A is a good one", 3, [1, 2, 3], "refusal"),
        ("[D] > [A]", 3, [1, 2, 3], "out_of_range"),
    ],
)
def test_letters_are_read_as_letters_and_prose_is_not(text, num_passages, order, status):
    parsed = parse(text, num_passages, by_letter=True)

    assert names(parsed)[: len(order)] == order
    assert parsed.status == status


ANSWERS = st.one_of(
    st.text(),
    st.text(alphabet="[]<>0123456789-> ,.\n", max_size=80),
    st.lists(st.integers(-3, 25)).map(lambda ids: " > ".join(f"[{each}]" for each in ids)),
    st.from_regex(r"(<think>)?(\[\d{1,3}\] ?>? ?){0,9}(</think>)?(<answer>)?(\[\w{1,3}\]){0,5}(</answer>)?"),
)


@pytest.mark.fault(6)
@given(ANSWERS, st.integers(1, 25), st.booleans(), st.booleans())
def test_any_text_gives_every_place_once_and_counts_that_add_up(text, num_passages, was_cut, by_letter):
    parsed = parse(text, num_passages, was_cut=was_cut, by_letter=by_letter)

    assert sorted(parsed.order) == list(range(num_passages))
    assert 0 <= parsed.num_listed <= num_passages
    assert parsed.num_missing == num_passages - parsed.num_listed
    assert min(parsed.num_duplicate, parsed.num_out_of_range) >= 0
    assert list(parsed.order[parsed.num_listed :]) == sorted(parsed.order[parsed.num_listed :])
    assert (parsed.status == "ok") <= (parsed.num_missing == 0)


@pytest.mark.fault(5)
@given(st.sampled_from([9, 10, 11, 20, 100]).flatmap(lambda size: st.permutations(range(1, size + 1))))
def test_a_well_formed_answer_of_any_length_is_read_exactly(order):
    parsed = parse(" > ".join(f"[{each}]" for each in order), len(order))

    assert names(parsed) == order
    assert parsed.status == "ok"


@pytest.mark.parametrize(
    "unit",
    [
        *("1", " ", "[", "[ ", "<answer>", "1.", "</think>", "[1] ", "-", "[1", "x1", "\n", "1\n"),
        *("1. 1\n", "1: ", "1. "),
        *("<think>", "<answer> ", "doc1.", "doc ", "doc", "passage#", "1 - ", "*", "1*", "1.*", "(", "1 ("),
        *("번", "1번", "①"),
        *("\u200b", "１", "1 passages", "1   ", "A ", "A: ", "doc A ", "_", "'"),
        *("[1] > ", "[1,", "[1]=", "=", ">", "1>", "1: 2", "| 1 ", '"id":', '"a_', "[1  ", "doc 1 > "),
        *("<think:", "<a:think>", "[THINK]", "<|channel|>", "<|start|>assistant", "Here is my ", "analysis", "<|"),
    ],
    ids=repr,
)
def test_a_long_hostile_answer_takes_no_time(unit):
    """Fifty thousand characters: a quadratic expression would take minutes, so seconds decide."""
    started_s = time.process_time()

    parse(unit * (50_000 // len(unit)), 20, was_cut=True)
    parse("1" + unit * (50_000 // len(unit)) + "1x", 20)
    parse(unit * (50_000 // len(unit)) + "x", 20, by_letter=True)

    assert time.process_time() - started_s < 20.0


@pytest.mark.fault(37)
def test_log_probabilities_order_places_and_the_missing_come_last():
    ordered = order_by_logprobs(range(5), [-3.0, None, -1.5, float("nan"), -1.5])

    assert ordered.outcome.order == (2, 4, 0, 1, 3)  # equal ones in prompt order
    assert ordered.outcome.num_listed == 3
    assert ordered.parse_status == "missing"
    assert ordered.id_mass == pytest.approx(2 * 0.22313 + 0.04979, abs=1e-4)


def test_no_log_probability_at_all_is_a_refusal():
    ordered = order_by_logprobs(range(2), [None, None])

    assert ordered.outcome.order == (0, 1)
    assert ordered.parse_status == "refusal"
    assert ordered.id_mass == 0.0


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_prior_that_is_not_finite_makes_a_refusal_not_an_order(bad):
    """It once gave NaN to every place, stored as `ok` in the first stage's order."""
    ordered = order_by_logprobs(range(3), [-3.0, -0.1, -2.0], prior=[-1.0, -1.0, bad])

    assert ordered.parse_status in ("refusal", "missing")
    assert not any(map(math.isnan, ordered.outcome.logprobs))
    assert ordered.outcome.num_listed == sum(map(math.isfinite, ordered.outcome.logprobs))


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf])
def test_a_verdict_of_no_number_is_none(bad):
    assert read_verdict((0,), [bad, bad], num_yes=1).parse_status == "refusal"
    assert read_verdict((0,), [bad, -0.5], num_yes=1).outcome.logprobs == (-math.inf,)


@pytest.mark.parametrize(
    ("logprobs", "prior"),
    [
        ((-1.0, None, -3.0), (-1.0, -3.0, -3.0)),
        ((-1.0, math.nan), None),
        ((-1.0, -math.inf), None),
        ((None, None), None),
        ((), None),
    ],
)
def test_what_a_content_free_prompt_gets_is_taken_off_only_where_it_is_finite(logprobs, prior):
    assert usable_prior(logprobs) == prior


NUMBERS = st.one_of(st.none(), st.floats(-30, 0), st.sampled_from([math.nan, -math.inf, math.inf]))


@given(st.lists(st.tuples(NUMBERS, NUMBERS.filter(lambda value: value is not None)), min_size=1, max_size=52))
def test_any_log_probabilities_and_any_prior_give_every_place_once(pairs):
    ordered = order_by_logprobs(range(len(pairs)), *map(list, zip(*pairs, strict=True)))

    assert sorted(ordered.outcome.order) == list(range(len(pairs)))
    assert list(ordered.outcome.logprobs) == sorted(ordered.outcome.logprobs, reverse=True)


@given(st.lists(st.one_of(st.none(), st.floats(-30, 0)), min_size=1, max_size=52))
def test_any_log_probabilities_give_every_place_once(logprobs):
    ordered = order_by_logprobs(range(len(logprobs)), logprobs)

    assert sorted(ordered.outcome.order) == list(range(len(logprobs)))
    assert list(ordered.outcome.logprobs) == sorted(ordered.outcome.logprobs, reverse=True)
    assert 0.0 <= ordered.id_mass <= 1.0
