"""Reading and staging: the same kinds of fault under other names and values than the collection's, and what is kept."""

import datetime
import re
import tomllib
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.inputs import token_store
from tasks.inputs.candidates import CandidateLimits
from tasks.inputs.staging import open_night_input
from tasks.ranking.query import StagedQuery
from tasks.schedule.wrappers.truncate import Truncate
from tasks.settings import InputSettings
from tasks.system.errors import ConfigError, InputError, StoreError
from tests.makers import make_inputs, write_parquet
from tests.staged import NIGHT, lists, partitioned, stage


def reasons(staged):
    found = [(row["source"], row["query_id"], row["doc_id"], row["reason"]) for row in staged.quarantine.to_pylist()]
    return sorted(found, key=str)


@pytest.fixture
def paths(tmp_path):
    """Three queries with lists of 3, 2 and 4."""
    return make_inputs(tmp_path / "in", [3, 2, 4])


def rewrite(path, **columns):
    """Changes or adds columns of a Parquet file."""
    table = pq.read_table(path)
    for name, values in columns.items():
        array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values)
        table = (
            table.append_column(name, array)
            if name not in table.column_names
            else table.set_column(table.column_names.index(name), name, array)
        )
    pq.write_table(table, path)
    return str(path)


def test_a_clean_input_keeps_its_order(tmp_path, paths):
    staged = stage(tmp_path, paths)

    assert lists(staged) == {
        "q000": ["d0000", "d0001", "d0002"],
        "q001": ["d0001", "d0002"],
        "q002": ["d0002", "d0003", "d0004", "d0005"],
    }
    assert staged.quarantine.num_rows == 0
    assert staged.notes == {}
    assert staged.first_stage_score[:3].tolist() == [100.0, 99.0, 98.0]


@pytest.mark.fault(57)
def test_folders_globs_and_odd_names_are_read(tmp_path, paths):
    odd = tmp_path / "o'brien data" / "[x] y"
    table = pq.read_table(paths["inputs.candidates"])
    for number in range(3):
        write_parquet(
            odd / f"part[{number}].parquet",
            **{name: table.slice(number * 3, 3).column(name) for name in table.column_names},
        )
    (odd / "_SUCCESS").touch()
    (odd / ".part.parquet.crc").touch()
    as_folder = stage(tmp_path, paths | {"inputs.candidates": str(odd)})
    as_glob = stage(tmp_path, paths | {"inputs.candidates": str(tmp_path / "o'brien data" / "*" / "part*.parquet")})
    as_file = stage(tmp_path, paths | {"inputs.candidates": str(odd / "part[0].parquet")})

    assert lists(as_folder) == lists(as_glob) == lists(stage(tmp_path, paths))
    assert lists(as_file)["q000"] == ["d0000", "d0001", "d0002"]


def test_an_fsspec_url_is_read(tmp_path, paths):
    import fsspec

    memory = fsspec.filesystem("memory")
    for name in ("queries", "documents", "candidates"):
        with memory.open(f"/night/{name}.parquet", "wb") as stream:
            stream.write(Path(paths[f"inputs.{name}"]).read_bytes())

    staged = stage(
        tmp_path,
        {f"inputs.{name}": f"memory://night/{name}.parquet" for name in ("queries", "documents", "candidates")},
    )

    assert lists(staged) == lists(stage(tmp_path, paths))


@pytest.mark.fault(52, 53)
@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int16(), pa.string())], ids=str)
def test_every_arrow_form_of_text_is_the_same_text(tmp_path, paths, kind):
    plain = stage(tmp_path, paths)
    for name in ("queries", "documents", "candidates"):
        table = pq.read_table(paths[f"inputs.{name}"])
        texts = {
            each: table.column(each).cast(kind)
            for each in table.column_names
            if table.schema.field(each).type == pa.string()
        }
        rewrite(paths[f"inputs.{name}"], **texts)

    assert lists(stage(tmp_path, paths)) == lists(plain)


@pytest.mark.fault(21, 23)
def test_integer_ids_become_exact_decimal_text(tmp_path):
    big = 9_007_199_254_740_993
    folder = tmp_path / "in"
    paths = {
        "inputs.queries": str(write_parquet(folder / "q.parquet", query_id=[1, 2], text=["a", "b"])),
        "inputs.documents": str(write_parquet(folder / "d.parquet", doc_id=[big, 7], text=["x", "y"])),
        "inputs.candidates": str(
            write_parquet(
                folder / "c.parquet", query_id=[1, 1, 2, 2], doc_id=[big, 7, 7, None], score=[2.0, 1.0, 1.0, 0.5]
            )
        ),
    }

    staged = stage(tmp_path, paths)

    assert lists(staged) == {"1": [str(big), "7"], "2": ["7"]}
    assert reasons(staged) == [("candidates", "2", None, "null doc_id")]


def test_whole_decimals_are_ids_and_ranks(tmp_path):
    """Snowflake writes every whole number as NUMBER(38,0)."""

    def numbers(*values):
        return pa.array([Decimal(value) for value in values], pa.decimal128(38, 0))

    folder = tmp_path / "in"
    candidates = write_parquet(
        folder / "c.parquet", query_id=numbers(1, 1), doc_id=numbers(-7, 10**37), rank=numbers(2, 1)
    )
    paths = {
        "inputs.queries": str(write_parquet(folder / "q.parquet", query_id=[1], text=["a"])),
        "inputs.documents": str(write_parquet(folder / "d.parquet", doc_id=numbers(-7, 10**37), text=["x", "y"])),
        "inputs.candidates": str(candidates),
    }

    assert lists(stage(tmp_path, paths)) == {"1": [str(10**37), "-7"]}


