"""A night in shards: the rows of one without, only what is missing ranked again, nothing asked or kept twice."""

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import date

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from flows import night_runner as running
from tasks.forecast.rates import PrefillRate, Rates
from tasks.nightly import shards as shard_stage
from tasks.nightly.night import open_night, run_night
from tasks.nightly.outlook import rates_path
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.nightly.shard_worker import rank_shard
from tasks.nightly.shards import ranks_in_turn
from tasks.store.identity import git_commit
from tasks.store.shard_folder import ShardFolder, read_order, shard_of
from tasks.system.errors import AlreadyRunning, ConfigError, StoreError
from tasks.tools.rates_bench import write_rates
from tests.makers import FAKE_VLLM, ROOT, asked, make_inputs, make_settings, select, value

LISTS = [0, 1, 2, 5, 9, 12, 7, 4, 3, 6]
ROWS = {
    "scores": "query_id, rank",
    "rankings": "query_id",
    "windows": "query_id, round, window_no, attempt",
    "outcomes": "query_id, round, window_no, attempt",
    "quarantine": "source, query_id, doc_id",
}
OTHERWISE = {"queue_s", "prefill_s", "ttft_s", "tpot_s", "e2el_s", "shard", "batch_no", "run_id", "scores_run_id"}
LENIENT = {
    "checks.max_unmatched_share": 0.9,
    "checks.max_quarantined_share": 0.9,
    "checks.max_fallback_share": 1.0,
    "checks.max_partial_share": 1.0,
}


def spoil(folder):
    """Rows that are set aside or repaired: unknown and null ids, blank and double texts, double candidates."""
    queries = pq.read_table(folder / "queries.parquet").to_pylist()
    queries += [{"query_id": "blank", "text": " "}, queries[4]]
    documents = pq.read_table(folder / "documents.parquet").to_pylist()
    documents += [documents[3], documents[3], {"doc_id": "empty", "text": "", "title": None}]
    candidates = pq.read_table(folder / "candidates.parquet").to_pylist()
    for query in ("q004", "q005", "blank", "unknown1", "unknown2", "unknown3", None):
        candidates += [
            {"query_id": query, "doc_id": each, "rank": 90, "score": None} for each in ("d0001", "empty", "d9")
        ]
    for name, rows in (("queries", queries), ("documents", documents), ("candidates", candidates)):
        schema = pq.read_schema(folder / f"{name}.parquet")
        pq.write_table(pa.Table.from_pylist(rows, schema), folder / f"{name}.parquet")


