"""Other tools' files: what goes out keeps our order everywhere, what comes in is whole or names its line."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.evaluation.file_import import ImportSources, import_files
from tasks.evaluation.run_export import export_run, trec_line
from tasks.inputs.qrels import read_judgments
from tasks.system.database import DatabaseLimits, open_database
from tasks.system.errors import ConfigError, InputError, PackrankError, StoreError
from tests.makers import make_finished_run

RUN = "2026-11-29-test-00000000"
ORDERS = {"q2": ("abc", "cab"), "q1": ("ab", "ba"), "q3": ("", "")}


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "x.duckdb"
    make_finished_run(path, RUN, ORDERS)
    return path


def write_lines(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def write_jsonl(path, *objects):
    return write_lines(path, *(json.dumps(each, ensure_ascii=False) for each in objects))


def make_sources(folder, run, queries="q1 q2", documents="a b c", **given):
    """A run's lines, with BEIR files that have the given ids."""
    return ImportSources(
        run=write_lines(folder / "run.trec", *run),
        queries=write_jsonl(
            folder / "queries.jsonl", *({"_id": each, "text": f"what is {each}"} for each in queries.split())
        ),
        corpus=write_jsonl(
            folder / "corpus.jsonl", *({"_id": each, "title": "", "text": f"on {each}"} for each in documents.split())
        ),
        **given,
    )


def make_request(qid, *docids, **doc):
    candidates = [
        {"docid": docid, "score": 9.0 - place, "doc": doc or {"text": f"on {docid}"}}
        for place, docid in enumerate(docids)
    ]
    return {"query": {"qid": qid, "text": f"what is {qid}"}, "candidates": candidates}


def order_in(folder):
    rows = pq.read_table(folder / "candidates.parquet").to_pylist()
    return [(row["query_id"], row["doc_id"], row["rank"]) for row in rows]


@pytest.mark.fault(89)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, unique=True))
def test_a_strict_order_of_scores_stays_one_after_printing(scores):
    scores = sorted(set(np.float32(scores).tolist()), reverse=True)
    printed = [trec_line("q", "d", 1, score, tag="t").split()[4] for score in scores]

    read = [np.float32(text) for text in printed]  # what trec_eval keeps: a C float
    assert all(upper > lower for upper, lower in pairwise(read))


@pytest.mark.fault(89)
def test_the_scores_of_neighbouring_ranks_differ_also_far_down():
    for rank in (1, 1_000, 65_534, 1_000_000):
        upper, lower = (
            np.float32(trec_line("q", "d", 1, float(np.float32(1 / each)), tag="t").split()[4])
            for each in (rank, rank + 1)
        )
        assert upper > lower


def test_a_trec_run_has_six_columns_best_first(database, tmp_path):
    made = export_run(database, RUN, "trec", tmp_path / "out.trec")

    assert (tmp_path / "out.trec").read_text().splitlines() == [
        "q1 Q0 b 1 1 test",
        "q1 Q0 a 2 0.5 test",
        "q2 Q0 c 1 1 test",
        "q2 Q0 a 2 0.5 test",
        "q2 Q0 b 3 0.333333343 test",
    ]
    assert (made.num_queries, made.num_rows) == (2, 5)


def test_parquet_and_jsonl_have_the_same_rows(database, tmp_path):
    export_run(database, RUN, "parquet", tmp_path / "out.parquet", top_k=2)
    export_run(database, RUN, "jsonl", tmp_path / "out.jsonl", top_k=2)

    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert rows == [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(row["query_id"], row["doc_id"], row["rank"]) for row in rows] == [
        ("q1", "b", 1),
        ("q1", "a", 2),
        ("q2", "c", 1),
        ("q2", "a", 2),
    ]
    assert list(rows[0]) == [
        *("query_id", "doc_id", "rank", "score", "score_kind", "model_score"),
        *("first_stage_rank", "first_stage_score", "status"),
    ]
    assert (rows[2]["first_stage_rank"], rows[2]["model_score"], rows[2]["status"]) == (3, None, "ranked")


def test_rows_that_an_earlier_run_computed_are_exported_too(database, tmp_path):
    make_finished_run(database, "later", ORDERS, scores_run_id=RUN)

    assert export_run(database, "later", "jsonl", tmp_path / "out.jsonl").num_rows == 5


