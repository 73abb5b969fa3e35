"""What README tells a newcomer to do with data of their own, done: BM25 candidates, configs/own.toml with other paths."""

import json
import tomllib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli import main
from tests.makers import ROOT, SAMPLE_MODEL, read_rows, write_parquet
from tests.session import first_stage


@pytest.fixture
def config(tmp_path):
    """A copy of configs/own.toml whose paths, and nothing else, are changed."""
    data = tomllib.loads((ROOT / "tests" / "engine" / "own_data.toml").read_text(encoding="utf-8"))
    documents, queries = data["documents"], data["queries"]
    columns = list(zip(*first_stage(documents, queries), strict=True))
    judged = [(query["id"], doc, grade) for query in queries for doc, grade in query["relevant"].items()]
    write_parquet(
        tmp_path / "queries.parquet",
        query_id=[query["id"] for query in queries],
        text=[query["text"] for query in queries],
    )
    write_parquet(tmp_path / "documents.parquet", doc_id=list(documents), text=list(documents.values()))
    names = ("query_id", "doc_id", "rank", "score")
    pq.write_table(pa.table(dict(zip(names, map(list, columns), strict=True))), tmp_path / "candidates.parquet")
    (tmp_path / "qrels.txt").write_text("".join(f"{query} 0 {doc} {grade}\n" for query, doc, grade in judged))
    text = (ROOT / "configs" / "own.toml").read_text(encoding="utf-8")
    for shipped, own in (
        *((f"../data/sample/{name}.parquet", f"{name}.parquet") for name in ("queries", "documents", "candidates")),
        ("../data/sample/qrels.parquet", "qrels.txt"),
        ("../var/packrank.duckdb", "mine.duckdb"),
    ):
        assert text.count(f'"{shipped}"') == 1
        text = text.replace(f'"{shipped}"', json.dumps(str(tmp_path / own)))
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.skipif(not SAMPLE_MODEL.is_dir(), reason="models/sample is not there: run make setup")
def test_the_settings_to_copy_make_a_newcomers_first_places_no_worse(config, capsys):
    main(["run", str(config), "--no-prefect", "--publish"])
    database = config.parent / "mine.duckdb"
    run_id = read_rows(database, "select run_id from runs")[0]["run_id"]
    main(
        [
            "evaluate",
            run_id,
            "--database",
            str(database),
            "--qrels",
            str(config.parent / "qrels.txt"),
            "--measure",
            "P@1",
        ]
    )

    (run,) = read_rows(database, "select name, status, num_queries, decode_mode from runs")
    assert run == {"name": "mine", "status": "published", "num_queries": 12, "decode_mode": "query_likelihood"}
    means = {
        (row["measure"], row["ranking"]): row["value"]
        for row in read_rows(database, "select measure, ranking, value from metrics where query_id is null")
    }
    print(means)
    assert means["P@1", "reranked"] >= means["P@1", "first_stage"]
    assert read_rows(database, "select bool_and(passed) as passed, count(*) as num from canaries") == [
        {"passed": True, "num": 5}
    ]
