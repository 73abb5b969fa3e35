"""docs/session.md, a recorded session from a clone to a published night of one's own: `python -m tests.session`.

Everything is typed as a newcomer would type it, in an empty folder beside a folder of data, and nothing is edited.
The environment is installed anew, so it takes minutes.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import bm25s

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "session.md"
TOP_K = 12
COMMANDS = (
    "git clone -q $REPOSITORY packrank && cd packrank && make setup",
    ".venv/bin/packrank init ../shop",
    ".venv/bin/packrank plan ../shop/packrank.toml --limit-queries 1 --show-prompt | tail -24",
    ".venv/bin/packrank run ../shop/packrank.toml --publish",
    '.venv/bin/packrank sql "select query_id, rank, doc_id, round(score, 3) as score from latest_scores'
    " where name = 'shop' and rank <= 2 order by query_id, rank limit 6\"",
)
PIP = "WARNING: Location"  # what pip says of this machine's own index
HEAD = """# A recorded session

From a clone to a published night of your own data, as it was typed on {day}: {count} commands, and no edit by hand. The folder
`shop` has the help pages of a shop that lends and mends things, twelve questions, and the candidates of BM25:

    shop/documents.jsonl  shop/queries.csv  shop/bm25.run  shop/qrels.txt

Recorded by `python -m tests.session` on two CPU cores, at 80 columns. Seconds depend on the machine and its network.
"""


def first_stage(documents: dict[str, str], queries: list[dict]) -> list[tuple[str, str, int, float]]:
    """Query, document, rank and score of the candidates by BM25, as the usual library gives them."""
    ids = list(documents)
    index = bm25s.BM25()
    index.index(bm25s.tokenize(list(documents.values()), stopwords="en", show_progress=False), show_progress=False)
    asked = bm25s.tokenize([query["text"] for query in queries], stopwords="en", show_progress=False)
    found, scores = index.retrieve(asked, k=TOP_K, show_progress=False, n_threads=1)
    return [
        (query["id"], ids[found[number, place]], place + 1, float(scores[number, place]))
        for number, query in enumerate(queries)
        for place in range(TOP_K)
        if scores[number, place] > 0
    ]


def write_data(folder: Path) -> None:
    """The data of tests/engine/own_data.toml as files of the kinds that people have."""
    data = tomllib.loads((ROOT / "tests" / "engine" / "own_data.toml").read_text(encoding="utf-8"))
    documents, queries = data["documents"], data["queries"]
    folder.mkdir()
    _write(folder / "documents.jsonl", (json.dumps({"doc_id": k, "text": v}) for k, v in documents.items()))
    _write(folder / "queries.csv", ["query_id,text", *(f'{query["id"]},"{query["text"]}"' for query in queries)])
    ranked = first_stage(documents, queries)
    _write(folder / "bm25.run", (f"{query} Q0 {doc} {rank} {score:.4f} bm25" for query, doc, rank, score in ranked))
    judged = [(query["id"], doc, grade) for query in queries for doc, grade in query["relevant"].items()]
    _write(folder / "qrels.txt", (f"{query} 0 {doc} {grade}" for query, doc, grade in judged))


def record(folder: Path, repository: str) -> Iterator[str]:
    """Each command with its output and seconds, as Markdown.

    Raises:
        CalledProcessError: a command failed; its output is on stderr.
    """
    settings = {"COLUMNS": "80", "REPOSITORY": repository, "NO_COLOR": "1"}
    where = folder
    for command in COMMANDS:
        begun = time.monotonic()
        done = subprocess.run(
            ["bash", "-c", command], cwd=where, env=os.environ | settings, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(done.stdout, done.stderr, file=sys.stderr)
            done.check_returncode()
        output = "\n".join(
            line.rstrip()
            for line in (done.stderr + done.stdout).splitlines()
            if line.strip() and not line.startswith(PIP)
        )
        output = output.replace(f"{folder}/packrank/../", "../").replace(f"{folder}/packrank/", "")
        yield f"\n```console\n$ {command}\n{output}\n```\n\n{time.monotonic() - begun:.0f} s\n"
        where = folder / "packrank"


def _write(path: Path, lines: Iterator[str] | list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name) / "shop")
        told = list(record(Path(name), sys.argv[1] if len(sys.argv) > 1 else str(ROOT)))
    day = datetime.now(UTC).date().isoformat()
    PAGE.write_text(HEAD.format(day=day, count=len(COMMANDS)) + "".join(told), encoding="utf-8")