@pytest.mark.fault(22, 23)
def test_padded_text_against_integers_is_refused_even_where_some_ids_match(tmp_path):
    folder = tmp_path / "in"
    numbers = list(range(1, 201))
    paths = {
        "inputs.queries": str(write_parquet(folder / "q.parquet", query_id=["1"], text=["a"])),
        "inputs.documents": str(write_parquet(folder / "d.parquet", doc_id=numbers, text=[f"t{n}" for n in numbers])),
        "inputs.candidates": str(
            write_parquet(
                folder / "c.parquet", query_id=["1"] * 200, doc_id=[f"{n:03d}" for n in numbers], rank=numbers
            )
        ),
    }

    with pytest.raises(
        InputError, match=r"doc_id \(string\): 101 of 200 rows match documents.*001, 002, 003.*zeros included"
    ):
        stage(tmp_path, paths)


def test_a_column_that_stands_twice_is_named(tmp_path, paths):
    table = pq.read_table(paths["inputs.queries"])
    twice = pa.Table.from_arrays([*table.columns, table["text"]], names=[*table.column_names, "text"])
    pq.write_table(twice, paths["inputs.queries"])

    with pytest.raises(InputError, match="2 columns are named 'text'. Keep one"):
        stage(tmp_path, paths)


@pytest.mark.parametrize(
    ("source", "columns", "words"),
    [
        ("queries", {"query_id": [None, "a", "b"]}, "column 'query_id' is null in 1 of 3 rows"),
        (
            "documents",
            {"doc_id": [None] * 2 + [f"d{n:04d}" for n in range(5)]},
            "column 'doc_id' is null in 2 of 7 rows",
        ),
        ("candidates", {"rank": [0, 1, 2, 0, 1, 0, 1, 2, 3]}, "below 1 in 3 of 9 rows (smallest 0)"),
        ("candidates", {"rank": [-5] + [1] * 8}, "below 1 in 1 of 9 rows (smallest -5)"),
        ("candidates", {"rank": [1.5] + [1.0] * 8}, "must hold whole numbers"),
        ("candidates", {"rank": ["1"] * 9}, "holds string in 9 rows, expected integers"),
        ("candidates", {"score": [True] * 9}, "holds bool in 9 rows, expected numbers"),
        ("candidates", {"query_id": [1.0] * 9}, "holds double in 9 rows, expected text or integers"),
        ("documents", {"text": [b"x"] * 7}, "holds binary in 7 rows, expected text. Cast it to text"),
        ("queries", {"query_id": ["a", "a", "b"]}, "query_id 'a' has 2 different texts in 2 rows"),
        ("documents", {"doc_id": ["d0000"] * 2 + [f"d{n:04d}" for n in range(1, 6)]}, "doc_id 'd0000' comes in 2 rows"),
        ("candidates", {"query_id": ["other"] * 9}, "0 of 9 rows match queries"),
    ],
)
def test_what_cannot_be_a_nights_input_is_named(tmp_path, paths, source, columns, words):
    path = rewrite(paths[f"inputs.{source}"], **columns)

    with pytest.raises(InputError) as refused:
        stage(tmp_path, paths)

    assert words in str(refused.value)
    assert path in str(refused.value)
    assert "\n" not in str(refused.value)


def pasted(message):
    """What a message says to set under [inputs]."""
    assert "\n" not in message
    return tomllib.loads(message[message.index("columns = {") :])["columns"]


def rename(path, **names):
    table = pq.read_table(path)
    pq.write_table(table.rename_columns([names.get(name, name) for name in table.column_names]), path)


def test_all_columns_that_are_missing_come_in_one_message_that_can_be_pasted(tmp_path, paths):
    """Of all inputs, none guessed twice, with what the settings had; judgments too."""
    plain = lists(stage(tmp_path, paths))
    qrels = write_parquet(tmp_path / "r.parquet", **{"query-id": ["q000"], "corpus-id": ["d0000"], "score": [1]})
    rename(paths["inputs.queries"], query_id="qid", text="query")
    rename(paths["inputs.documents"], doc_id="_id", text="body", title="headline")
    rename(paths["inputs.candidates"], query_id="query", doc_id="docno", rank="place")
    given = {"candidates": {"rank": "place"}}

    with pytest.raises(InputError, match=r"in place of the columns that it has: columns = ") as told:
        stage(tmp_path, paths, qrels=str(qrels), columns=given)

    columns = pasted(str(told.value))
    assert columns == {
        "queries": {"query_id": "qid", "text": "query"},
        "documents": {"doc_id": "_id", "text": "body", "title": "headline"},
        "candidates": {"rank": "place", "query_id": "query", "doc_id": "docno"},
        "qrels": {"query_id": "query-id", "doc_id": "corpus-id", "relevance": "score"},
    }
    assert lists(stage(tmp_path, paths, qrels=str(qrels), columns=columns)) == plain


def test_a_column_that_none_is_like_is_asked_for(tmp_path, paths):
    rename(paths["inputs.documents"], text="xyz")

    with pytest.raises(InputError, match=r"\('\?': no name is like it\): columns = ") as told:
        stage(tmp_path, paths)

    assert pasted(str(told.value)) == {"documents": {"text": "?"}}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"query_id": ["a"], "body": [{"text": "x"}]}, r"no column 'text' \(found: query_id, body, body\.text\)"),
        ({"query_id": [1.0], "text": ["x"]}, r"Write it as text: cast\(cast\(query_id as bigint\) as varchar\)"),
        (
            {"query_id": pa.array([bytes(16)], pa.uuid()), "text": ["x"]},
            r"extension<arrow.uuid>.*cast\(query_id as varchar",
        ),
        ({"query_id": [b"a"], "text": ["x"]}, r"Cast it to text \(UTF-8\) upstream: decode\(query_id\) in DuckDB"),
    ],
)
def test_columns_that_are_missing_or_of_another_type_come_with_what_to_write(tmp_path, paths, columns, words):
    path = write_parquet(tmp_path / "q.parquet", **columns)

    with pytest.raises(InputError, match=words):
        stage(tmp_path, paths | {"inputs.queries": str(path)})


