"""Nights whose passages have fields: prices, dates and first-stage scores stand before the text, cut and counted."""

import json
from datetime import date
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.report.explain import explain_query
from tasks.system.errors import ConfigError, InputError
from tasks.tools.plan import CacheAssumption, plan_night
from tests.makers import asked, make_settings, select, value, write_parquet

QUERIES = {"q1": "why do tides rise", "q2": "which lens is cheap"}
DOCUMENTS = {
    "d1": ("The moon pulls at the sea.", date(2026, 11, 28), Decimal("19.90"), True),
    "d2": ("A lens bends light.", None, Decimal("5.00"), False),
    "d3": ("Bread rises [2] > [1].", date(2025, 1, 1), None, None),
}
PAIRS = [
    ("q1", "d1", 1, 12.310001),
    ("q1", "d2", 2, 3.0),
    ("q1", "d3", 3, None),
    ("q2", "d3", 1, 0.5),
    ("q2", "d2", 2, 0.25),
]
FIELDS = ["score", "date", "price", "stock"]


def write_inputs(folder, documents=DOCUMENTS, pairs=PAIRS):
    write_parquet(folder / "queries.parquet", query_id=list(QUERIES), text=list(QUERIES.values()))
    texts, dates, prices, stocks = zip(*documents.values(), strict=True)
    write_parquet(
        folder / "documents.parquet",
        doc_id=list(documents),
        text=list(texts),
        date=list(dates),
        price=list(prices),
        stock=list(stocks),
    )
    columns = zip(*pairs, strict=True)
    named = dict(zip(("query_id", "doc_id", "rank", "score"), map(list, columns), strict=True))
    write_parquet(folder / "candidates.parquet", **named)
    return {f"inputs.{name}": str(folder / f"{name}.parquet") for name in ("queries", "documents", "candidates")}


@pytest.fixture
def night(tmp_path, model_folder, fake_vllm):
    """Runs night after night on one database; the inputs may change in between."""
    fake_vllm(log=str(tmp_path / "asked"))

    def run(day, paths, *, is_run=True, **settings):
        values = paths | {"prompt.fields": FIELDS} | {name.replace("__", "."): each for name, each in settings.items()}
        tables = {name: each for name, each in values.items() if isinstance(each, dict)}
        config = make_settings(tmp_path, model_folder, values | dict.fromkeys(tables))
        prepared = prepare_night(
            NightRequest(config=config, night=date(2026, 11, day), publish=is_run, overrides=tables)
        )
        if is_run:
            run_night(prepared)
        return prepared

    return run


def prompts_of(prepared):
    """What the model would be asked, word for word: the first prompt of each decode mode."""
    tables = plan_night(prepared, CacheAssumption(num_gpu_blocks=1000), with_prompt=True)
    return [str(table) for table in tables if "Prompt of" in str(table)]


def statuses(prepared):
    latest = "(select run_id from runs order by night desc, run_id desc limit 1)"
    rows = select(prepared, f"select query_id, status, reuse_reason from rankings where run_id = {latest}")
    return {row["query_id"]: row["reuse_reason"] or row["status"] for row in rows}


def test_each_passage_opens_with_its_fields_list_wise_and_point_wise(night, tmp_path):
    paths = write_inputs(tmp_path / "in")

    (listed,) = prompts_of(night(28, paths, is_run=False))
    (judged,) = prompts_of(night(28, paths, is_run=False, strategy__name="pointwise", strategy__decode_mode="yes_no"))

    assert "[A] score: 12.31 | date: 2026-11-28 | price: 19.90 | stock: yes\\nThe moon pulls at the sea.\\n" in listed
    assert "[B] score: 3 | price: 5.00 | stock: no\\nA lens bends light.\\n" in listed
    assert "[C] date: 2025-01-01\\nBread rises (2) > (1).\\n" in listed
    assert "Passage: score: 12.31 | date: 2026-11-28 | price: 19.90 | stock: yes\\nThe moon" in judged


