"""Nights as training data: rows equal what is stored, and the trainers that they are for take a step on them."""

import importlib.util
import json
import math
import os
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from tasks.evaluation.training_export import TrainingRequest, export_training
from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.system.errors import InputError, PackrankError
from tests.makers import CHATML, make_inputs, make_settings, make_tokenizer, make_tokenizer_folder, select, value

LISTS = [0, 1, 2, 5, 9, 6]
OUTCOMES = """
select windows.*, outcomes.outcome_order, outcomes.outcome_logprobs
from windows join outcomes using (run_id, query_id, round, window_no, attempt)
where num_missing <= num_listed
order by run_id, query_id, round, window_no, attempt
"""
JUDGED = {"strategy__name": "pointwise", "strategy__decode_mode": "yes_no", "strategy__stride": None}
KEPT = {"store__keep_outcomes__logprobs": True}


@pytest.fixture
def night(tmp_path, model_folder, fake_vllm):
    """Runs and publishes a night on the same inputs."""
    fake_vllm()
    inputs = make_inputs(tmp_path / "in", LISTS)

    def run(day=28, **settings):
        values = inputs | {name.replace("__", "."): value for name, value in settings.items()}
        config = make_settings(tmp_path, model_folder, values)
        prepared = prepare_night(NightRequest(config=config, night=date(2026, 11, day), publish=True))
        run_night(prepared)
        return prepared

    return run


def run_id_of(prepared):
    return value(prepared, "select run_id from runs order by night desc limit 1")


def export(prepared, form, output, run_id=None, **given):
    file_form = output.suffix.removeprefix(".")
    request = TrainingRequest.of_file(form, file_form, given.get("top_k"), None)
    return export_training(prepared.settings.database_path, run_id or run_id_of(prepared), request, output)