def test_fields_inside_columns_and_inside_lists_are_offered_and_can_be_mapped(tmp_path, paths):
    queries = pq.read_table(paths["inputs.queries"])
    inside = [{"of": {"text": text}} for text in queries.column("text").to_pylist()]
    write_parquet(Path(paths["inputs.queries"]), query_id=queries.column("query_id"), query=inside)
    found = [
        {"docid": "1", "doc": {"contents": "t"}, "bm25": 1.0},
        {"docid": "2", "doc": {"contents": "u"}, "bm25": 2.0},
    ]
    nested = {"inputs.nested": str(write_parquet(tmp_path / "n.parquet", qid=["a"], text=["x"], hits=[found]))}

    with pytest.raises(
        InputError, match=r"no column 'text' \(found: query_id, query, query.of, query.of.text\)"
    ) as told:
        stage(tmp_path, paths)
    assert lists(stage(tmp_path, paths, columns=pasted(str(told.value))))["q001"] == ["d0001", "d0002"]

    with pytest.raises(InputError, match=r"no columns 'query_id', 'candidates' \(found: qid, text, hits\)") as told:
        stage(tmp_path, nested)
    columns = pasted(str(told.value))
    assert columns["nested"] == {
        "query_id": "qid",
        "candidates": "hits",
        "candidates.doc_id": "docid",
        "candidates.text": "doc.contents",
        "candidates.score": "bm25",
    }
    assert lists(stage(tmp_path, nested, columns=columns, order_by="score")) == {"a": ["2", "1"]}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"query_id": ["a"], "text": ["x"], "doc_id": ["d"]}, "so this is not the nested layout. Name flat files as"),
        (
            {"query_id": ["a"], "text": ["x"], "candidates": [["d"]]},
            r"holds list<.*: string> .*expected list<struct<doc_id",
        ),
        (
            {"query_id": ["a"], "text": ["x"], "candidates": [[{"doc_id": 1.5, "text": "t"}]]},
            "expected list<struct<doc_id",
        ),
    ],
)
def test_what_is_no_nested_layout_is_told_as_what_it_is(tmp_path, columns, words):
    with pytest.raises(InputError, match=words):
        stage(tmp_path, {"inputs.nested": str(write_parquet(tmp_path / "n.parquet", **columns))})


@pytest.mark.parametrize(
    ("there", "missing", "words"),
    [
        ("caf\u00e9", "cafe\u0301", r"1 of the missing ids .* only in Unicode normalisation .*nfc_normalize\(doc_id\)"),
        ("x1", " x1", r"only in white space around them: write both as trim\(doc_id\)"),
        ("X1", "x1", r"only in upper and lower case: write both as lower\(doc_id\)"),
    ],
)
def test_ids_that_only_look_the_same_are_told_apart(tmp_path, paths, there, missing, words):
    given = {
        "inputs.documents": str(write_parquet(tmp_path / "d.parquet", doc_id=[there], text=["x"])),
        "inputs.candidates": str(write_parquet(tmp_path / "c.parquet", query_id=["q000"], doc_id=[missing], rank=[1])),
    }

    with pytest.raises(InputError, match=words):
        stage(tmp_path, paths | given)


@pytest.mark.fault(24, 25)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_an_optional_column_may_be_missing_or_all_null_in_a_part(tmp_path, paths, order):
    table = pq.read_table(paths["inputs.documents"])
    folder = tmp_path / "documents"
    halves = [table.slice(0, 3), table.slice(3)]
    write_parquet(
        folder / f"part-{order[0]}.parquet",
        doc_id=halves[0].column("doc_id"),
        text=halves[0].column("text"),
        title=pa.nulls(3),
    )
    write_parquet(folder / f"part-{order[1]}.parquet", doc_id=halves[1].column("doc_id"), text=halves[1].column("text"))

    staged = stage(tmp_path, paths | {"inputs.documents": str(folder)})

    assert lists(staged) == lists(stage(tmp_path, paths))


@pytest.mark.fault(25)
@pytest.mark.parametrize("name", ["rank", "score"])
def test_rank_or_score_in_some_parts_only_is_an_error_that_names_the_part(tmp_path, paths, name):
    table = pq.read_table(paths["inputs.candidates"])
    folder = tmp_path / "candidates"
    folder.mkdir()
    pq.write_table(table.slice(0, 5), folder / "part-0.parquet")
    pq.write_table(table.slice(5).drop_columns([name]), folder / "part-1.parquet")

    with pytest.raises(InputError, match=rf"part-1.parquet: no column '{name}' in its 4 rows, which .*part-0"):
        stage(tmp_path, paths | {"inputs.candidates": str(folder)})


EMPTY_PARTS = {
    "null": {"query_id": pa.nulls(0), "doc_id": pa.nulls(0), "rank": pa.nulls(0), "score": pa.nulls(0)},
    "integers": {name: pa.array([], pa.int64()) for name in ("query_id", "doc_id", "rank", "score")},
    "text": {name: pa.array([], pa.string()) for name in ("query_id", "doc_id", "rank")},
    "no columns": {},
}


@pytest.mark.fault(24, 25)
@pytest.mark.parametrize("columns", EMPTY_PARTS.values(), ids=EMPTY_PARTS.keys())
@pytest.mark.parametrize("name", ["part-0.parquet", "part-9.parquet"])
def test_a_part_without_rows_says_nothing_of_the_input(tmp_path, paths, columns, name):
    folder = tmp_path / "candidates"
    write_parquet(folder / name, **columns)
    pq.write_table(pq.read_table(paths["inputs.candidates"]), folder / "part-1.parquet")

    assert lists(stage(tmp_path, paths | {"inputs.candidates": str(folder)})) == lists(stage(tmp_path, paths))


