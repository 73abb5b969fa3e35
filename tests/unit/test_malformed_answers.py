"""A corpus of answers gone wrong, and random ones: each read by one rule, none failing, the counts in step."""

import tomllib
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.decode.answer import ParseStatus
from tasks.decode.parser import parse_permutation, place_of_letter, place_of_number
from tests.makers import ROOT

CORPUS = tomllib.loads((ROOT / "tests" / "unit" / "malformed_answers.toml").read_text(encoding="utf-8"))["answers"]
KEYS = {"name", "text", "num_passages", "by_letter", "was_cut", "order", "num_listed", "status"}


def parse(text, num_passages, *, by_letter=False, was_cut=False, num_asked=None, pivot=None):
    place_of = place_of_letter if by_letter else place_of_number
    return parse_permutation(
        text, num_passages, place_of, by_letter=by_letter, was_cut=was_cut, num_asked=num_asked, pivot=pivot
    )


@pytest.mark.fault(3, 4, 5, 6, 28, 29)
@pytest.mark.parametrize("answer", CORPUS, ids=lambda answer: answer["name"])
def test_an_answer_is_read_as_the_corpus_says(answer):
    parsed = parse(
        answer["text"],
        answer["num_passages"],
        by_letter=answer["by_letter"],
        was_cut=answer["was_cut"],
        num_asked=answer.get("num_asked"),
        pivot=answer["pivot"] - 1 if "pivot" in answer else None,
    )

    assert [place + 1 for place in parsed.order] == answer["order"]
    assert parsed.num_listed == answer["num_listed"]
    assert parsed.status == answer["status"]


def test_the_corpus_names_each_answer_once_and_has_every_status():
    assert len({answer["name"] for answer in CORPUS}) == len(CORPUS)
    assert all(KEYS <= answer.keys() <= KEYS | {"num_asked", "pivot"} for answer in CORPUS)
    assert {answer["status"] for answer in CORPUS} == {*get_args(ParseStatus)} - {"engine_error"}


@pytest.mark.parametrize(
    ("asked", "num_missing"),
    [
        ({}, 3),
        ({"num_asked": 3}, 1),
        ({"num_asked": 2}, 0),
        ({"num_asked": 1}, 0),
        ({"pivot": 1}, 0),
        ({"pivot": 0}, 3),
    ],
)
def test_missing_is_what_was_asked_for_and_not_named(asked, num_missing):
    assert parse("[4] > [2]", 5, **asked).num_missing == num_missing


FRAGMENTS = [
    *("[1]", "[2]", "[3", "12]", "[-1]", "[0]", "[99]", "[A]", "[b]", "[B", "3", "17", "B", "a", "３"),
    *("①", "²", "−", "-"),
    *(" > ", " = ", ", ", "\n", " ", "1. ", "2) ", ": ", "[", "]", "［", "\u200b", "\u200f", "\ufffd", "'", ".", "```"),
    *("Passage ", "DOCUMENT", "docs", "문서 ", "번", "위", " passages", "the ", "<think>", "</think>"),
    *("<answer>", "</answer>", "[THINK]", "[/THINK]", "<|channel|>final<|message|>", '"id": ', " (2)"),
    *("| ", "Final: ", "</s>"),
]
WELL_FORMED = st.permutations(range(1, 13)).map(lambda names: " > ".join(f"[{name}]" for name in names))


@st.composite
def mutated_answers(draw):
    """A well-formed answer after some deletions, swaps, repetitions and insertions."""
    pieces = list(draw(WELL_FORMED))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(pieces) - 2))
        match draw(st.sampled_from(["delete", "swap", "duplicate", "insert"])):
            case "delete":
                del pieces[at]
            case "swap":
                pieces[at], pieces[at + 1] = pieces[at + 1], pieces[at]
            case "duplicate":
                pieces.insert(at, pieces[at])
            case "insert":
                pieces.insert(at, draw(st.sampled_from(FRAGMENTS)))
    return "".join(pieces)


ANY_ANSWER = st.one_of(
    st.text(), st.lists(st.sampled_from(FRAGMENTS), max_size=40).map("".join), mutated_answers(), WELL_FORMED
)