def exported(prepared, form, folder, **given):
    """The rows, the same from both files."""
    export(prepared, form, folder / "out.parquet", **given)
    export(prepared, form, folder / "out.jsonl", **given)
    rows = pq.read_table(folder / "out.parquet").to_pylist()
    assert rows == [json.loads(line) for line in (folder / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    return rows


def texts_of(folder):
    queries = pq.read_table(folder / "in" / "queries.parquet").to_pylist()
    documents = pq.read_table(folder / "in" / "documents.parquet").to_pylist()
    passages = {row["doc_id"]: ": ".join(filter(None, (row["title"], row["text"]))) for row in documents}
    return {row["query_id"]: row["text"] for row in queries}, passages


def doc_ids_of(prepared):
    rows = select(prepared, "select query_id, first_stage_rank, doc_id from latest_scores")
    return {(row["query_id"], row["first_stage_rank"] - 1): row["doc_id"] for row in rows}


def assert_equal_to_outcomes(rows, prepared, folder):
    (queries, passages), doc_ids = texts_of(folder), doc_ids_of(prepared)
    stored = select(prepared, OUTCOMES)
    assert len(rows) == len(stored) > 5
    rows = sorted(rows, key=lambda row: [row[name] for name in ("run_id", "query_id", "round", "window_no", "attempt")])
    for row, outcome in zip(rows, stored, strict=True):
        shown = [doc_ids[outcome["query_id"], doc] for doc in outcome["docs"]]
        answered = [doc_ids[outcome["query_id"], doc] for doc in outcome["outcome_order"]]
        assert [row[name] for name in ("query_id", "round", "window_no", "attempt", "num_listed")] == [
            outcome[name] for name in ("query_id", "round", "window_no", "attempt", "num_listed")
        ]
        assert row["doc_ids"] == shown
        assert [shown[place] for place in row["order"]] == answered
        assert row["query"] == queries[row["query_id"]]
        assert row["docs"] == [passages[doc_id] for doc_id in shown]
        soft = row["soft_labels"] and [row["soft_labels"][place] for place in row["order"]]
        assert soft == outcome["outcome_logprobs"]


@pytest.mark.parametrize("kept", [True, False])
def test_lists_equal_the_stored_outcomes(night, tmp_path, kept):
    prepared = night(store__keep_outcomes__logprobs=kept)

    rows = exported(prepared, "listwise", tmp_path)

    assert_equal_to_outcomes(rows, prepared, tmp_path)
    assert {row["soft_labels"] is None for row in rows} == {not kept}
    (run,) = select(prepared, "select * from runs")
    told = ("teacher", "teacher_identity", "prompt_digest")
    assert {tuple(row[name] for name in told) for row in rows} == {
        (run["model"], run["model_identity"], json.loads(run["recipe"])["prompt"])
    }


def test_answers_that_name_few_are_left_out_and_counted_and_what_they_lack_is_no_label(night, tmp_path, fake_vllm):
    fake_vllm(answers=["[2] > [1] > [3] > [4]", "no", "[4] > [1]"])
    loose = {"checks__max_partial_share": 1.0, "checks__max_fallback_share": 1.0}
    prepared = night(strategy__decode_mode="permutation", **loose)

    rows = exported(prepared, "listwise", tmp_path)
    line = export(prepared, "listwise", tmp_path / "out.jsonl").line

    assert_equal_to_outcomes(rows, prepared, tmp_path)
    assert {row["labels"].count(0.0) for row in rows} >= {0, 2}
    assert all((row["conversations"] is None) == (0.0 in row["labels"]) for row in rows)
    fallbacks = value(prepared, "select count(*) from fallbacks")
    assert fallbacks > 0
    assert f"{fallbacks} windows fell back and are left out" in line


def test_pairs_are_those_of_the_stored_outcomes(night, tmp_path):
    prepared = night(**KEPT)

    rows = exported(prepared, "pairwise", tmp_path)
    first = exported(prepared, "pairwise", tmp_path, top_k=1)

    doc_ids = doc_ids_of(prepared)
    wanted = [
        (outcome["query_id"], doc_ids[outcome["query_id"], better], doc_ids[outcome["query_id"], worse], higher - lower)
        for outcome in select(prepared, OUTCOMES)
        for place, (better, higher) in enumerate(
            zip(outcome["outcome_order"], outcome["outcome_logprobs"], strict=True)
        )
        for worse, lower in list(zip(outcome["outcome_order"], outcome["outcome_logprobs"], strict=True))[place + 1 :]
    ]
    found = [(row["query_id"], row["positive_id"], row["negative_id"], row["soft_label"]) for row in rows]
    assert found == wanted
    assert len(first) < len(rows)
    _, passages = texts_of(tmp_path)
    assert all(row["negative"] == passages[row["negative_id"]] for row in rows)


def test_passages_have_the_published_rank_and_what_each_got_alone(night, tmp_path):
    prepared = night(**JUDGED)

    rows = exported(prepared, "pointwise", tmp_path)
    lists = exported(prepared, "listwise", tmp_path)

    published = select(prepared, "select * from latest_scores where status = 'ranked' and model_score is not null")
    assert len(rows) == len(published) == 2 + 5 + 9 + 6
    model_scores = {(row["query_id"], row["doc_id"], row["rank"]): row["model_score"] for row in published}
    for row in rows:
        assert row["soft_label"] == pytest.approx(model_scores[row["query_id"], row["doc_id"], row["rank"]], rel=1e-6)
        assert row["label"] == 1 / row["rank"]
    orders = {row["query_id"]: [row["doc_ids"][place] for place in row["order"]] for row in lists}
    for query_id, order in orders.items():
        ranked = sorted((row for row in published if row["query_id"] == query_id), key=lambda row: row["rank"])
        assert order == [row["doc_id"] for row in ranked]


def test_a_reused_query_has_the_answers_of_the_night_that_asked(night, tmp_path):
    first = night(28, **KEPT)
    before = exported(first, "listwise", tmp_path)
    second = night(29, **KEPT)

    assert value(second, "select count(*) from windows where run_id like '2026-11-29%'") == 0
    assert exported(second, "listwise", tmp_path) == before


def test_answers_that_are_gone_are_an_error_but_the_order_can_be_written(night, tmp_path):
    prepared = night(store__keep_outcomes__nights=0)
    output = tmp_path / "out.parquet"

    with pytest.raises(PackrankError, match=r"is no longer kept, see \[store\.keep_outcomes\]"):
        export(prepared, "listwise", output)
    assert not output.exists()

    rows = exported(prepared, "pointwise", tmp_path)
    assert {row["soft_label"] for row in rows} == {None}
    assert len(rows) == 2 + 5 + 9 + 6


def test_inputs_that_have_changed_give_no_texts(night, tmp_path):
    prepared = night()
    path = tmp_path / "in" / "queries.parquet"
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 3), path)

    with pytest.raises(InputError, match="its inputs have changed since"):
        export(prepared, "listwise", tmp_path / "out.parquet")


def test_the_command_writes_training_data_and_the_order_as_before(night, packrank, tmp_path):
    prepared = night()
    run_id, database = run_id_of(prepared), prepared.settings.database_path

    lists = packrank(
        "export", run_id, "--form", "listwise", "--output", "x.jsonl", "--database", database, cwd=tmp_path
    )
    by_settings = packrank(
        "export", "latest", "--form", "pointwise", "--output", "y.parquet", "--config", "nightly.toml"
    )
    order = packrank("export", run_id, "--output", "z.jsonl", "--database", database)
    refused = packrank("export", run_id, "--form", "listwise", "--output", "x.trec", "--database", database)

    num = value(prepared, f"select count(*) from ({OUTCOMES.partition('order by')[0]})")
    assert lists.stdout == f"{tmp_path}/x.jsonl: {num} rows of 4 queries; 0 with soft labels\n"
    assert by_settings.stdout == f"{tmp_path}/y.parquet: 22 rows of 4 queries; 0 with soft labels\n"
    assert order.stdout == f"{tmp_path}/z.jsonl: 23 rows of 5 queries\n"
    assert (refused.returncode, "expected parquet or jsonl" in refused.stderr) == (2, True)


