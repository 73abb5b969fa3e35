"""Input that is late, half-written or changing: waited for within bounds, then an error; never half a night."""

import logging
import os
import signal
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from uuid import uuid4

import fsspec
import pyarrow.parquet as pq
import pytest

from tasks.inputs import arrival
from tasks.inputs.arrival import await_night_input
from tasks.inputs.parquet_files import read_batches
from tasks.inputs.staging import open_night_input
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.settings import InputSettings, load_settings
from tasks.system.errors import ConfigError, InputError, InputNotReady
from tests.clock import Clock
from tests.makers import ROOT, make_inputs, make_settings
from tests.staged import NIGHT, partitioned, stage

CANDIDATES = {"markers": {"candidates": "_SUCCESS"}}


@pytest.fixture
def meanwhile(monkeypatch):
    """Arranges what is done in each pause between two looks; time passes there only."""

    def arrange(act):
        monkeypatch.setattr(arrival, "time", Clock(act))

    return arrange


@pytest.fixture
def paths(tmp_path):
    return make_inputs(tmp_path / "in", [3, 2, 4])


def settings_of(paths, **more):
    return InputSettings(**{key.removeprefix("inputs."): path for key, path in paths.items()} | more)


def missing(path):
    return "no such file or folder"


def empty(path):
    path.write_bytes(b"")
    return "0 bytes"


def torn(path):
    path.write_bytes(path.read_bytes()[:-100])
    return "without a footer"


def unmarked(path):
    return "the marker [inputs.markers] candidates is missing"


@pytest.mark.fault(56)
@pytest.mark.parametrize("state", [missing, empty, torn, unmarked])
def test_what_is_not_ready_is_waited_for_with_a_line_at_start_and_end(tmp_path, paths, state, caplog, meanwhile):
    path = Path(paths["inputs.candidates"])
    whole = path.read_bytes()
    words = state(path)
    if state is missing:
        path.unlink()
    settings = settings_of(paths, wait_s=60, **(CANDIDATES if state is unmarked else {}))
    meanwhile(lambda: (path.write_bytes(whole), (path.parent / "_SUCCESS").touch()))

    with caplog.at_level(logging.INFO, "tasks.inputs"):
        found = await_night_input(settings, NIGHT, settings.wait_s)

    assert found.num_candidate_rows == 9
    start, end = (record.getMessage() for record in caplog.records)
    assert start.startswith("waiting for input wait_s=60 waited_s=0 missing=candidates: ")
    assert words in start
    assert str(path.parent) in start
    assert end == "input is there waited_s=5"


def test_what_still_is_not_ready_says_what_and_how_long_was_waited(paths, meanwhile):
    Path(paths["inputs.documents"]).unlink()
    meanwhile(lambda: None)

    with pytest.raises(
        InputNotReady, match=r"documents: .*no such file.* Waited 12 s \(\[inputs\] wait_s = 12\)"
    ) as told:
        await_night_input(settings_of(paths, wait_s=12), NIGHT, 12)

    assert told.value.exit_code == 3


def test_what_waiting_cannot_mend_is_told_at_once(paths, caplog):
    columns = {"candidates": {"rank": "place", "score": "points"}}

    with pytest.raises(InputError, match="first-stage order is unknown"):
        await_night_input(settings_of(paths, wait_s=600, columns=columns), NIGHT, 600)

    assert caplog.records == []


def test_without_waiting_a_missing_marker_is_an_error_at_once(paths):
    with pytest.raises(InputNotReady, match=r"in/_SUCCESS: the marker"):
        await_night_input(settings_of(paths, **CANDIDATES), NIGHT, 0)


def test_a_plan_does_not_wait(tmp_path, model_folder, paths):
    config = make_settings(tmp_path, model_folder, paths | {"inputs.wait_s": 600})
    Path(paths["inputs.documents"]).unlink()

    with pytest.raises(InputNotReady, match="no such file"):
        prepare_night(NightRequest(config=config, night=NIGHT, dry_run=True))


