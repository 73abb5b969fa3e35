"""The flow on a real server with a real worker and the real engine: deployed, started, watched, scheduled."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from flows import prefect_server
from tests.flow.stack import authorization
from tests.makers import FAKE_VLLM, ROOT, SAMPLE_MODEL, read_rows
from tests.studies import make_study

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the stack has a proxy that leads nowhere


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home in which Prefect was used: its profile names another server."""
    home = tmp_path_factory.mktemp("home")
    (home / ".prefect").mkdir()
    profile = 'active = "work"\n\n[profiles.work]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n'
    (home / ".prefect" / "profiles.toml").write_text(profile, encoding="utf-8")
    return home


@pytest.fixture(scope="module")
def stack(tmp_path_factory, home):
    """Server and worker in a folder of their own, with the deployment of prefect.yaml."""
    state = tmp_path_factory.mktemp("stack")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing of loopback may be asked there
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            patch.delenv(name)
        with socket.create_server(("127.0.0.1", 0)) as another:  # as if somebody else had 4200
            patch.setattr(prefect_server, "PORT", another.getsockname()[1])
            url = prefect_server.up(state)
            assert str(prefect_server.PORT) not in url
            try:
                yield state, url
            finally:
                prefect_server.down(state)


def prefect(stack, *arguments, timeout=900):
    state, url = stack
    command = [sys.executable, "-m", "prefect", *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=prefect_server.client_environment(state, url),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def ask(stack, path, **body):
    request = urllib.request.Request(
        f"{stack[1]}{path}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": authorization(stack[0])},
    )
    with DIRECT.open(request, timeout=60) as answer:
        return json.load(answer)


def overrides(folder, **values):
    return json.dumps(
        {"store.database": str(folder / "night.duckdb")} | {name.replace("__", "."): v for name, v in values.items()}
    )


@pytest.mark.fault(18)
def test_a_deployed_night_runs_to_completed_leaves_its_rows_and_is_done_once(stack, tmp_path):
    if not SAMPLE_MODEL.is_dir():
        pytest.skip("models/sample is not there: run make setup")
    start = (
        *("deployment", "run", "nightly-rerank/nightly", "--watch", "-p", "limit_queries=3", "-p", "publish=false"),
        *("-p", f"overrides={overrides(tmp_path, strategy__depth=10)}"),
    )

    answer = prefect(stack, *start)

    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "Completed" in answer.stdout
    database = tmp_path / "night.duckdb"
    (run,) = read_rows(database, "select * from runs")
    assert run["status"] == "complete"
    assert run["flow_run_id"]
    assert read_rows(database, "select count(*) as n from rankings where status = 'ranked'") == [{"n": 3}]
    assert read_rows(database, "select distinct output_tokens as n from windows") == [{"n": 1}]
    artifacts = {each["key"]: each for each in ask(stack, "/artifacts/filter")}
    assert artifacts.keys() >= {"progress", "run-summary", "run-report"}
    page = tmp_path / "reports" / f"{run['run_id']}.html"
    assert f"`{page}` on `" in artifacts["run-report"]["data"]
    assert "file:" not in artifacts["run-report"]["data"]
    assert page.is_file()
    (flow_run,) = [each for each in ask(stack, "/flow_runs/filter") if each["state"]["type"] == "COMPLETED"]
    assert flow_run["name"] == f"sample {run['night']}"
    told = flow_run["state"]["message"]
    assert re.fullmatch(
        rf"{run['run_id']}: complete, not published; nDCG@10 .* better, .*; 3 queries, .* checks hold", told
    )
    for key in ("progress", "run-summary", "run-report"):
        assert artifacts[key]["description"] == told
    for key in ("run-summary", "run-report"):
        assert artifacts[key]["data"].startswith(f"**{run['run_id']}: complete, not published.** 3 queries")
    assert "gained and lost most" in artifacts["run-report"]["data"]
    assert "time to first token" in artifacts["run-report"]["data"]
    assert "Serving benchmark" in artifacts["run-summary"]["data"]
    assert "P99 TTFT (ms)" in artifacts["run-summary"]["data"]
    assert artifacts["progress"]["data"] == 100.0
    logs = ask(stack, "/logs/filter", limit=200, sort="TIMESTAMP_DESC")
    assert any("prompt_tokens=" in line["message"] for line in logs)
    assert not any(line["level"] >= 40 for line in logs)

    again = prefect(stack, *start)

    assert again.returncode == 0, again.stdout
    assert read_rows(database, "select * from runs") == [run]
    assert any(
        "already done" in line["message"] for line in ask(stack, "/logs/filter", limit=200, sort="TIMESTAMP_DESC")
    )