def test_a_part_whose_ids_or_lists_are_all_null_sets_only_its_own_rows_aside(tmp_path, paths):
    table = pq.read_table(paths["inputs.candidates"])
    write_parquet(tmp_path / "c/part-0.parquet", query_id=["q000"], doc_id=pa.nulls(1), rank=[1], score=pa.nulls(1))
    pq.write_table(table, tmp_path / "c/part-1.parquet")
    candidate = {"doc_id": "1", "text": "t"}
    for number, rows in enumerate(([[], []], [None, None], [[None], [candidate]], [[None], []])):
        write_parquet(tmp_path / f"n/part-{number}.parquet", query_id=[f"{number}a", f"{number}b"], text=["x", "y"], candidates=rows)  # fmt: skip

    flat = stage(tmp_path, paths | {"inputs.candidates": str(tmp_path / "c")})
    nested = stage(tmp_path, {"inputs.nested": str(tmp_path / "n")})

    assert lists(flat)["q000"] == ["d0000", "d0001", "d0002"]
    assert reasons(flat) == [("candidates", "q000", None, "null doc_id")]
    assert {query: found for query, found in lists(nested).items() if found} == {"2b": ["1"]}
    assert [row[1] for row in reasons(nested) if row[3] == "null doc_id"] == ["2a", "3a"]


def test_ids_of_two_types_in_the_parts_of_one_input_are_an_error(tmp_path, paths):
    folder = tmp_path / "queries"
    write_parquet(folder / "a.parquet", query_id=["q000"], text=["x"])
    write_parquet(folder / "b.parquet", query_id=[1], text=["y"])

    with pytest.raises(InputError, match=r"holds integers in .*b.parquet and text in .*a.parquet"):
        stage(tmp_path, paths | {"inputs.queries": str(folder)})


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: path.write_bytes(b""), "0 bytes"),
        (lambda path: path.write_bytes(b"query_id,text\n1,a\n"), "not a Parquet file"),
        (lambda path: path.write_bytes(path.read_bytes()[:-300]), "without a footer"),
        (
            lambda path: path.write_bytes(b"PAR1" + b"\xff" * 40 + (30).to_bytes(4, "little") + b"PAR1"),
            "not a complete",
        ),
        (lambda path: path.unlink(), "no such file or folder"),
    ],
)
def test_a_file_that_is_no_whole_parquet_file_is_named(tmp_path, paths, write, words):
    path = Path(paths["inputs.documents"])
    write(path)

    with pytest.raises(InputError, match=words) as refused:
        stage(tmp_path, paths)

    assert str(path) in str(refused.value)


def test_a_damaged_page_is_found_by_its_checksum(tmp_path, paths):
    path = Path(paths["inputs.documents"])
    table = pq.read_table(path)
    pq.write_table(
        table, path, compression="none", write_page_checksum=True, use_dictionary=False, write_statistics=False
    )
    pages = bytearray(path.read_bytes())
    place = pages.index(table.column("text")[3].as_py().encode()[:12])
    pages[place] ^= 1
    path.write_bytes(bytes(pages))

    with pytest.raises(InputError, match="damaged, one of its pages"):
        stage(tmp_path, paths)


def undecoded(*values, is_large=False):
    """Bytes where text should be, as a writer that does not look at them leaves them."""
    raw = pa.array(values, pa.large_binary() if is_large else pa.binary())
    return pa.Array.from_buffers(pa.large_string() if is_large else pa.string(), len(raw), raw.buffers())


@pytest.mark.parametrize("is_large", [False, True])
def test_a_text_that_is_not_utf_8_is_set_aside_alone(tmp_path, paths, is_large):
    rewrite(
        paths["inputs.documents"], text=undecoded(b"a", b"b\xff", None, b"d", b"e", b"f", b"\xfe", is_large=is_large)
    )
    rewrite(paths["inputs.documents"], title=undecoded(b"a", b"b", b"c", b"d\xc3", b"e", b"f", b"g", is_large=is_large))
    rewrite(paths["inputs.queries"], text=undecoded(b"x", b"y", b"\x80z", is_large=is_large))

    staged = stage(tmp_path, paths)

    assert lists(staged) == {"q000": ["d0000"], "q001": [], "q002": []}
    assert staged.query_status == ["ready", "no_candidates", "quarantined"]
    aside = [row for row in reasons(staged) if row[1] != "q002"]
    assert [row for row in aside if row[0] == "candidates"] == [
        ("candidates", "q000", "d0001", "document text or title is not UTF-8"),
        ("candidates", "q000", "d0002", "null document text"),
        ("candidates", "q001", "d0001", "document text or title is not UTF-8"),
        ("candidates", "q001", "d0002", "null document text"),
    ]
    assert ("queries", "q002", None, "query text is not UTF-8") in reasons(staged)


def test_a_title_that_is_not_utf_8_sets_its_document_aside_and_one_that_nobody_names_is_nothing(tmp_path, paths):
    rewrite(paths["inputs.documents"], title=undecoded(b"a", b"b", b"c", b"d", b"e", b"f\xff", b"g\xff"))

    staged = stage(tmp_path, paths)

    assert lists(staged)["q002"] == ["d0002", "d0003", "d0004"]
    assert reasons(staged) == [("candidates", "q002", "d0005", "document text or title is not UTF-8")]


def test_a_nested_text_that_is_not_utf_8_is_set_aside_alone(tmp_path):
    docs = pa.StructArray.from_arrays([pa.array(["1", "2"]), undecoded(b"ok", b"\xff")], ["doc_id", "text"])
    table = {"query_id": ["a"], "text": ["x"], "candidates": pa.ListArray.from_arrays([0, 2], docs)}

    staged = stage(tmp_path, {"inputs.nested": str(write_parquet(tmp_path / "n.parquet", **table))})

    assert lists(staged) == {"a": ["1"]}
    assert reasons(staged) == [("candidates", "a", "2", "document text or title is not UTF-8")]


