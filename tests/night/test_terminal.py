"""What data may hold and a terminal may not see: control characters, bidi overrides, markup; in every command that prints."""

import csv
import fcntl
import io
import json
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import suppress

import pyarrow.parquet as pq
import pytest
from rich.console import Console

from flows.night_runner import show_logs
from flows.progress import TerminalBar, left_s, share_of
from tasks.nightly.night_progress import Progress
from tasks.report.summary_tables import SummaryTable, print_tables
from tasks.report.table_formats import to_markdown
from tasks.system.errors import InputError
from tasks.system.redaction import printable
from tests.makers import ROOT, make_finished_run, make_inputs, make_settings, write_parquet

CSI, OSC, C1, BELL = "\x1b[31mred", "\x1b]0;title\x07", "\x9b31m", "\x07"
BIDI, ZERO_WIDTH, LINE = "\u202eabc", "a\u200bb", "one\u2028two"
MARKUP = "[bold]x[/bold][link=http://h]y[/link]"
HOSTILE = f"q{CSI}{OSC}{C1}{BIDI}{ZERO_WIDTH}{LINE}\r\n\t\x00{MARKUP}"
DOCS = [f"{HOSTILE}{number}" for number in range(3)]
KOREAN = "밀물과 썰물 🌊"


def harmful(text):
    """Characters that no line of ours has."""
    return {each for line in text.split("\n") for each in line if printable(each) != each}


@pytest.mark.parametrize("text", [CSI, OSC, C1, BELL, BIDI, ZERO_WIDTH, LINE, "\x7f", "\ud800", "\u2066", "\ufeff"])
def test_no_control_or_format_character_is_printable(text):
    shown = printable(text)

    assert shown.isprintable()
    assert len(shown) == len(text)