@pytest.mark.fault(81)
def test_the_cron_has_scheduled_runs_at_half_past_one_in_seoul(stack):
    def scheduled():
        found = ask(stack, "/flow_runs/filter", flow_runs={"state": {"type": {"any_": ["SCHEDULED"]}}}, limit=20)
        return [datetime.fromisoformat(run["expected_start_time"]) for run in found if run["auto_scheduled"]]

    deadline = time.monotonic() + 240
    while not scheduled():
        assert time.monotonic() < deadline, "the scheduler made no runs"
        time.sleep(1)

    times = sorted(scheduled())
    assert {(moment.astimezone(UTC).hour, moment.minute) for moment in times} == {(16, 30)}
    assert times[0] - datetime.now(UTC) < timedelta(days=1, seconds=5)


def test_a_deployments_parameters_are_described_with_their_choices(stack):
    for name, optional in (
        ("nightly-rerank/nightly", {"config", "night", "publish", "wait"}),
        ("rerank-shard/shard", {"shard"}),
    ):
        found = ask(stack, "/deployments/filter", deployments={"name": {"any_": [name.partition("/")[2]]}})
        asked = found[0]["parameter_openapi_schema"]["properties"]
        assert asked.keys() >= optional
        assert [each for each, told in asked.items() if not told["description"]] == []
        assert "configs/sample.toml" in asked["config"]["examples"]


@pytest.mark.fault(74)
@pytest.mark.parametrize(
    "parameter",
    ["windowsize=3", *(pytest.param(each, marks=pytest.mark.soak) for each in ("limit_queries=0", "night=yesterday"))],
)
def test_a_wrong_parameter_is_refused_before_a_run_is_made(stack, parameter):
    def asked_for():  # the scheduler may make the cron's runs meanwhile
        return [run["id"] for run in ask(stack, "/flow_runs/filter", limit=200) if not run["auto_scheduled"]]

    before = asked_for()

    answer = prefect(stack, "deployment", "run", "nightly-rerank/nightly", "-p", parameter)

    assert answer.returncode == 1
    assert asked_for() == before


@pytest.mark.soak
def test_a_dry_run_logs_its_plan_and_writes_nothing(stack, tmp_path):
    answer = prefect(
        stack, "deployment", "run", "nightly-rerank/nightly", "--watch",
        *("-p", "publish=false", "-p", "dry_run=true", "-p", f"overrides={overrides(tmp_path)}"),
    )  # fmt: skip

    assert answer.returncode == 0, answer.stdout
    assert list(tmp_path.iterdir()) == []
    logs = ask(stack, "/logs/filter", limit=200, sort="TIMESTAMP_DESC")
    assert any("Prompts by round" in line["message"] for line in logs)


def test_a_study_is_a_flow_run_with_its_claims_and_its_page_as_artifacts(stack, tmp_path, model_folder):
    """On the fake engine: what the flow does is the same on any."""
    few = {"study.queries_at_once": [], "study.repeats": 1, "study.quality_queries": 0}
    path = make_study(tmp_path, model_folder, **few)

    answer = subprocess.run(
        [sys.executable, "-m", "flows.cli", "study", str(path)],
        cwd=ROOT,
        env=prefect_server.client_environment(*stack) | {"PYTHONPATH": str(FAKE_VLLM)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )

    assert answer.returncode == 0, answer.stderr
    assert "The article's argument" in answer.stdout
    assert "Warning" not in answer.stderr
    (run,) = ask(stack, "/flow_runs/filter", flows={"name": {"any_": ["study"]}})
    assert run["state"]["type"] == "COMPLETED"
    found = ask(stack, "/artifacts/filter", artifacts={"flow_run_id": {"any_": [run["id"]]}})
    by_key = {each["key"]: each["data"] for each in found}
    assert "## The article's argument" in by_key["study-claims"]
    page = tmp_path / "var" / "reports" / "study-nightly.html"
    assert f"`{page}` on `" in by_key["study-page"]
    assert run["name"] == path.stem
    assert page.exists()


def test_the_page_steers_its_own_server_and_nobody_gets_in_without_the_password(stack):
    with DIRECT.open(f"{stack[1].removesuffix('/api')}/ui-settings", timeout=30) as answer:
        assert json.load(answer)["api_url"] == stack[1]
    request = urllib.request.Request(f"{stack[1]}/flow_runs/filter", b"{}", {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError, match="401"):
        DIRECT.open(request, timeout=30)


def test_the_servers_log_has_no_tracebacks_of_what_is_tried_again(stack):
    log = stack[0] / "logs" / "prefect-server.log"
    text = log.read_text() if log.exists() else ""
    assert "mark_deployments_ready" not in text
    assert len(text) < 100_000
    assert (stack[0] / "logs" / "prefect-server.out").stat().st_size < 100_000


def test_nothing_listens_beyond_loopback_and_nothing_is_written_under_home(stack, home):
    listening = Path("/proc/net/tcp").read_text(encoding="utf-8").splitlines()[1:]
    port = int(stack[1].rsplit(":", 1)[1].split("/")[0])
    ours = [
        line.split()[1] for line in listening if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    ]

    assert ours == [f"0100007F:{port:04X}"]
    written = [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()]
    assert [each for each in written if "prefect" in each.lower()] == [".prefect/profiles.toml"]
