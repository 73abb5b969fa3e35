"""Every strategy and decode mode through a whole night: the real engine child, pipe, spool and database, a fake model."""

import logging
from datetime import date

import pytest

from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.settings import load_settings
from tasks.system.errors import CanaryFailed, CheckFailed, EngineError, InputError
from tasks.tools.plan import CacheAssumption, plan_night
from tests.makers import asked, make_inputs, make_settings, select, value

LISTS = [0, 1, 2, 7, 13]

WAYS = {
    "pointwise/yes_no": {},
    "pointwise/query_likelihood": {},
    "single/first_token": {"window_size": 13},
    "single/permutation": {"window_size": 13, "top_k": 3},
    "sliding/first_token": {"calibrate": "content_free"},
    "sliding/permutation": {"top_k": 2},
    "sliding/reasoning": {},
    "tdpart/first_token": {"top_k": 2},
    "tdpart/permutation": {"top_k": 2},
    "jointrank/first_token": {"jointrank.repeats": 3},
    "jointrank/permutation": {},
    "blitz/first_token": {"top_k": 3},
    "blitz/permutation": {"top_k": 3},
    "setwise/select": {"top_k": 3},
    "tourrank/select": {"tourrank.tournaments": 3},
    "pairwise/select": {"pairwise.method": "all_pairs"},
    "sliding/first_token+cascade": {"cascade.keep": 5, "cascade.decode_mode": "query_likelihood"},
    "tdpart/permutation+cascade+consensus": {
        "cascade.keep": 8,
        "cascade.decode_mode": "yes_no",
        "consensus.shuffles": 3,
    },
    "sliding/permutation+consensus": {"consensus.shuffles": 3},
}
SCORE_KINDS = {  # how a score is to be read is stored beside it
    "pointwise/yes_no": "p_yes",
    "pointwise/query_likelihood": "query_likelihood",
    "tourrank/select": "points",
    "pairwise/select": "win_rate",
    "sliding/permutation": "reciprocal_rank",
}
ONE_TOKEN = ("first_token", "select", "yes_no", "query_likelihood")


@pytest.fixture
def night(tmp_path, model_folder, fake_vllm):
    """Prepares a night in its own folder over the same lists."""

    def make(way, folder="a", **settings):
        strategy, _, decode_mode = way.split("+")[0].partition("/")
        values = {"strategy.name": strategy, "strategy.decode_mode": decode_mode}
        values |= {f"strategy.{name}": value for name, value in WAYS.get(way, {}).items()}
        if strategy != "sliding":
            values["strategy.stride"] = None
        if decode_mode == "reasoning":
            values["prompt.thinking_budget_tokens"] = 64
        values |= {name.replace("__", "."): value for name, value in settings.items()}
        (tmp_path / folder).mkdir(exist_ok=True)
        config = make_settings(tmp_path / folder, model_folder, make_inputs(tmp_path / "in", LISTS) | values)
        return prepare_night(NightRequest(config=config, night=date(2026, 11, 29), publish=True))

    return make


def score_rows(prepared):
    return select(prepared, "select * exclude (run_id) from scores order by query_id, rank")


@pytest.mark.fault(36)
@pytest.mark.parametrize("way", WAYS)
def test_a_night_ends_published_whichever_way_it_ranks(night, fake_vllm, tmp_path, way):
    fake_vllm(log=str(tmp_path / "asked"))
    prepared = night(way)

    run_night(prepared)

    assert value(prepared, "select count(*) from latest_scores") == sum(LISTS)
    assert value(prepared, "select status from runs") == "published"
    assert select(prepared, "select status, count(*) as n from rankings group by status order by status") == [
        {"status": "no_candidates", "n": 1},
        {"status": "ranked", "n": 3},
        {"status": "single", "n": 1},
    ]
    assert value(prepared, "select count(*) from check_results where not passed") == 0
    modes = {row["decode_mode"] for row in select(prepared, "select distinct decode_mode from windows")}
    assert modes == set(prepared.settings.decode_modes)
    longest = {
        row["decode_mode"]: row["n"]
        for row in select(prepared, "select decode_mode, max(output_tokens) as n from windows group by all")
    }
    for mode in modes:
        assert (longest[mode] == 1) == (mode in ONE_TOKEN)
    assert value(prepared, "select bool_and(num_listed <= len(docs) and num_missing = 0) from windows")
    if way in SCORE_KINDS:
        kinds = select(prepared, "select distinct score_kind as kind from scores where query_id in ('q003', 'q004')")
        assert kinds == [{"kind": SCORE_KINDS[way]}]
    scored = {each["params"]["prompt_logprobs"] for each in asked(tmp_path / "asked")}
    if "cascade" not in way:  # the only mode that asks for them is query_likelihood
        assert scored == {0 if "query_likelihood" in way else None}


