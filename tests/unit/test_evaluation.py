"""Quality: trec_eval's numbers, over all judged queries."""

from datetime import date

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tasks.errors import InputError
from tasks.judge.evaluation import Qrels, evaluate, read_qrels
from tasks.settings import InputSettings
from tests.makers import write_parquet

NIGHT = date(2026, 11, 29)


def make_qrels(text):
    rows = [line.split() for line in text.strip().splitlines()]
    frame = pd.DataFrame(rows, columns=["query_id", "doc_id", "relevance"]).astype({"relevance": int})
    return Qrels(frame, "digest")


def make_run(text):
    rows = [line.split() for line in text.strip().splitlines()]
    return pd.DataFrame(rows, columns=["query_id", "doc_id", "score"]).astype({"score": float})


def mean(measured):
    return measured.loc[measured["query_id"].isna(), "value"].iloc[0]


@pytest.mark.parametrize(
    ("collection", "ndcg"), [("dl19", 0.5058), ("cranfield", 0.3729), ("noveleval", 0.6503), ("koblex-ko", 0.6210)]
)
def test_published_baselines_are_reproduced(collections, collection, ndcg):
    folder = collections / collection
    settings = InputSettings(nested="-", qrels=str(folder / "qrels.parquet"))
    run = pq.read_table(folder / "candidates.parquet").to_pandas()

    measured = evaluate(
        read_qrels(settings, NIGHT), run.assign(score=1.0 / run["rank"])[["query_id", "doc_id", "score"]]
    )

    assert mean(measured) == pytest.approx(ndcg, abs=5e-5)


@pytest.mark.fault(90)
def test_a_judged_query_without_results_counts_as_zero():
    measured = evaluate(make_qrels("q1 d1 1\nq2 d1 1\nq3 d1 1"), make_run("q1 d1 1.0\nq2 d9 1.0\nq2 d1 0.5"))

    assert mean(measured) == pytest.approx((1.0 + 0.63093 + 0.0) / 3, abs=1e-4)
    assert measured["num_queries"].iloc[0] == 3


@pytest.mark.fault(91)
def test_a_query_without_a_relevant_document_is_left_out():
    measured = evaluate(make_qrels("q1 d1 1\nq2 d1 0"), make_run("q1 d1 1.0\nq2 d1 1.0"))

    assert mean(measured) == 1.0
    assert measured["num_queries"].iloc[0] == 1


@pytest.mark.fault(93, 94)
def test_the_gain_is_linear_and_the_ideal_comes_from_all_judgments():
    measured = evaluate(make_qrels("q d1 3\nq d2 0\nq d3 2\nq d4 1"), make_run("q d1 3\nq d2 2\nq d3 1"))

    dcg = 3 + 2 / 2
    ideal = 3 + 2 / 1.58496 + 1 / 2
    assert mean(measured) == pytest.approx(dcg / ideal, abs=1e-4)


def test_judgments_of_other_queries_do_not_count_in_a_limited_run():
    qrels = make_qrels("q1 d1 1\nq2 d1 1").of_queries({"q1"})

    assert mean(evaluate(qrels, make_run("q1 d1 1.0"))) == 1.0


def test_no_judgments_is_no_number_out_of_nothing():
    measured = evaluate(make_qrels("q1 d1 1").of_queries(set()), make_run("q1 d1 1.0"))

    assert (mean(measured), measured["num_queries"].iloc[0]) == (0.0, 0)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"query_id": ["q", "q"], "doc_id": ["d", "d"], "relevance": [1, 2]}, "judged in several ways"),
        ({"query_id": ["q", None], "doc_id": ["d", "e"], "relevance": [1, 2]}, "a null among"),
        ({"query_id": ["q"], "doc_id": ["d"], "relevance": ["high"]}, "holds string in 1 rows, wanted integers"),
        ({"query_id": ["q"], "doc_id": ["d"]}, "no column 'relevance'"),
    ],
)
def test_judgments_that_contradict_themselves_are_refused(tmp_path, rows, words):
    path = write_parquet(tmp_path / "qrels.parquet", **rows)

    with pytest.raises(InputError, match=words):
        read_qrels(InputSettings(nested="-", qrels=str(path)), NIGHT)
