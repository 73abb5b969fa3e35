"""CSV, JSON Lines and TREC runs are read as Parquet is: the same rows, or one line that names file and line."""

import csv
import gzip
import io
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.inputs import text_files
from tasks.inputs.locations import locate, wanted_files
from tasks.inputs.parquet_files import read_batches
from tasks.inputs.staging import open_night_input
from tasks.settings import InputSettings
from tasks.system.errors import InputError, InputNotReady
from tests.makers import write_parquet
from tests.staged import NIGHT, lists, stage

ROWS = {
    "queries": {"query_id": ["007", "q 2"], "text": ['what, is; a "tide"?\nand when|why', "달의 위상"]},
    "documents": {
        "doc_id": ["01", "1", "d\t3"],
        "title": ["Tides", None, "Moon"],
        "text": ["The sea, twice a day.", "x;y", 'A "full" moon\r\nrises'],
    },
    "candidates": {
        "query_id": ["007", "007", "q 2", "q 2"],
        "doc_id": ["01", "1", "1", "d\t3"],
        "rank": [2, 1, 2, 1],
        "score": [0.5, 1e-3, None, 7.0],
    },
}
LISTS = {"007": ["1", "01"], "q 2": ["d\t3", "1"]}


def csv_bytes(columns, separator=",", bom="", line_end="\r\n"):
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=separator, lineterminator=line_end)
    writer.writerows([columns, *zip(*columns.values(), strict=True)])
    return (bom + stream.getvalue()).encode()


def json_bytes(columns):
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


FORMS = {
    "csv": ("csv", csv_bytes),
    "csv of Excel": ("csv", lambda columns: csv_bytes(columns, ";", "\ufeff")),
    "csv with bars": ("csv", lambda columns: csv_bytes(columns, "|", line_end="\n")),
    "tsv": ("TSV", lambda columns: csv_bytes(columns, "\t")),
    "csv.gz": ("csv.gz", lambda columns: gzip.compress(csv_bytes(columns))),
    "jsonl": ("jsonl", json_bytes),
    "jsonl.gz": ("jsonl.gz", lambda columns: gzip.compress(json_bytes(columns))),
}


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["file", "folder", "glob", "dated"])
def test_text_files_are_laid_out_as_parquet_is(tmp_path, monkeypatch, form, layout):
    suffix, data = FORMS[form]
    monkeypatch.setattr(text_files, "CHUNK_ROWS", 3)
    paths, plain = {}, {}
    for source, columns in ROWS.items():
        plain[f"inputs.{source}"] = str(write_parquet(tmp_path / "p" / f"{source}.parquet", **columns))
        folder = tmp_path / "t" / source
        file = write(folder / ("dt=2026-11-28" if layout == "dated" else "") / f"part-0.{suffix}", data(columns))
        write(folder / "dt=2026-11-30" / f"part-0.{suffix}", data(columns)) if layout == "dated" else None
        write(folder / "_SUCCESS", b"")
        paths[f"inputs.{source}"] = str({"file": file, "glob": folder / "*.*"}.get(layout, folder))

    found, wanted = (stage(tmp_path, each) for each in (paths, plain))

    assert lists(found) == LISTS
    assert found.query_texts == wanted.query_texts == ROWS["queries"]["text"]
    assert found.first_stage_score.tolist()[:3] == [0.001, 0.5, 7.0]
    assert found.notes == wanted.notes
    assert [found.tokens.passage(number).tolist() for number in range(3)] == [
        wanted.tokens.passage(number).tolist() for number in range(3)
    ]


TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1)


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=8), is_json=st.booleans())
def test_any_text_comes_back_as_it_was_written(tmp_path_factory, rows, is_json):
    ids, texts = (list(column) for column in zip(*rows, strict=True))
    columns = {"doc_id": ids, "text": texts}
    path = tmp_path_factory.mktemp("any") / ("d.jsonl" if is_json else "d.csv")
    path.write_bytes(json_bytes(columns) if is_json else csv_bytes(columns))

    opened = open_documents(path)

    batches = [batch for _, batch in read_batches(opened, ["doc_id", "text"])]
    assert [batch.to_pydict() for batch in batches] == [columns]


