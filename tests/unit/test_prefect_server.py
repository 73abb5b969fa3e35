"""The files that servers of ours share: a password, and a database for each."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flows import background, prefect_server
from flows.deployed_schedules import check_schedules
from tasks.system.errors import ConfigError, PackrankError


def test_the_password_is_made_once_and_only_its_owner_can_read_it(tmp_path):
    before = os.umask(0)
    try:
        first = prefect_server.password(tmp_path)
    finally:
        os.umask(before)

    assert prefect_server.password(tmp_path) == first
    assert len(first) > 30
    assert stat.S_IMODE((tmp_path / "prefect" / "password").stat().st_mode) == 0o600
    assert prefect_server.client_environment(tmp_path, "http://x/api")["PREFECT_API_AUTH_STRING"] == first
    assert "PREFECT_API_AUTH_STRING" not in prefect_server.environment(tmp_path, "http://somebody-elses/api")


def test_users_of_one_host_have_temporary_folders_of_their_own(tmp_path, monkeypatch):
    """Prefect's worker did not start where another user's had: /tmp/runner_storage was theirs."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    folder = Path(prefect_server.temporary_folder())

    assert folder.parent == tmp_path
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.setattr(os, "getuid", lambda: 12_345)
    (tmp_path / "packrank-12345").mkdir()
    with pytest.raises(PackrankError, match="belongs to another user"):
        prefect_server.temporary_folder()


def test_two_servers_never_share_a_database(tmp_path):
    with (
        prefect_server._free_database(tmp_path) as (held, first),
        prefect_server._free_database(tmp_path) as (_, second),
    ):
        inherited = os.dup(held)  # as the server has it
    with prefect_server._free_database(tmp_path) as (_, third):
        os.close(inherited)
    with prefect_server._free_database(tmp_path) as (_, fourth):
        pass

    names = [path.name for path in (first, second, third, fourth)]
    assert names == ["prefect.db", "prefect-2.db", "prefect-2.db", "prefect.db"]


def test_a_server_that_is_slow_to_answer_is_found_and_one_whose_process_is_gone_is_not(tmp_path, monkeypatch):
    """Under load a command took it for dead, and started another on the same files."""
    monkeypatch.setattr(prefect_server, "HEALTH_TIMEOUT_S", 0.3)
    asked, ended = [], threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if len(asked) == 1:
                ended.wait()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True).start()
    process = subprocess.Popen([sys.executable, "-c", "input()", "prefect"], stdin=subprocess.PIPE)
    url = f"http://127.0.0.1:{server.server_port}/api"
    (tmp_path / "prefect").mkdir()
    stack = {"api_url": url, "server_pid": process.pid, "worker_pids": []}
    (tmp_path / "prefect" / "local_stack.json").write_text(json.dumps(stack))

    while not background.is_prefect(process.pid):  # the kernel shows its words a moment after it began
        time.sleep(0.01)
    found = prefect_server.running_stack_url(tmp_path)
    ended.set()
    process.communicate(b"\n")

    assert found == url
    assert set(asked) == {"/api/health"}
    assert prefect_server.running_stack_url(tmp_path) is None
    server.shutdown()
    server.server_close()


DEPLOYED = """deployments:
  - name: nightly
    parameters: {{config: {config}}}
    schedules: [{{cron: "30 1 * * *", timezone: "Asia/Seoul"}}]
  - name: shard
"""


@pytest.mark.parametrize("night", ['timezone = "UTC"', 'timezone = "Asia/Seoul"\ncron = "30 2 * * *"'])
def test_a_deployment_that_would_give_nights_the_wrong_date_is_refused(tmp_path, night):
    """01:30 in Seoul is 16:30 UTC of the day before: with `timezone = "UTC"` each night was dated a day too early."""
    settings, deployed = tmp_path / "mine.toml", tmp_path / "prefect.yaml"
    settings.write_text(f'preset = "qwen3"\n[night]\n{night}\n[inputs]\nnested = "x"\n[engine]\nmodel = "a/b"\n')
    deployed.write_text(DEPLOYED.format(config=settings))

    with pytest.raises(ConfigError, match=r"nightly starts at cron = '30 1.*Write the same into both files"):
        check_schedules(deployed)

    settings.write_text(settings.read_text().replace(night, 'timezone = "Asia/Seoul"'))
    check_schedules(deployed)


def test_the_schedule_of_settings_that_are_elsewhere_is_not_checked(tmp_path, capsys):
    (tmp_path / "prefect.yaml").write_text(DEPLOYED.format(config="/nowhere/mine.toml"))

    check_schedules(tmp_path / "prefect.yaml")

    assert "/nowhere/mine.toml is not on this machine" in capsys.readouterr().err
