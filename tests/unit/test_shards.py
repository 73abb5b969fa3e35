"""Which queries are whose, and the files by which a night and its shards tell each other."""

import multiprocessing
import os
import re
import signal
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.nightly.shard_worker import require_same_code
from tasks.settings import load_settings
from tasks.store.shard_folder import (
    KeptSpool,
    ShardFolder,
    ShardOrder,
    ShardRecord,
    queries_of,
    read_order,
    shard_of,
    sum_notes,
    worst_canaries,
)
from tasks.store.tables import SCHEMAS
from tasks.system.errors import AlreadyRunning, ConfigError, StoreError
from tests.makers import make_settings

BATCHES = pa.Table.from_pylist(
    [{"run_id": "r", "shard": 1, "batch_no": 0, "driver": "none", "num_prompts": 0}], SCHEMAS["batches"]
)


def make_record(**values):
    base = {"is_done": True, "host": "h", "versions": {"vllm": "1"}, "engine": None, "canaries": ()}
    return ShardRecord(**base | values)


def test_a_query_is_in_the_same_shard_on_every_machine_and_in_every_version():
    """A run taken up by a later version goes on with the same shards."""
    ids = ["q000", "q001", "", "한국어", "MARCO-1048585", "\ud800"]

    assert [shard_of(each, 8) for each in ids] == [4, 5, 4, 4, 1, 2]
    assert {shard_of(each, 1) for each in ids} == {0}
    assert shard_of(None, 8) == 0


def test_shards_are_of_nearly_one_size():
    sizes = Counter(shard_of(f"query-{number}", 8) for number in range(80_000))

    assert all(9_500 < sizes[shard] < 10_500 for shard in range(8))


@given(st.lists(st.none() | st.text()), st.integers(1, 9))
def test_every_row_is_in_exactly_one_shard(query_ids, num_shards):
    column = pa.array(query_ids, pa.string())

    owned = [queries_of(shard, num_shards)(column).to_pylist() for shard in range(num_shards)]

    for place, query_id in enumerate(query_ids):
        assert [own[place] for own in owned] == [shard == shard_of(query_id, num_shards) for shard in range(num_shards)]


def test_notes_add_up_but_for_what_every_shard_reads():
    records = [
        make_record(notes={"duplicate documents": 3, "duplicate queries": 1}),
        make_record(notes={"duplicate documents": 3, "duplicate queries": 2, "duplicate candidates": 4}),
        make_record(),
    ]

    assert sum_notes(records) == {"duplicate documents": 3, "duplicate queries": 3, "duplicate candidates": 4}


def test_a_night_has_the_canaries_of_the_shard_that_missed_most_in_one_mode():
    def asked(**passed):
        pairs = {f"{mode}/{number}": each for mode, all_ in passed.items() for number, each in enumerate(all_)}
        return tuple({"pair": pair, "margin": float(each) - 0.5, "passed": each} for pair, each in pairs.items())

    fine = make_record(canaries=asked(yes_no=[True] * 5, select=[True] * 5))
    some = make_record(canaries=asked(yes_no=[False, False, True, True, True], select=[False, False, True, True, True]))
    broken = make_record(canaries=asked(yes_no=[True] * 5, select=[False, False, False, True, True]))

    assert worst_canaries([fine, some, broken, make_record()]) == broken.canaries
    assert worst_canaries([make_record(), fine, fine]) == fine.canaries
    assert worst_canaries([make_record()]) == ()


def test_a_shard_is_done_when_it_says_so_and_not_before(tmp_path):
    folder = ShardFolder(tmp_path, "r", 1)
    assert (folder.record(), folder.is_done, folder.is_held(), folder.batch_nos()) == (None, False, False, set())

    begun = make_record(
        is_done=False, engine={"device": "gpu"}, canaries=({"pair": "a", "margin": 0.1, "passed": True},)
    )
    folder.write(begun)
    assert (folder.record(), folder.is_done) == (begun, False)

    (folder.path / ".shard.json.part").write_text("{")  # killed while it told
    assert folder.record() == begun
    folder.write(make_record(num_batches=2))
    assert folder.is_done
    folder.forget()
    assert not folder.is_done