def open_documents(path):
    from tasks.inputs.documents import document_columns
    from tasks.inputs.parquet_files import open_input

    wanted = wanted_files(InputSettings(nested="-"), "documents", NIGHT)
    return open_input("documents", str(path), document_columns({}), wanted, allow_empty=False)


def test_numbers_as_ids_are_text_as_written_and_a_trec_run_is_ordered_by_its_scores(tmp_path):
    queries = write(tmp_path / "q.jsonl", b'{"query_id": 12345678901234567890123, "text": "tides"}\n')
    documents = write(
        tmp_path / "d.jsonl", b'\xef\xbb\xbf{"doc_id": 1, "text": "a"}\n\n{"doc_id": "01", "text": "b"}\n'
    )
    run = write(
        tmp_path / "bm25.run", b"12345678901234567890123 Q0 01 0 1.5 x\n12345678901234567890123\tQ0\t1\t0\t2.5\tx\n"
    )

    staged = stage(
        tmp_path, {"inputs.queries": str(queries), "inputs.documents": str(documents), "inputs.candidates": str(run)}
    )

    assert lists(staged) == {"12345678901234567890123": ["1", "01"]}


def test_the_nested_layout_is_read_from_json(tmp_path):
    rows = [
        {"query": {"qid": 1, "text": "tides"}, "candidates": [{"docid": 5, "doc": {"contents": "a"}, "score": 0.5}]},
        {"query": {"qid": 2, "text": "moons"}, "candidates": []},
        {
            "query": {"qid": 3, "text": "stars"},
            "candidates": [{"docid": "x", "doc": {"contents": "\udcff"}, "score": 2}],
        },
    ]
    path = write(tmp_path / "n.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    columns = {"query_id": "query.qid", "text": "query.text"}
    columns |= {"candidates.doc_id": "docid", "candidates.text": "doc.contents"}

    staged = stage(tmp_path, {"inputs.nested": str(path)}, columns={"nested": columns})

    assert staged.query_texts == ["tides", "moons", "stars"]
    assert lists(staged) == {"1": ["5"], "2": [], "3": []}
    assert "document text or title is not UTF-8" in staged.quarantine.column("reason").to_pylist()


GOOD = b"doc_id,text\n1,a\n"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("d.csv", GOOD + b'2,"b\nc",d\n', r"d.csv, line 4: 3 columns, the header has 2 \(separated by ','\)"),
        ("d.csv", GOOD + b'2,"b', r"d.csv, line 3: unexpected end of data"),
        ("d.csv", b"", "d.csv: 0 bytes"),
        ("d.csv", b"doc_id,text\n", "d.csv: 0 rows"),
        ("d.csv", b"doc_id;text\n1;a,b\n2\n", r"line 3: 1 columns, the header has 2 \(separated by ';'\)"),
        ("d.csv", "doc_id,text\n1,a\n".encode("utf-16"), "d.csv: UTF-16. Write it as UTF-8"),
        ("d.csv", b"a,b,a\n1,2,3\n", r"no columns 'doc_id', 'text' \(found in its first line: a, b, a\)"),
        ("d.csv", b"doc_id,text\n,a\n", "column 'doc_id' is null in 1 of 1 rows"),
        ("d.csv.gz", gzip.compress(GOOD, mtime=0)[:-9], "d.csv.gz: not a complete file"),
        ("d.csv.gz", GOOD, "d.csv.gz: damaged: Not a gzipped file"),
        ("d.jsonl", b'{"doc_id": 1, "text": "a"}\n{"doc_id": 2', "d.jsonl, line 2: not JSON: Expecting"),
        ("d.jsonl", b'{"doc_id": 1, "text": "a"}\n5\n', "line 2: str, expected an object"),
        ("d.jsonl", b'{"doc_id": 1, "text": ["a"]}\n', r"column 'text' holds list<.*expected text"),
        ("d.jsonl", b'{"doc_id": true, "text": "a"}\n', "line 1: 'doc_id' is true, expected text or a number"),
        ("d.json", b'[{"doc_id": 1, "text": "a"}]', r"d.json: one JSON array, expected one object per line: .*jq -c"),
        ("d.xlsx", b"PK\x03\x04", r"not a Parquet file .*Text is recognised by name: \*.csv"),
    ],
)
def test_a_text_file_that_cannot_be_read_is_told_in_one_line(tmp_path, name, data, words):
    paths = {f"inputs.{source}": str(write_parquet(tmp_path / source, **ROWS[source])) for source in ROWS}
    paths["inputs.documents"] = str(write(tmp_path / name, data))

    with pytest.raises(InputError, match=words) as told:
        stage(tmp_path, paths)

    assert "\n" not in str(told.value)