@pytest.mark.parametrize("where", ["folder", "file", "glob"])
def test_a_marker_lies_beside_the_files(tmp_path, paths, where):
    path = Path(paths["inputs.candidates"])
    folder = tmp_path / "out"
    folder.mkdir()
    path.rename(folder / "part-0.parquet")
    given = {"folder": folder, "file": folder / "part-0.parquet", "glob": folder / "part-*.parquet"}[where]
    settings = settings_of(paths | {"inputs.candidates": str(given)}, **CANDIDATES)

    with pytest.raises(InputNotReady, match="out/_SUCCESS"):
        open_night_input(settings, NIGHT)
    (folder / "_SUCCESS").touch()

    assert open_night_input(settings, NIGHT).num_candidate_rows == 9


def test_a_marker_of_hive_folders_lies_in_the_chosen_one(tmp_path, paths):
    settings = settings_of(partitioned(tmp_path, paths, ["2026-11-27", "2026-11-29"]), **CANDIDATES)
    (tmp_path / "hive" / "_SUCCESS").touch()
    (tmp_path / "hive" / "dt=2026-11-27" / "_SUCCESS").touch()

    with pytest.raises(InputNotReady, match="dt=2026-11-29/_SUCCESS"):
        open_night_input(settings, NIGHT)
    (tmp_path / "hive" / "dt=2026-11-29" / "_SUCCESS").touch()

    assert open_night_input(settings, NIGHT).partition == "candidates: dt=2026-11-29"


def test_a_url_is_looked_at_anew_each_time(paths, meanwhile):
    """File systems keep listings; what came after the first look must be seen."""
    memory = fsspec.filesystem("memory")
    for name in ("queries", "documents", "candidates"):
        with memory.open(f"/late/{name}/part.parquet", "wb") as stream:
            stream.write(Path(paths[f"inputs.{name}"]).read_bytes())
    urls = {f"inputs.{name}": f"memory://late/{name}" for name in ("queries", "documents", "candidates")}
    meanwhile(lambda: memory.touch("/late/candidates/_SUCCESS"))

    found = await_night_input(settings_of(urls, wait_s=60, **CANDIDATES), NIGHT, 60)

    assert found.num_candidate_rows == 9


def test_with_waiting_an_older_partition_is_taken_only_where_that_is_said(tmp_path, paths):
    hive = partitioned(tmp_path, paths, ["2026-11-27", "2026-11-28"])

    plain = open_night_input(settings_of(hive), NIGHT)
    said = open_night_input(settings_of(hive, wait_s=600, may_be_older=["candidates"]), NIGHT)
    with pytest.raises(InputNotReady, match=r"no partition dt=2026-11-29 \(the newest before it is 2026-11-28\)"):
        open_night_input(settings_of(hive, wait_s=600), NIGHT)

    assert plain.partition == said.partition == "candidates: dt=2026-11-28"


def test_how_long_is_waited_is_no_part_of_what_a_ranking_depends_on(tmp_path):
    config = make_settings(tmp_path, tmp_path / "model", {"inputs.nested": "n.parquet"})
    waiting = {"inputs.wait_s": 60, "inputs.markers.nested": "_SUCCESS", "inputs.may_be_older": ["nested"]}

    assert load_settings(config, waiting).ranking_settings() == load_settings(config).ranking_settings()


def replaced(path):
    aside = path.with_suffix(".new")
    aside.write_bytes(path.read_bytes())
    aside.replace(path)
    os.utime(path, (1, 1))


def rewritten(path):
    pq.write_table(pq.read_table(path).slice(1), path)


def removed(path):
    path.unlink()


@pytest.mark.parametrize("change", [replaced, rewritten, removed])
@pytest.mark.parametrize("source", ["queries", "documents", "candidates"])
def test_a_file_that_changed_since_the_first_look_is_an_error(tmp_path, paths, source, change, monkeypatch):
    """The digest in the run's id is of the file that was found, so no other may be read under it."""

    def found_and_changed(settings, night):
        found = open_night_input(settings, night)
        change(Path(paths[f"inputs.{source}"]))
        return found

    monkeypatch.setattr("tests.staged.open_night_input", found_and_changed)

    with pytest.raises(InputNotReady, match=rf"{source}.parquet: (has changed since|cannot be read: .*No such file)"):
        stage(tmp_path, paths)