def test_queries_are_read_a_span_at_a_time_and_none_twice(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.store.score_tables.QUERIES_A_READ", 3)
    make_finished_run(tmp_path / "x.duckdb", RUN, {f"질의 {number}": ("ab", "ba") for number in range(10)})

    export_run(tmp_path / "x.duckdb", RUN, "jsonl", tmp_path / "out.jsonl")

    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["query_id"] for row in rows] == [f"질의 {number}" for number in range(10) for _ in "ab"]


@pytest.mark.fault(96)
@pytest.mark.parametrize("bad", ["a b", "a\tb", "", " a", "a\u00a0b", "a\nb"])
def test_an_id_with_white_space_goes_into_any_file_but_a_trec_run(tmp_path, bad):
    make_finished_run(tmp_path / "x.duckdb", RUN, {"q1": (["a", bad], [bad, "a"])})
    (tmp_path / "out.trec").write_text("the export of yesterday")

    with pytest.raises(InputError, match="holds white space") as error:
        export_run(tmp_path / "x.duckdb", RUN, "trec", tmp_path / "out.trec")
    export_run(tmp_path / "x.duckdb", RUN, "jsonl", tmp_path / "out.jsonl")

    assert repr(bad) in str(error.value)
    assert json.loads((tmp_path / "out.jsonl").read_text().split("\n")[0])["doc_id"] == bad
    assert (tmp_path / "out.trec").read_text() == "the export of yesterday"
    assert sorted(path.name for path in tmp_path.glob("*out*")) == ["out.jsonl", "out.trec"]


@pytest.mark.fault(92)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("update scores set doc_id = 'c' where query_id = 'q2'", "query 'q2' lists 'c' twice"),
        ("update scores set score = 0.5 where query_id = 'q1'", "query 'q1' has scores that do not fall"),
    ],
)
def test_rows_without_a_strict_order_are_not_exported(database, tmp_path, change, words):
    with open_database(database, DatabaseLimits("200MB", 1, tmp_path / "spill")) as opened:
        opened.query_text(change)

    with pytest.raises(StoreError, match=words):
        export_run(database, RUN, "parquet", tmp_path / "out.parquet")

    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("run_id", "output", "top_k", "error", "words"),
    [
        ("r9", "out", None, PackrankError, "no run 'r9'"),
        (RUN, "nowhere/out", None, ConfigError, "expected a file in an existing folder"),
        (RUN, ".", None, ConfigError, "expected a file"),
        (RUN, "out", 0, ConfigError, "--top-k 0: expected 1 or more"),
    ],
)
def test_what_cannot_be_exported_says_why(database, tmp_path, run_id, output, top_k, error, words):
    with pytest.raises(error, match=words):
        export_run(database, run_id, "trec", tmp_path / output, top_k=top_k)


def test_an_exported_run_comes_back_in_the_same_order(database, tmp_path):
    export_run(database, RUN, "trec", tmp_path / "out.trec")
    lines = (tmp_path / "out.trec").read_text().splitlines()

    made = import_files(tmp_path / "in", make_sources(tmp_path, lines))

    assert order_in(tmp_path / "in") == [("q1", "b", 1), ("q1", "a", 2), ("q2", "c", 1), ("q2", "a", 2), ("q2", "b", 3)]
    assert (made.num_queries, made.num_documents, made.num_candidates, made.num_judgments) == (2, 3, 5, None)


@pytest.mark.fault(96)
def test_tabs_and_several_blanks_separate_columns(tmp_path):
    lines = ["q1\tQ0\tb\t1\t7.5\tt", "", "q1  Q0   a  2   3e-1  t  ", "q2 Q0 c 1 -4 t\r"]

    import_files(tmp_path / "in", make_sources(tmp_path, lines))

    assert order_in(tmp_path / "in") == [("q1", "b", 1), ("q1", "a", 2), ("q2", "c", 1)]
    assert pq.read_table(tmp_path / "in" / "candidates.parquet").column("score").to_pylist() == [7.5, 0.3, -4.0]


