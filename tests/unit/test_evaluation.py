"""Quality: trec_eval's numbers, over all judged queries."""

import json
import math
import statistics
from dataclasses import replace
from datetime import date

import pandas as pd
import pyarrow.parquet as pq
import pytest

from tasks.evaluation.evaluate import EvaluationRequest, comparison_table, evaluate_run, qrels_of
from tasks.evaluation.measures import DEFAULT_MEASURES, Qrels, RunOrders, check_measures, compare, evaluate
from tasks.inputs.arrival import await_night_input
from tasks.report.sql_shell import read_rows
from tasks.settings import InputSettings, differing_settings, load_settings
from tasks.system.errors import ConfigError, InputError, PackrankError
from tests.makers import make_finished_run, make_inputs, make_settings, write_parquet

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

    measured = evaluate(qrels_of(settings, NIGHT), run.assign(score=1.0 / run["rank"])[["query_id", "doc_id", "score"]])

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
        (
            {"query_id": ["q", "p"], "doc_id": ["d", "e"], "relevance": [1, 1_764_460_800_000]},
            "qrels.parquet: column 'relevance', query 'p', document 'e': .* is 1764460800000, expected .* -10 to 1,000",
        ),
        ({"query_id": ["q"], "doc_id": ["d"], "relevance": [2**62]}, "is 4611686018427387904, expected"),
        ({"query_id": ["q"], "doc_id": ["d"], "relevance": [-11]}, "is -11, expected"),
        ({"query_id": ["q"], "doc_id": ["d"], "relevance": ["high"]}, "holds string in 1 rows, expected integers"),
        ({"query_id": ["q"], "doc_id": ["d"]}, "no column 'relevance'"),
    ],
)
def test_judgments_that_contradict_themselves_are_refused(tmp_path, rows, words):
    path = write_parquet(tmp_path / "qrels.parquet", **rows)

    with pytest.raises(InputError, match=words):
        qrels_of(InputSettings(nested="-", qrels=str(path)), NIGHT)


@pytest.mark.parametrize("grade", [1_001, 2**31, 2**62, -11])
def test_a_grade_that_is_none_is_refused_in_a_text_file_too(tmp_path, grade):
    (tmp_path / "qrels.txt").write_text(f"q1 0 a 1\nq2 0 b {grade}\n")

    with pytest.raises(InputError, match=rf"qrels.txt, line 2: the relevance is '{grade}', expected"):
        qrels_of(InputSettings(nested="-", qrels=str(tmp_path / "qrels.txt")), NIGHT)


@pytest.mark.parametrize("line", ["q1 0 a 4611686018427387904", "q1 0 a high", "q1 0 b 2", "q1 a 1"])
def test_judgments_of_a_night_are_read_before_its_engine_starts(tmp_path, line):
    """They once ended the process after the engine's work, at every start again."""
    (tmp_path / "qrels.txt").write_text(f"q1 0 b 1\n{line}\n")
    inputs = make_inputs(tmp_path / "in", [2]) | {"inputs.qrels": str(tmp_path / "qrels.txt")}
    settings = InputSettings(**{name.removeprefix("inputs."): value for name, value in inputs.items()})

    with pytest.raises(InputError, match=r"qrels.txt"):
        await_night_input(settings, NIGHT, wait_s=0)


def test_every_grade_of_the_allowed_range_is_measured(tmp_path):
    (tmp_path / "qrels.txt").write_text("q 0 a 1000\nq 0 b -10\nq 0 c 0\n")
    qrels = qrels_of(InputSettings(nested="-", qrels=str(tmp_path / "qrels.txt")), NIGHT)

    assert mean(evaluate(qrels, make_run("q b 3\nq a 2\nq c 1"))) == pytest.approx(1 / math.log2(3))