@pytest.mark.parametrize(("source", "name"), [("queries", "query_id"), ("documents", "doc_id")])
def test_an_id_that_is_not_utf_8_is_an_error_not_a_crash(tmp_path, paths, source, name):
    table = pq.read_table(paths[f"inputs.{source}"])
    rewrite(paths[f"inputs.{source}"], **{name: undecoded(b"bad\xff", *[b"ok"] * (table.num_rows - 1))})

    with pytest.raises(InputError, match=rf"column '{name}' is not valid UTF-8 in 1 rows or more \(b'bad"):
        stage(tmp_path, paths)


@pytest.mark.fault(30, 31)
def test_queries_and_documents_without_text_are_set_aside_with_their_rows(tmp_path, paths):
    rewrite(paths["inputs.queries"], text=["   ", None, "fine"])
    rewrite(paths["inputs.documents"], text=["a", "b", None, "\n\t", "", "f", "g"])

    staged = stage(tmp_path, paths)

    assert lists(staged) == {"q000": [], "q001": [], "q002": ["d0005"]}
    assert staged.query_status == ["quarantined", "quarantined", "ready"]
    found = reasons(staged)
    assert ("queries", "q000", None, "empty query text") in found
    assert ("queries", "q001", None, "null query text") in found
    assert ("candidates", "q002", "d0002", "null document text") in found
    assert ("candidates", "q002", "d0003", "empty document text") in found
    assert ("candidates", "q002", "d0004", "empty document text") in found
    assert len(found) == 2 + 3 + 2 + 3


def test_a_query_whose_every_document_is_blank_has_no_candidates(tmp_path, paths):
    rewrite(paths["inputs.documents"], text=["a", "", "", "d", "e", "f", "g"])

    staged = stage(tmp_path, paths)

    assert staged.query_status == ["ready", "no_candidates", "ready"]
    assert ("queries", "q001", None, "no candidates") in reasons(staged)


@pytest.mark.fault(27)
def test_a_query_over_the_limit_is_set_aside_with_its_numbers(tmp_path, paths):
    rewrite(paths["inputs.queries"], text=["w " * 51, "w " * 50, "w"])

    staged = stage(tmp_path, paths)

    assert staged.query_status == ["quarantined", "ready", "ready"]
    row = next(row for row in staged.quarantine.to_pylist() if row["source"] == "queries")
    assert row["reason"] == "query too long"
    assert row["detail"] == "51 tokens, max_query_tokens = 50"


@pytest.mark.fault(78)
def test_a_document_twice_in_a_list_keeps_its_best_place(tmp_path, paths):
    rewrite(
        paths["inputs.candidates"],
        doc_id=["d0000", "d0001", "d0000", "d0001", "d0002", "d0002", "d0003", "d0003", "d0002"],
    )

    staged = stage(tmp_path, paths)

    assert lists(staged) == {"q000": ["d0000", "d0001"], "q001": ["d0001", "d0002"], "q002": ["d0002", "d0003"]}
    assert staged.notes == {"duplicate candidates": 3}


@pytest.mark.fault(78)
def test_documents_of_equal_text_are_two_documents(tmp_path, paths):
    rewrite(paths["inputs.documents"], text=["the same"] * 7, title=[None] * 7)

    staged = stage(tmp_path, paths)

    assert lists(staged)["q000"] == ["d0000", "d0001", "d0002"]
    assert staged.notes == {}


@pytest.mark.parametrize(
    ("column", "nothing"), [("score", float("nan")), ("score", float("inf")), ("score", None), ("rank", None)]
)
def test_candidates_without_a_rank_or_score_anywhere_are_refused(tmp_path, paths, column, nothing):
    """They were ranked by doc_id, with a count of "candidates without a score"."""
    empty = pa.array([nothing] * 9, pa.float64() if column == "score" else pa.int64())
    table = pq.read_table(paths["inputs.candidates"], columns=["query_id", "doc_id"])
    pq.write_table(table.append_column(column, empty), paths["inputs.candidates"])

    with pytest.raises(InputError, match=r"candidates: .*: none of 9 rows has a rank or a score .*order is unknown"):
        stage(tmp_path, paths)


def test_ranks_are_no_order_where_the_settings_name_the_score(tmp_path, paths):
    rewrite(paths["inputs.candidates"], rank=list(range(1, 10)), score=[float("nan")] * 9)

    with pytest.raises(InputError, match=r"none of 9 rows has a score, which \[inputs\] order_by names"):
        stage(tmp_path, paths, order_by="score")


def test_one_rank_or_score_is_an_order(tmp_path, paths):
    rewrite(paths["inputs.candidates"], rank=[None] * 9, score=[None] * 8 + [1.0])

    assert sum(map(len, lists(stage(tmp_path, paths)).values())) == 9


@pytest.mark.fault(19, 77)
def test_without_ranks_the_score_orders_and_nan_is_no_score(tmp_path, paths):
    table = pq.read_table(paths["inputs.candidates"]).drop_columns(["rank", "score"])
    score = [0.5, float("nan"), 0.9, None, 0.1, float("inf"), -1.0, 3.0, 3.0]
    pq.write_table(table.append_column("score", pa.array(score)), paths["inputs.candidates"])

    staged = stage(tmp_path, paths)

    assert lists(staged) == {
        "q000": ["d0002", "d0000", "d0001"],
        "q001": ["d0002", "d0001"],
        "q002": ["d0004", "d0005", "d0003", "d0002"],  # ties by doc_id, no score at the end
    }
    assert staged.notes == {"candidates without a score": 3}


DISTANCES = [0.1, 0.2, 0.3, 0.5, 0.4, 0.1, 0.2, 0.3, 0.9]  # one pair of six falls
CONTRADICTED = "candidates scored better than the one ranked before"