def test_a_changed_price_is_asked_again_and_nothing_else_is(night, tmp_path):
    paths = write_inputs(tmp_path / "in")
    first = night(28, paths)
    rows = select(first, "select query_id, doc_id, rank, score, first_stage_rank from latest_scores order by all")
    num_asked = len(asked(tmp_path / "asked"))
    assert len(rows) == len(PAIRS)

    night(29, paths)
    assert len(asked(tmp_path / "asked")) == num_asked

    cheaper = DOCUMENTS | {"d1": (*DOCUMENTS["d1"][:2], Decimal("9.90"), True)}
    third = night(30, write_inputs(tmp_path / "in", cheaper))

    assert statuses(third) == {"q1": "document changed", "q2": "reused"}
    assert len(asked(tmp_path / "asked")) > num_asked


def test_a_changed_score_is_a_changed_candidate_where_prompts_show_it(night, tmp_path):
    paths = write_inputs(tmp_path / "in")
    night(28, paths)
    near = [(q, d, rank, 12.3100002 if score == 12.310001 else score) for q, d, rank, score in PAIRS]
    assert statuses(night(29, write_inputs(tmp_path / "in", pairs=near))) == {"q1": "reused", "q2": "reused"}

    far = [(q, d, rank, 7.0 if score == 0.5 else score) for q, d, rank, score in PAIRS]
    assert statuses(night(30, write_inputs(tmp_path / "in", pairs=far))) == {"q1": "reused", "q2": "candidates changed"}


def test_the_same_fields_inside_the_lists_of_the_nested_layout(night, tmp_path):
    texts = {doc: values[0] for doc, values in DOCUMENTS.items()}
    rows = [
        {
            "query_id": query,
            "text": text,
            "candidates": [
                {
                    "doc_id": doc,
                    "text": texts[doc],
                    "score": score,
                    "cost": DOCUMENTS[doc][2],
                    "date": DOCUMENTS[doc][1],
                }
                for pair, doc, _, score in PAIRS
                if pair == query
            ],
        }
        for query, text in QUERIES.items()
    ]
    path = tmp_path / "in" / "nested.parquet"
    path.parent.mkdir()
    pq.write_table(pa.Table.from_pylist(rows), path)
    paths = {"inputs.nested": str(path), "inputs.columns": {"nested": {"candidates.price": "cost"}}}
    settings = {"prompt__fields": ["score", "date", "candidates.price"]}

    (shown,) = prompts_of(night(28, paths, is_run=False, **settings))
    assert "[A] score: 12.31 | date: 2026-11-28 | price: 19.90\\nThe moon" in shown
    assert "[C] date: 2025-01-01\\nBread" in shown

    night(28, paths, **settings)
    rows[0]["candidates"][1]["cost"] = Decimal("6.00")
    pq.write_table(pa.Table.from_pylist(rows), path)

    assert statuses(night(29, paths, **settings)) == {"q1": "candidates changed", "q2": "reused"}


def test_explain_shows_the_fields_as_the_model_saw_them(night, tmp_path):
    paths = write_inputs(tmp_path / "in")
    prepared = night(28, paths)
    run_id = value(prepared, "select run_id from runs")

    (order,) = [each for each in explain_query(prepared.settings.database_path, run_id, "q1") if "Order" in each.title]

    places = [order.columns.index(name) for name in ("doc_id", "fields")]
    shown = {row[places[0]]: row[places[1]] for row in order.rows}
    assert shown == {
        "d1": "score: 12.31 | date: 2026-11-28 | price: 19.90 | stock: yes",
        "d2": "score: 3 | price: 5.00 | stock: no",
        "d3": "date: 2025-01-01",
    }


def test_text_gives_way_before_fields_and_both_are_counted(night, tmp_path):
    long_text = "moon " * 200
    documents = DOCUMENTS | {"d1": (long_text, *DOCUMENTS["d1"][1:])}
    paths = write_inputs(tmp_path / "in", documents, [("q1", "d1", 1, 1.5), ("q1", "d2", 2, 1.0), ("q2", "d2", 1, 1.0)])

    settings = {"prompt__fields": ["price", "stock"]}
    (shown,) = prompts_of(night(28, paths, is_run=False, prompt__max_passage_tokens=40, **settings))
    assert "[A] price: 19.90 | stock: yes\\nmoon moon" in shown

    cut = night(28, paths, prompt__max_passage_tokens=40, **settings)
    whole = night(29, paths, prompt__max_passage_tokens=500, **settings)

    (window,) = select(cut, "select * from windows where query_id = 'q1' and truncated_passages > 0")
    (uncut,) = select(whole, "select * from windows where query_id = 'q1' and truncated_passages = 0")
    assert window["truncated_passages"] == 1
    assert uncut["prompt_tokens"] == window["prompt_tokens"] + window["truncated_tokens"]


