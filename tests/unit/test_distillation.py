"""Training rows say what the model answered, for any window: nothing is turned round, added or made up."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluation.distillation import (
    SCHEMAS,
    TaughtQuery,
    conversation,
    listwise_rows,
    pairwise_rows,
    pointwise_rows,
    taught_lists,
)
from tasks.evaluation.run_export import form_of
from tasks.evaluation.training_export import TrainingRequest
from tasks.prompt.templates import load_prompt_template
from tasks.system.errors import ConfigError
from tests.makers import ROOT

TEMPLATE = load_prompt_template(ROOT / "configs" / "prompts" / "first_token.toml")
SOURCE = {"query_id": "q", "run_id": "r", "teacher": "m", "teacher_identity": "i", "prompt_digest": "p"}


def make_answer(docs, order, *, num_listed=None, logprobs=None, num_missing=0, place=(0, 0, 0)):
    round_no, window_no, attempt = place
    return {
        "run_id": "r",
        **{"round": round_no, "window_no": window_no, "attempt": attempt, "decode_mode": "first_token"},
        **{"docs": list(docs), "outcome_order": list(order), "outcome_logprobs": logprobs},
        **{"num_listed": len(docs) if num_listed is None else num_listed, "num_missing": num_missing},
    }


def make_query(answers, num_docs=30):
    ids = {doc: f"d{doc}" for doc in range(num_docs)}
    return TaughtQuery(
        source=SOURCE,
        text="what is it",
        ranked=[{"rank": doc + 1, "first_stage_rank": doc + 1, "doc_id": ids[doc]} for doc in ids],
        doc_ids=ids,
        passages={name: f"text of {name}" for name in ids.values()},
        answers=answers,
    )


@st.composite
def windows(draw):
    docs = draw(st.lists(st.integers(0, 29), min_size=2, max_size=20, unique=True))
    order = draw(st.permutations(docs))
    num_listed = draw(st.integers(0, len(docs)))
    values = st.floats(-30.0, 0.0, width=32) | st.just(-math.inf)
    logprobs = draw(st.none() | st.lists(values, min_size=len(docs), max_size=len(docs)))
    return make_answer(docs, order, num_listed=num_listed, logprobs=logprobs)


@given(windows())
def test_a_list_is_the_windows_answer(answer):
    (row,) = listwise_rows(make_query([answer]), TEMPLATE)

    docs, order, listed = answer["docs"], answer["outcome_order"], answer["num_listed"]
    assert row["doc_ids"] == [f"d{doc}" for doc in docs]
    assert row["docs"] == [f"text of d{doc}" for doc in docs]
    assert [docs[place] for place in row["order"]] == order
    assert [row["labels"][place] for place in row["order"]] == [
        1 / answered if answered <= listed else 0.0 for answered in range(1, len(docs) + 1)
    ]
    logprobs = answer["outcome_logprobs"]
    if logprobs is None or not all(map(math.isfinite, logprobs)):
        assert row["soft_labels"] is None
    else:
        assert [row["soft_labels"][place] for place in row["order"]] == logprobs
    assert (row["conversations"] is None) == (listed < len(docs))


@given(windows(), st.none() | st.integers(1, 25))
def test_pairs_are_all_that_the_answer_ordered_and_no_other(answer, top_k):
    rows = list(pairwise_rows(make_query([answer]), top_k))

    order, listed = answer["outcome_order"], answer["num_listed"]
    first = order[:listed][:top_k]
    assert [(row["positive_id"], row["negative_id"]) for row in rows] == [
        (f"d{better}", f"d{worse}") for better, worse in combinations(order, 2) if better in first
    ]
    assert all(row["label"] > 0 for row in rows)
    logprobs = answer["outcome_logprobs"]
    if logprobs and all(map(math.isfinite, logprobs)):
        of = dict(zip(order, logprobs, strict=True))
        assert all(
            row["soft_label"] == of[int(row["positive_id"][1:])] - of[int(row["negative_id"][1:])] for row in rows
        )
    else:
        assert {row["soft_label"] for row in rows} <= {None}


@given(st.lists(st.floats(-20.0, 0.0, width=32), min_size=2, max_size=30))
def test_candidates_that_were_judged_alone_are_one_list_and_their_probabilities(values):
    answers = [
        make_answer([doc], [doc], logprobs=[value], place=(0, doc, 0)) | {"decode_mode": "yes_no"}
        for doc, value in enumerate(values)
    ]
    query = make_query(answers, len(values))

    (taught,) = taught_lists(answers)
    rows = list(pointwise_rows(query))

    assert taught.window_no is None
    assert taught.logprobs == tuple(values)
    assert list(taught.order) == sorted(range(len(values)), key=lambda doc: (-values[doc], doc))
    assert [row["soft_label"] for row in rows] == [math.exp(value) for value in values]
    assert [row["label"] for row in rows] == [1 / row["rank"] for row in rows]
    assert len(list(pointwise_rows(query, 2))) == 2


def test_a_window_that_fell_back_teaches_nothing_and_its_second_attempt_does():
    lost = make_answer([0, 1, 2], [2, 0, 1], num_listed=1, num_missing=2)
    again = make_answer([2, 1, 0], [1, 2, 0], place=(0, 0, 1))

    (taught,) = taught_lists([lost, again])

    assert (taught.attempt, taught.docs, taught.order) == (1, (2, 1, 0), (1, 0, 2))


def test_a_conversation_is_the_prompt_and_the_whole_answer():
    system, human, gpt = conversation(TEMPLATE, "why [2] > [1]?", ["one", "two [1]", "three"], (1, 2, 0))

    assert [turn["from"] for turn in (system, human, gpt)] == ["system", "human", "gpt"]
    assert system["value"] == TEMPLATE.system
    assert "Question: why (2) > (1)?\n\nBelow are 3 passages" in human["value"]
    assert "\n[A] one\n[B] two (1)\n[C] three\n" in human["value"]
    assert gpt["value"] == "[B] > [C] > [A]"


def test_a_list_of_more_than_the_alphabets_letters_has_no_conversation():
    (row,) = listwise_rows(make_query([make_answer(range(27), range(27))]), TEMPLATE)

    assert row["conversations"] is None


@pytest.mark.parametrize("form", SCHEMAS)
def test_rows_have_the_columns_of_their_form(form):
    query = make_query([make_answer([0, 1], [1, 0], logprobs=[-0.1, -2.0])])
    rows = {
        "listwise": listwise_rows(query, TEMPLATE),
        "pairwise": pairwise_rows(query),
        "pointwise": pointwise_rows(query),
    }

    assert set(next(rows[form])) == set(SCHEMAS[form].names)


@pytest.mark.parametrize(
    ("form", "output", "top_k", "told"),
    [
        ("listwise", "x.trec", None, "--form listwise --format trec: expected parquet or jsonl"),
        ("listwise", "x.jsonl", 3, "--form listwise --top-k 3: expected 1 or more, with pairwise or pointwise"),
        ("pairwise", "x.jsonl", 0, "--form pairwise --top-k 0: expected 1 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, form, output, top_k, told):
    with pytest.raises(ConfigError, match=told):
        TrainingRequest.of_file(form, form_of(tmp_path / output), top_k, None)
