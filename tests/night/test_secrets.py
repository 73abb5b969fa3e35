"""Secrets of URLs stay in the settings file: not in the database, a message, a log line, a page or a table."""

import json
import logging
import threading
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.nightly.run_choice import store_of
from tasks.settings import alert_settings, load_settings, stored_inputs
from tasks.system.errors import ConfigError, InputError
from tasks.system.redaction import MASK, hide_secrets, hide_setting_secrets, hide_url_secrets
from tests.makers import make_inputs, make_settings, select, write_parquet

NAMES = ("queries", "documents", "candidates", "qrels")
SECRETS = ("pa55word", "s1gnature", "AKIAKEY")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:secret@bucket/x?token=abc", "s3://***@bucket/x?***"),
        ("s3://AKIA:ab/cd+e@bucket/k", "s3://***@bucket/k"),  # AWS keys hold slashes
        ("https://token@host/x", "https://***@host/x"),
        ("https://host/x?bare", "https://host/x?***"),
        ("https://host/x?X-Amz-Credential=AKIA%2F2026&X-Amz-Signature=ab", "https://host/x?***"),
        ("abfs://c@account.dfs.core.windows.net/x?sv=1&sig=a%3D", "abfs://***@account.dfs.core.windows.net/x?***"),
        ("https://host/x#access_token=abc", "https://host/x#***"),
        ("simplecache::https://u:p@host/x?a=1", "simplecache::https://***@host/x?***"),
        ("s3://bucket/a@b/part-?.parquet", "s3://bucket/a@b/part-?.parquet"),  # a glob is no secret
        ("memory://a/b", "memory://a/b"),
        ("/plain/path?x=1", "/plain/path?x=1"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url, shown):
    assert hide_secrets(url) == shown
    assert hide_url_secrets(f"in '{url}': no") == f"in '{shown}': no"
    assert hide_secrets(shown) == shown


@given(st.text("abc/+='\"%!:", min_size=1), st.sampled_from(["s3", "https", "abfs", "simplecache::s3"]))
def test_no_character_of_a_password_lets_it_out(password, scheme):
    password = f"{password}-pa55word"

    assert "pa55word" not in hide_url_secrets(f"cannot read {scheme}://user:{password}@host/x.parquet, sorry")


def test_what_only_looks_like_a_secret_stays():
    line = "max_num_batched_tokens=8192 prompt_tokens=3 a@b key=1 http://host:4200/api"

    assert hide_url_secrets(line) == line


def test_settings_are_stored_without_secrets_by_value_and_by_name():
    given_ = {
        "night": {"alert_url": "https://hooks.host/services/T0/B0/abc", "cron": "30 1 * * *"},
        "inputs": {"queries": "s3://k:s@b/my folder/x.parquet?token=abc", "top_k": 10, "qrels": None},
        "engine": {"hf_token": "hf_abc", "model": "models/sample", "list": ["https://u:p@h"], "max_tokens": 3},
    }

    assert hide_setting_secrets(given_) == {
        "night": {"alert_url": "https://hooks.host/***", "cron": "30 1 * * *"},
        "inputs": {"queries": "s3://***@b/my folder/x.parquet?***", "top_k": 10, "qrels": None},
        "engine": {"hf_token": "***", "model": "models/sample", "list": ["https://***@h"], "max_tokens": 3},
    }


@pytest.mark.parametrize("path", ["{folder}/alert_url", "$CREDENTIALS_DIRECTORY/alert_url"])
def test_the_alerts_url_may_lie_in_a_file_of_its_own(tmp_path, monkeypatch, path):
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    secret = tmp_path / "alert_url"
    config = make_settings(tmp_path, tmp_path / "model", {"night.alert_url_file": path.format(folder=tmp_path)})
    settings = load_settings(config, {"inputs.nested": "n.parquet"})
    told = []
    for content in (None, b"\xff", b"s1gnature", b"https://h/a https://h/s1gnature"):
        if content is not None:
            secret.write_bytes(content)
        with pytest.raises(ConfigError, match=rf"alert_url_file: {secret}: ") as refused:
            settings.night.find_alert_url()
        told.append(str(refused.value))

    secret.write_text("https://hooks.host/s1gnature\n")

    assert settings.night.find_alert_url() == alert_settings(config).find_alert_url() == "https://hooks.host/s1gnature"
    assert "s1gnature" not in settings.stored_json() + "".join(told)


def test_an_alert_goes_by_the_file_whatever_else_is_wrong_in_the_settings(tmp_path):
    (tmp_path / "url").write_text("https://hooks.host/x")
    config = tmp_path / "nightly.toml"
    config.write_text(f'[night]\nalert_url_file = "{tmp_path}/url"\ncron = "never"\n')

    assert alert_settings(config).find_alert_url() == "https://hooks.host/x"


def test_the_alerts_url_is_given_once(tmp_path):
    values = {"inputs.nested": "n.parquet", "night.alert_url": "https://h/pa55word", "night.alert_url_file": "x"}
    with pytest.raises(ConfigError, match="give either alert_url or alert_url_file") as told:
        load_settings(make_settings(tmp_path, tmp_path / "model", values))

    assert "pa55word" not in str(told.value)


def test_no_error_of_ours_holds_a_secret(tmp_path):
    config = make_settings(tmp_path, tmp_path / "model", {"inputs.nested": "n.parquet"})
    url = "https://user:pa55word@host/x?sig=s1gnature"

    assert str(InputError(f"queries: {url}: gone\x1b[2J")) == "queries: https://***@host/x?***: gone [2J"
    for override in ({"store.export": url}, {"night.timezone": url}, {"inputs.partition": url}):
        with pytest.raises(ConfigError) as told:
            load_settings(config, override)
        assert not [secret for secret in SECRETS if secret in str(told.value)]


