"""Nights that meet each other, are cancelled, killed, late, or run again: a real server, real workers, a fake engine.

The server is deployed to from one folder and its worker runs in another. Every test has its own database, so the fake
engine's log tells what that night was asked.
"""

import base64
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import traceback
from dataclasses import asdict
from datetime import UTC, date, datetime, timedelta
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.objects import FlowRun
from prefect.states import Crashed, Failed

from flows import alerts, shard
from flows.alerts import Alert, kind_of, message_of, moment_of, send
from tasks.settings import alert_settings, load_settings
from tasks.store.shard_folder import ShardFolder, ShardRecord
from tasks.system.errors import (
    AlreadyInProgress,
    CanaryFailed,
    CheckFailed,
    ConfigError,
    EngineError,
    InputError,
    PackrankError,
    PromptTooLong,
)
from tests.flow.stack import (
    COMMITTED,
    FINAL,
    HANGS,
    LISTS,
    MARKER,
    NightFolder,
    engine_and_process_are_gone,
    nobody_listens,
    process_of,
    served,
    wait_for,
)
from tests.makers import ROOT, make_settings, write_parquet
from tests.processes import engines_of, is_alive
from tests.web_hook import ALERT, SECRET, Hook

NUM_WINDOWS = 11  # 5 + 4 + 2, in five batches of 3, 3, 2, 2 and 1


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    with served(tmp_path_factory) as made:
        yield made


@pytest.fixture
def night(stack, tmp_path, model_folder):
    def make(name="night", **settings):
        return NightFolder(tmp_path / name, model_folder, **settings)

    yield make
    stack.end_all()


@pytest.fixture
def shard_night(stack, night):
    """A night in two shards, and two slots for them, whose engines behave as told."""
    workers = []

    def make(**behaviour):
        one = night(packing__shards=2)
        one.tell(**behaviour)
        workers.append(stack.new_worker("gpu-shards", one.env))
        return one

    yield make
    for _, _, run in stack.shards():
        if (process := process_of(run)) is not None:
            os.kill(process, signal.SIGKILL)
        stack.ask(f"/flow_runs/{run}", "DELETE")
    for worker in workers:
        stack.stop_worker(worker)


@pytest.fixture(scope="module")
def hook():
    made = Hook()
    yield made
    made.server.shutdown()
    made.server.server_close()


def night_at(one, moment):
    return alert_settings(one.config).night_at(moment)