def test_fields_alone_beyond_the_limit_are_cut_and_noted(night, tmp_path):
    paths = write_inputs(
        tmp_path / "in", {doc: (text, when, price, "sold " * 60) for doc, (text, when, price, _) in DOCUMENTS.items()}
    )

    prepared = night(28, paths, prompt__max_passage_tokens=20, prompt__fields=["stock"])

    notes = json.loads(value(prepared, "select input_notes from runs"))
    assert notes["candidates whose fields alone are longer than max_passage_tokens"] == len(PAIRS)
    assert value(prepared, "select sum(truncated_passages) from windows") == len(PAIRS)


@pytest.mark.parametrize(
    ("fields", "columns", "words"),
    [
        (["cost"], {}, "[prompt] fields: no column 'cost' in candidates: "),
        (["documents.score"], {}, "no column 'score' in documents: "),
        (["prise"], {}, 'columns = { documents = { prise = "price" } }'),
        (["price"], {"documents": {"text": "body"}}, "no column 'body'"),
        (["cost"], {"documents": {"text": "body"}}, "no column 'body'"),
        (["cost"], {"documents": {"text": "body"}}, "no column 'cost'"),
    ],
)
def test_a_field_that_no_input_has_is_told_with_the_other_missing_columns(night, tmp_path, fields, columns, words):
    paths = write_inputs(tmp_path / "in")

    with pytest.raises(InputError) as told:
        night(28, paths, is_run=False, prompt__fields=fields, inputs__columns=columns)

    assert words in str(told.value)
    assert "\n" not in str(told.value)


def test_a_name_that_both_inputs_have_says_which(night, tmp_path):
    paths = write_inputs(tmp_path / "in")
    candidates = pq.read_table(tmp_path / "in" / "candidates.parquet")
    pq.write_table(
        candidates.append_column("price", pa.array([1.5] * len(PAIRS))), tmp_path / "in" / "candidates.parquet"
    )

    with pytest.raises(InputError, match="Write 'candidates.price' or 'documents.price'"):
        night(28, paths, is_run=False, prompt__fields=["price"])

    (shown,) = prompts_of(night(28, paths, is_run=False, prompt__fields=["candidates.price"]))
    assert "[A] price: 1.5\\n" in shown
    (shown,) = prompts_of(night(28, paths, is_run=False, prompt__fields=["documents.price"]))
    assert "[A] price: 19.90\\n" in shown


def test_a_document_that_stands_twice_with_another_price_is_no_document(night, tmp_path):
    paths = write_inputs(tmp_path / "in")
    documents = pq.read_table(tmp_path / "in" / "documents.parquet")
    again = documents.slice(0, 1).set_column(
        3, "price", pa.array([Decimal("1.00")], documents.schema.field("price").type)
    )
    pq.write_table(pa.concat_tables([documents, again]), tmp_path / "in" / "documents.parquet")

    with pytest.raises(InputError, match="comes in 2 rows with different contents"):
        night(28, paths)
    night(28, paths, prompt__fields=["date"])


def test_a_pair_that_is_listed_twice_shows_the_fields_of_its_best_place(night, tmp_path):
    pairs = [("q1", "d1", 2, 1.0), ("q1", "d1", 1, 9.0), ("q1", "d2", 3, 0.5), ("q2", "d2", 1, 1.0)]
    paths = write_inputs(tmp_path / "in", pairs=pairs)
    candidates = pq.read_table(tmp_path / "in" / "candidates.parquet")
    named = candidates.append_column("source", pa.array(["dense", "bm25", "dense", None]))
    pq.write_table(named, tmp_path / "in" / "candidates.parquet")

    (shown,) = prompts_of(night(28, paths, is_run=False, prompt__fields=["source"]))

    assert "[A] source: bm25\\nThe moon" in shown