def test_other_peoples_letters_stay():
    assert printable(KOREAN) == KOREAN


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A run whose ids are hostile, and one after it."""
    path = tmp_path_factory.mktemp("hostile") / "x.duckdb"
    orders = {HOSTILE: (DOCS, DOCS[::-1]), KOREAN: (DOCS, DOCS)}
    make_finished_run(path, "2026-11-29-test-1", orders, status="published", settings={"inputs": {"nested": HOSTILE}})
    make_finished_run(path, "2026-11-28-test-0", orders, hour=0)
    return path


COMMANDS = [
    ["sql", "select query_id, doc_id, rank from scores"],
    ["sql", "select [query_id] as list, {'a': doc_id} as struct, doc_id as \"a\x1b[1mb\" from scores"],
    ["sql", "select query_id from scores", "--format", "json"],
    ["sql", "biggest_movers"],
    ["sql", f"select '{HOSTILE}"],
    ["sql", "\x1b[31m"],
    ["runs"],
    ["explain", "2026-11-29-test-1", HOSTILE],
    ["explain", "2026-11-29-test-1", "\x1b[2Jno"],
    ["explain", "\x9b31m", "q"],
    ["evaluate", "\x1b[31m"],
    ["report", "\x1b[31m"],
    ["publish", "\x1b[31m"],
    ["unpublish", "2026-11-28-test-0\x1b[31m"],
    ["export", "2026-11-29-test-1", "--format", "trec", "--output", "x\x1b[31m.trec"],
    ["export", "2026-11-29-test-1", "--format", "jsonl", "--output", "x\x1b[31m.jsonl"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda each: repr(each[:2])[:40])
def test_no_command_prints_what_steers_a_terminal(packrank, database, tmp_path, arguments):
    answer = packrank(*arguments, "--database", database, cwd=tmp_path)

    assert answer.stdout + answer.stderr
    assert harmful(answer.stdout) == set()
    assert harmful(answer.stderr) == set()
    assert len(answer.stderr.splitlines()) <= 1


def test_markup_in_an_id_is_shown_as_it_is(packrank, database):
    shown = packrank("explain", "2026-11-29-test-1", HOSTILE, "--database", database).stdout

    assert MARKUP in "".join(shown.split("\n")[:3])  # the title
    assert shown.count(MARKUP) > 3


def test_data_in_a_file_or_a_pipe_stays_as_it_is(packrank, database, tmp_path):
    statement = ("sql", "select distinct query_id from scores order by all", "--database", database)
    written = tmp_path / "x.csv"
    wanted = sorted([KOREAN, HOSTILE])

    piped = packrank(*statement, "--format", "csv").stdout
    packrank(*statement, "--format", "csv", "--output", written)
    objects = json.loads(packrank(*statement, "--format", "json").stdout)
    packrank(*statement, "--format", "parquet", "--output", tmp_path / "x.parquet")

    rows = list(csv.reader(io.StringIO(written.read_bytes().decode(), newline="")))
    assert [row[0] for row in rows[1:]] == wanted
    assert piped.encode() == written.read_bytes()
    assert [row["query_id"] for row in objects] == wanted
    assert pq.read_table(tmp_path / "x.parquet").column("query_id").to_pylist() == wanted


def test_csv_on_a_terminal_is_shown_as_a_table_would_show_it(database):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "flows.cli", "sql", "select query_id from scores", "--format", "csv"]
    subprocess.run([*command, "--database", str(database)], stdout=theirs, check=True, cwd=ROOT, timeout=300)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode().replace("\r\n", "\n")
    os.close(ours)

    assert KOREAN in shown
    assert harmful(shown) == set()


def test_the_page_holds_no_such_character_either(packrank, database, tmp_path):
    page = tmp_path / "page.html"

    answer = packrank("report", "2026-11-29-test-1", "--database", database, "--output", page)

    assert answer.returncode == 0, answer.stderr
    text = page.read_text(encoding="utf-8")
    assert harmful(text) == set()
    assert "<bold>" not in text
    assert MARKUP in text  # escaped by HTML's rules, of which it has none


def test_a_plan_and_a_refused_input_of_hostile_ids_print_none(packrank, model_folder, tmp_path):
    folder = tmp_path / "in\x1b[31m"
    ids = {"query_id": [HOSTILE] * 3, "doc_id": DOCS, "rank": [1, 2, 3]}
    paths = {
        "inputs.queries": str(write_parquet(folder / "q.parquet", query_id=[HOSTILE], text=[HOSTILE])),
        "inputs.documents": str(write_parquet(folder / "d.parquet", doc_id=DOCS, text=[HOSTILE] * 3)),
        "inputs.candidates": str(write_parquet(folder / "c.parquet", **ids)),
    }
    config = make_settings(tmp_path, model_folder, paths)

    planned = packrank("plan", config)
    write_parquet(folder / "q.parquet", query_id=[HOSTILE] * 2, text=["one", "two"])
    clash = packrank("plan", config)
    write_parquet(folder / "q.parquet", query_id=["other\x1b[31m"], text=["one"])
    unmatched = packrank("plan", config)
    write_parquet(folder / "q.parquet", **{HOSTILE: ["a"], "text": ["one"]})
    no_column = packrank("plan", config)

    assert planned.returncode == 0, planned.stderr
    assert "different texts" in clash.stderr
    assert "0 of 3 rows match" in unmatched.stderr
    assert "no column 'query_id'" in no_column.stderr
    for answer in (planned, clash, unmatched, no_column):
        assert harmful(answer.stdout + answer.stderr) == set()


def test_log_lines_and_the_bars_name_are_one_harmless_line(capsys, monkeypatch):
    logger = logging.getLogger("tasks")
    monkeypatch.setattr(logger, "handlers", [])  # of a night that a test before this one ran in this process
    show_logs()
    logger.getChild("x").warning("query_id=%s from %s", HOSTILE, "s3://k:pa55word@b/x")
    line = capsys.readouterr().err

    assert len(line.splitlines()) == 1
    assert harmful(line) == set()
    assert "from s3://***@b/x" in line
    with TerminalBar() as bar:
        bar.show(Progress("ranking", 1, 2, part=HOSTILE, part_no=1, num_parts=3))
        (task,) = bar._bar.tasks
        assert task.description == f"{printable(HOSTILE)}, 1 of 3: ranking"
        assert task.fields["counted"] == "1/2 windows in"


@pytest.mark.parametrize(
    ("progress", "left", "share"),
    [
        (Progress("loading the model"), None, 0.0),
        (Progress("ranking", 48, 119), None, 48 / 119),  # restored: they tell nothing of the speed
        (Progress("ranking", 58, 118, num_asked=10), 60.0, 58 / 118),
        (Progress("checking"), None, 1.0),
        (Progress("ranking", 1, 2, 1, part="arm", part_no=3, num_parts=4), 10.0, 0.625),
    ],
)
def test_the_time_left_is_told_by_this_starts_own_rate(progress, left, share):
    assert left_s(progress, 10.0) == left
    assert share_of(progress) == pytest.approx(share)


def test_a_night_in_a_terminal_of_80_columns_shows_phases_and_whole_warnings(model_folder, tmp_path, fake_vllm):
    settings = {"checks.canary": "warn", "checks.max_missed_canary_share": 1.0}
    config = make_settings(tmp_path, model_folder, make_inputs(tmp_path / "in", [9, 9]) | settings)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-m", "flows.cli", "run", str(config), "--no-prefect", "--night", "2026-11-29"]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, cwd=ROOT) as night:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # its end
            while read := os.read(ours, 1 << 16):
                shown += read
    os.close(ours)

    assert night.returncode == 0, shown
    frames = [each.rstrip() for each in re.split(r"[\r\n]+", re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode()))]
    phases = ["reading the input", "loading the model", "asking canaries", "ranking", "checking"]
    bars = [frame for frame in frames if "━" in frame and "│" not in frame and "╭" not in frame and "╰" not in frame]
    assert [
        each for each in dict.fromkeys(bar.partition(" ━")[0].partition(" ╺")[0] for bar in bars) if each in phases
    ] == phases
    assert max(map(len, bars)) <= 80
    warnings = [frame for frame in frames if "WARNING" in frame]
    assert warnings
    assert all(re.fullmatch(r"\d\d:\d\d:\d\d WARNING [^━]+", each) for each in warnings)
    assert len("\n".join(frames).partition("\nrun 2026-")[2].splitlines()) <= 12


def test_a_table_made_by_hand_is_no_way_out():
    table = SummaryTable(HOSTILE, (HOSTILE, "b"), ((HOSTILE, "s3://k:pa55word@b"),), note=HOSTILE)
    stream = io.StringIO()

    print_tables([table], Console(file=stream, width=400))
    markdown = to_markdown([table])

    for shown in (stream.getvalue(), markdown):
        assert harmful(shown) == set()
        assert "pa55word" not in shown
    assert "[link" not in markdown.replace("\\[link", "")
    assert "<b>" not in to_markdown([SummaryTable("t", ("a",), (("<b>",),))]).replace("\\<b>", "")


def test_an_error_is_one_line_whatever_it_names():
    assert str(InputError(f"queries: {HOSTILE}\nnext")) == printable(f"queries: {HOSTILE}\nnext")