@pytest.mark.parametrize(
    ("said", "first", "contradicted", "warned"),
    [
        ({}, "d0000", 5, r"score rises with the rank at 5 of 6 places.*lower_score_is_better = true.*order_by"),
        ({"order_by": "rank"}, "d0000", 5, None),
        ({"order_by": "score"}, "d0002", 0, None),
        ({"lower_score_is_better": True}, "d0000", 1, None),
        ({"lower_score_is_better": True, "order_by": "score"}, "d0000", 0, None),
    ],
)
def test_ranks_and_scores_that_contradict_each_other_are_counted_warned_of_and_resolved_by_name(
    tmp_path, paths, caplog, said, first, contradicted, warned
):
    rewrite(paths["inputs.candidates"], score=DISTANCES)

    staged = stage(tmp_path, paths, **said)

    assert lists(staged)["q000"][0] == first
    assert lists(staged)["q001"][0] == ("d0001" if said.get("order_by") != "score" or len(said) == 1 else "d0002")
    assert staged.notes == ({CONTRADICTED: contradicted} if contradicted else {})
    assert sorted(staged.first_stage_score[:3]) == [0.1, 0.2, 0.3]  # as given
    assert [bool(re.search(warned or "never", record.getMessage())) for record in caplog.records] == [True] * bool(
        warned
    )


def test_scores_that_mostly_agree_with_the_ranks_are_no_warning(tmp_path, paths, caplog):
    rewrite(paths["inputs.candidates"], score=[3.0, 2.0, 2.5, 2.0, 1.0, 4.0, 4.0, 3.0, None])

    assert stage(tmp_path, paths).notes == {CONTRADICTED: 1, "candidates without a score": 1}
    assert caplog.records == []


def test_scores_that_rise_within_nested_lists_are_warned_of_too(tmp_path, caplog):
    rows = [{"doc_id": name, "text": "t", "score": score} for name, score in (("a", 0.1), ("b", 0.2), ("c", 0.3))]
    path = write_parquet(tmp_path / "n.parquet", query_id=["q"], text=["x"], candidates=[rows])

    assert lists(stage(tmp_path, {"inputs.nested": str(path)}))["q"] == ["a", "b", "c"]
    assert "nested: " in caplog.text
    assert "rises with the rank at 2 of 2 places" in caplog.text
    assert lists(stage(tmp_path, {"inputs.nested": str(path)}, order_by="score"))["q"] == ["c", "b", "a"]


def test_distances_without_ranks_are_asked_about_and_ordered_the_lowest_first(tmp_path, paths, caplog):
    table = pq.read_table(paths["inputs.candidates"]).drop_columns(["rank", "score"])
    pq.write_table(table.append_column("l2_distance", pa.array(DISTANCES)), paths["inputs.candidates"])
    columns = {"candidates": {"score": "l2_distance"}}

    assert lists(stage(tmp_path, paths, columns=columns))["q000"][0] == "d0002"
    assert "ordered by column 'l2_distance', the highest first" in caplog.text
    caplog.clear()
    assert lists(stage(tmp_path, paths, columns=columns, lower_score_is_better=True))["q000"][0] == "d0000"
    assert caplog.records == []


def test_a_gap_of_distances_is_measured_from_the_lowest(tmp_path, paths):
    rewrite(paths["inputs.candidates"], score=[1.0, 1.4, 9.0, 1.0, 1.1, 1.0, 2.0, 3.0, 4.0])
    recipe = SimpleNamespace(schedule=SimpleNamespace(truncate=Truncate(score_gap=0.5)))

    staged = stage(tmp_path, paths, lower_score_is_better=True)

    assert [StagedQuery(staged, recipe, number).depth for number in range(3)] == [2, 2, 1]


@pytest.mark.parametrize("name", ["rank", "score"])
def test_a_list_cannot_be_ordered_by_a_column_that_is_not_there(tmp_path, paths, name):
    pq.write_table(pq.read_table(paths["inputs.candidates"]).drop_columns([name]), paths["inputs.candidates"])
    nested = write_parquet(
        tmp_path / "n.parquet", query_id=["q"], text=["x"], candidates=[[{"doc_id": "a", "text": "t"}]]
    )

    with pytest.raises(InputError, match=rf"order_by = '{name}', but there is no column '{name}'"):
        stage(tmp_path, paths, order_by=name)
    with pytest.raises(InputError, match="order_by = 'score', but 'candidates' has no field 'score'"):
        stage(tmp_path, {"inputs.nested": str(nested)}, order_by="score")


def test_a_list_with_a_null_rank_is_ordered_by_score_and_noted(tmp_path, paths):
    rewrite(paths["inputs.candidates"], rank=[1, 2, None, 2, 1, 1, 2, 3, 4], score=[1.0, 2.0, 3.0] + [1.0] * 6)

    staged = stage(tmp_path, paths)

    assert lists(staged)["q000"] == ["d0002", "d0001", "d0000"]
    assert lists(staged)["q001"] == ["d0002", "d0001"]
    assert staged.notes == {"lists ordered by score, a rank was null": 1}


def test_decimals_and_floats_from_pandas_are_numbers(tmp_path, paths):
    scores = pa.array([Decimal("9.5")] * 9, pa.decimal128(6, 2))
    rewrite(paths["inputs.candidates"], score=scores, rank=[3.0, 2.0, 1.0, 1.0, 2.0, 1.0, 2.0, 3.0, 4.0])

    staged = stage(tmp_path, paths)

    assert lists(staged)["q000"] == ["d0002", "d0001", "d0000"]
    assert staged.first_stage_score[0] == 9.5


def test_ranks_from_zero_are_taken_where_that_is_configured(tmp_path, paths):
    rewrite(paths["inputs.candidates"], rank=[2, 1, 0, 0, 1, 0, 1, 2, 3])

    assert lists(stage(tmp_path, paths, rank_base=0))["q000"] == ["d0002", "d0001", "d0000"]