def test_a_rank_follows_the_score_then_the_line_and_the_rank_column_only_where_scores_say_nothing(tmp_path):
    lines = [
        *("q1 Q0 a 1 1.0 t", "q1 Q0 b 2 2.0 t", "q1 Q0 c 0 1.0 t"),
        *("q2 Q0 a 3 5 t", "q2 Q0 b 1 5 t", "q2 Q0 c 2 5 t"),
    ]

    import_files(tmp_path / "in", make_sources(tmp_path, lines))

    assert [doc for _, doc, _ in order_in(tmp_path / "in")] == ["b", "a", "c", "b", "c", "a"]
    assert [rank for _, _, rank in order_in(tmp_path / "in")] == [1, 2, 3, 1, 2, 3]


def test_only_what_the_run_names_is_written_and_what_it_lacks_is_counted(tmp_path):
    lines = ["q1 Q0 a 1 2 t", "q1 Q0 lost 2 1 t", "unknown Q0 b 1 1 t"]
    qrels = write_lines(tmp_path / "qrels.tsv", "query-id\tcorpus-id\tscore", "q1\ta\t1", "q7\tz\t0")

    made = import_files(tmp_path / "in", make_sources(tmp_path, lines, "q1 q8", "a b unneeded", qrels=qrels))

    folder = tmp_path / "in"
    assert pq.read_table(folder / "queries.parquet").to_pylist() == [{"query_id": "q1", "text": "what is q1"}]
    assert pq.read_table(folder / "documents.parquet").to_pylist() == [
        {"doc_id": "a", "title": None, "text": "on a"},
        {"doc_id": "b", "title": None, "text": "on b"},
    ]
    assert ("q1", "lost", 2) in order_in(folder)
    assert pq.read_table(folder / "qrels.parquet").num_rows == made.num_judgments == 2
    assert (made.num_missing_queries, made.num_missing_documents) == (1, 1)
    assert "1 documents and 1 queries" in made.table.note
    assert made.inputs_lines.splitlines()[0] == "[inputs]"
    assert made.inputs_lines.splitlines()[-1] == f'qrels = "{folder}/qrels.parquet"'


def test_ids_are_text_and_files_may_be_compressed(tmp_path):
    sources = make_sources(tmp_path, ["7 Q0 007 1 1 t"])
    write_jsonl(tmp_path / "queries.jsonl", {"_id": 7, "text": "질의"})
    corpus = tmp_path / "corpus.jsonl.gz"
    corpus.write_bytes(gzip.compress(json.dumps({"_id": "007", "title": "T", "text": "x\ty\nz"}).encode()))

    import_files(tmp_path / "in", ImportSources(sources.run, sources.queries, str(corpus)))

    assert pq.read_table(tmp_path / "in" / "queries.parquet").to_pylist() == [{"query_id": "7", "text": "질의"}]
    assert pq.read_table(tmp_path / "in" / "documents.parquet").to_pylist() == [
        {"doc_id": "007", "title": "T", "text": "x\ty\nz"}
    ]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["q1 Q0 a 1 1 t", "q1 Q0 a b 2 1 t"], "line 2: 7 columns, expected 6"),
        (["q1 Q0 a 1 1 t", f"q1 Q0 {'a ' * 20}1 2 t"], "run.trec: .* in line 2, saw 25"),
        ([f"q1 Q0 {'a ' * 20}1 2 t"], "line 1: 10 columns, expected 6"),
        (["q1 Q0 a 1 1"], "line 1: 5 columns, expected 6"),
        (["q1 Q0 a one 1 t"], "line 1: the rank is 'one', expected a whole number"),
        (["q1 Q0 a 99999999999999999999 1 t"], "the rank is '9{20}', expected a whole number of at most 18 digits"),
        (["q1 Q0 a 1 nan t"], "line 1: the score is 'nan', expected a number"),
        (["q1 Q0 a 1 1e400 t"], "line 1: the score is '1e400', expected a number"),
        (["", "q1 Q0 a 1 high t"], "line 2: the score is 'high'"),
        (["q1 Q0 a 1 3 t", "q2 Q0 a 1 3 t", "q1 Q0 a 2 2 t"], "line 3: query 'q1' lists document 'a' again"),
        ([], "no lines. Expected a TREC run"),
        (["q9 Q0 a 1 3 t"], "has none of the 1 queries"),
        (["q1 Q0 z 1 3 t"], "has none of the 1 documents"),
    ],
)
def test_a_damaged_run_is_refused_by_line_and_leaves_nothing(tmp_path, lines, words):
    with pytest.raises(InputError, match=words) as error:
        import_files(tmp_path / "in", make_sources(tmp_path, lines))

    assert "\n" not in str(error.value)
    assert not [path for path in tmp_path.iterdir() if "in" in path.name.split(".")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"_id": "a", "text": "x"', "line 2: Invalid JSON: EOF while parsing an object at column 24"),
        ("[1]", "line 2: Input should be an object, found list"),
        ('{"text": "x"}', "line 2: _id: Field required"),
        ('{"_id": true, "text": "x"}', "line 2: _id: Input should be a valid string, found bool"),
        ('{"_id": 1.0, "text": "x"}', "line 2: _id: Input should be a valid string, found float"),
        ('{"_id": "b"}', "line 2: text: Field required"),
        ('{"_id": "b", "text": "\\ud800"}', "line 2: Invalid JSON: .* hex escape at column 29"),
        ('{"_id": "a", "text": "again"}', "line 2: _id 'a' comes a second time"),
    ],
)
def test_a_damaged_corpus_is_refused_by_line(tmp_path, line, words):
    sources = make_sources(tmp_path, ["q1 Q0 a 1 2 t", "q1 Q0 b 1 1 t"], documents="a")
    with (tmp_path / "corpus.jsonl").open("a") as stream:
        stream.write(line + "\n")

    with pytest.raises(InputError, match=words):
        import_files(tmp_path / "in", sources)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("corpus.jsonl", b'{"_id": "a", "text": "x"}\n{"_id": "b", "text": "\xff"}\n'),
        ("run.trec", b"q1 Q0 a 1 2 t\nq1 Q0 \xff 1 2 t\n"),
    ],
)
def test_text_that_is_not_utf8_is_refused_by_line(tmp_path, name, lines):
    sources = make_sources(tmp_path, ["q1 Q0 a 1 2 t"])
    (tmp_path / name).write_bytes(lines)

    with pytest.raises(InputError, match=rf"{name}, line 2: not UTF-8"):
        import_files(tmp_path / "in", sources)


