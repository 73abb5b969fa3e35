"""The command as people use it: exit codes, one line on an error, tables, CSV, JSON and Parquet."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout

import duckdb
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from flows.cli import main
from tasks.report.headline import print_headline, read_headline
from tasks.study.simulation import CONTENDERS
from tests.makers import FAKE_VLLM, ROOT, make_inputs, make_settings, rows, store_at, write_parquet


@pytest.fixture(scope="module")
def finished(tmp_path_factory, model_folder):
    """A finished night's folder, made once: settings in nightly.toml, database in var/test.duckdb."""
    folder = tmp_path_factory.mktemp("finished")
    inputs = make_inputs(folder / "in", [0, 1, 3, 6])
    qrels = write_parquet(
        folder / "qrels.parquet", query_id=["q002", "q003"], doc_id=["d0003", "d0004"], relevance=[1, 2]
    )
    config = make_settings(folder, model_folder, inputs | {"inputs.qrels": str(qrels)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FAKE_VLLM))
        printed = io.StringIO()
        with redirect_stdout(printed):
            main(["run", str(config), "--no-prefect", "--night", "2026-11-29"])
    return folder, printed.getvalue()


def test_help_is_instant_and_names_every_verb():
    """It imports nothing that takes long."""
    code = (
        "import sys; from flows.cli import main; main(['--help']); "
        "heavy = {'duckdb', 'pyarrow', 'pandas', 'numpy', 'prefect', 'vllm', 'torch', 'transformers', 'tokenizers'}; "
        "sys.exit(f'imported: {heavy & sys.modules.keys()}' if heavy & sys.modules.keys() else 0)"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert answer.returncode == 0, answer.stderr
    for verb in (
        *("run", "plan", "sql", "runs", "explain", "evaluate", "study", "report"),
        *("publish", "unpublish", "export", "import", "doctor"),
    ):
        assert re.search(rf"\b{verb}\b", answer.stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "nowhere.toml"], 2, "no such settings file"),
        (["run"], 2, "requires an argument"),
        (["dance"], 2, "Unknown command"),
        (
            ["run", "nightly.toml", "--set", "strategy.stride=25"],
            2,
            "stride = 25 must be between 1 and window_size = 4",
        ),
        (["run", "nightly.toml", "--set", "nonsense"], 2, "expected section.key=value"),
        (["run", "nightly.toml", "--publish", "--limit-queries", "1"], 2, "publish cannot be combined with"),
        (["plan", "nightly.toml", "--set", "inputs.documents=nowhere.parquet"], 3, "no such file or folder"),
        (["sql", "select foo from runs", "--database", "var/test.duckdb"], 2, 'column "foo" not found'),
        (["sql", "drop table runs", "--database", "var/test.duckdb"], 2, "read-only"),
        (["sql", "select 1", "--database", "none.duckdb"], 1, "no such database"),
        (["run", "nightly.toml", "--limit-queries", "0"], 2, 'Invalid value "0" for --limit-queries. Must be >= 1.'),
        (["plan", "nightly.toml", "--limit-queries", "-1"], 2, 'Invalid value "-1" for --limit-queries'),
        (["plan", "nightly.toml", "--num-gpu-blocks", "0"], 2, "--num-gpu-blocks. Must be >= 1."),
        (["plan", "nightly.toml", "--block-size", "0"], 2, "--block-size. Must be >= 1."),
        (["bench", "nightly.toml", "--seconds", "0"], 2, "--seconds. Must be >= 1."),
        (["sql"], 2, "give a statement or the name of a report, or --list"),
        (["sql", "runs", "--list"], 2, "give a statement or the name of a report, or --list"),
        (["explain", "no-run", "q", "--database", "var/test.duckdb"], 1, "no run 'no-run'"),
        (["explain", "latest", "q9", "--config", "nightly.toml"], 1, "has no query 'q9'"),
        (["plan"], 2, "CONFIG requires an argument. See packrank plan --help."),
        (["plan", "nightly.toml", "--night", "tomorrow"], 2, "Expected YYYY-MM-DD. See packrank plan --help."),
        (["plan", "nightly.toml", "--set", "engine.max_modellen=9"], 2, "Is it max_model_len?"),
        (["plan", "nightly.toml", "--set", "preset=configs/models/quen3.toml"], 2, "a shipped preset: deepseek"),
        (["sql", "run"], 2, "no report 'run'. Is it runs? `packrank sql --list` lists them"),
        (["sql", "nowhere.sql"], 2, "nowhere.sql: cannot be read"),
        (["settings", "strategies"], 2, "no section 'strategies'. Is it strategy?"),
        (["export", "latest", "--output", "x.csv"], 2, "must be one of .parquet, .jsonl, .trec, .run, .txt; else"),
        (["evaluate", "nightly.toml", "--measure", "nDGC@10"], 2, "--measure nDGC@10: ir-measures cannot compute it"),
        (["evaluate", "nightly.toml", "--qrels", "nowhere.txt"], 3, "no such file"),
        (["evaluate", "no-run", "--database", "var/test.duckdb"], 1, "no run 'no-run'"),
        (["publish", "no-run", "--database", "var/test.duckdb"], 1, "no run 'no-run'"),
        (["unpublish", "no-run", "--database", "none.duckdb"], 1, "no such database"),
        (["export", "no-run", "--format", "trec"], 2, "requires an argument"),
        (["import", "new", "--run", "x"], 2, "give --run, --queries and --corpus"),
        (["import", "new", "--rankllm", "nowhere.json"], 3, "nowhere.json: cannot be read"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(packrank, finished, arguments, code, words):
    answer = packrank(*arguments, cwd=finished[0])

    assert answer.returncode == code
    assert words in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1
    assert answer.stderr.startswith("packrank: ")


def test_a_run_ends_with_what_came_of_it_in_twelve_lines(packrank, finished):
    folder, printed = finished
    lines = printed.splitlines()

    assert len(lines) == 11  # without a page
    assert max(map(len, lines[:-1])) <= 80
    assert re.fullmatch(r"run 2026-11-29-nightly-[0-9a-f]{8}: complete, not published", lines[0])
    assert re.fullmatch(r"4 queries \(1 not ranked\), 10 candidates, [\d.]+ s; all \d+ checks hold", lines[1])
    assert re.fullmatch(r"nDCG@10 0\.\d{4} -> 0\.\d{4}: \d queries better, \d worse, \d equal", lines[2])
    assert re.fullmatch(r'first three before \| after, "what is \w+ \w+ 2\." \(0\.\d\d -> \d\.\d\d\):', lines[3])
    assert lines[4].startswith("  1  ")
    assert "| Title " in "".join(lines[4:7])
    assert "Answers outside the requested form" in lines[7]
    assert lines[10] == f"database: {folder / 'var' / 'test.duckdb'}"
    again = packrank("run", "nightly.toml", "--night", "2026-11-29", cwd=folder).stdout.splitlines()
    assert again == [lines[0].replace(": ", ": already done, "), *lines[1:10], "database: var/test.duckdb"]


def test_a_run_without_judgments_whose_model_errs_says_what_moved_and_has_a_box(packrank, model_folder, tmp_path):
    config = make_settings(tmp_path, model_folder, make_inputs(tmp_path / "in", [12, 3]))
    database = tmp_path / "var" / "test.duckdb"
    fake = {"PYTHONPATH": str(FAKE_VLLM)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*fake.popitem())
        run = ("run", config, "--no-prefect", "--night", "2026-11-29")
        assert packrank(*run).returncode == 0
    missed = [("first_token/tides", -1.0), ("first_token/volcano", -0.5), ("yes_no/tides", -0.5), ("yes_no/bread", 1.0)]
    for pair, margin in missed:
        rows(database, f"insert into canaries select run_id, '{pair}', {margin}, {margin > 0}, 0 from runs")

    lines = packrank(*run).stdout.splitlines()

    assert len(lines) == 11
    assert re.fullmatch(r"no judgments; another first document in \d of 2 queries, overlap@10 [01]\.\d\d", lines[2])
    assert "Canaries missed in first_token" in lines[7]
    assert "3 more: --verbose" in lines[9]


def test_texts_that_cannot_be_read_again_are_shown_as_ids(finished, capsys):
    folder, _ = finished
    with duckdb.connect(str(folder / "var" / "test.duckdb"), read_only=True) as connection:
        (run_id,) = connection.execute("select run_id from runs").fetchone()

    print_headline(read_headline(store_at(folder / "var" / "test.duckdb"), run_id, {}), {}, Console(width=80))

    assert 'first three before | after, "q002"' in (shown := capsys.readouterr().out)
    assert re.search(r"  1  d\d{4} +\| d\d{4}\n", shown)


def test_a_second_run_a_rerun_and_a_failed_check_show_what_came_of_them(packrank, model_folder, fake_vllm, tmp_path):
    config = make_settings(tmp_path, model_folder, make_inputs(tmp_path / "in", [3, 6]))
    run = ("run", config, "--no-prefect", "--night")
    cut = ("--set", "prompt.max_passage_tokens=9", "--set", "checks.max_truncated_share=0.0")

    first = packrank(*run, "2026-11-29")
    again = packrank(*run, "2026-11-29", "--verbose")
    repeated = packrank(*run, "2026-11-29", "--rerun")
    failed = packrank(*run, "2026-11-28", *cut)

    assert first.returncode == again.returncode == repeated.returncode == 0, repeated.stderr
    run_id = first.stdout.split()[1]
    assert f"\nrun {run_id} already done, complete, not published\n" in again.stdout
    for words in ("Query q000", "before", "Serving benchmark", "P99 TTFT (ms)", "Mean ITL (ms)", "KV cache", "Checks"):
        assert words in again.stdout
        assert words == "before" or words not in first.stdout
    assert "-r2" in repeated.stdout
    assert failed.returncode == 4
    assert "truncated_passages" in failed.stderr.splitlines()[-1]
    assert "checks failed: truncated_passages\n" in failed.stdout


def test_sql_prints_tables_csv_json_and_writes_parquet(packrank, finished, tmp_path):
    folder, _ = finished
    database = folder / "var" / "test.duckdb"
    statement = "select query_id, doc_id, rank from scores order by query_id, rank"

    table = packrank("sql", statement, "--database", database).stdout
    rows = list(
        csv.DictReader(io.StringIO(packrank("sql", statement, "--database", database, "--format", "csv").stdout))
    )
    objects = json.loads(packrank("sql", statement, "--database", database, "--format", "json").stdout)
    out = tmp_path / "x.parquet"
    assert packrank("sql", statement, "--database", database, "--format", "parquet", "--output", out).returncode == 0

    assert "10 rows" in table
    assert len(rows) == len(objects) == pq.read_table(out).num_rows == 10
    assert objects[0] == {"query_id": "q001", "doc_id": "d0001", "rank": 1}


REPORTS = sorted(path.stem for path in (ROOT / "sql" / "reports").glob("*.sql"))


@pytest.mark.parametrize("report", REPORTS)
def test_named_reports_run(packrank, finished, report):
    answer = packrank("sql", report, "--database", finished[0] / "var" / "test.duckdb", "--format", "json")

    assert answer.returncode == 0, answer.stderr
    assert isinstance(json.loads(answer.stdout), list)


def test_the_named_reports_are_listed_with_what_they_show(packrank):
    table = packrank("sql", "--list")
    rows = json.loads(packrank("sql", "--list", "--format", "json").stdout)

    assert table.returncode == 0, table.stderr
    assert "Tokens and engine time of each run" in table.stdout
    assert [row["report"] for row in rows] == REPORTS
    assert all(len(row["shows"]) > 15 and not row["shows"].startswith("--") for row in rows)


def test_explain_shows_windows_answers_and_order(packrank, finished):
    database = finished[0] / "var" / "test.duckdb"
    (run,) = json.loads(packrank("sql", "select run_id from runs", "--database", database, "--format", "json").stdout)

    shown = packrank("explain", run["run_id"], "q003", "--database", database).stdout

    for words in (
        *("Windows, candidates by first-stage rank in prompt order", "Order before and after", "d0008"),
        *("question", "text"),
    ):
        assert words in shown
    bare = packrank("explain", run["run_id"], "q003", "--database", database, "--no-texts").stdout
    assert "question" not in bare
    assert "Set aside" in packrank("explain", run["run_id"], "q000", "--database", database).stdout


def test_every_command_of_rows_has_values_for_programs_and_takes_the_settings_file_for_its_database(packrank, finished):
    config = finished[0] / "nightly.toml"

    runs, explained, evaluated = (
        json.loads(packrank(*asked, "--config", config, "--format", "json").stdout)
        for asked in (["runs", "--limit", 1], ["explain", "latest", "q003"], ["evaluate", "latest"])
    )
    listed = packrank("runs", config, "--name", "another").stdout
    planned = json.loads(packrank("plan", config, "--format", "json").stdout)
    measured = csv.DictReader(io.StringIO(packrank("evaluate", config, "--format", "csv").stdout))

    assert [(run["status"], run["is_trial"], run["num_queries"]) for run in runs] == [("complete", False, 4)]
    assert explained["query"]["num_candidates"] == 6
    assert {row["measure"] for row in evaluated["quality"]} == {"nDCG@10", "AP", "RR", "R@100"}
    assert planned["plan"]["candidates"] == 10
    assert {row["table"] for row in measured} == {"judgments", "quality"}
    assert "0 runs" in listed


def test_a_statement_may_lie_in_a_file(packrank, finished, tmp_path):
    (tmp_path / "mine.sql").write_text("select count(*) as n from runs")

    answer = packrank("sql", "mine.sql", "--config", finished[0] / "nightly.toml", "--format", "json", cwd=tmp_path)

    assert json.loads(answer.stdout) == [{"n": 1}]


def test_publish_and_unpublish_say_what_they_did(packrank, finished, tmp_path):
    database = tmp_path / "copied.duckdb"
    shutil.copy(finished[0] / "var" / "test.duckdb", database)
    (run,) = json.loads(packrank("sql", "select run_id from runs", "--database", database, "--format", "json").stdout)
    (tmp_path / "out").mkdir()
    options = (run["run_id"], "--database", "copied.duckdb", "--set", "store.export=out")

    published = packrank("publish", *options, "--set", "store.published_copy=true", cwd=tmp_path)
    shown = packrank("sql", "select * from latest_scores", "--database", tmp_path / "copied.published.duckdb")
    taken_back = packrank("unpublish", *options, cwd=tmp_path)

    folder = tmp_path / "out" / "nightly" / "night=2026-11-29"
    assert published.returncode == taken_back.returncode == 0, published.stderr + taken_back.stderr
    assert published.stdout.splitlines()[:2] == [
        f"run {run['run_id']}: published",
        f"export: {folder}/scores.parquet, 10 rows of 3 queries",
    ]
    assert "10 rows" in shown.stdout
    assert taken_back.stdout.splitlines() == [
        f"run {run['run_id']}: no longer published",
        f"export: {folder} withdrawn",
    ]


@pytest.mark.fault(90)
def test_evaluate_shows_and_stores_what_the_night_measured_and_more(packrank, finished):
    folder, printed = finished
    database = folder / "var" / "test.duckdb"
    means = "select measure, ranking, value, num_queries from metrics where query_id is null order by all"
    before, after = re.search(r"nDCG@10 (\S+) -> (\S+):", printed).groups()

    answer = packrank("evaluate", "nightly.toml", "--against", "first_stage", cwd=folder)
    stored = json.loads(packrank("sql", means, "--database", database, "--format", "json").stdout)

    assert answer.returncode == 0, answer.stderr
    for words in ("Judgments of run", "counted as 0", "Quality", "R@100", "p_value", "Candidates a query"):
        assert words in answer.stdout
    assert re.search(rf"nDCG@10 +2 +{before} +{after}", answer.stdout)
    assert {row["measure"] for row in stored} == {"nDCG@10", "AP", "RR", "R@100"}
    assert {row["num_queries"] for row in stored} == {2}


def test_an_exported_night_can_be_the_next_ones_input(packrank, finished, tmp_path):
    folder, _ = finished
    database = folder / "var" / "test.duckdb"
    (run,) = json.loads(packrank("sql", "select run_id from runs", "--database", database, "--format", "json").stdout)
    for source, key in (("queries", "query_id"), ("documents", "doc_id")):
        rows = pq.read_table(folder / "in" / f"{source}.parquet").to_pylist()
        lines = [json.dumps({"_id": row[key], "title": row.get("title"), "text": row["text"]}) for row in rows]
        (tmp_path / f"{source}.jsonl").write_text("\n".join(lines))

    exported = packrank("export", run["run_id"], "--output", "night.trec", "--database", database, cwd=tmp_path)
    imported = packrank(
        *("import", "new", "--run", "night.trec", "--queries", "queries.jsonl", "--corpus", "documents.jsonl"),
        cwd=tmp_path,
    )
    inputs = dict(line.split(" = ") for line in imported.stdout.splitlines() if ".parquet" in line)
    overrides = [each for name, path in inputs.items() for each in ("--set", f"inputs.{name}={path}")]
    planned = packrank("plan", folder / "nightly.toml", *overrides)

    assert exported.stdout == f"{tmp_path}/night.trec: 10 rows of 3 queries\n"
    assert imported.returncode == planned.returncode == 0, imported.stderr + planned.stderr
    assert list(inputs) == ["queries", "documents", "candidates"]


def test_plan_says_what_would_be_asked(packrank, finished):
    answer = packrank("plan", "nightly.toml", "--num-gpu-blocks", 200, "--block-size", 16, cwd=finished[0])

    assert answer.returncode == 0, answer.stderr
    for words in ("prompts", "Prompts by round", "batches", "no candidates"):
        assert words in answer.stdout


def test_doctor_names_what_is_wrong_and_its_fix(packrank, finished):
    well = packrank("doctor", "nightly.toml", "--no-engine", cwd=finished[0])
    unwell = packrank("doctor", "nightly.toml", "--no-engine", "--set", "engine.model=no/where/at/all", cwd=finished[0])

    assert well.returncode == 0, well.stdout + well.stderr
    assert "can be locked" in well.stdout
    assert unwell.returncode == 1
    assert "problems with: model" in unwell.stderr
    assert "set [engine] model" in unwell.stdout


def test_doctor_opens_the_database(packrank, finished, tmp_path):
    """One of an older schema is locked as well as any other, and no night can open it."""
    old = tmp_path / "old.duckdb"
    with duckdb.connect(str(old)) as connection:
        connection.execute("create table schema_files as select '031_inside_an_engine_step' as file_name")
    answer = packrank("doctor", "nightly.toml", "--no-engine", "--set", f"store.database={old}", cwd=finished[0])

    assert answer.returncode == 1
    assert "problems with: database" in answer.stderr


def test_doctor_starts_the_engine(packrank, finished, fake_vllm):
    answer = packrank("doctor", "nightly.toml", cwd=finished[0])

    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "KV blocks of 16 tokens" in answer.stdout


def test_escape_sequences_of_data_do_not_reach_the_terminal(packrank, finished):
    answer = packrank("sql", "select '\x1b[31mred\x07' as x", "--database", finished[0] / "var" / "test.duckdb")

    assert "\x1b" not in answer.stdout
    assert "\x07" not in answer.stdout
    assert "red" in answer.stdout


@pytest.mark.parametrize("form", ["csv", "json", "table"])
def test_a_reader_that_leaves_ends_the_command_in_silence(finished, form):
    command = [sys.executable, "-m", "flows.cli", "sql", "select * from scores", "--format", form]
    database = ["--database", str(finished[0] / "var" / "test.duckdb")]
    with subprocess.Popen([*command, *database], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        process.stdout.close()
        assert process.stderr.read() == b""

    assert process.returncode == 141  # as a shell has it for SIGPIPE


def test_a_simulation_is_the_same_in_every_form(packrank):
    asked = ("study", "--simulate", "--num-queries", 2, "--num-candidates", 25, "--seed", 5)

    table, again, as_csv, as_json = (
        packrank(*asked, *form) for form in ((), (), ("--format", "csv"), ("--format", "json"))
    )

    assert table.returncode == 0
    assert table == again
    assert all(contender.name in table.stdout for contender in CONTENDERS)
    rows = json.loads(as_json.stdout)
    assert [row["strategy"] for row in csv.DictReader(io.StringIO(as_csv.stdout))] == [row["strategy"] for row in rows]
    assert {row["strategy"] for row in rows} == {contender.name for contender in CONTENDERS}
    assert [row["prompt_tokens"] for row in rows] == sorted(row["prompt_tokens"] for row in rows)


def test_an_estimate_counts_every_query_although_this_model_would_reuse_them(
    tmp_path, model_folder, monkeypatch, capsys
):
    """After a publication `plan --estimate 8B` said 0 GPU-hours: another model can reuse none of this one's rows."""
    config = make_settings(tmp_path, model_folder, make_inputs(tmp_path / "in", [3, 6]))
    monkeypatch.setenv("PYTHONPATH", str(FAKE_VLLM))
    main(["run", str(config), "--no-prefect", "--night", "2026-11-29", "--publish"])
    capsys.readouterr()

    reused, counted = (
        (main(["plan", str(config), "--night", "2026-11-30", *more, "--format", "json"]), capsys.readouterr().out)[1]
        for more in ([], ["--estimate", "8B"])
    )

    assert json.loads(reused)["plan"]["prompts"] == 0
    assert json.loads(counted)["plan"]["prompts"] > 0