def test_a_row_that_is_there_twice_is_one_judgment(tmp_path):
    (tmp_path / "qrels.txt").write_text("q 0 a 1\nq 0 a 1\n")

    assert len(qrels_of(InputSettings(nested="-", qrels=str(tmp_path / "qrels.txt")), NIGHT).frame) == 1


def make_settings_of(qrels):
    return {"inputs": {"nested": "-", "qrels": str(qrels)}}


def tables_of(request):
    return {table.title: table for table in evaluate_run(request)}


def quality(tables):
    return {row[0]: row[1:] for row in tables["Quality"].texts}


def stored(database, run_id):
    rows = read_rows(database, f"select * from metrics where run_id = '{run_id}' order by all", {})
    return rows.to_pandas()


def values(*numbers):
    return pd.Series(numbers, index=[f"q{number}" for number in range(len(numbers))], dtype=float)


@pytest.mark.fault(93, 94)
def test_the_default_measures_are_those_worked_out_by_hand():
    """Grades 3, 0, 2 at ranks 1 to 3, and a document of grade 1 that was not retrieved."""
    qrels = make_qrels("q d1 3\nq d2 0\nq d3 2\nq d4 1\np d1 0\np d2 1")
    run = make_run("q d1 9\nq d2 8\nq d3 7\np d1 9\np d2 8")
    measured = evaluate(qrels, run, check_measures(DEFAULT_MEASURES)).set_index(["query_id", "measure"])["value"]

    by_hand = {
        ("q", "nDCG@10"): (3 / math.log2(2) + 2 / math.log2(4))
        / (3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)),
        ("q", "AP"): (1 / 1 + 2 / 3) / 3,
        ("q", "RR"): 1.0,
        ("q", "R@100"): 2 / 3,
        ("p", "nDCG@10"): (1 / math.log2(3)) / 1,
        ("p", "AP"): 1 / 2,
        ("p", "RR"): 1 / 2,
        ("p", "R@100"): 1.0,
    }
    for key, value in by_hand.items():
        assert measured[key] == pytest.approx(value, abs=1e-9), key
    assert measured[measured.index.get_level_values(0).isna()].tolist() == pytest.approx(
        [(by_hand["q", each] + by_hand["p", each]) / 2 for each in DEFAULT_MEASURES]
    )


@pytest.mark.fault(93)
def test_the_gain_is_not_exponential():
    """The fault's own example: 0.840 would be exponential here or there, trec_eval's is linear."""
    measured = evaluate(make_qrels("q d1 3\nq d2 0\nq d3 2\nq d4 1"), make_run("q d1 3\nq d2 2\nq d3 1"), ["nDCG@10"])
    exponential = (7 + 3 / 2) / (7 + 3 / math.log2(3) + 1 / 2)

    assert abs(mean(measured) - exponential) > 0.02
    assert measured["measure"].tolist() == ["nDCG@10", "nDCG@10"]


@pytest.mark.fault(94)
def test_relevant_documents_that_were_not_retrieved_count_against_the_run():
    qrels = make_qrels("\n".join(f"q d{number} 1" for number in range(5)))

    assert mean(evaluate(qrels, make_run("q d0 1.0"))) < 0.5


@pytest.mark.fault(89)
def test_our_order_is_the_one_that_is_measured(tmp_path):
    """Ids fall while ranks rise: an evaluator that saw ties would turn the list around."""
    rows = pd.DataFrame(
        {
            "query_id": ["q"] * 1000,
            "doc_id": [f"d{place:04d}" for place in range(1000)],
            "rank": range(1, 1001),
            "first_stage_rank": range(1000, 0, -1),
        }
    )
    orders = RunOrders("r", frozenset({"q"}), rows)
    qrels = make_qrels("q d0899 1")

    assert mean(evaluate(qrels, orders.scored("reranked"), ["RR"])) == pytest.approx(1 / 900)
    assert mean(evaluate(qrels, orders.scored("first_stage"), ["RR"])) == pytest.approx(1 / 101)