@pytest.mark.fault(76, 77)
def test_top_k_cuts_each_list_at_the_door_by_rank_whatever_the_scores_say(tmp_path, paths):
    rewrite(paths["inputs.candidates"], score=[0.1, 0.9, 29.5, 0.2, 0.3, 0.5, 0.9, 18.0, 30.0])  # of two retrievers
    assert lists(stage(tmp_path, paths, top_k=9)) == lists(stage(tmp_path, paths))
    assert lists(stage(tmp_path, paths, top_k=2)) == {
        "q000": ["d0000", "d0001"],
        "q001": ["d0001", "d0002"],
        "q002": ["d0002", "d0003"],
    }


def test_limited_queries_are_the_first_by_id_and_the_others_are_not_set_aside(tmp_path, paths):
    staged = stage(tmp_path, paths, limits=CandidateLimits(1, None, 0.2, 2, 50))

    assert list(lists(staged)) == ["q000", "q001"]
    assert staged.quarantine.num_rows == 0


@pytest.mark.parametrize(("share", "fails"), [(0.1, True), (0.3, False)])
def test_missing_documents_stop_the_run_above_a_share(tmp_path, paths, share, fails):
    ids = pq.read_table(paths["inputs.candidates"]).column("doc_id").to_pylist()
    rewrite(paths["inputs.candidates"], doc_id=["nowhere", "none", *ids[2:]])
    limits = CandidateLimits(1, None, share, None, 50)

    if fails:
        with pytest.raises(InputError, match=r"7 of 9 rows match documents.*Missing: none, nowhere; there: d0000"):
            stage(tmp_path, paths, limits=limits)
    else:
        assert [row[3] for row in reasons(stage(tmp_path, paths, limits=limits))] == ["document not found"] * 2


@pytest.mark.fault(56)
@pytest.mark.parametrize("source", ["queries", "documents", "candidates"])
def test_an_input_without_rows_is_an_error_unless_allowed(tmp_path, paths, source):
    path = Path(paths[f"inputs.{source}"])
    pq.write_table(pq.read_table(path).slice(0, 0), path)

    with pytest.raises(InputError, match="0 rows. An empty night is an error"):
        stage(tmp_path, paths)


@pytest.mark.fault(56)
def test_an_allowed_empty_night_has_queries_without_candidates(tmp_path, paths):
    path = Path(paths["inputs.candidates"])
    pq.write_table(pq.read_table(path).slice(0, 0), path)

    staged = stage(tmp_path, paths, allow_empty=True)
    write_parquet(path, query_id=pa.nulls(0), doc_id=pa.nulls(0))  # as pandas writes a frame without rows

    assert stage(tmp_path / "null", paths, allow_empty=True).query_status == staged.query_status
    assert staged.query_status == ["no_candidates"] * 3
    assert staged.num_candidates == 0


def test_the_newest_partition_not_after_the_night_is_read(tmp_path, paths):
    hive = partitioned(tmp_path, paths, ["2026-11-27", "2026-11-28", "2026-11-30"])

    found = open_night_input(
        InputSettings(**{key.removeprefix("inputs."): value for key, value in hive.items()}), NIGHT
    )

    assert found.partition == "candidates: dt=2026-11-28"
    assert found.num_candidate_rows == 4


def test_a_given_partition_is_read(tmp_path, paths):
    staged = stage(tmp_path, partitioned(tmp_path, paths, ["2026-11-27", "2026-11-28"]), partition="dt=2026-11-27")

    assert staged.num_candidates == 3


@pytest.mark.parametrize(
    ("partition", "error", "words"),
    [
        ("dt=2026-11-01", InputError, "no partition dt=2026-11-01"),
        ("day=2026-11-27", ConfigError, "no input has folders of that name"),
    ],
)
def test_a_partition_that_is_not_there_is_an_error(tmp_path, paths, partition, error, words):
    with pytest.raises(error, match=words):
        stage(tmp_path, partitioned(tmp_path, paths, ["2026-11-27"]), partition=partition)


def test_no_partition_up_to_the_night_is_an_error(tmp_path, paths):
    with pytest.raises(InputError, match="no partition dt up to the night 2026-11-29"):
        stage(tmp_path, partitioned(tmp_path, paths, ["2026-12-01"]))


def test_a_column_that_contradicts_its_folder_is_an_error(tmp_path, paths):
    hive = partitioned(tmp_path, paths, ["2026-11-28"])
    rewrite(tmp_path / "hive" / "dt=2026-11-28" / "part-0.parquet", dt=[datetime.date(2026, 1, 1)] * 3)

    with pytest.raises(InputError, match="column 'dt' says 2026-01-01, its folder says dt=2026-11-28"):
        stage(tmp_path, hive)


def test_a_column_that_agrees_with_its_folder_is_taken(tmp_path, paths):
    hive = partitioned(tmp_path, paths, ["2026-11-28"])
    rewrite(tmp_path / "hive" / "dt=2026-11-28" / "part-0.parquet", dt=["2026-11-28"] * 3)

    assert stage(tmp_path, hive).num_candidates == 3


@pytest.mark.fault(55)
def test_nested_lists_keep_their_order_and_each_query_its_own_texts(tmp_path):
    rows = [
        {
            "query_id": "a",
            "text": "x",
            "candidates": [
                {"doc_id": "2", "text": "two b", "score": 1.0},
                {"doc_id": "1", "text": "one", "score": 9.0},
            ],
        },
        {"query_id": "b", "text": "y", "candidates": [{"doc_id": "2", "text": "two", "score": None}]},
        {"query_id": "c", "text": "z", "candidates": []},
        {"query_id": "d", "text": "z", "candidates": None},
        {
            "query_id": "e",
            "text": "z",
            "candidates": [{"doc_id": None, "text": "t", "score": 1.0}, {"doc_id": "5", "text": None, "score": 1.0}],
        },
    ]
    path = tmp_path / "nested.parquet"
    for kind in (pa.list_, pa.large_list):
        candidate = pa.struct([("doc_id", pa.string()), ("text", pa.string()), ("score", pa.float64())])
        schema = pa.schema([("query_id", pa.string()), ("text", pa.string()), ("candidates", kind(candidate))])
        pq.write_table(pa.Table.from_pylist(rows, schema), path)

        staged = stage(tmp_path, {"inputs.nested": str(path)})

        assert lists(staged) == {"a": ["2", "1"], "b": ["2"], "c": [], "d": [], "e": []}
        first, second = (int(staged.doc_index[staged.offsets[place]]) for place in (0, 1))
        assert len(staged.tokens.passage(first)) == 2
        assert len(staged.tokens.passage(second)) == 1
        assert ("candidates", "e", None, "null doc_id") in reasons(staged)
        assert ("candidates", "e", "5", "null document text") in reasons(staged)
        assert ("queries", "c", None, "no candidates") in reasons(staged)