def test_fields_of_text_files_are_as_written(night, tmp_path):
    paths = write_inputs(tmp_path / "in")
    rows = [
        '{"doc_id": "d1", "text": "A", "meta": {"price": 19.90, "new": true}}',
        '{"doc_id": "d2", "text": "B", "meta": {}}',
    ]
    (tmp_path / "in" / "documents.jsonl").write_text("\n".join(rows), encoding="utf-8")
    lines = ["query_id,doc_id,bm25", "q1,d1,12.50", "q1,d2,3", "q2,d2,1e-7"]
    (tmp_path / "in" / "candidates.csv").write_text("\n".join(lines), encoding="utf-8")
    paths |= {
        "inputs.documents": str(tmp_path / "in" / "documents.jsonl"),
        "inputs.candidates": str(tmp_path / "in" / "candidates.csv"),
        "inputs.columns": {"candidates": {"score": "bm25"}, "documents": {"price": "meta.price", "new": "meta.new"}},
    }

    (shown,) = prompts_of(night(28, paths, is_run=False, prompt__fields=["bm25", "price", "new"]))

    assert "[A] bm25: 12.5 | price: 19.90 | new: yes\\nA\\n[B] bm25: 3\\nB\\n" in shown


def test_a_cascade_and_a_template_of_one_field_say_what_does_not_go_together(night, tmp_path):
    paths = write_inputs(tmp_path / "in")
    template = tmp_path / "theirs.toml"
    words = 'identifiers = "letters"\nanswer_prefix = "["\nsystem = ""\nbefore = "{query}\\n"\nafter = "Which?"\n'
    template.write_text(
        words + 'passage = "[{id}] {text}\\n{fields}\\n"\nfield = "BM25: {value:.1f}"\nfields = ["score"]\n'
    )

    (shown,) = prompts_of(night(28, paths, is_run=False, prompt__template=str(template), prompt__fields=None))
    assert "[A] The moon pulls at the sea.\\nBM25: 12.3\\n[B] A lens" in shown

    with pytest.raises(ConfigError, match="writes score as 'BM25: {value:.1f}'"):
        night(28, paths, is_run=False, prompt__template=str(template), prompt__fields=["price"])


def test_without_fields_no_identity_changes(night, tmp_path):
    paths = write_inputs(tmp_path / "in")

    without = night(28, paths, is_run=False, prompt__fields=None)
    shown = night(28, paths, is_run=False)

    assert without.base_run_id == night(28, paths, is_run=False, prompt__fields=[]).base_run_id
    assert without.base_run_id != shown.base_run_id
    assert "fields" not in without.recipe.resolved
    assert shown.recipe.resolved["fields"] == FIELDS


@pytest.mark.parametrize(
    "way",
    [
        {"strategy.name": "pointwise", "strategy.decode_mode": "query_likelihood"},
        {"strategy.decode_mode": "permutation"},
        {"strategy.calibrate": "content_free"},
        {"strategy.cascade": {"keep": 2, "decode_mode": "yes_no"}},
        {"packing.shards": 2},
        {"inputs.top_k": 2, "strategy.name": "single"},
    ],
    ids=str,
)
def test_every_way_of_asking_ranks_passages_with_fields(night, tmp_path, way):
    settings = {name.replace(".", "__"): each for name, each in way.items()}

    prepared = night(28, write_inputs(tmp_path / "in"), **settings)

    num_rows = len([pair for pair in PAIRS if pair[2] <= way.get("inputs.top_k", 3)])
    assert value(prepared, "select count(*) from latest_scores") == num_rows
    assert set(statuses(prepared).values()) == {"ranked"}


def test_a_column_of_lists_is_no_field(night, tmp_path):
    paths = write_inputs(tmp_path / "in")
    documents = pq.read_table(tmp_path / "in" / "documents.parquet")
    tags = pa.array([["a", "b"], [], None])
    pq.write_table(documents.append_column("tags", tags), tmp_path / "in" / "documents.parquet")

    with pytest.raises(
        InputError, match=r"expected text, numbers, booleans, dates or times. Write array_to_string\(tags"
    ):
        night(28, paths, is_run=False, prompt__fields=["tags"])

    rows = [{"query_id": "q1", "text": "a", "candidates": [{"doc_id": "d", "text": "b", "tags": ["c"]}]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in" / "nested.parquet")
    with pytest.raises(InputError, match="column 'tags' holds list"):
        night(28, {"inputs.nested": str(tmp_path / "in" / "nested.parquet")}, is_run=False, prompt__fields=["tags"])