def test_a_file_that_changes_while_it_is_read_is_an_error(paths):
    opened = open_night_input(settings_of(paths), NIGHT).inputs["candidates"]
    batches = read_batches(opened, ["doc_id"])
    next(batches)
    rewritten(Path(paths["inputs.candidates"]))

    with pytest.raises(InputNotReady, match=r"candidates.parquet: has changed since .* Run the same command again"):
        list(batches)


def test_a_night_that_has_not_come_is_planned_but_not_run(tmp_path, model_folder, paths):
    config = make_settings(tmp_path, model_folder, paths)
    future = datetime.now(UTC).date() + timedelta(days=2)

    for more in ({}, {"publish": True}, {"requeue": True}):
        with pytest.raises(ConfigError, match=f"night {future}: has not come yet; the newest is 20.*"):
            prepare_night(NightRequest(config=config, night=future, **more))
    assert prepare_night(NightRequest(config=config, night=future, dry_run=True)).night == future


def warnings_of(tmp_path, model_folder, paths, dates, night=None, moment=None, **more):
    folder = tmp_path / str(uuid4())
    folder.mkdir()
    inputs = partitioned(folder, paths, dates) if dates else paths
    config = make_settings(folder, model_folder, inputs | more | {"night.timezone": "UTC", "night.cron": None})
    return prepare_night(NightRequest(config=config, night=night), moment).input_warnings


class Noon(datetime):
    """A clock that stands still, so that no midnight passes meanwhile."""

    @classmethod
    def now(cls, tz=None):
        return datetime(2026, 11, 29, 12, tzinfo=tz)


def test_input_that_is_not_of_the_night_is_warned_of(tmp_path, model_folder, paths, monkeypatch):
    monkeypatch.setattr("tasks.nightly.prepare.datetime", Noon)
    today = NIGHT
    before, earlier = today - timedelta(days=1), today - timedelta(days=2)
    tell = partial(warnings_of, tmp_path, model_folder, paths)

    assert tell([today]) == ()
    assert tell([before, earlier]) == (
        f"candidates: dt={before} is 1 day older than the night {today}. Name candidates in [inputs] may_be_older if "
        "that is intended.",
    )
    assert tell([earlier], **{"inputs.may_be_older": ["candidates"]}) == ()
    assert tell([before, earlier], earlier) == ()
    assert tell([before, earlier], earlier, **{"inputs.partition": f"dt={before}"}) == (
        f"candidates: dt={before} is 1 day younger than the night {earlier}: [inputs] partition names it.",
    )
    assert tell([]) == ()
    assert tell([], today) == ()
    assert (
        tell([], before)
        == tell([], moment=Noon.now(UTC) - timedelta(days=1))
        == (f"The input has no date: its current files are ranked as the night {before}.",)
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_wait_at_once(tmp_path, model_folder, paths, number, code):
    config = make_settings(tmp_path, model_folder, paths | {"inputs.wait_s": 3_600})
    Path(paths["inputs.queries"]).unlink()
    command = [sys.executable, "-m", "flows.cli", "run", str(config), "--no-prefect", "--night", "2026-11-29"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as waiting:
        line = waiting.stderr.readline()
        waiting.send_signal(number)
        rest = waiting.stderr.read()

    assert "WARNING waiting for input wait_s=3600" in line
    assert waiting.returncode == code, rest
    assert not (tmp_path / "var").exists()


def test_a_night_that_waited_is_the_night_that_it_would_have_been(tmp_path, model_folder, paths, meanwhile):
    config = make_settings(tmp_path, model_folder, paths)
    request = NightRequest(config=config, night=date(2026, 11, 29))
    plain = prepare_night(request)
    path = Path(paths["inputs.queries"])
    path.rename(path.with_suffix(".aside"))
    meanwhile(lambda: path.with_suffix(".aside").rename(path))

    waited = prepare_night(NightRequest(config=config, night=date(2026, 11, 29), overrides={"inputs.wait_s": 60}))

    assert waited.base_run_id == plain.base_run_id