def prepare(folder, model_folder, *, shards, day=29, lists=LISTS, request=(), **settings):
    folder.mkdir(exist_ok=True)
    inputs = make_inputs(folder.parent / "in", lists)
    if lists == LISTS:
        spoil(folder.parent / "in")
    values = {name.replace("__", "."): each for name, each in settings.items()}
    config = make_settings(folder, model_folder, inputs | LENIENT | values | {"packing.shards": shards})
    return prepare_night(NightRequest(config=config, night=date(2026, 11, day), **dict(request)))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, model_folder):
    """Rows of the night without shards, and what its engine was asked."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FAKE_VLLM))
        patch.setenv("FAKE_VLLM", json.dumps({"log": str(folder / "asked")}))
        prepared = prepare(folder / "night", model_folder, shards=1)
        run_night(prepared)
    return all_rows(prepared), len(asked(folder / "asked"))


@pytest.fixture
def night(tmp_path, model_folder, fake_vllm):
    """Prepares a night in shards."""
    fake_vllm(log=str(tmp_path / "asked"))

    def make(*, shards=2, **more):
        return prepare(tmp_path / "night", model_folder, shards=shards, **more)

    return make


def all_rows(prepared):
    found = {}
    for table, order in ROWS.items():
        rows = select(prepared, f"select * from {table} order by {order}")
        found[table] = [{name: each for name, each in row.items() if name not in OTHERWISE} for row in rows]
    columns = "num_queries, num_candidates, input_notes::varchar as notes, device"
    (run,) = select(prepared, f"select {columns} from runs")
    return found | {"run": run | {"notes": json.loads(run["notes"])}}


def num_asked_twice(log):
    keys = [tuple(each["ids"]) for each in asked(log)]
    return len(keys) - len(set(keys))


def begun(prepared, *shards):
    """A night that was killed when it had ranked and loaded the given shards; returns its run."""

    def killed(folders):
        yield from ranks_in_turn(prepared)([folder for folder in folders if folder.shard in shards])
        raise KeyboardInterrupt

    with suppress(KeyboardInterrupt), open_night(prepared, flow_run_id=None) as opened:
        opened.stage()
        opened.rank(run_shards=killed)
    return opened.run_id


def test_shards_have_the_rows_of_a_night_without(night, whole, tmp_path):
    """Three engines on two GPUs each."""
    expected, num_asked = whole
    notes = {"duplicate documents", "duplicate queries", "candidates with a tied rank", "candidates without a score"}
    assert expected["run"]["notes"].keys() == notes

    prepared = night(
        shards=3,
        engine__tensor_parallel_size=2,
        checks__canary="warn",
        checks__max_missed_canary_share=1.0,
        store__spool=str(tmp_path / "elsewhere"),
    )
    run_id = run_night(prepared)

    found = all_rows(prepared)
    for table in expected:
        assert found[table] == expected[table], table
    assert {row["shard"] for row in select(prepared, "select shard from batches")} == {0, 1, 2}
    assert value(prepared, "select num_gpu_blocks from runs") == 2 * 4_000
    assert value(prepared, "select count(*) from canaries") == 5
    assert value(prepared, "select count(*) from check_results where not passed") == 0
    canaries = 3 * 10  # every engine is asked ten prompts first
    assert len(asked(tmp_path / "asked")) == num_asked + canaries
    assert not list((tmp_path / "elsewhere").rglob("*.*"))  # nothing is left in the spool, nor of the shards' own
    assert not list((prepared.workspace.folder / "shards").rglob("*.*"))
    assert len(list((prepared.workspace.folder / "logs").glob(f"{run_id}.shard*.engine.log"))) == 3


def test_shards_with_rates_have_the_forecast_of_the_slowest_beside_what_all_took(night):
    prepared = night(shards=2)
    rates = Rates(prefill=(PrefillRate(prompt_tokens=100.0, tokens_per_s=1_000.0),), spread=0.1, source="by hand")
    write_rates(rates, rates_path(prepared))

    run_night(prepared)

    (row,) = select(prepared, "select low_s, expected_s, high_s, actual_s, rates from forecasts")
    sums = select(
        prepared,
        "select sum(windows.prompt_tokens)::bigint as prompt_tokens from windows join batches using (run_id, batch_no, shard) "
        "group by shard",
    )
    slowest = max(each["prompt_tokens"] for each in sums) / 1_000
    assert row["rates"] == "by hand"
    assert row["expected_s"] == pytest.approx(slowest, rel=0.05)
    assert row["low_s"] == pytest.approx(0.9 * row["expected_s"], rel=0.02)
    assert row["high_s"] == pytest.approx(1.1 * row["expected_s"], rel=0.02)
    assert 0 < row["actual_s"] < 600


@pytest.mark.fault(8, 10)
def test_a_night_killed_in_a_shard_asks_only_the_rest_of_that_shard(night, whole, fake_vllm, tmp_path, caplog):
    """Shard 1 is loaded; the engine of shard 0 hangs at its third batch, and the command is killed.

    The run keeps the number of shards that it began with, whatever the settings say when it is taken up again.
    """
    log, calls = tmp_path / "asked", {"packing__driver": "generate"}  # whose third batch begins when two are committed
    prepared = night(shards=2, **calls)
    begun(prepared, 1)
    fake_vllm(log=str(log), hang_at=int((tmp_path / "asked.count").read_text()) + 2)
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "run", str(tmp_path / "night" / "nightly.toml"), "--no-prefect", "--night", "2026-11-29"],
        cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    folder = ShardFolder(prepared.settings.spool_folder, prepared.base_run_id, 0)
    deadline = time.monotonic() + 240
    while len(folder.batch_nos()) < 4:  # of rows set aside, of queries without a call, and two that were answered
        assert time.monotonic() < deadline, folder.batch_nos()
        time.sleep(0.1)
    assert folder.is_held()
    with pytest.raises(AlreadyRunning, match=f"process {process.pid} on"):
        folder_lock_at_once(folder)
    process.kill()
    process.wait()
    assert not folder.is_held()
    assert select(prepared, "select distinct shard from batches") == [{"shard": 1}]
    before = len(asked(log))
    fake_vllm(log=str(log))
    caplog.clear()

    run_id = run_night(night(shards=3, **calls))

    assert f"run_id={run_id} keeps the 2 shards that it began with; [packing] shards = 3" in caplog.text
    assert {row["shard"] for row in select(prepared, "select shard from batches")} == {0, 1}

    expected, num_asked = whole
    found = all_rows(prepared)
    for table in expected:
        assert found[table] == expected[table], table
    assert before < len(asked(log)) == num_asked
    assert num_asked_twice(log) == 0


def folder_lock_at_once(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasks.store.shard_folder.LOCK_WAIT_S", 0.0)
        with folder.lock():
            pass


@pytest.mark.fault(12)
def test_shards_of_which_batches_are_gone_are_ranked_again(night, whole, monkeypatch, caplog):
    """As after a restored backup: of shard 0 the database has a part, of shard 1 the spool."""
    monkeypatch.setattr(shard_stage, "LATE_S", 0.0)
    prepared = night(shards=2)
    run_id = begun(prepared, 0)
    assert shard_of("q000", 2) == shard_of("q004", 2) == 0
    select(prepared, "delete from batches where shard = 0 and batch_no = 1 returning batch_no")
    select(prepared, "delete from rankings where query_id = 'q000' returning query_id")
    rank_shard(prepared, run_id, 1)
    folder = ShardFolder(prepared.settings.spool_folder, run_id, 1)
    assert folder.is_done
    shutil.rmtree(folder.path / "00000001")

    run_night(prepared)

    assert "shard=0 is in the database in part, and ranked again" in caplog.text
    assert "shard=1 lost some of its batches: all are computed again" in caplog.text
    found = all_rows(prepared)
    for table in whole[0]:
        assert found[table] == whole[0][table], table


def test_reuse_and_requeue_are_those_of_a_night_without_shards(night, fake_vllm, tmp_path):
    settings = {"strategy__decode_mode": "permutation", "shards": 2, "lists": [1, 2, 5, 9, 6, 4, 4, 7]}
    fake_vllm(answers=["[1] > [2] > [3] > [4]", "no idea", "no idea"], log=str(tmp_path / "asked"))
    first = night(day=28, request={"publish": True}, **settings)
    run_night(first)
    fell = "select query_id from rankings where status in ('partial', 'fallback') order by query_id"
    fallen = select(first, fell)
    assert len({shard_of(row["query_id"], 2) for row in fallen}) == 2
    fake_vllm(log=str(tmp_path / "well"))

    again = run_night(night(day=28, request={"publish": True, "requeue": True}, **settings))

    of_again = f"from rankings where run_id = '{again}'"
    assert again.endswith("-r2")
    assert select(first, f"select query_id {of_again} and status = 'ranked' order by query_id") == fallen
    assert {row["reuse_reason"] for row in select(first, f"select reuse_reason {of_again} and status = 'ranked'")} == {
        "fell back last time"
    }
    assert value(first, f"select num_reused_queries from runs where run_id = '{again}'") == 8 - len(fallen)
    num_asked = len(asked(tmp_path / "well"))
    assert num_asked == value(first, f"select count(*) from windows where run_id = '{again}'")

    second = run_night(night(day=29, request={"publish": True}, **settings))

    assert len(asked(tmp_path / "well")) == num_asked
    assert select(first, f"select distinct status from rankings where run_id = '{second}'") == [{"status": "reused"}]
    assert select(first, f"select status, device from runs where run_id = '{second}'") == [
        {"status": "published", "device": None}
    ]
    assert value(first, "select count(*) from latest_scores") == sum(settings["lists"])


def test_the_nested_layout_is_split_by_query_too_into_more_shards_than_there_are_queries(
    tmp_path, model_folder, fake_vllm
):
    rows = [
        {"query_id": f"q{n}", "text": f"what is {n}", "candidates": [{"doc_id": f"d{m}", "text": f"{m} of {n}", "score": 9.0 - m} for m in range(n)]}
        for n in (2, 5)
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "nested.parquet")
    found = []
    for shards in (1, 3):
        (tmp_path / str(shards)).mkdir()
        values = {"inputs.nested": str(tmp_path / "nested.parquet"), "packing.shards": shards}
        prepared = prepare_night(NightRequest(config=make_settings(tmp_path / str(shards), model_folder, values)))
        run_night(prepared)
        found.append(all_rows(prepared))

    assert found[0] == found[1]


def test_what_does_not_belong_together_is_refused_in_one_line(night, monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match=r"limit_queries needs \[packing\] shards = 1, not 2.*packing.shards=1"):
        night(shards=2, request={"limit_queries": 1})
    prepared = night(shards=2)
    with pytest.raises(StoreError, match="no night asks for shards here"):
        rank_shard(prepared, prepared.base_run_id, 0)
    run_id = begun(prepared)
    with pytest.raises(ConfigError, match="the run has 2 shards, expected 0 to 1"):
        rank_shard(prepared, run_id, 2)
    other = night(shards=2, strategy__stride=1)
    with pytest.raises(
        ConfigError, match=f"settings, model and input are those of {other.base_run_id} here, not of {run_id}"
    ):
        rank_shard(other, run_id, 0)
    order = read_order(prepared.settings.spool_folder / run_id)
    assert order.git_commit == git_commit(ROOT)
    replace(order, git_commit="0" * 40).write(prepared.settings.spool_folder / run_id)
    if order.git_commit is not None:  # None outside git, as in an archive of the sources
        with pytest.raises(ConfigError, match=rf"shard 0 on .*: the checkout is at commit .*, expected {'0' * 40}"):
            rank_shard(prepared, run_id, 0)
    assert not (prepared.workspace.folder / "shards").exists()


def test_a_command_without_workers_starts_nothing(night, monkeypatch):
    """A server of its own has none."""
    monkeypatch.setattr(running, "running_stack_url", lambda: None)
    monkeypatch.setattr(running, "set_prefect_environment", lambda: None)
    monkeypatch.setattr(running, "show_logs", lambda: None)
    for name in ("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "PREFECT_LOGGING_INTERNAL_LEVEL"):
        monkeypatch.setenv(name, "CRITICAL")
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    prepared = night(shards=2)
    request = NightRequest(config=prepared.settings.database_path.parent.parent / "nightly.toml")

    with pytest.raises(ConfigError, match="make up SHARD_WORKERS=2.*--no-prefect ranks the shards one after another"):
        running.run_as_flow(request, Console())

    assert not prepared.settings.database_path.exists()