@pytest.mark.fault(91)
def test_a_measure_that_is_no_number_is_refused_not_averaged():
    """q2 has no document judged irrelevant, which Accuracy divides by."""
    qrels = make_qrels("q1 d1 1\nq1 d2 0\nq2 d1 1")
    run = make_run("q1 d1 1\nq1 d2 0.5\nq2 d1 1")

    with pytest.raises(ConfigError, match="--measure Accuracy: "):
        evaluate(qrels, run, ["Accuracy"])


@pytest.mark.fault(92)
def test_a_document_twice_in_a_list_is_refused():
    with pytest.raises(InputError, match="query 'q2' lists document 'd1' more than once"):
        evaluate(make_qrels("q2 d1 1"), make_run("q1 d1 1.0\nq2 d1 1.0\nq2 d1 0.5"))


@pytest.mark.parametrize(
    "measure", ["nDGC@10", "nDCG@ten", "", "NERR9@10", "alpha_nDCG@10", "AP(", "nDCG@0", "R(cutoff=0)"]
)
def test_an_unknown_measure_is_named_with_examples(measure):
    with pytest.raises(ConfigError, match="Such as: nDCG@10, AP") as error:
        check_measures(["AP", measure])

    assert f"--measure {measure}:" in str(error.value)
    assert "\n" not in str(error.value)


def test_measures_are_taken_once_and_labelled_as_ir_measures_prints_them():
    assert check_measures(["AP", "AP(rel=1)", "AP(rel=2)", "AP"]) == ("AP", "AP(rel=2)")


@pytest.mark.fault(90, 95)
def test_a_run_is_measured_over_all_judged_queries_and_every_count_is_shown(tmp_path):
    """q1 is turned right, q2 is not in the run, q3 has no relevant document, q4 is not judged."""
    database = tmp_path / "x.duckdb"
    qrels = write_parquet(
        tmp_path / "qrels.parquet", query_id=["q1", "q2", "q3"], doc_id=["b", "b", "b"], relevance=[1, 1, 0]
    )
    make_finished_run(
        database,
        "r1",
        {"q1": ("ab", "ba"), "q3": ("ab", "ba"), "q4": ("ab", "ba"), "q5": ("", "")},
        settings=make_settings_of(qrels),
    )

    tables = tables_of(EvaluationRequest("r1", database=database))

    assert [row[1] for row in tables["Judgments of run r1"].texts[1:]] == ["2", "1", "1", "4", "2"]
    assert quality(tables)["RR"] == ("2", "0.2500", "0.5000")
    assert list(quality(tables)) == list(DEFAULT_MEASURES)
    rows = stored(database, "r1")
    assert len(rows) == 2 * 4 * (1 + 2)
    assert rows.loc[rows["query_id"].isna() & (rows["measure"] == "RR"), "value"].tolist() == [0.25, 0.5]


@pytest.mark.fault(95)
@pytest.mark.parametrize("judged", ["q9 0 a 1", "q1 0 a 0"])
def test_judgments_of_no_query_of_the_run_are_an_error(tmp_path, judged):
    make_finished_run(tmp_path / "x.duckdb", "r1", {"q1": ("ab", "ba")})
    (tmp_path / "qrels.txt").write_text(judged)

    with pytest.raises(InputError, match="none of the 1 queries of run r1 has a relevant judgment"):
        evaluate_run(EvaluationRequest("r1", qrels=str(tmp_path / "qrels.txt"), database=tmp_path / "x.duckdb"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qrels.txt", "q1 0 b 1\nq1 0\ta  0\n\n"),
        ("qrels.tsv", "query-id\tcorpus-id\tscore\r\nq1\tb\t1\r\nq1\ta\t0\r\n"),
    ],
)
def test_judgments_come_as_trec_or_beir_text_too(tmp_path, name, text):
    make_finished_run(tmp_path / "x.duckdb", "r1", {"q1": ("ab", "ba")})
    (tmp_path / name).write_text(text)

    tables = tables_of(EvaluationRequest("r1", qrels=str(tmp_path / name), database=tmp_path / "x.duckdb"))

    assert quality(tables)["RR"] == ("1", "0.5000", "1.0000")