def unpacked(blob):
    """A stored result with what is base64 in it, as Prefect's pickles are, decoded."""
    lines = blob.replace(b"\\n", b"").replace(b"\n", b"")
    runs = re.findall(rb"[A-Za-z0-9+/]{16,}", lines)
    return blob + b"".join(base64.b64decode(run[: len(run) // 4 * 4]) for run in runs)


def engines_of_shards(stack):
    """The engines of the shards' flow runs, one each."""
    processes = [process for _, _, run in stack.shards() if (process := process_of(run)) is not None]
    return [engine for process in processes for engine in engines_of(process)]


@pytest.mark.fault(17)
def test_the_same_night_is_refused_while_it_runs_and_another_waits_in_line(stack, night, hook):
    """All by the run lock, which a command meets too. Then SIGTERM to the first one's process: the next begins."""
    one = night(night__alert_url=hook.url)
    one.tell(**HANGS)
    first, process = stack.start_and_hang(one, night="2026-11-29")
    (engine,) = engines_of(process)
    one.tell()

    same = stack.start(one, night="2026-11-29")
    command = one.run("--night", "2026-11-29")

    assert command.returncode == 5
    assert f"(process {process} on" in command.stderr
    assert stack.wait(same)["type"] == "CANCELLED"
    assert f"(process {process} on" in stack.state_of(same)["message"]

    other = stack.start(one, night="2026-11-28")
    wait_for(lambda: any("waits for its turn" in message for _, message in stack.logs(other)))
    assert stack.state_of(other)["type"] == "RUNNING"

    os.kill(process, signal.SIGTERM)

    assert stack.wait(first)["type"] == "CRASHED"
    wait_for(lambda: not is_alive(engine))
    assert stack.wait(other)["type"] == "COMPLETED"
    assert one.rows("select night, status, error from runs order by night") == [
        {"night": date(2026, 11, 28), "status": "published", "error": None},
        {"night": date(2026, 11, 29), "status": "cancelled", "error": "TerminationSignal"},
    ]
    assert hook.wait(first)["kind"] == "crashed"
    assert (hook.of(same), hook.of(other)) == ([], [])


@pytest.mark.fault(15)
def test_a_cancelled_night_leaves_no_process_and_goes_on_from_what_was_committed(stack, night, hook):
    one = night(night__alert_url=hook.url)
    one.tell(**HANGS)
    flow_run, process = stack.start_and_hang(one)

    stack.set_state(flow_run, "CANCELLING")

    assert stack.wait(flow_run)["type"] == "CANCELLED"
    wait_for(lambda: engine_and_process_are_gone(process))
    assert one.rows("select status from runs") == [{"status": "cancelled"}]
    assert one.num_committed == COMMITTED
    assert hook.of(flow_run) == []  # somebody meant it
    one.tell()
    assert one.run().returncode == 0
    assert (one.num_asked, one.num_different) == (NUM_WINDOWS, NUM_WINDOWS)
    assert one.rows("select status from runs") == [{"status": "complete"}]


@pytest.mark.fault(14, 15)
def test_a_killed_night_is_crashed_at_once_told_of_and_the_next_flow_run_ends_it(stack, night, hook):
    one = night(night__alert_url=hook.url)
    one.tell(**HANGS)
    killed, process = stack.start_and_hang(one)

    os.kill(process, signal.SIGKILL)

    assert stack.wait(killed)["type"] == "CRASHED"
    wait_for(lambda: engine_and_process_are_gone(process))
    alert = hook.wait(killed)
    (run,) = one.rows("select * from runs")
    assert (run["status"], run["flow_run_id"]) == ("failed", killed)
    assert run["error"] == "killed: its process ended without a word"
    assert alert.keys() == ALERT
    assert (alert["run_id"], alert["name"], alert["kind"]) == (run["run_id"], "nightly", "crashed")
    assert alert["night"] == run["night"].isoformat()
    assert abs(datetime.now(UTC) - datetime.fromisoformat(alert["time"])) < timedelta(minutes=10)

    one.tell()
    again = stack.start(one)

    assert stack.wait(again)["type"] == "COMPLETED"
    logs = [message for _, message in stack.logs(again)]
    assert any("taken_up_from=failed" in message for message in logs)
    assert any(re.match(r"batch=\d+ prompts=\d+ prompt_tokens=\d+ ", message) for message in logs)
    assert one.num_asked == one.num_different == NUM_WINDOWS
    (run,) = one.rows("select status, flow_run_id, settings::varchar as settings from runs")
    assert (run["status"], run["flow_run_id"]) == ("published", again)
    assert SECRET not in run["settings"]


@pytest.mark.fault(18, 73, 82, 83)
def test_of_three_late_runs_the_newest_night_is_ranked_once_and_nobody_is_alarmed(stack, night, hook):
    """They mean the same night, the newest: whoever meets it in progress is Cancelled, whoever comes later is done."""
    one = night(night__alert_url=hook.url)
    one.tell(batch_s=0.5)
    stack.ask("/work_pools/gpu", "PATCH", is_paused=True)  # as if no worker had been there
    now = datetime.now(UTC)
    try:
        late = [stack.start(one, due=now - timedelta(days=days)) for days in (3, 2, 1)]
    finally:
        stack.ask("/work_pools/gpu", "PATCH", is_paused=False)

    states = [stack.wait(run)["type"] for run in late]

    assert set(states) <= {"COMPLETED", "CANCELLED"}
    assert "COMPLETED" in states
    assert one.num_asked == one.num_different == NUM_WINDOWS
    newest = [{"night": night_at(one, moment), "status": "published"} for moment in (now, datetime.now(UTC))]
    assert one.rows("select night, status from runs") in [newest[:1], newest[1:]]
    assert [alert for run in late for alert in hook.of(run)] == []
    tasks = stack.ask("/task_runs/count", flow_runs={"id": {"any_": late}})
    assert tasks <= 6 * len(late)  # whole stages, not queries or batches


@pytest.mark.fault(8, 11)
def test_what_fails_late_in_the_night_is_tried_again_without_asking_again(stack, night, hook):
    """A task that Prefect retries, and a flow run that somebody retries: the engine answers each prompt once."""
    cut = {"prompt__max_passage_tokens": 8, "night__alert_url": hook.url}
    one = night(packing__max_engine_starts=1, checks__max_truncated_share=0.0, **cut)
    one.tell(die_at=2)
    one.env["PREFECT_TASKS_DEFAULT_RETRIES"] = "1"

    flow_run = stack.start(one)

    assert stack.wait(flow_run)["type"] == "FAILED"
    assert one.num_asked == one.num_different == NUM_WINDOWS
    assert one.rows("select status, is_degraded from runs") == [{"status": "complete", "is_degraded": True}]
    alert = hook.wait(flow_run)
    assert (alert["kind"], alert["state"]) == ("checks", "Failed")
    assert "1 checks failed" in alert["message"]

    one.set(packing__max_engine_starts=1, **cut)  # the limit is raised
    stack.retry(flow_run)

    wait_for(lambda: stack.state_of(flow_run)["type"] == "COMPLETED")
    assert one.num_asked == NUM_WINDOWS
    assert one.rows("select status, is_degraded from runs") == [{"status": "published", "is_degraded": False}]


@pytest.mark.fault(16)
def test_a_night_whose_worker_was_killed_with_it_does_not_keep_the_next_from_running(stack, night):
    """Nobody is left to tell Prefect, which shows it Running."""
    one = night()
    one.tell(**HANGS)
    zombie, process = stack.start_and_hang(one, night="2026-11-28")

    os.kill(stack.worker.pid, signal.SIGKILL)
    os.kill(process, signal.SIGKILL)
    stack.worker.wait()
    wait_for(lambda: engine_and_process_are_gone(process))
    stack.start_worker()

    one.tell()
    following = stack.start(one, night="2026-11-29")
    assert stack.wait(following)["type"] == "COMPLETED"
    assert stack.state_of(zombie)["type"] == "RUNNING"
    assert one.rows("select night, status, error from runs order by night") == [
        {"night": date(2026, 11, 28), "status": "failed", "error": "killed: its process ended without a word"},
        {"night": date(2026, 11, 29), "status": "published", "error": None},
    ]
    stack.ask(f"/flow_runs/{zombie}", "DELETE")


@pytest.mark.fault(8, 10)
def test_of_two_shards_the_one_whose_process_is_killed_is_started_again_alone(stack, shard_night):
    """q000 is the first shard's, in five rounds; the others are the second's."""
    one = shard_night(batch_s=1.0)
    flow_run = stack.start(one)
    spool = one.folder / "var" / "spool"
    wait_for(lambda: len(list(spool.glob("test/*/0/[0-9]*"))) >= 2 or stack.state_of(flow_run)["type"] in FINAL)
    ((name, state, first), (other, _, second)) = stack.shards()
    assert state == "RUNNING", stack.logs(flow_run)

    process = process_of(first)
    os.kill(process, signal.SIGKILL)

    assert stack.wait(flow_run)["type"] == "COMPLETED", stack.logs(flow_run)
    assert engine_and_process_are_gone(process)
    ended = stack.shards()
    assert [(each, state) for each, state, _ in ended] == [(name, "COMPLETED"), (name, "CRASHED"), (other, "COMPLETED")]
    assert [run for _, _, run in ended[1:]] == [first, second]
    (run,) = one.rows("select run_id, status, num_queries, device from runs")
    assert (name, other) == (f"{run['run_id']}, shard 0", f"{run['run_id']}, shard 1")
    assert (run["status"], run["num_queries"], run["device"]) == ("published", 3, "fake")
    assert one.rows("select count(*) as n from latest_scores") == [{"n": sum(LISTS)}]
    assert one.rows("select count(*) as n from windows") == [{"n": NUM_WINDOWS}]
    assert one.num_different == NUM_WINDOWS
    assert one.num_asked <= NUM_WINDOWS + 1  # the window that it was at
    assert any("Starting it once more" in message for _, message in stack.logs(flow_run))
    assert not (spool / "test" / run["run_id"]).exists()


@pytest.mark.fault(15)
def test_a_night_that_is_cancelled_stops_its_shards(stack, shard_night):
    one = shard_night(batch_s=300)
    flow_run = stack.start(one)
    wait_for(lambda: len(engines_of_shards(stack)) == 2 or stack.state_of(flow_run)["type"] in FINAL)
    processes = engines_of_shards(stack)
    assert processes, stack.logs(flow_run)

    stack.set_state(flow_run, "CANCELLING")

    assert stack.wait(flow_run)["type"] == "CANCELLED"
    wait_for(lambda: {state for _, state, _ in stack.shards()} == {"CANCELLED"})
    wait_for(lambda: not any(is_alive(process) for process in processes))
    assert one.rows("select status from runs") == [{"status": "cancelled"}]


@pytest.mark.parametrize(
    ("state", "num_starts", "kind", "words"),
    [
        (Crashed(message="gone"), 1, None, None),  # started once more
        (Crashed(message="gone"), 2, PackrankError, "shard 1: Crashed: gone. It was started 2 times; flow run"),
        (Failed(name="EngineError", message="lost"), 1, None, None),
        (Failed(name="InputError", message="no column"), 1, InputError, "run r, shard 1: InputError: no column"),
        (Failed(name="CanaryFailed", message="wrong"), 1, CanaryFailed, "run r, shard 1: CanaryFailed: wrong"),
    ],
)
def test_a_shard_is_started_once_more_unless_that_would_only_say_the_same(tmp_path, state, num_starts, kind, words):
    watched = shard._Watched(ShardFolder(tmp_path, "r", 1), flow_run_id=uuid4(), num_starts=num_starts)

    ended = shard._conclude(watched, state)

    assert type(ended) is (kind or type(None))
    assert words is None or words in str(ended)
    assert (watched.flow_run_id is None) == (kind is None)


def test_a_shard_that_wrote_its_record_is_done_whatever_prefect_says(tmp_path):
    folder = ShardFolder(tmp_path, "r", 1)
    folder.write(ShardRecord(is_done=True, host="h", versions={}, engine=None, canaries=()))

    assert shard._conclude(shard._Watched(folder, uuid4(), 1), Crashed(message="gone")) is folder


def test_a_shard_that_runs_without_its_lock_for_a_minute_has_lost_its_machine(tmp_path):
    watched = shard._Watched(ShardFolder(tmp_path, "r", 1), uuid4(), 1)

    assert not shard._is_lost(watched, now=100.0)  # it may not have begun
    assert not shard._is_lost(watched, now=159.0)
    with watched.folder.lock():
        assert not shard._is_lost(watched, now=161.0)
    assert not shard._is_lost(watched, now=170.0)
    assert shard._is_lost(watched, now=231.0)


@pytest.mark.fault(84)
def test_a_paused_schedule_stays_paused_and_one_that_is_removed_is_there_until_it_is_deleted(stack, tmp_path):
    def schedules():
        return [(each["slug"], each["active"]) for each in stack.deployment_now()["schedules"]]

    (schedule,) = stack.deployment["schedules"]
    stack.ask(
        f"/deployments/{stack.deployment['id']}", "PATCH", concurrency_limit=1
    )  # as an older packrank deployed it
    stack.ask(f"/deployments/{stack.deployment['id']}/schedules/{schedule['id']}", "PATCH", active=False)
    assert stack.prefect("--no-prompt", "deploy", "--all").returncode == 0
    assert schedules() == [("nightly", False)]
    assert stack.deployment_now()["global_concurrency_limit"] is None

    text = (ROOT / "prefect.yaml").read_text()
    (tmp_path / "prefect.yaml").write_text(text.replace("schedules: [*nightly]", "schedules: []"))
    deployed = stack.prefect("--no-prompt", "deploy", "--all", "--prefect-file", tmp_path / "prefect.yaml")
    assert deployed.returncode == 0, deployed.stderr
    assert schedules() == [("nightly", False)]  # it would fire on if it had been active

    stack.ask(f"/deployments/{stack.deployment['id']}/schedules/{schedule['id']}", "DELETE")
    assert schedules() == []


@pytest.mark.fault(86)
def test_the_flows_process_and_the_worker_import_no_engine(stack):
    """Prefect loads the flow's module in the worker too, for its hooks."""
    heavy = "('vllm', 'torch', 'transformers', 'matplotlib', 'scipy')"
    code = f"import sys, flows.nightly_rerank; print([name for name in {heavy} if name in sys.modules])"

    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=stack.env, capture_output=True, check=True)

    assert answer.stdout.strip() == b"[]"


@pytest.mark.fault(8, 79, 80)
def test_broken_settings_and_input_are_told_of_and_no_text_is_in_logs_states_or_results(stack, night, hook):
    before = datetime.now(UTC)
    broken = night("broken", night__alert_url=hook.url, strategy__stride=99)
    unreadable = night("unreadable", night__alert_url=hook.url)
    texts = pa.array([MARKER.encode() + b" caf\xe9"]).view(pa.string())  # no UTF-8, and of one query of three
    write_parquet(unreadable.folder / "in" / "queries.parquet", query_id=["q000"], text=texts)

    runs = [stack.start(one) for one in (broken, unreadable)]

    assert [stack.wait(run)["type"] for run in runs] == ["FAILED", "FAILED"]
    told = [hook.wait(run) for run in runs]
    assert [(alert["kind"], alert["run_id"] is None) for alert in told] == [("settings", True), ("input", False)]
    assert "stride = 99 must be between 1 and window_size = 4" in told[0]["message"]
    assert "at most a share of 0.2 may be missing" in told[1]["message"]
    newest = {night_at(broken, moment).isoformat() for moment in (before, datetime.now(UTC))}
    assert {alert["night"] for alert in told} <= newest
    kept = {path: path.read_bytes() for path in stack.state.rglob("*") if path.is_file()}
    results = [unpacked(blob) for path, blob in kept.items() if path.parent.name == "storage"]
    assert any(b"at most a share of 0.2 may be missing" in result for result in results)
    for words in (MARKER, SECRET):
        assert [path for path, blob in kept.items() if words.encode() in blob] == []
        assert [blob for blob in results if words.encode() in blob] == []
    assert max(map(len, results)) < 5_000
    with sqlite3.connect(f"file:{stack.state}/prefect/prefect.db?mode=ro", uri=True) as server:
        for column, table in (("parameters", "flow_run"), ("data", "flow_run_state"), ("data", "task_run_state")):
            (longest,) = server.execute(f"select max(length({column})) from {table}").fetchone()
            assert (longest or 0) < 2_000, (table, column)


@pytest.mark.parametrize(
    ("path", "words"), [("?status=500", "HTTP status 500"), ("?status=302", "HTTP status 302"), ("", None)]
)
def test_an_alert_that_is_not_delivered_is_one_line_without_the_secret(hook, path, words):
    trouble = send(make_alert(), hook.url + path)

    assert trouble == (None if words is None else f"the alert to 127.0.0.1 was not delivered: {words}")
    assert hook.alerts[-1] == asdict(make_alert())  # the redirect was not followed


def test_nobody_listening_or_answering_is_the_same(monkeypatch):
    monkeypatch.setattr(alerts, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, nobody_listens() as port:
        urls = [
            f"http://user:{SECRET}@127.0.0.1:{each}/{SECRET}?key={SECRET}" for each in (silent.getsockname()[1], port)
        ]
        told = [send(make_alert(), url) for url in urls]

    assert all(line.startswith("the alert to 127.0.0.1 was not delivered: ") for line in told)
    assert SECRET not in "".join(told)


@given(st.text(min_size=1))
def test_an_error_that_nobody_foresaw_is_told_without_its_words(text):
    """A driver's message may have a value of a row in it."""
    told = message_of(ValueError(f"cannot convert <<{text}>>"))

    assert told == "unexpected ValueError. The flow run's log has the details."


@pytest.mark.parametrize(
    ("started_at", "due", "meant"),
    [
        (None, datetime(2026, 3, 1, 16, 30, tzinfo=UTC), "now"),  # late: the newest night
        (None, datetime(2100, 3, 1, 16, 30, tzinfo=UTC), "due"),  # the worker's clock is behind the server's
        (datetime(2026, 3, 1, 16, 31, tzinfo=UTC), datetime(2026, 3, 1, 16, 30, tzinfo=UTC), "started_at"),  # a retry
    ],
)
def test_a_flow_run_means_the_night_of_its_first_start_but_none_before_it_was_due(started_at, due, meant):
    flow_run = FlowRun(flow_id=uuid4(), start_time=started_at, expected_start_time=due)

    found = moment_of(flow_run)

    wanted = {"now": datetime.now(UTC), "due": due, "started_at": started_at}[meant]
    assert abs(found - wanted) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (PromptTooLong("x"), "settings"),
        (InputError("x"), "input"),
        (CheckFailed("x"), "checks"),
        (AlreadyInProgress("x"), "locked"),
        (EngineError("x"), "failed"),
        (KeyError("x"), "failed"),
    ],
)
def test_an_alert_says_what_kind_of_failure_it_is(error, kind):
    assert kind_of(error) == kind


def test_the_urls_secret_is_nowhere_but_in_its_file(tmp_path):
    url = f"https://example.org/{SECRET}"
    path = make_settings(tmp_path, tmp_path / "model", {"inputs.nested": "n.parquet", "night.alert_url": url})

    settings = load_settings(path)

    assert settings.night.alert_url.get_secret_value() == url
    assert SECRET not in settings.model_dump_json() + repr(settings)
    with pytest.raises(ConfigError, match="Prefect would store the secret") as refused:
        load_settings(path, {"night.alert_url": url})
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {"night.alert_url": f"ftp://example.org/{SECRET}"},
        {"night.alert_url": SECRET},
        {"night.alert_url": f"https://[{SECRET}"},
        {"night.alert_ulr": f"https://example.org/{SECRET}"},
        {"night.alert_url": f"https://example.org/{SECRET}", "inputs.nested": None},
    ],
)
def test_no_error_of_settings_shows_the_secret_nor_what_caused_it(tmp_path, values):
    """Prefect logs an exception with all that it came from."""
    path = make_settings(tmp_path, tmp_path / "model", {"inputs.nested": "n.parquet"} | values)

    with pytest.raises(ConfigError) as refused:
        load_settings(path)

    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("section", ['cron = "never"', 'timezone = "Mars/Olympus"', "alert_ulr = 3"])
def test_an_alert_goes_out_whatever_else_is_wrong_in_the_settings(tmp_path, section):
    path = tmp_path / "nightly.toml"
    path.write_text(f'[night]\nalert_url = "https://example.org/{SECRET}"\n{section}\n[strategy]\nwindow_size = -1\n')

    night = alert_settings(path)

    assert (night.name, night.alert_url.get_secret_value()) == ("nightly", f"https://example.org/{SECRET}")


@pytest.mark.parametrize("text", ["[night", '[night]\nalert_url = "no"', "night = 3\n[night]"])
def test_settings_that_cannot_be_read_have_no_alert(tmp_path, text):
    path = tmp_path / "nightly.toml"
    path.write_text(text)

    with pytest.raises(ConfigError):
        alert_settings(path)


def make_alert():
    return Alert(None, "nightly", "2026-11-29", "Failed", "checks", "line", "id", "host", "2026-11-29T01:30:00+00:00")