def test_numbers_that_are_none_are_told_with_their_line(tmp_path):
    paths = {f"inputs.{source}": str(write_parquet(tmp_path / source, **ROWS[source])) for source in ROWS}
    paths["inputs.candidates"] = str(write(tmp_path / "c.csv", b"query_id;doc_id;score\n007;01;1.5\n007;1;1,5\n"))

    with pytest.raises(InputError, match=r"c.csv, line 3: 'score' is \"1,5\", expected a number, with a decimal point"):
        stage(tmp_path, paths)


def test_a_text_that_is_not_utf_8_is_set_aside(tmp_path):
    paths = {f"inputs.{source}": str(write_parquet(tmp_path / source, **ROWS[source])) for source in ROWS}
    paths["inputs.documents"] = str(write(tmp_path / "d.csv", b"doc_id,text\n1,caf\xe9\n01,a\nd\t3,b\n"))

    staged = stage(tmp_path, paths)

    assert lists(staged) == {"007": ["01"], "q 2": ["d\t3"]}
    assert staged.quarantine.column("reason").to_pylist() == ["document text or title is not UTF-8"] * 2


def test_files_of_several_kinds_in_a_folder_are_refused_but_beside_parquet_text_is_no_input(tmp_path):
    folder = tmp_path / "documents"
    write(folder / "a.csv", GOOD)
    write(folder / "b.jsonl.gz", gzip.compress(b'{"doc_id": 1, "text": "a"}\n'))

    with pytest.raises(InputError, match=r"files of several kinds \(\*.csv, \*.jsonl\). Select one kind with a glob"):
        open_documents(folder)
    pq.write_table(pq.read_table(write_parquet(tmp_path / "d.parquet", **ROWS["documents"])), folder / "c.parquet")
    assert [Path(file.path).name for file in open_documents(folder).files] == ["c.parquet"]


def test_a_text_file_is_known_by_its_content_and_must_not_change_while_it_is_read(tmp_path):
    path = write(tmp_path / "d.csv", GOOD)
    opened = open_documents(path)
    os.utime(path, (1, 1))
    same = open_documents(path)

    assert opened.files[0].sha256 == same.files[0].sha256
    assert locate("documents", str(path), wanted_files(InputSettings(nested="-"), "documents", NIGHT)).paths
    write(path, GOOD.replace(b"a", b"b"))
    assert open_documents(path).files[0].sha256 != same.files[0].sha256
    with pytest.raises(InputNotReady, match="has changed since this run looked at it first"):
        list(read_batches(same, ["doc_id"]))


def test_one_id_may_be_a_number_in_parquet_and_text_in_csv(tmp_path):
    """Of a text file nobody can say which it is: only what matches nothing counts."""
    inputs = {
        "queries": str(write_parquet(tmp_path / "q.parquet", query_id=[1, 2, 3, 4, 5, 6], text=["x"] * 6)),
        "documents": str(write(tmp_path / "d.csv", b"doc_id,text\n7,a\n")),
        "candidates": str(
            write(tmp_path / "c.csv", b"query_id,doc_id,rank\n1,7,1\n2,7,1\n3,7,1\n4,7,1\n5,7,1\n9,7,1\n")
        ),
    }

    assert open_night_input(InputSettings(**inputs), NIGHT).num_candidate_rows == 6
    assert lists(stage(tmp_path, inputs))["1"] == ["7"]