def test_another_signature_is_the_same_night(tmp_path):
    config = make_settings(tmp_path, tmp_path / "model", {"inputs.nested": "https://u:old@h/n.parquet?sig=old"})
    newer = {"inputs.nested": "https://u:new@h/n.parquet?sig=new"}
    other = {"inputs.nested": "https://u:new@h/other.parquet?sig=new"}

    assert load_settings(config, newer).ranking_settings() == load_settings(config).ranking_settings()
    assert load_settings(config, other).ranking_settings() != load_settings(config).ranking_settings()


def test_a_path_that_was_hidden_is_never_opened(tmp_path):
    stored = {"inputs": {"nested": f"s3://{MASK}@b/n.parquet", "qrels": "qrels.txt"}}

    assert stored_inputs("r", stored, ["qrels"]).qrels == "qrels.txt"
    with pytest.raises(ConfigError, match=r"run r: \[inputs\] nested had a URL with secrets, which are not stored"):
        stored_inputs("r", stored, ["nested"])


class _Handler(BaseHTTPRequestHandler):
    """Files of a folder, by ranges; only with user and signature."""

    folder: Path
    is_open = True

    def do_GET(self):
        path, _, query = self.path.partition("?")
        file = self.folder / path.strip("/")
        allowed = self.is_open and "s1gnature" in query and self.headers["Authorization"]
        if not allowed or not file.is_file():
            self.send_error(404 if allowed else 403)
            return
        data = file.read_bytes()
        first, last = 0, len(data) - 1
        asked = self.headers["Range"]
        if asked:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
        self.send_response(206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last + 1 - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[first : last + 1])

    do_HEAD = do_GET  # noqa: N815 (http.server's name)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def website(tmp_path):
    """A folder behind HTTP; its handler class, and [inputs] by URLs with secrets."""
    make_inputs(tmp_path / "in", [2, 5])
    write_parquet(tmp_path / "in" / "qrels.parquet", query_id=["q001"], doc_id=["d0003"], relevance=[1])
    handler = type("Handler", (_Handler,), {"folder": tmp_path / "in"})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    query = "X-Amz-Credential=AKIAKEY/20261129/s3/aws4_request&sig=s1gnature"
    where = f"http://user:pa55word@127.0.0.1:{server.server_port}"
    yield handler, {f"inputs.{name}": f"{where}/{name}.parquet?{query}" for name in NAMES}
    server.shutdown()
    thread.join()
    server.server_close()


def leaks(text):
    return [secret for secret in SECRETS if secret in text]


def test_a_night_from_urls_with_secrets_leaves_none_anywhere(
    packrank, website, model_folder, fake_vllm, tmp_path, caplog
):
    handler, urls = website
    config = make_settings(tmp_path, model_folder, urls)
    database = tmp_path / "var" / "test.duckdb"
    text = "what is "  # of every query
    caplog.set_level(logging.INFO, "tasks")

    ran = packrank("run", config, "--no-prefect", "--night", "2026-11-29")
    again = packrank("run", config, "--no-prefect", "--night", "2026-11-29", "--set",
                     f"inputs.queries={urls['inputs.queries']}&more=1")  # fmt: skip
    prepared = prepare_night(NightRequest(config=config, night=date(2026, 11, 29)))
    run_id = prepared.base_run_id
    planned = packrank("plan", config, "--night", "2026-11-29")
    doctor = packrank("doctor", config, "--no-engine")
    explained = packrank("explain", run_id, "q001", "--database", database)
    page_without = packrank("report", run_id, "--database", database, "--output", tmp_path / "without.html")
    page_with = packrank("report", run_id, "--config", config, "--output", tmp_path / "with.html")
    by_run = packrank("evaluate", run_id, "--database", database)
    by_settings = packrank("evaluate", config)
    handler.is_open = False
    refused = packrank("plan", config, "--night", "2026-11-29")

    answers = (ran, again, planned, doctor, explained, page_without, page_with, by_settings)
    assert [answer.returncode for answer in answers] == [0] * len(answers), [answer.stderr for answer in answers]
    assert "already done" in again.stdout
    assert by_run.returncode == 2
    assert "qrels had a URL with secrets, which are not stored. Give --qrels FILE" in by_run.stderr
    assert refused.returncode == 3
    assert "queries: http://***@127.0.0.1" in refused.stderr
    for answer in (*answers, by_run, refused):
        assert leaks(answer.stdout + answer.stderr) == []
    assert leaks(caplog.text) == []
    pages = {name: (tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in ("with", "without")}
    assert leaks(pages["with"] + pages["without"]) == []
    assert text in pages["with"]
    assert "had a URL with secrets, which are not stored" in pages["without"]
    (run,) = select(prepared, "select settings, to_json(runs) as everything from runs")
    assert json.loads(run["settings"])["inputs"]["queries"].endswith("/queries.parquet?***")
    assert leaks(run["everything"]) == []
    kept = [path for path in (tmp_path / "var").rglob("*") if path.is_file()]
    assert [path for path in kept if leaks(path.read_bytes().decode("latin-1"))] == []


def test_a_night_that_fails_on_its_input_stores_and_tells_no_secret(website, model_folder, fake_vllm, tmp_path):
    handler, urls = website
    prepared = prepare_night(NightRequest(config=make_settings(tmp_path, model_folder, urls), night=date(2026, 11, 29)))
    handler.is_open = False

    with pytest.raises(InputError) as told:
        run_night(prepared)

    (run,) = select(prepared, "select status, error from runs")
    assert run["status"] == "failed"
    assert leaks(run["error"] + str(told.value)) == []
    assert told.value.__cause__ is None  # a traceback would show the driver's own words
    assert store_of(prepared).path.exists()
