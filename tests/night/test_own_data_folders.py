"""Folders as people have them: `packrank init` finds what is what, and one night ranks the right rows; or one line."""

import csv
import io
import json
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli import main
from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.tools import init
from tests.makers import select, write_parquet

NIGHT = date(2026, 11, 29)
QUERIES = {"q1": "why do tides rise", "q2": 'what is a "neap" tide,\nand when', "q3": "달은 왜 둥근가"}
DOCUMENTS = {
    "01": "The moon pulls at the sea.",
    "1": "Neap tides; at half moon.",
    "x,3": "둥근 달",
    "9": "A sourdough starter.",
}
RANKED = {"q1": ["01", "1", "9"], "q2": ["1", "01"], "q3": ["x,3", "9"]}
ROWS = [(query, doc, place, 9.0 - place) for query, docs in RANKED.items() for place, doc in enumerate(docs, 1)]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")


def write_csv(path, header, rows, separator=",", bom=""):
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=separator).writerows([header, *rows])
    write(path, bom + stream.getvalue())


def write_jsonl(path, rows):
    write(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def flat_parquet(folder, candidates=True):
    write_parquet(folder / "queries.parquet", query_id=list(QUERIES), text=list(QUERIES.values()))
    write_parquet(folder / "documents.parquet", doc_id=list(DOCUMENTS), text=list(DOCUMENTS.values()))
    if candidates:
        write_candidates(folder / "candidates.parquet", ROWS)


def write_candidates(path, rows):
    columns = zip(*rows, strict=True)
    write_parquet(path, **dict(zip(("query_id", "doc_id", "rank", "score"), map(list, columns), strict=True)))


def csv_of_excel(folder):
    write_csv(folder / "Fragen.csv", ["query_id", "text"], QUERIES.items(), ";", "\ufeff")
    write_csv(
        folder / "documents.csv", ["doc_id", "title", "text"], [(k, "", v) for k, v in DOCUMENTS.items()], ";", "\ufeff"
    )
    write_csv(
        folder / "candidates.csv", ["query_id", "doc_id", "score"], [(q, d, s) for q, d, _, s in ROWS], ";", "\ufeff"
    )


def json_lines(folder):
    write_jsonl(folder / "queries.jsonl", [{"query_id": key, "text": text} for key, text in QUERIES.items()])
    write_jsonl(folder / "documents.jsonl", [{"doc_id": key, "text": text} for key, text in DOCUMENTS.items()])
    write_jsonl(folder / "candidates.jsonl", [{"query_id": q, "doc_id": d, "rank": p} for q, d, p, _ in ROWS])


def integer_ids(folder):
    """Of JSON and Parquet; one list of documents is named like the other."""
    write_jsonl(folder / "queries.jsonl", [{"id": n, "text": text} for n, text in enumerate(QUERIES.values())])
    write_parquet(folder / "items.parquet", id=list(range(4)), text=list(DOCUMENTS.values()))
    docs = list(DOCUMENTS)
    rows = [(int(q[1]) - 1, docs.index(d), p - 1, s) for q, d, p, s in ROWS]  # ranks from 0
    write_candidates(folder / "bm25.parquet", rows)


def odd_names(folder):
    write_csv(folder / "q.tsv", ["qid", "question"], QUERIES.items(), "\t")
    write_parquet(folder / "d.parquet", docno=list(DOCUMENTS), body=list(DOCUMENTS.values()))
    write_csv(folder / "c.csv", ["topic", "docid", "position", "bm25"], ROWS)


def nested(folder):
    rows = [
        {"qid": query, "text": QUERIES[query], "hits": [{"docid": each, "contents": DOCUMENTS[each]} for each in docs]}
        for query, docs in RANKED.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "night.parquet")


def trec(folder):
    write_csv(folder / "topics.tsv", ["query_id", "text"], QUERIES.items(), "\t")
    write_jsonl(folder / "collection.jsonl", [{"docno": key, "text": text} for key, text in DOCUMENTS.items()])
    write(folder / "bm25.run", "".join(f"{q} Q0 {d} {p} {s} bm25\n" for q, d, p, s in ROWS))
    write(folder / "qrels.txt", "q1 0 1 2\nq1 0 9 0\n")


def beir(folder):
    write_jsonl(folder / "queries.jsonl", [{"_id": k, "text": v, "metadata": {}} for k, v in QUERIES.items()])
    write_jsonl(folder / "corpus.jsonl", [{"_id": k, "title": "", "text": v} for k, v in DOCUMENTS.items()])
    for split in ("train", "test"):
        write(folder / "qrels" / f"{split}.tsv", "query-id\tcorpus-id\tscore\nq1\t1\t2\n")
    write(folder / "run.trec", "".join(f"{q} Q0 {d} {p} {s} bm25\n" for q, d, p, s in ROWS))


DATED = {
    "dt=2026-11-{}": "dt=2026-11-28",
    "dt=202611{}": "dt=20261128",
    "2026-11-{}": "2026-11-28",
    "year=2026/month=11/day={}": "year=2026/month=11/day=28",
    "ts=2026-11-{} 03%3A00%3A00": "ts=2026-11-28 03%3A00%3A00",
    "cands_2026-11-{}": "cands_2026-11-28",
}


def dated(form):
    def make(folder):
        flat_parquet(folder, candidates=False)
        for day, rows in ((27, ROWS[:2]), (28, ROWS)):
            write_csv(folder / "cands" / form.format(day) / "part-0.csv", ["query_id", "doc_id", "rank", "score"], rows)

    return make


FOLDERS = {
    "csv of Excel": (csv_of_excel, RANKED),
    "json lines": (json_lines, RANKED),
    "integer ids": (integer_ids, {"0": ["0", "1", "3"], "1": ["1", "0"], "2": ["2", "3"]}),
    "odd column names": (odd_names, RANKED),
    "nested": (nested, RANKED),
    "trec": (trec, RANKED),
    "beir": (beir, RANKED),
    "parquet": (flat_parquet, RANKED),
    **{f"dated {form}": (dated(form), RANKED) for form in DATED},
}


def run_one(config, tmp_path, model_folder):
    overrides = {"engine.model": str(model_folder), "checks.canary": "off", "store.database": f"{tmp_path}/x.duckdb"}
    prepared = prepare_night(NightRequest(config=config, night=NIGHT, publish=True, overrides=overrides))
    run_night(prepared)
    return prepared


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_own_data_needs_one_command_and_then_a_night(tmp_path, model_folder, fake_vllm, capsys, name):
    make, ranked = FOLDERS[name]
    folder = tmp_path / "Meine Daten"
    folder.mkdir()
    make(folder)

    main(["init", str(folder)])
    told = capsys.readouterr().out.splitlines()
    prepared = run_one(folder / "packrank.toml", tmp_path, model_folder)

    assert told[-1].startswith("next: ")
    assert told[-1].endswith(f"packrank run '{folder}/packrank.toml' --publish")
    rows = select(prepared, "select query_id, doc_id from latest_scores order by query_id, first_stage_rank")
    found = {query: [row["doc_id"] for row in rows if row["query_id"] == query] for query in ranked}
    assert (found, len(rows)) == (ranked, sum(map(len, ranked.values())))
    (run,) = select(prepared, "select name, status, input_partition, strategy from runs")
    assert run["input_partition"] == (f"candidates: {DATED[name.removeprefix('dated ')]}" if "dated" in name else None)
    assert (run["name"], run["status"]) == ("Meine-Daten", "published")
    assert bool(select(prepared, "select * from metrics")) == (name in ("trec", "beir"))


def test_what_is_missing_is_told_in_one_line_of_toml_and_stands_in_the_file(tmp_path, capsys):
    write_csv(tmp_path / "queries.csv", ["number", "words"], QUERIES.items())
    write_jsonl(tmp_path / "corpus.jsonl", [{"_id": key, "text": text} for key, text in DOCUMENTS.items()])
    write(tmp_path / "notes.csv", "a,b\n1\n")
    write(tmp_path / "src" / "main.py", "")

    with pytest.raises(SystemExit) as ended:
        main(["init", str(tmp_path)])

    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 3
    assert line.endswith(
        'fill in each \'?\' under [inputs]: candidates = "?", columns.queries = { query_id = "?", text = "?" }'
    )
    assert "src" not in line.replace(str(tmp_path), "")
    assert "notes.csv, line 2: 1 columns, the header has 2" in line
    assert "documents: corpus.jsonl, 4 rows (doc_id = _id)" in line
    text = (tmp_path / "packrank.toml").read_text(encoding="utf-8")
    assert 'candidates = "?"\n' in text
    assert 'query_id = "?"\ntext = "?"\n' in text


def test_a_settings_file_that_is_there_is_kept_and_a_folder_without_data_gets_none(tmp_path, capsys):
    for words in ("nothing that can be an input", "no such file or directory"):
        folder = tmp_path / words.split()[0]
        folder.mkdir() if "can be" in words else None
        with pytest.raises(SystemExit):
            main(["init", str(folder)])
        assert words in capsys.readouterr().err.lower()
    flat_parquet(tmp_path / "mine")
    write(tmp_path / "mine" / "packrank.toml", "# mine")

    with pytest.raises(SystemExit):
        main(["init", str(tmp_path / "mine")])
    assert "already exists. Give --force" in capsys.readouterr().err
    assert (tmp_path / "mine" / "packrank.toml").read_text() == "# mine"
    main(["init", str(tmp_path / "mine"), "--force"])
    assert 'queries = "queries.parquet"' in (tmp_path / "mine" / "packrank.toml").read_text()


def test_with_a_gpu_the_preset_is_left_to_be_chosen(tmp_path, monkeypatch):
    flat_parquet(tmp_path)
    monkeypatch.setattr(init.shutil, "which", lambda name: f"/usr/bin/{name}")

    written = init.write_settings(tmp_path, force=False)

    text = written.path.read_text(encoding="utf-8")
    assert written.lines[-1].startswith("next: choose a preset and a model at the head of")
    assert '\n# preset = "sample"\n' in text
    assert '\n# preset = "qwen3"' in text
    assert "\n[strategy]" not in text