def test_a_probability_of_yes_sums_the_spellings_of_yes_and_of_no(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"))
    prepared = night("pointwise/yes_no")

    run_night(prepared)

    yes = prepared.recipe.main.mode.yes_ids
    no = prepared.recipe.main.mode.no_ids
    assert len(yes) >= 2
    assert len(no) >= 2
    assert asked(tmp_path / "asked")[0]["params"]["logprob_token_ids"] == [*yes, *no]
    assert value(prepared, "select bool_and(model_score between 0 and 1) from scores where model_score is not null")
    assert value(prepared, "select bool_and(id_mass between 0 and 1) from windows")


def test_a_step_is_made_smaller_only_where_one_prompt_has_too_many_rows_of_logits(tmp_path, model_folder):
    """2048 tokens a step was for every run with query_likelihood in it, a cascade's windows of 20 passages included."""
    way = {"inputs.nested": "-", "strategy.name": "pointwise", "strategy.stride": None}
    found = {}
    for decode_mode in ("query_likelihood", "yes_no"):
        for max_passage_tokens in (256, 4096):
            values = way | {"strategy.decode_mode": decode_mode, "prompt.max_passage_tokens": max_passage_tokens}
            settings = load_settings(make_settings(tmp_path, model_folder, values))
            found[decode_mode, max_passage_tokens] = settings.engine_keywords().get("max_num_batched_tokens")

    assert [key for key, lowered in found.items() if lowered == 2048] == [("query_likelihood", 4096)]
    assert list(found.values()).count(None) == 3


@pytest.mark.parametrize("driver", ["stream", pytest.param("generate", marks=pytest.mark.soak)])
def test_only_the_querys_rows_are_scored_where_the_engine_offers_it_and_scores_are_the_same(
    night, fake_vllm, tmp_path, driver
):
    found = {}
    for runner in ("v1", "v2"):
        log = tmp_path / f"{driver}-{runner}"
        fake_vllm(log=str(log), v2=runner == "v2")
        prepared = night("pointwise/query_likelihood", folder=f"{log.name}-night", packing__driver=driver)
        run_night(prepared)
        found[runner] = select(prepared, "select query_id, doc_id, model_score from scores order by query_id, rank")
        params = [each["params"] for each in asked(log)]
        if runner == "v2":
            assert {each["prompt_logprobs"] for each in params} == {None}
            rows = {len(each["prompt_logprob_token_ids"]) for each in params}
            assert 1 < max(rows) < min(each["prompt_logprob_start"] for each in params)

    assert [(each["query_id"], each["doc_id"]) for each in found["v2"]] == [
        (each["query_id"], each["doc_id"]) for each in found["v1"]
    ]
    scores = [[each["model_score"] for each in found[runner]] for runner in ("v1", "v2")]
    assert scores[1] == pytest.approx(scores[0], abs=1e-5)


@pytest.mark.parametrize("driver", ["stream", pytest.param("generate", marks=pytest.mark.soak)])
def test_a_thought_is_drawn_again_with_the_seed_that_it_had(night, fake_vllm, tmp_path, driver):
    """In another batch, process or arrangement: a resumed night asks the same."""
    seeds, ids = [], set()
    for name, cohort in (("whole", 100), ("in-parts", 1)):
        log = tmp_path / f"{driver}-{name}"
        fake_vllm(log=str(log), thoughts=100)  # over the budget: closed by force, and asked again
        settings = {"prompt__sampling.temperature": 0.6, "prompt__sampling.top_k": 20, "packing.cohort_queries": cohort}
        prepared = night("sliding/reasoning", folder=f"{log.name}-night", packing__driver=driver, **settings)
        ids.add(prepared.base_run_id)
        run_night(prepared)
        params = [(tuple(each["ids"]), each["params"]) for each in asked(log)]
        assert {(each["temperature"], each["top_k"], each["top_p"]) for _, each in params} == {(0.6, 20, 1.0)}
        seeds.append({(prompt, each["seed"]) for prompt, each in params})

    assert seeds[0] == seeds[1]
    assert len({seed for _, seed in seeds[0]}) == len(seeds[0]) > 10
    assert len(ids) == 1
    assert night("sliding/reasoning", folder="greedy").base_run_id not in ids


def test_the_query_is_what_is_scored(night):
    prepared = night("pointwise/query_likelihood")
    (prompt,) = [_prompt_of(prepared.recipe.main, "what is the tide")]

    tokens = prepared.recipe.main.builder.tokens
    assert tokens.decode(prompt.prompt_token_ids[-prompt.num_scored_tokens :]) == "what is the tide"


def _prompt_of(asking, query):
    from tasks.schedule.windows import Window

    (piece,) = asking.builder.encode_passages(["the moon pulls the sea"])
    return asking.builder.build("q/0/0/0", Window((0,), "judge"), query, [piece], [len(piece)], asking.sizes)


def test_only_as_many_identifiers_are_asked_for_as_the_schedule_needs(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"))
    run_night(night("sliding/permutation", folder="few"))
    few = {each["params"]["max_tokens"] for each in asked(tmp_path / "asked")}
    fake_vllm(log=str(tmp_path / "asked-all"))
    run_night(night("sliding/permutation", folder="all", strategy__top_k=None))
    every = {each["params"]["max_tokens"] for each in asked(tmp_path / "asked-all")}

    assert max(few) < max(every)


def test_an_answer_stops_at_the_pivot(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"))
    prepared = night("tdpart/permutation")

    run_night(prepared)

    stops = [each["params"]["stop"] for each in asked(tmp_path / "asked")]
    assert any(stops)
    assert all(len(stop) <= 1 for stop in stops)
    shortened = value(prepared, "select count(*) from windows where num_listed < len(docs) and parse_status = 'ok'")
    assert shortened > 0


def test_a_think_block_over_its_budget_is_closed_by_force_and_the_answer_read(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"), thoughts=400)
    prepared = night("sliding/reasoning", prompt__thinking_budget_tokens=50, engine__max_model_len=2048)

    run_night(prepared)

    prompts = asked(tmp_path / "asked")
    tokens = prepared.recipe.main.builder.tokens
    closed = [each for each in prompts if tokens.decode(each["ids"]).endswith("</think>\n<answer>")]
    assert len(closed) == len(prompts) / 2 > 0
    assert value(prepared, "select count(*) from windows where parse_status <> 'ok'") == 0
    assert value(prepared, "select sum(num_prompts)::int from batches") == len(closed)
    assert value(prepared, "select min(output_tokens) from windows") > 50
    assert value(prepared, "select count(*) from windows where e2el_s is null or e2el_s < ttft_s") == 0


def test_thoughts_within_the_budget_are_left_alone(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"), thoughts=5)
    prepared = night("sliding/reasoning")

    run_night(prepared)

    assert value(prepared, "select count(*) from windows") == len(asked(tmp_path / "asked"))


def test_what_the_letters_get_anyway_is_taken_off(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"))
    calibrated = night("sliding/first_token", folder="calibrated")
    run_night(calibrated)
    plain = night("sliding/first_token", folder="plain", strategy__calibrate="none")
    run_night(plain)

    tokens = plain.recipe.main.builder.tokens
    free = [each for each in asked(tmp_path / "asked") if "N/A" in tokens.decode(each["ids"])]
    sizes = [len(each["params"]["logprob_token_ids"]) for each in free]
    assert sorted(sizes) == sorted(set(sizes))  # one a window size
    assert score_rows(calibrated) != score_rows(plain)
    masses = "select query_id, round, id_mass from windows where round = 0 order by all"
    assert select(calibrated, masses) == select(plain, masses)  # id_mass is what the model said


@pytest.mark.parametrize("driver", ["generate", "stream"])
def test_a_window_size_that_comes_up_while_prompts_are_on_their_way_is_calibrated(night, tmp_path, driver):
    """A call that was not full waited for it then, and nobody sent that call."""
    sixes = {name.replace(".", "__"): path for name, path in make_inputs(tmp_path / "sixes", [6, 6, 6]).items()}
    prepared = night(
        "tdpart/first_token",
        strategy__calibrate="content_free",
        packing__driver=driver,
        packing__batch_loads=1,
        engine__max_num_seqs=1,
        **sixes,
    )

    run_night(prepared)

    sizes = select(prepared, "select round, len(docs) as size, count(*) as n from windows group by all order by all")
    assert sizes[:2] == [{"round": 0, "size": 4, "n": 3}, {"round": 1, "size": 3, "n": 3}]


@pytest.mark.fault(7)
def test_a_window_that_named_too_little_is_asked_again_in_another_order(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"), answers=["I cannot say.", "[2] > [1] > [3] > [4]"])
    prepared = night(
        "sliding/permutation", strategy__top_k=None, checks__max_fallback_share=1.0, checks__max_partial_share=1.0
    )

    run_night(prepared)

    rows = select(prepared, "select query_id, round, window_no, attempt, docs from windows order by all")
    again = [row for row in rows if row["attempt"] == 1]
    first = {(row["query_id"], row["round"]): row["docs"] for row in rows if row["attempt"] == 0}
    assert again
    for row in again:
        assert row["docs"] != first[row["query_id"], row["round"]]
        assert sorted(row["docs"]) == sorted(first[row["query_id"], row["round"]])
    prompts = [tuple(each["ids"]) for each in asked(tmp_path / "asked")]
    assert len(set(prompts)) == len(prompts)  # a greedy model would only repeat itself


@pytest.mark.parametrize(
    "way", [pytest.param("tourrank/select", marks=pytest.mark.soak), "tdpart/permutation+cascade+consensus"]
)
def test_a_night_whose_engine_died_ends_with_the_rows_of_one_that_did_not(night, fake_vllm, tmp_path, way):
    """Also with answers of which a third are refusals, so that retries are replayed as well."""
    answers = {"answers": ["[2] > [1] > [3] > [4]", "no", "[3] > [1]"]} if "permutation" in way else {}
    lenient = {
        "checks__max_fallback_share": 1.0,
        "checks__max_partial_share": 1.0,
        "packing__batch_loads": 1,
        "engine__max_num_seqs": 2,
    }
    fake_vllm(**answers)
    whole = night(way, folder="whole", **lenient)
    run_night(whole)
    fake_vllm(**answers, log=str(tmp_path / "asked"), die_at=4)
    killed = night(way, folder="killed", packing__max_engine_starts=1, packing__max_poison_prompts=0, **lenient)
    with pytest.raises(EngineError):
        run_night(killed)
    first = len(asked(tmp_path / "asked"))
    run_night(killed)

    assert score_rows(killed) == score_rows(whole)
    windows = "select query_id, round, window_no, attempt, docs, parse_status, num_listed from windows order by all"
    assert select(killed, windows) == select(whole, windows)
    lost = 2  # of the batch that was answered when the engine died with the next one
    total = value(killed, "select count(*) from windows")
    assert first > lost
    assert len(asked(tmp_path / "asked")) <= total + lost


# ---- canaries and warnings


def test_a_model_that_puts_the_irrelevant_passage_first_ranks_nothing(night, fake_vllm, tmp_path):
    fake_vllm(log=str(tmp_path / "asked"), answers=["[2] > [1]"])  # looks at places only
    prepared = night("sliding/permutation", checks__canary="stop")

    with pytest.raises(CanaryFailed, match="canaries in permutation: all 5 pairs score the same") as stopped:
        run_night(prepared)

    assert "Nothing was ranked" in str(stopped.value)
    assert value(prepared, "select status from runs") == "failed"
    assert value(prepared, "select count(*) from windows") == 0
    assert value(prepared, "select count(*) from canaries where not passed") == 5


def test_a_night_that_goes_on_after_its_canaries_failed_is_ranked_and_not_published(night, fake_vllm, caplog):
    fake_vllm(answers=["[2] > [1] > [3] > [4]"])
    prepared = night("sliding/permutation", checks__canary="warn")

    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(CheckFailed, match="canary_margins: 5 offending, share 1.0000, allowed 0.4000"),
    ):
        run_night(prepared)

    assert "canaries in permutation" in caplog.text
    assert select(prepared, "select status, is_degraded from runs") == [{"status": "complete", "is_degraded": True}]
    run_night(night("sliding/permutation", checks__canary="warn", checks__max_missed_canary_share=1.0))
    assert value(prepared, "select status from runs") == "published"


def test_canaries_are_asked_in_every_way_that_the_run_asks(night):
    prepared = night("sliding/first_token+cascade", checks__canary="warn", checks__max_missed_canary_share=1.0)

    run_night(prepared)

    pairs = [row["pair"] for row in select(prepared, "select pair from canaries")]
    assert {pair.split("/")[0] for pair in pairs} == {"first_token", "query_likelihood"}
    assert len(pairs) == 10
    joined = "select distinct recipe_digest from canaries join rankings using (run_id, recipe_digest)"
    assert len(select(prepared, joined)) == 1
    assert value(prepared, "select skip_reason from check_results where check_name = 'canary_bands'").startswith(
        "fewer"
    )


def test_a_night_that_asks_nothing_needs_no_canary(night, tmp_path, fake_vllm):
    fake_vllm(log=str(tmp_path / "asked"))
    prepared = night("sliding/first_token", checks__canary="stop", strategy__depth=1)

    run_night(prepared)

    assert value(prepared, "select count(*) from canaries") == 0
    assert not (tmp_path / "asked").exists()


def test_low_probability_of_the_identifiers_is_warned_of_before_and_after_ranking(night, caplog):
    prepared = night("sliding/first_token", checks__canary="warn", checks__max_missed_canary_share=1.0)

    with caplog.at_level(logging.WARNING):
        run_night(prepared)

    before, after = (caplog.text.index(words) for words in ("the model prefers other tokens", "do not fit the model"))
    assert before < after
    assert "decode_mode=first_token mean_id_mass=0." in caplog.text


def test_lists_stop_where_the_first_stages_score_falls_off(night):
    prepared = night("sliding/first_token", strategy__score_gap=0.05)

    run_night(prepared)

    assert select(prepared, "select query_id, depth from rankings where num_candidates > 5 order by query_id") == [
        {"query_id": "q003", "depth": 6},
        {"query_id": "q004", "depth": 6},
    ]
    assert value(prepared, "select count(*) from scores where status = 'below_depth'") == 1 + 7


def test_judgments_that_cannot_be_read_stop_a_night_before_it_ranks(night, tmp_path):
    (tmp_path / "qrels.parquet").write_bytes(b"PAR1 but no more")

    with pytest.raises(InputError, match="qrels"):
        night("sliding/first_token", inputs__qrels=str(tmp_path / "qrels.parquet"))
    with pytest.raises(InputError, match="qrels"):
        night("sliding/first_token", inputs__qrels=str(tmp_path / "nowhere.parquet"))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_can_be_planned_without_an_engine(night, way):
    prepared = night(way)

    plan, *rest = plan_night(prepared, CacheAssumption(num_gpu_blocks=2_000))

    figures = dict(plan.texts)
    assert int(figures["prompts"]) >= 3
    assert int(figures["batches"]) >= 1
    assert not prepared.settings.database_path.exists()
    assert rest[0].title.startswith("Prompts by round")