def test_an_id_that_looks_like_something_else_stays_what_it_is(tmp_path):
    """Readers of tables take these for quotes, comments, nothing, numbers and truth."""
    ids = ["00.70", "1e5", "NA", "null", "True", '"a', "#b", "a\u00a0b", "가", "-"]
    lines = [f"q1 Q0 {name} 1 {-place} t" for place, name in enumerate(ids)]

    import_files(tmp_path / "in", make_sources(tmp_path, lines, documents="NA"))
    judged, _ = read_judgments(write_lines(tmp_path / "qrels.txt", *(f"{name} 0 {name} 1" for name in ids)))

    assert [doc for _, doc, _ in order_in(tmp_path / "in")] == ids
    assert judged.column("query_id").to_pylist() == judged.column("doc_id").to_pylist() == ids


@pytest.mark.parametrize("form", ["array", "pretty array", "lines"])
def test_requests_of_rankllm_hold_everything(tmp_path, form):
    requests = [make_request(264014, "a", "b"), make_request("q2", "b"), make_request("empty")]
    path = tmp_path / "requests"
    if form == "lines":
        write_jsonl(path, *requests)
    else:
        path.write_text(json.dumps(requests, indent=1 if form == "pretty array" else None))

    made = import_files(tmp_path / "in", ImportSources(rankllm=str(path)))

    assert order_in(tmp_path / "in") == [("264014", "a", 1), ("264014", "b", 2), ("q2", "b", 1)]
    assert pq.read_table(tmp_path / "in" / "documents.parquet").to_pylist() == [
        {"doc_id": "a", "title": None, "text": "on a"},
        {"doc_id": "b", "title": None, "text": "on b"},
    ]
    assert (made.num_queries, made.num_missing_queries, made.num_missing_documents) == (3, 0, 0)
    assert made.table.note is None