def test_an_evaluation_replaces_its_measures_and_what_other_judgments_gave(tmp_path):
    database = tmp_path / "x.duckdb"
    make_finished_run(database, "r1", {"q1": ("ab", "ba")})
    make_finished_run(database, "r2", {"q1": ("ab", "ba")})
    for name in ("one", "other"):
        (tmp_path / name).write_text(f"q1 0 {'a' if name == 'one' else 'b'} 1")

    def measure(run_id, name, *measures):
        evaluate_run(EvaluationRequest(run_id, str(tmp_path / name), measures, database=database))
        return set(stored(database, run_id)["measure"])

    measure("r2", "one", "P@1")
    assert measure("r1", "one", "AP", "RR") == {"AP", "RR"}
    assert measure("r1", "one", "RR", "P@1") == {"AP", "RR", "P@1"}
    assert len(stored(database, "r1")) == 3 * 2 * 2
    assert measure("r1", "other", "RR") == {"RR"}
    assert set(stored(database, "r2")["measure"]) == {"P@1"}


def test_a_settings_file_stands_for_its_newest_finished_run(tmp_path, model_folder):
    """Newer ones: a trial, a run with another depth, one that failed, one of another series."""
    (tmp_path / "qrels.txt").write_text("q1 0 b 1")
    inputs = {"inputs.nested": "-", "inputs.qrels": str(tmp_path / "qrels.txt")}
    config = make_settings(tmp_path, model_folder, inputs)
    stored = json.loads(load_settings(config).stored_json())
    without_qrels = stored | {"inputs": stored["inputs"] | {"qrels": None}}
    deeper = stored | {"strategy": stored["strategy"] | {"depth": 12}}
    database = tmp_path / "var" / "test.duckdb"
    orders = {"q1": ("ab", "ba")}

    def finish(run_id, hour, settings, **values):
        make_finished_run(database, run_id, orders, settings=settings, hour=hour, **({"name": "nightly"} | values))

    finish("late", 3, without_qrels, status="published")  # judgments may come later
    finish("early", 2, stored)
    finish("dead", 4, stored, status="failed")
    finish("another", 5, stored, name="another")
    finish("deeper", 6, deeper)
    finish("other-packrank", 7, {"inputs": {"nested": "-"}, "strategy": {"speed": 3}})
    finish("trial", 8, stored, is_limited=True)

    assert "Judgments of run late" in tables_of(EvaluationRequest(str(config)))
    assert "Judgments of run deeper" in tables_of(EvaluationRequest(str(config), overrides={"strategy.depth": 12}))
    for overrides, words in (
        ({"night.name": "trial"}, "no complete or published run of 'trial'"),
        ({"strategy.depth": 11}, "the newest, other-packrank, differs in: .*speed: unknown key"),
    ):
        with pytest.raises(PackrankError, match=words):
            evaluate_run(EvaluationRequest(str(config), overrides=overrides))
    make_finished_run(tmp_path / "trials.duckdb", "trial", orders, name="nightly", settings=stored, is_limited=True)
    with pytest.raises(PackrankError, match="all 1 finished runs of 'nightly' are trials"):
        evaluate_run(EvaluationRequest(str(config), database=tmp_path / "trials.duckdb"))


def test_a_run_of_other_settings_is_not_taken_and_the_difference_is_named(tmp_path, model_folder):
    config = make_settings(tmp_path, model_folder, {"inputs.nested": "-", "engine.hf_token": "secret"})
    stored = json.loads(load_settings(config).stored_json())
    assert differing_settings(load_settings(config), stored) == []  # the token is not stored

    other = load_settings(config, {"strategy.depth": 7, "engine.dtype": "half", "engine.max_num_seqs": 3})

    assert differing_settings(other, stored) == ["[engine] dtype", "[strategy] depth"]


