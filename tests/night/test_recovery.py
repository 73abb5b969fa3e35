"""A prompt that an engine is lost with: isolated, set aside with its query, and asked again only when somebody says so."""

from datetime import date

import pytest

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.system.errors import CheckFailed, EngineError
from tests.makers import asked, make_inputs, make_settings, select, value, write_parquet

LISTS = [3, 4, 5, 3, 4, 3]
POISON = "zzkrk"


@pytest.fixture
def night(tmp_path, model_folder, fake_vllm):
    """A prepared night in which the queries given by number are poison."""

    def make(*poisoned, requeue=False, **settings):
        inputs = make_inputs(tmp_path / "in", LISTS)
        texts = [f"what is it {POISON if number in poisoned else number}" for number in range(len(LISTS))]
        ids = [f"q{number:03d}" for number in range(len(LISTS))]
        write_parquet(tmp_path / "in" / "queries.parquet", query_id=ids, text=texts)
        values = {"checks.max_fallback_share": 0.5} | {name.replace("__", "."): v for name, v in settings.items()}
        config = make_settings(tmp_path, model_folder, inputs | values)
        return prepare_night(NightRequest(config=config, night=date(2026, 11, 29), publish=True, requeue=requeue))

    return make


def statuses(prepared, run_id):
    rows = select(prepared, f"select query_id, status from rankings where run_id = '{run_id}' order by query_id")
    return {row["query_id"]: row["status"] for row in rows}


@pytest.mark.fault(10, 47, 88)
@pytest.mark.parametrize(
    ("kind", "driver"),
    [
        pytest.param("die_on", "generate", marks=pytest.mark.soak),
        ("die_on", "stream"),
        ("hang_on", "stream"),
        ("fail_on", "stream"),
    ],
)
def test_a_poison_prompt_is_set_aside_with_its_query_and_the_rest_is_ranked(night, fake_vllm, tmp_path, kind, driver):
    fake_vllm(**{kind: POISON}, log=str(tmp_path / "asked"))
    prepared = night(
        2,
        packing__batch_timeout_s=3 if kind == "hang_on" else 120,
        packing__max_engine_starts=1,
        packing__driver=driver,
    )

    run_id = run_night(prepared)

    assert statuses(prepared, run_id) == {f"q00{n}": "quarantined" if n == 2 else "ranked" for n in range(6)}
    (aside,) = select(prepared, "select source, query_id, reason, detail from quarantine")
    assert aside == {"source": "queries", "query_id": "q002", "reason": "engine died", "detail": "request q002/0/0/0"}
    assert value(prepared, "select count(*) from latest_scores") == sum(LISTS)
    fallback = select(prepared, "select rank, first_stage_rank, status, score_kind from scores where query_id = 'q002'")
    assert {(row["rank"] - row["first_stage_rank"], row["status"], row["score_kind"]) for row in fallback} == {
        (0, "fallback", "first_stage_order")
    }
    keys = [tuple(each["ids"]) for each in asked(tmp_path / "asked")]
    assert len(keys) == len(set(keys))
    assert value(prepared, "select num_offending from check_results where check_name = 'fallback_queries'") == 1

    fake_vllm(log=str(tmp_path / "well"))
    again = run_night(night(2, requeue=True))

    assert statuses(prepared, again) == {f"q00{n}": "ranked" if n == 2 else "reused" for n in range(6)}
    assert len(asked(tmp_path / "well")) == value(
        prepared, f"select count(*) from windows where run_id = '{again}' and query_id = 'q002'"
    )
    assert value(prepared, "select distinct run_id from latest_scores") == again


def test_queries_set_aside_count_as_not_ranked(night, fake_vllm):
    fake_vllm(die_on=POISON)
    prepared = night(2, packing__max_engine_starts=1, checks__max_fallback_share=0.1)

    with pytest.raises(CheckFailed, match=r"fallback_queries: 1 offending.*q002"):
        run_night(prepared)


def test_an_engine_lost_with_every_prompt_fails_the_run_and_what_was_answered_stays(night, fake_vllm, tmp_path):
    fake_vllm(die_on=POISON, log=str(tmp_path / "asked"))
    prepared = night(1, 2, 3, 4, packing__max_engine_starts=1, packing__max_poison_prompts=2)

    with pytest.raises(EngineError, match=r"prompts of 3 queries one by one.*max_poison_prompts = 2"):
        run_night(prepared)

    assert value(prepared, "select status from runs") == "failed"
    fake_vllm(log=str(tmp_path / "well"))
    run_id = run_night(night(1, 2, 3, 4))
    found = statuses(prepared, run_id)
    assert sum(status == "quarantined" for status in found.values()) == 2  # set aside before; requeue asks them
    assert sum(status == "ranked" for status in found.values()) == 4
    keys = [tuple(each["ids"]) for name in ("asked", "well") for each in asked(tmp_path / name)]
    assert len(keys) == len(set(keys))


def test_poison_may_be_refused(night, fake_vllm):
    fake_vllm(die_on=POISON)

    with pytest.raises(EngineError, match="exit status 9"):
        run_night(night(2, packing__max_engine_starts=1, packing__max_poison_prompts=0))