@pytest.mark.parametrize("key", ["text", "segment", "contents", "content", "body", "passage"])
def test_a_text_of_rankllm_may_have_any_of_its_names(tmp_path, key):
    path = write_jsonl(tmp_path / "x.jsonl", make_request("q", "a", **{"title": "Tides", key: "On tides."}))

    import_files(tmp_path / "in", ImportSources(rankllm=path))

    (document,) = pq.read_table(tmp_path / "in" / "documents.parquet").to_pylist()
    assert document == {"doc_id": "a", "title": "Tides", "text": "On tides."}


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([make_request("q", "a"), {"query": {}}], "line 2: query.qid: Field required"),
        ([make_request("q", "a"), make_request("q", "b")], "line 2: query 'q' comes a second time"),
        ([make_request("q", "a", "a")], "line 1: candidates.1: document 'a' is listed again"),
        (
            [make_request("q", "a"), make_request("p", "a", text="other")],
            "line 2: candidates.0: document 'a' has another",
        ),
        ([make_request("q", "a", title="no text")], "line 1: candidates.0.doc.text: Field required"),
        (
            [make_request("q") | {"candidates": [{"docid": "a", "score": 1}]}],
            "line 1: candidates.0.doc: Field required",
        ),
        (
            [make_request("q") | {"candidates": [{"docid": "a", "doc": {"text": "x"}}]}],
            "line 1: candidates.0.score: Field required",
        ),
        ([make_request("q")], "no request with candidates"),
    ],
)
def test_damaged_requests_are_refused_by_place(tmp_path, requests, words):
    with pytest.raises(InputError, match=words):
        import_files(tmp_path / "in", ImportSources(rankllm=write_jsonl(tmp_path / "x.jsonl", *requests)))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"run": "x"},
        {"run": "x", "queries": "x"},
        {"rankllm": "x", "run": "x"},
        {"rankllm": "x", "run": "x", "queries": "x", "corpus": "x"},
        {"qrels": "x"},
    ],
)
def test_sources_that_do_not_belong_together_are_refused(tmp_path, given):
    with pytest.raises(ConfigError, match="give --run, --queries and --corpus, or --rankllm alone"):
        import_files(tmp_path / "in", ImportSources(**given))


def test_nothing_is_overwritten(tmp_path):
    sources = make_sources(tmp_path, ["q1 Q0 a 1 2 t"])
    (tmp_path / "in").mkdir()

    import_files(tmp_path / "in", sources)
    with pytest.raises(ConfigError, match="is there and not an empty folder"):
        import_files(tmp_path / "in", sources)
    with pytest.raises(ConfigError, match="is there and not an empty folder"):
        import_files(tmp_path / "run.trec", sources)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["q1 0 a 1", "q1 0 b"], "line 2: 3 columns, expected 4"),
        (["q1 0 a high"], "line 1: the relevance is 'high', expected a whole number from -10 to 1,000"),
        (["query-id\tcorpus-id\tscore", "q1 0 a 1"], "line 2: 4 columns, expected 3"),
        (["query-id\tcorpus-id\tscore"], "no judgments"),
        ([], "no judgments"),
    ],
)
def test_damaged_judgments_are_refused_by_line(tmp_path, lines, words):
    with pytest.raises(InputError, match=words):
        read_judgments(write_lines(tmp_path / "qrels.txt", *lines))


def test_the_digest_of_judgments_is_of_what_they_say(tmp_path):
    one = read_judgments(write_lines(tmp_path / "a.txt", "q1 0 a -1", "q1 0 b 2"))
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfq1 0 a -1\r\n\r\nq1 0 b 2")
    other = read_judgments(str(tmp_path / "b.txt"))

    assert one[0].equals(other[0])
    assert one[1] == other[1]
    assert read_judgments(write_lines(tmp_path / "c.txt", "q1 0 a 1"))[1] != one[1]


def test_large_numbers_of_rows_keep_their_order(tmp_path):
    """2 x 5,000 rows in random file order: more than one write, ranks by score."""
    rng = np.random.default_rng(7)
    rows = [(query, place) for query in ("q1", "q2") for place in range(5_000)]
    lines = [f"{rows[n][0]} Q0 d{rows[n][1]} 1 {1 / (1 + rows[n][1]):.9g} t" for n in rng.permutation(len(rows))]

    import_files(tmp_path / "in", make_sources(tmp_path, lines, documents=" ".join(f"d{n}" for n in range(5_000))))

    found = order_in(tmp_path / "in")
    assert all(doc == f"d{rank - 1}" for _, doc, rank in found)
    assert len(found) == 10_000
    assert pq.read_table(tmp_path / "in" / "documents.parquet").num_rows == 5_000