def test_a_trial_is_measured_over_its_own_queries_as_its_night_was(tmp_path):
    """A night of two queries of three left the third out; evaluated again it must not count as 0."""
    database = tmp_path / "x.duckdb"
    (tmp_path / "qrels.txt").write_text("q1 0 b 1\nq2 0 b 1\nq3 0 b 1")
    orders = {"q1": ("ab", "ba"), "q2": ("ab", "ab")}
    make_finished_run(database, "trial", orders, is_limited=True)
    make_finished_run(database, "whole", orders)

    def measured(run_id):
        tables = tables_of(EvaluationRequest(run_id, str(tmp_path / "qrels.txt"), ("RR",), database=database))
        return tables, quality(tables)["RR"]

    assert measured("trial")[1] == ("2", "0.5000", "0.7500")
    assert measured("whole")[1] == ("3", "0.3333", "0.5000")
    assert ("judged queries that the trial did not rank, left out", "1") in measured("trial")[0][
        "Judgments of run trial"
    ].texts
    assert "Replaced in metrics, measured by another rule" not in measured("trial")[0]


def test_values_of_another_rule_are_not_replaced_in_silence(tmp_path):
    database = tmp_path / "x.duckdb"
    make_finished_run(database, "r1", {"q1": ("ab", "ba"), "q2": ("ab", "ba")})
    (tmp_path / "few.txt").write_text("q1 0 b 1")
    (tmp_path / "all.txt").write_text("q1 0 b 1\nq2 0 a 1")

    def replaced(name, *measures):
        tables = tables_of(EvaluationRequest("r1", str(tmp_path / name), measures, database=database))
        table = tables.get("Replaced in metrics, measured by another rule")
        return None if table is None else table.texts

    assert replaced("few.txt", "RR", "AP") is None
    assert replaced("few.txt", "RR") is None
    assert replaced("all.txt", "RR") == (
        ("AP", "first_stage", "0.5000", "1", "yes"),
        ("AP", "reranked", "1.0000", "1", "yes"),
        ("RR", "first_stage", "0.5000", "1", "yes"),
        ("RR", "reranked", "1.0000", "1", "yes"),
    )


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (EvaluationRequest("r9"), PackrankError, "no run 'r9'"),
        (EvaluationRequest("dead"), PackrankError, "run dead is 'failed', expected complete or published"),
        (EvaluationRequest("r1"), PackrankError, "stored .inputs. are not this packrank's"),
        (EvaluationRequest("bare"), ConfigError, "name no .inputs. qrels. Give --qrels"),
        (EvaluationRequest("r1", overrides={"a.b": 1}), ConfigError, "--set needs a settings file"),
        (EvaluationRequest("nowhere.toml"), ConfigError, "no such settings file"),
        (EvaluationRequest("r1", qrels="nowhere.txt"), InputError, "no such file"),
    ],
)
def test_what_cannot_be_evaluated_says_why(tmp_path, request_, error, words):
    database = tmp_path / "x.duckdb"
    make_finished_run(database, "r1", {"q1": ("ab", "ba")})
    make_finished_run(database, "bare", {"q1": ("ab", "ba")}, settings={"inputs": {"nested": "-"}})
    make_finished_run(database, "dead", {"q1": ("ab", "ba")}, status="failed")

    with pytest.raises(error, match=words) as told:
        evaluate_run(replace(request_, database=database))

    assert "\n" not in str(told.value)


