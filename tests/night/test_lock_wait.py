"""A database that somebody has open: who reads gets in, what must be written waits and says for whom."""

import pytest

from tasks.store import night_store as store_module
from tasks.store.loader import Ledger, LoadPace
from tasks.store.night_store import Store
from tasks.store.runs import Runs
from tasks.store.spool import Spool
from tasks.system import lock_wait
from tasks.system.database import DatabaseLimits
from tasks.system.errors import DatabaseLocked, StoreError
from tests.clock import Clock
from tests.ledger_rows import RUN, count, make_run, make_tables
from tests.locks import held


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "LOAD_WAIT_S", 0.05)
    made = Store(tmp_path / "var" / "test.duckdb", DatabaseLimits("200MB", 1, tmp_path / "spill"), wait_s=0.1)
    made.prepare()
    return made


def test_a_run_begins_and_takes_notes_beside_a_reader_and_all_is_written_in_order_once_it_is_gone(
    store, tmp_path, caplog
):
    spool = Spool(tmp_path / "spool", RUN)
    store.begin_run(make_run(run_id="2026-11-29-test-killed"))
    with held(store.path, "reader") as holder:
        store.prepare()
        store.begin_run(make_run(reuse_run_id="earlier"))
        store.write_later(lambda database: Runs(database).note_input(RUN, 7, 70, {}))
        ledger = Ledger(store, spool, RUN, 0, LoadPace(every_s=60, max_share=1))
        ledger.commit(ledger.next_id(), make_tables(0))
        ledger.flush()

        assert store.find_run(RUN) is None  # nothing was written
        assert f"process {holder.pid}" in caplog.text
        with pytest.raises(StoreError, match=rf"test\.duckdb: .*process {holder.pid} \(.*, user .*\) holds its lock"):
            ledger.close()
        assert len(spool.batches()) == 1

    ledger.close()

    run = store.find_run(RUN)
    assert (run.status, run.num_queries, run.reuse_run_id) == ("running", 7, "earlier")
    assert store.find_run("2026-11-29-test-killed").status == "superseded"
    assert (count(store, "batches"), spool.batches()) == (1, [])


def test_who_waits_names_the_holder_at_intervals_and_says_when_it_is_over(store, caplog, monkeypatch):
    monkeypatch.setattr(lock_wait, "time", Clock(least_s=4.0))  # two minutes in thirty tries
    with held(store.path) as holder, pytest.raises(DatabaseLocked), store.reader(wait_s=120.0):
        pass
    waits = [record.getMessage() for record in caplog.records]
    assert len(waits) == 2  # after 5 s, and each minute
    assert all(f"waiting for the lock of process {holder.pid} (" in told for told in waits)

    with store.reader():
        pass
    assert len(caplog.records) == len(waits)