@pytest.fixture
def student(tmp_path):
    """A cross-encoder of one layer with random weights."""
    cross_encoder = pytest.importorskip("sentence_transformers.cross_encoder")
    pytest.importorskip("datasets")
    from transformers import LlamaConfig, LlamaForSequenceClassification

    folder = make_tokenizer_folder(tmp_path / "student", "gpt2", CHATML)
    config = LlamaConfig(
        vocab_size=make_tokenizer("gpt2").get_vocab_size(with_added_tokens=True),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_labels=1,
        pad_token_id=0,
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    model = cross_encoder.CrossEncoder(str(folder), device="cpu", max_length=64)
    model.tokenizer.pad_token_id = 0
    return model


@pytest.mark.parametrize(
    ("form", "columns", "soft", "loss", "settings"),
    [
        ("listwise", ["query", "docs"], "soft_labels", "ListNetLoss", {}),
        ("listwise", ["query", "docs"], "labels", "LambdaLoss", {}),
        ("pairwise", ["query", "positive", "negative"], "soft_label", "MarginMSELoss", {}),
        ("pointwise", ["query", "passage"], "soft_label", "BinaryCrossEntropyLoss", JUDGED),
    ],
)
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_sentence_transformers_takes_a_step(night, student, tmp_path, form, columns, soft, loss, settings, suffix):
    from datasets import load_dataset
    from sentence_transformers.cross_encoder import CrossEncoderTrainer, CrossEncoderTrainingArguments, losses

    output = tmp_path / f"train.{suffix}"
    export(night(**KEPT, **settings), form, output)
    kind = {"parquet": "parquet", "jsonl": "json"}[suffix]
    rows = load_dataset(kind, data_files=str(output), split="train", cache_dir=str(tmp_path / "cache"))
    rows = rows.select_columns([*columns, soft]).rename_column(
        soft, "score"
    )  # one of the names that it takes for labels
    before = {name: each.detach().clone() for name, each in student.named_parameters()}

    arguments = CrossEncoderTrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=1,
        per_device_train_batch_size=4,
        learning_rate=0.1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
    )
    trained = CrossEncoderTrainer(
        model=student, args=arguments, train_dataset=rows, loss=getattr(losses, loss)(student)
    ).train()

    assert math.isfinite(trained.training_loss)
    assert any((each != before[name]).any() for name, each in student.named_parameters())


@pytest.fixture
def rankllm_training():
    """What RankLLM's trainer reads files with, of a checkout: its wheel has no trainer."""
    folder = os.environ.get("PACKRANK_RANKLLM")
    if folder is None:
        pytest.skip("no checkout of RankLLM: set PACKRANK_RANKLLM to its folder")
    pytest.importorskip("datasets")
    pytest.importorskip("ftfy")
    path = Path(folder) / "training" / "utils" / "data_utils.py"
    spec = importlib.util.spec_from_file_location("rankllm_data_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("objective", ["generation", "ranking", "combined"])
def test_rankllms_trainer_reads_the_conversations(night, rankllm_training, tmp_path, objective):
    from datasets import load_dataset
    from transformers import AutoTokenizer

    export(night(), "listwise", tmp_path / "out.parquet")
    rows = load_dataset(
        "parquet", data_files=str(tmp_path / "out.parquet"), split="train", cache_dir=str(tmp_path / "c")
    )
    rows = rows.filter(lambda row: row["conversations"] is not None).select_columns(["conversations", "order"])
    (tmp_path / "rankllm").mkdir()
    rows.to_json(tmp_path / "rankllm" / "train.jsonl")
    tokenizer = AutoTokenizer.from_pretrained(make_tokenizer_folder(tmp_path / "student", "gpt2", CHATML))
    tokenizer.pad_token, tokenizer.eos_token = "<|im_start|>", "<|im_end|>"
    arguments = SimpleNamespace(
        train_dataset_path=str(tmp_path / "rankllm"), objective=objective, per_device_train_batch_size=2
    )

    dataset, loader = rankllm_training.initialize_dataset_and_loader(arguments, tokenizer)

    assert len(dataset) == len(rows) > 5
    next(iter(loader))
    for number in range(len(rows)):
        order, item = rows[number]["order"], dataset[number]
        ranks = item[-1]
        if objective != "generation":  # by letter, the place in the answer
            assert [ranks[place] for place in order] == list(range(len(order)))
        assert "Question: what is" in item[0]