def test_a_comparison_has_the_t_tests_numbers():
    """From the textbook: t = mean / (sd / sqrt(n)); t(0.975, 3) = 3.182446; for 3 degrees of freedom p has a closed form."""
    made = compare("AP", values(0.5, 0.7, 0.2, 0.9), values(0.3, 0.7, 0.3, 0.4))
    differences = [0.2, 0.0, -0.1, 0.5]
    error = statistics.stdev(differences) / 2

    assert (made.wins, made.ties, made.losses, made.num_queries) == (2, 1, 1, 4)
    assert made.difference == pytest.approx(0.15)
    assert made.interval == pytest.approx((0.15 - 3.182446 * error, 0.15 + 3.182446 * error), abs=1e-6)
    angle = math.atan(0.15 / error / math.sqrt(3))
    assert made.p_value == pytest.approx(1 - 2 / math.pi * (angle + math.sin(angle) * math.cos(angle)))
    assert made.sign_flip_p == 0.5  # of the 8 sums of +-0.2, +-0.1, +-0.5 four are 0.6 or more away from 0


@pytest.mark.parametrize(("num_queries", "is_few"), [(19, True), (20, False)])
def test_fewer_than_twenty_queries_have_a_randomisation_test_beside_the_t_test(num_queries, is_few):
    """All 19 gain: of 2^19 swaps two are as far from 0, that one and its mirror image."""
    gains = [0.01 * number for number in range(1, num_queries + 1)]
    made = [compare(measure, values(*gains), values(*[0.0] * num_queries)) for measure in ("AP", "RR")]
    table = comparison_table("a against b", made)

    assert made[0].sign_flip_p == (pytest.approx(2 / 2**19) if is_few else None)
    assert ("sign_flip_p" in table.columns) == is_few
    assert {len(row) for row in table.rows} == {len(table.columns)}
    assert "2 measures are 2 tests" in table.note
    assert "tests:" not in comparison_table("a against b", made[:1]).note


@pytest.mark.parametrize(
    ("ours", "theirs", "p_value", "interval"),
    [
        (values(0.5, 0.5), values(0.5, 0.5), 1.0, (0.0, 0.0)),
        (values(0.1 + 0.2, 0.5), values(0.3, 0.5), 1.0, (0.0, 0.0)),
        (values(0.5), values(0.2), None, None),
        (values(0.5, 0.6), values(0.4, 0.5), None, None),
    ],
)
def test_a_comparison_without_spread_or_queries_has_no_nan(ours, theirs, p_value, interval):
    made = compare("AP", ours, theirs)

    assert (made.p_value, made.interval) == (p_value, interval)


def test_two_runs_are_compared_over_the_queries_that_both_have(tmp_path):
    database = tmp_path / "x.duckdb"
    before = "abcd"
    make_finished_run(
        database, "r1", {"q1": (before, "bacd"), "q2": (before, "abcd"), "q3": (before, "dcba"), "q4": ("b", "b")}
    )
    make_finished_run(database, "r2", {"q1": (before, "acbd"), "q2": (before, "abcd"), "q3": (before, "bacd")})
    (tmp_path / "qrels.txt").write_text("\n".join(f"q{number} 0 b 1" for number in range(1, 6)))
    request = EvaluationRequest("r1", str(tmp_path / "qrels.txt"), ("RR", "AP"), "r2", database)

    tables = tables_of(request)
    by_measure = {row[0]: row for row in tables["r1 against r2"].texts}

    assert by_measure["RR"][1:5] == ("3", "0.6111", "0.6111", "+0.0000")
    assert by_measure["RR"][-3:] == ("1", "1", "1")
    assert [row[0] for row in tables["Moved most, in RR"].texts] == ["q1", "q3"]
    assert [row[3] for row in tables["Moved most, in RR"].texts] == ["0.6667", "-0.6667"]
    assert tables["Candidates a query"].note is None
    assert set(stored(database, "r2")["measure"]) == set()