def test_without_the_nights_order_no_shard_begins(tmp_path):
    with pytest.raises(StoreError, match="no night asks for shards here"):
        read_order(tmp_path / "r")
    order = ShardOrder("base", 2, None, None, "a1")

    order.write(tmp_path / "r")

    assert read_order(tmp_path / "r") == order


@pytest.mark.parametrize(
    ("here", "wanted", "ends"),
    [
        ("a1", "a1", "same"),
        (None, None, "same"),
        ("a1", "b2", "refused"),
        ("a1+", "b2+", "refused"),
        ("a1+", "a1", "warned"),
        ("a1", "a1+", "warned"),
        ("a1+", "a1+", "warned"),  # two changed checkouts need not be changed alike
        (None, "a1", "warned"),
        ("a1", None, "warned"),  # also of an order that an earlier version wrote
    ],
)
def test_a_shard_ranks_by_the_nights_own_commit(caplog, here, wanted, ends):
    if ends == "refused":
        with pytest.raises(ConfigError, match=re.escape(f"at commit {here}, expected {wanted}")):
            require_same_code("shard 0", here, wanted)
    else:
        require_same_code("shard 0", here, wanted)
    assert [record.levelname for record in caplog.records] == (["WARNING"] if ends == "warned" else [])


def test_an_order_of_an_earlier_version_is_read(tmp_path):
    (tmp_path / "shards.json").write_text(
        '{"base_run_id": "base", "num_shards": 2, "earlier_run_id": null, "recipe_change": null}'
    )

    assert read_order(tmp_path) == ShardOrder("base", 2, None, None)


def test_a_kept_spool_gives_each_batch_once_and_lets_the_night_have_all(tmp_path):
    folder = ShardFolder(tmp_path, "r", 1)
    spool = KeptSpool(folder)
    spool.commit(1, 0, {"batches": BATCHES})
    spool.commit(0, 0, {"batches": BATCHES})  # another shard's

    (first,) = spool.batches()
    spool.drop(first)
    spool.remove()
    spool.commit(1, 1, {"batches": BATCHES})

    assert [batch.batch_no for batch in spool.batches()] == [1]
    assert folder.batch_nos() == {0, 1}
    assert not folder.has_gaps
    first.remove()
    assert folder.has_gaps
    folder.clear()
    assert (folder.batch_nos(), folder.has_gaps) == (set(), False)


def test_two_processes_never_rank_a_shard_and_a_killed_one_frees_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tasks.store.shard_folder.LOCK_WAIT_S", 0.3)
    folder = ShardFolder(tmp_path, "r", 0)
    ready, ready_there = multiprocessing.Pipe()
    holder = multiprocessing.get_context("fork").Process(target=hold, args=(folder, ready_there))
    holder.start()
    assert ready.recv() == "held"

    assert folder.is_held()
    with pytest.raises(AlreadyRunning, match=f"process {holder.pid} on"), folder.lock():
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()

    assert not folder.is_held()
    with folder.lock():
        assert folder.is_held()
    assert not folder.is_held()


def hold(folder, ready):
    with folder.lock():
        ready.send("held")
        signal.pause()


def test_the_number_of_shards_and_the_spools_folder_are_no_part_of_a_runs_identity(tmp_path):
    path = make_settings(tmp_path, tmp_path / "model", {"inputs.nested": "n.parquet"})
    sharded = load_settings(path, {"packing.shards": 8, "store.spool": str(tmp_path / "shared")})

    assert sharded.ranking_settings() == load_settings(path).ranking_settings()
    assert sharded.spool_folder == tmp_path / "shared" / "test"
    assert load_settings(path).spool_folder == tmp_path / "var" / "spool" / "test"