@pytest.mark.fault(6)
@given(
    text=ANY_ANSWER,
    num_passages=st.integers(1, 30),
    by_letter=st.booleans(),
    was_cut=st.booleans(),
    num_asked=st.none() | st.integers(1, 35),
    pivot=st.none() | st.integers(0, 29),
)
def test_any_answer_gives_a_permutation_with_counts_and_a_status_in_step(
    text, num_passages, by_letter, was_cut, num_asked, pivot
):
    parsed = parse(text, num_passages, by_letter=by_letter, was_cut=was_cut, num_asked=num_asked, pivot=pivot)
    listed, unlisted = parsed.order[: parsed.num_listed], parsed.order[parsed.num_listed :]

    assert sorted(parsed.order) == list(range(num_passages))
    assert list(unlisted) == sorted(unlisted)
    assert parsed.num_missing == expected_missing(listed, num_passages, num_asked, pivot)
    match parsed.status:
        case "ok":
            assert (parsed.num_missing, parsed.num_duplicate, parsed.num_out_of_range) == (0, 0, 0)
            assert listed
        case "missing":
            assert parsed.num_missing
            assert not was_cut
            assert (parsed.num_duplicate, parsed.num_out_of_range) == (0, 0)
        case "truncated":
            assert parsed.num_missing
            assert was_cut
        case "repetition":
            assert parsed.num_duplicate
        case "out_of_range":
            assert parsed.num_out_of_range
            assert not parsed.num_duplicate
        case "wrong_format":
            assert listed
        case "refusal":
            assert not listed
        case _:
            pytest.fail(parsed.status)


def expected_missing(listed, num_passages, num_asked, pivot):
    """What the answer owes, said in another way than the parser says it."""
    if pivot is not None:
        return 0 if pivot in listed else num_passages - len(listed)
    return len(range(len(listed), min(num_asked or num_passages, num_passages)))


@given(names=st.permutations(range(1, 13)), num_asked=st.integers(1, 12), data=st.data())
def test_a_cut_anywhere_never_names_what_the_whole_answer_did_not(names, num_asked, data):
    whole = " > ".join(f"[{name}]" for name in names)
    cut = whole[: data.draw(st.integers(0, len(whole)))]

    parsed = parse(cut, 12, was_cut=True, num_asked=num_asked)
    listed = [place + 1 for place in parsed.order[: parsed.num_listed]]

    assert listed == names[: parsed.num_listed]
    assert parsed.status == ("ok" if parsed.num_listed >= num_asked else "truncated")


MARKS = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<thought>", "</thought>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    ("analysis", "assistantfinal"),
]
ORDERS = st.integers(3, 12).flatmap(lambda size: st.permutations(range(1, size + 1)))


@pytest.mark.fault(28)
@given(
    order=ORDERS, thought=st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join), marks=st.sampled_from(MARKS)
)
def test_what_was_thought_in_any_familys_marks_is_no_answer(order, thought, marks):
    opening, closing = marks
    parsed = parse(f"{opening}we {thought} {closing}{' > '.join(f'[{name}]' for name in order)}", len(order))

    assert [place + 1 for place in parsed.order] == order
    assert parsed.status == "ok"
    unclosed = parse(f"{opening}we rank [2] > [1]", len(order))
    assert unclosed.num_listed == 0


@given(data=st.data(), order=ORDERS)
def test_a_draft_or_the_passages_again_before_a_whole_ranking_change_nothing(data, order):
    draft = data.draw(st.permutations(order))[: data.draw(st.integers(1, len(order)))]
    said = data.draw(
        st.sampled_from(
            [
                f"Draft: {' > '.join(f'[{name}]' for name in draft)}\n",
                "".join(f"[{name}] the text of it\n" for name in draft),
                f"The form is {' > '.join(f'[{name}]' for name in draft)}. ",
                f"I compare [{draft[0]}] with the others.\n",
            ]
        )
    )

    parsed = parse(f"{said}Ranking: {' > '.join(f'[{name}]' for name in order)}", len(order))

    assert [place + 1 for place in parsed.order] == order
    assert parsed.status == "ok"


@given(data=st.data(), order=ORDERS)
def test_scores_that_could_be_identifiers_are_none(data, order):
    """But where the first numbers count 1, 2, 3 they are ranks: such orders are another test's."""
    if order == sorted(order):
        return
    scores = data.draw(st.lists(st.integers(0, 12), min_size=len(order), max_size=len(order)))
    pairs = list(zip(order, scores, strict=True))
    form = data.draw(
        st.sampled_from(
            ["{}: {}\n", "{}: {}, ", "{} ({}), ", "| {} | {} |\n", "Document {}: {}\n", '{{"id": {}, "score": {}}}\n']
        )
    )

    parsed = parse("".join(form.format(*pair) for pair in pairs), len(order))

    assert [place + 1 for place in parsed.order] == order
