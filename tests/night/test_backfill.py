"""`packrank backfill`: a range of nights in turn, on a fake engine; `packrank watch`: whether one is published."""

from contextlib import ExitStack

import pytest

from flows.cli import main
from tasks.system.run_lock import run_lock
from tests.clock import Clock
from tests.makers import asked, make_inputs, make_settings, read_rows
from tests.web_hook import ALERT, Hook

NUM_WINDOWS = 6  # 4 + 2 of each night


@pytest.fixture
def config(tmp_path, model_folder, fake_vllm):
    fake_vllm(log=str(tmp_path / "asked"))
    values = make_inputs(tmp_path / "in", [9, 5]) | {"packing.max_engine_starts": 1, "packing.max_poison_prompts": 0}
    return make_settings(tmp_path, model_folder, values)


def backfill(config, *more):
    main(["backfill", str(config), "--no-prefect", "--full", "--publish", *more])


RANGE = ("--from", "2026-11-24", "--to", "2026-11-26")


def nights(tmp_path):
    found = read_rows(tmp_path / "var" / "test.duckdb", "select night, status from runs order by night")
    return [(row["night"].day, row["status"]) for row in found]


def table(text):
    """The rows of the last table that was printed."""
    return [line.split()[2:-1] for line in text.splitlines() if line.strip().startswith("2026-11-2")]


def test_it_stops_at_the_night_that_fails_and_goes_on_from_there(config, tmp_path, fake_vllm, capsys, caplog):
    fake_vllm(log=str(tmp_path / "asked"), die_at=5)  # in the second night

    with pytest.raises(SystemExit) as ended:
        backfill(config, *RANGE)

    assert ended.value.code == 1
    out = capsys.readouterr().out
    assert table(out) == [["published"], ["failed:", "EngineLost"]]
    assert "1 of 3 nights did not start" in out
    assert nights(tmp_path) == [(24, "published"), (25, "failed")]

    fake_vllm(log=str(tmp_path / "asked"))
    backfill(config, *RANGE)

    out = capsys.readouterr().out
    assert table(out) == [["already", "done"], ["published"], ["published"]]
    assert "did not start" not in out
    assert out.count("Nights") == 1
    assert nights(tmp_path) == [(24, "published"), (25, "published"), (26, "published")]
    assert len(asked(tmp_path / "asked")) == 3 * NUM_WINDOWS


def test_it_says_which_nights_are_to_do_and_refuses_a_range_that_ends_before_it_begins(config, tmp_path, capsys):
    main(["backfill", str(config), "--no-prefect", "--dry-run", *RANGE])

    assert table(capsys.readouterr().out) == [["to", "do"]] * 3
    assert not (tmp_path / "asked").exists()
    with pytest.raises(SystemExit) as refused:
        backfill(config, "--from", "2026-11-26", "--to", "2026-11-24")
    assert refused.value.code == 2


def test_a_night_of_the_range_waits_for_a_run_that_holds_the_database(config, tmp_path, capsys, caplog, monkeypatch):
    other = ExitStack()
    other.enter_context(run_lock(tmp_path / "var" / "test.duckdb", "another"))
    monkeypatch.setattr("tasks.system.run_lock.time", Clock(on_sleep=other.close))

    backfill(config, "--from", "2026-11-24", "--to", "2026-11-24")

    assert "waits for its turn: " in caplog.text
    assert table(capsys.readouterr().out) == [["published"]]


def test_a_night_that_is_not_published_by_its_hour_is_alerted_of(config, tmp_path, capsys):
    hook = Hook()
    config.write_text(config.read_text().replace("[night]", f'[night]\nalert_url = "{hook.url}"'))
    arguments = ("watch", str(config), "--night", "2026-11-24")

    with pytest.raises(SystemExit) as missing:
        main(arguments)

    assert missing.value.code == 1
    told = "nightly: night 2026-11-24 is not published: there is no run."
    assert told in capsys.readouterr().err
    (alert,) = hook.alerts
    assert alert.keys() == ALERT
    assert (alert["kind"], alert["message"], alert["run_id"]) == ("missing", told, None)

    main(["run", str(config), "--no-prefect", "--night", "2026-11-24"])
    with pytest.raises(SystemExit):
        main(arguments)
    assert hook.alerts[1]["message"].endswith("is complete.")

    main(["run", str(config), "--no-prefect", "--night", "2026-11-24", "--publish"])
    capsys.readouterr()
    main(arguments)
    assert capsys.readouterr().out.startswith("published: 2026-11-24-nightly-")
    assert len(hook.alerts) == 2