@pytest.mark.fault(38)
def test_a_comparison_tells_how_far_the_orders_differ_over_all_queries_of_both(tmp_path):
    database, long = tmp_path / "x.duckdb", [f"d{number:02d}" for number in range(12)]
    ours = {"q1": ("abcd", "bacd"), "q2": ("abcd", "abcd"), "q3": ("abcd", "abdc"), "long": (long, long[::-1])}
    make_finished_run(database, "r1", ours | {"mine": ("ab", "ba"), "none": ("", "")})
    make_finished_run(
        database, "r2", {query: (before, before) for query, (before, _) in ours.items()} | {"none": ("", "")}
    )
    (tmp_path / "qrels.txt").write_text("q1 0 b 1")

    tables = tables_of(EvaluationRequest("r1", str(tmp_path / "qrels.txt"), ("RR",), "r2", database))
    own = tables_of(EvaluationRequest("r1", str(tmp_path / "qrels.txt"), ("RR",), "first_stage", database))

    assert tables["Orders"].texts == (
        ("queries with candidates in both", "4"),
        ("of those in another order", "3"),
        ("of those with another first document", "2"),
        ("mean overlap of the first ten", "0.9500"),  # 1, 1, 1, 0.8
    )
    assert own["Orders"].texts[:2] == (("queries with candidates in both", "5"), ("of those in another order", "4"))


@pytest.mark.fault(22)
def test_judgments_keep_the_zeros_of_their_ids(tmp_path):
    (tmp_path / "beir.tsv").write_text("query-id\tcorpus-id\tscore\n001\t0007\t1\n")
    (tmp_path / "trec.txt").write_text("001 0 0007 1\n")
    write_parquet(tmp_path / "q.parquet", query_id=["001"], doc_id=["0007"], relevance=[1])

    for name in ("beir.tsv", "trec.txt", "q.parquet"):
        qrels = qrels_of(InputSettings(nested="-", qrels=str(tmp_path / name)), NIGHT)
        assert qrels.frame[["query_id", "doc_id"]].to_numpy().tolist() == [["001", "0007"]], name


@pytest.mark.fault(97)
def test_another_depth_is_shown_and_noted(tmp_path):
    database = tmp_path / "x.duckdb"
    make_finished_run(database, "deep", {"q1": ("abcd", "dcba"), "q2": ("abcd", "abcd")})
    make_finished_run(database, "short", {"q1": ("ab", "ba"), "q2": ("abcd", "abcd")})
    (tmp_path / "qrels.txt").write_text("q1 0 d 1\nq2 0 a 1")

    table = tables_of(EvaluationRequest("deep", str(tmp_path / "qrels.txt"), (), "short", database))[
        "Candidates a query"
    ]

    assert table.texts == (("deep", "4.0000", "4", "4"), ("short", "3.0000", "2", "4"))
    assert table.note.startswith("1 of 2 queries have lists of another length")


def test_a_run_is_compared_with_its_own_first_stage(tmp_path):
    database = tmp_path / "x.duckdb"
    make_finished_run(database, "r1", {f"q{number}": ("ab", "ba") for number in range(12)})
    (tmp_path / "qrels.txt").write_text("\n".join(f"q{number} 0 {'ab'[number % 4 > 0]} 1" for number in range(12)))

    tables = tables_of(EvaluationRequest("r1", str(tmp_path / "qrels.txt"), ("RR",), "first_stage", database))

    (row,) = tables["r1 against first_stage"].texts
    assert row[2:5] == ("0.8750", "0.6250", "+0.2500")
    assert row[-3:] == ("9", "0", "3")
    assert len(tables["Moved most, in RR"].texts) == 10


def test_rows_that_an_earlier_run_computed_are_measured_too(tmp_path):
    database = tmp_path / "x.duckdb"
    make_finished_run(database, "r1", {"q1": ("ab", "ba")})
    make_finished_run(database, "r2", {"q1": ("ab", "ba")}, scores_run_id="r1")
    (tmp_path / "qrels.txt").write_text("q1 0 b 1")

    tables = tables_of(EvaluationRequest("r2", str(tmp_path / "qrels.txt"), database=database))

    assert quality(tables)["RR"] == ("1", "0.5000", "1.0000")