def test_of_two_chunks_of_a_document_in_a_nested_list_the_best_placed_is_kept_and_counted(tmp_path):
    """Both were ranked, and the night then failed the check that each candidate has one place."""

    def nested(*chunks):
        return [{"doc_id": doc, "text": text, "score": score} for doc, text, score in chunks]

    path = write_parquet(
        tmp_path / "n.parquet",
        query_id=["a", "b"],
        text=["x", "y"],
        candidates=[
            nested(("1", "one two three", 1.0), ("1", "one", 2.0), ("2", "one", 0.5), ("1", "one two three", 3.0)),
            nested(("2", "one", 0.5), ("1", "one", 2.0)),
        ],
    )

    by_place = stage(tmp_path, {"inputs.nested": str(path)})
    by_score = stage(tmp_path / "s", {"inputs.nested": str(path)}, order_by="score", lower_score_is_better=True)

    assert lists(by_place) == {"a": ["1", "2"], "b": ["2", "1"]}
    assert lists(by_score) == {"a": ["2", "1"], "b": ["2", "1"]}
    assert [len(by_place.tokens.passage(int(number))) for number in by_place.doc_index] == [3, 1, 1, 1]
    counted = {"candidates of a document that is in the list with another text": 1, "duplicate candidates": 1}
    assert counted.items() <= by_place.notes.items()


def test_a_nested_file_given_as_candidates_is_named_as_what_it_is(tmp_path, paths):
    path = tmp_path / "nested.parquet"
    pq.write_table(
        pa.table({"query_id": ["a"], "text": ["x"], "candidates": [[{"doc_id": "1", "text": "t", "score": 1.0}]]}), path
    )

    with pytest.raises(InputError, match=r"this is the nested layout.*name it as \[inputs\] nested"):
        stage(tmp_path, paths | {"inputs.candidates": str(path)})


def test_passages_are_kept_up_to_the_limit_and_their_full_length_is_known(tmp_path, paths):
    staged = stage(tmp_path, paths, max_passage_tokens=5)

    assert {len(staged.tokens.passage(number)) for number in range(6)} == {5}
    assert staged.tokens.lengths.tolist()[:2] == [15, 13]  # a title of two words before the first


@pytest.mark.fault(58)
def test_columns_that_we_do_not_need_are_not_read(tmp_path, paths):
    rewrite(paths["inputs.candidates"], retrieved_at=pa.array([2**62] * 9, pa.timestamp("ns")), blob=[b"\xff"] * 9)

    assert stage(tmp_path, paths).num_candidates == 9


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=40), seed=st.integers(0, 2**32 - 1))
def test_a_mapped_store_and_one_read_by_place_give_the_same_passages(tmp_path_factory, lengths, seed):
    folder = tmp_path_factory.mktemp("store")
    rng = np.random.default_rng(seed)
    passages = [rng.integers(0, 50_000, length, np.int32) for length in lengths]
    np.concatenate(passages).tofile(folder / token_store.TOKENS_FILE)
    np.save(folder / token_store.OFFSETS_FILE, np.cumsum([0, *lengths]))
    np.save(folder / token_store.LENGTHS_FILE, np.array(lengths, np.int32))
    np.save(folder / token_store.DIGESTS_FILE, np.zeros(len(lengths), np.uint64))
    asked = rng.integers(0, len(lengths), 60)

    mapped = token_store.TokenStore(folder)
    by_place = token_store.TokenStore(folder, mapped_bytes=-1, kept_bytes=1_000)  # some three kept

    for store in (mapped, by_place):
        assert all(
            np.array_equal(found, passages[doc]) for doc, found in zip(asked, store.passages(asked), strict=True)
        )


def test_passages_that_were_read_are_not_kept_in_memory(tmp_path):
    """Mapped, ten million passages counted as 4 GB of the night's memory."""
    num_passages, num_tokens = 4_096, 2_048
    np.arange(num_passages * num_tokens, dtype="<i4").tofile(tmp_path / token_store.TOKENS_FILE)  # 32 MB
    np.save(tmp_path / token_store.OFFSETS_FILE, np.arange(num_passages + 1) * num_tokens)
    np.save(tmp_path / token_store.LENGTHS_FILE, np.full(num_passages, num_tokens, np.int32))
    np.save(tmp_path / token_store.DIGESTS_FILE, np.zeros(num_passages, np.uint64))
    store = token_store.TokenStore(tmp_path, mapped_bytes=1 << 20, kept_bytes=4 << 20)
    before = _resident_bytes()

    for documents in np.random.default_rng(7).permutation(num_passages).reshape(-1, 16):
        passages = store.passages(documents)
        assert [each[0] for each in passages] == (documents * num_tokens).tolist()
        assert [each[-1] for each in passages] == ((documents + 1) * num_tokens - 1).tolist()

    assert _resident_bytes() - before < 8 << 20
    (tmp_path / token_store.TOKENS_FILE).write_bytes(b"")
    with pytest.raises(StoreError, match=r"passages.int32: token 2048 is missing"):
        store.passage(0)


def _resident_bytes():
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))[1]) << 10
