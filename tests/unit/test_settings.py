"""Settings: what is refused, in which words, and which night it is."""

from datetime import UTC, date, datetime, timedelta

import pytest

from tasks.prompt.model_files import find_model_folder
from tasks.settings import NightSettings, StrategySettings, load_settings, overrides_from, parse_override
from tasks.settings.reference import engine_key_hint, setting_keys
from tasks.system.environment import loopback_environment
from tasks.system.errors import ConfigError
from tasks.tools.settings_page import PAGE, settings_page
from tests.makers import ROOT, make_settings

NESTED = {"inputs.nested": "n.parquet"}


@pytest.fixture
def settings_file(tmp_path):
    return make_settings(tmp_path, tmp_path / "model", NESTED)


def test_the_shipped_settings_load(repo_root):
    for path in sorted({*(repo_root / "configs").glob("*.toml")} - {repo_root / "configs" / "canary.toml"}):
        assert load_settings(path).night.name


def test_the_name_of_a_night_is_the_stem_of_its_file(settings_file):
    assert load_settings(settings_file).night.name == "nightly"


@pytest.mark.fault(74, 75, 76)
@pytest.mark.parametrize(
    ("override", "words"),
    [
        ({"strategy.stride": 25, "strategy.window_size": 20}, "stride = 25 must be between 1 and window_size = 20"),
        ({"strategy.stride": 0}, "[strategy] stride = 0"),
        ({"strategy.stride": -1}, "[strategy] stride = -1"),
        ({"strategy.window_size": 1}, "[strategy] window_size = 1"),
        ({"strategy.window_size": "7"}, "[strategy] window_size = '7'"),
        ({"strategy.window_size": "abc"}, "[strategy] window_size = 'abc'"),
        ({"strategy.depth": 0}, "[strategy] depth = 0"),
        ({"inputs.top_k": 0}, "[inputs] top_k = 0"),
        ({"strategy.name": "bubble"}, "'setwise', 'tourrank'"),
        ({"strategy.decode_mode": "beam"}, "'first_token', 'permutation'"),
        ({"strategy.decode_mode": "yes_no"}, "which needs first_token or permutation or reasoning"),
        ({"strategy.name": "setwise"}, "does not work with strategy setwise, which needs select"),
        ({"strategy.name": "pointwise"}, "which needs yes_no or query_likelihood"),
        ({"strategy.calibrate": "content_free", "strategy.decode_mode": "permutation"}, "needs decode_mode"),
        ({"strategy.setwise.method": "insertion"}, "setwise is set, but the strategy is sliding"),
        ({"strategy.name": "tdpart", "strategy.window_size": 10, "strategy.top_k": 10}, "must be below window_size"),
        ({"strategy.cascade.keep": 1}, "[strategy] cascade.keep = 1"),
        ({"strategy.cascade.decode_mode": "first_token"}, "'yes_no' or 'query_likelihood'"),
        ({"strategy.windowsize": 3}, "[strategy] windowsize: unknown key. Is it window_size?"),
        ({"stragety.window_size": 3}, "[stragety]: unknown key. Is it strategy?"),
        ({"night.window_size": 3}, "[night] window_size: unknown key. [strategy] has such a key."),
        ({"strategy.cascade.kepe": 3}, "[strategy] cascade.kepe: unknown key. Is it keep?"),
        ({"store.keep_answer_nights": 3}, "unknown key. It is [store.keep_outcomes] nights now."),
        ({"packing.x": 3}, "[packing] x: unknown key. [packing] has driver, batch_loads,"),
        ({"engine.max_modellen": 9}, "[engine] max_modellen: vLLM has no such setting. Is it max_model_len?"),
        ({"strategy.window_size": 5.5}, "window_size = 5.5: expected a whole number of 2 or more, or 'auto'"),
        (
            {"strategy.window_size": "9"},
            "window_size = '9': expected a whole number of 2 or more, or 'auto', without quo",
        ),
        ({"strategy.name": "slidng"}, "'blitz' or 'pairwise'. Is it 'sliding'?"),
        ({"inputs.may_be_older": ["query"]}, "may_be_older.0 = 'query': expected a list of 'queries', 'documents', "),
        ({"store.memory_limit": "much"}, "memory_limit = 'much': expected a text such as '1GB'"),
        (
            {"preset": "configs/models/quen3.toml"},
            "a shipped preset: deepseek, first_mistral",
        ),
        ({"strategy.cascade.keep": 9, "strategy.name": "pointwise"}, "does not work with strategy pointwise"),
        (
            {"strategy.cascade.keep": 9, "strategy.name": "pointwise", "strategy.decode_mode": "yes_no"},
            "cascade needs windows, pointwise has none: leave it out, or --set strategy.cascade=none",
        ),
        ({"night.timezone": "Mars/Olympus"}, "not an IANA time zone"),
        ({"night.cron": "every night"}, "not a cron line"),
        ({"inputs.queries": "q.parquet"}, "either nested, or queries, documents and candidates"),
        ({"inputs.nested": None}, "missing: give queries, documents and candidates, or nested"),
        ({"inputs.columns.queries.txt": "t"}, "queries has the columns query_id, text"),
        (
            {"inputs.columns.documents.price": "p"},
            "[inputs] columns.documents.price: documents has the columns doc_id, t",
        ),
        ({"inputs.columns.nested.price": "p", "prompt.fields": ["price"]}, "nested.price: nested has the columns cand"),
        ({"prompt.fields": ["documents.price"]}, "the nested layout has no documents: write 'price'"),
        ({"prompt.fields": ["price", "price"]}, "'price' is named twice"),
        ({"prompt.fields": ["documents.title"]}, "'title' cannot be a field"),
        ({"prompt.fields": [""]}, "[prompt] fields"),
        ({"store.export": "s3://bucket/out"}, "expected a local folder"),
        ({"store.memory_limit": "lots"}, "[store] memory_limit = 'lots'"),
        ({"prompt.min_passage_tokens": 65}, "min_passage_tokens = 65 must be at most max_passage_tokens = 64"),
        ({"checks.max_fallback_share": 1.5}, "[checks] max_fallback_share = 1.5"),
        ({"night.name": ".."}, "[night] name = '..'"),
        ({"night.name": "."}, "[night] name = '.'"),
        ({"night.name": ".hidden"}, "[night] name = '.hidden'"),
        ({"checks.max_fallback_share": float("nan")}, "[checks] max_fallback_share = nan"),
        ({"checks.max_canary_drift": float("inf")}, "[checks] max_canary_drift = inf"),
        ({"strategy.score_gap": float("nan")}, "[strategy] score_gap = nan"),
        ({"engine.gpu_memory_utilization": float("nan")}, "gpu_memory_utilization = nan: expected a finite number"),
        ({"store.memory_limit": "0.0GB"}, "[store] memory_limit = '0.0GB'"),
        ({"engine.speculative_config": {"method": "ngram"}}, "speculative decoding is refused"),
        ({"engine.data_parallel_size": 2}, "run shards instead"),
        ({"engine.runner": "pooling"}, "needs a generative model"),
        ({"engine.tokenizer": "other"}, "tokenizer = 'other': prompts are made and answers read with the tokenizer in"),
        ({"engine.tokenizer_mode": "mistral"}, "tokenizer_mode = 'mistral'"),
        ({"engine.skip_tokenizer_init": True}, "answers are read as text"),
        ({"engine.logprobs_mode": "raw_logits"}, "scores are read as log-probabilities"),
        ({"engine.disable_log_stats": True}, "read from vLLM's statistics"),
        (
            {"engine.long_prefill_token_threshold": 256},
            "[packing]: promise = 'no_preemption' cannot be kept with [engine] "
            "long_prefill_token_threshold = 256: several prompts",
        ),
        ({"engine.scheduler_reserve_full_isl": False}, "before there is room for the whole of it"),
        ({"engine.scheduler_cls": "mine.Scheduler"}, "rules of its own"),
        ({"engine.kv_transfer_config": {"kv_connector": "x"}}, "a connector then holds blocks"),
        ({"engine.kv_offloading_size": 8.0}, "a connector then holds blocks"),
        ({"engine.decode_context_parallel_size": 2}, "spread over devices"),
        ({"strategy.name": "single", "strategy.depth": 9}, "depth = 9 must be at most window_size = 4"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_with_what_is_allowed(settings_file, override, words):
    with pytest.raises(ConfigError) as refused:
        load_settings(settings_file, override)

    message = str(refused.value)
    assert str(settings_file) in message
    assert words in message
    assert "\n" not in message
    assert all(message.count(key.rpartition(".")[2]) <= 2 for key in override if "expected" in message)


def test_an_override_can_take_a_key_or_a_table_back(settings_file):
    given = {"strategy.cascade.keep": 9, "strategy.depth": 3}
    text = settings_file.read_text(encoding="utf-8")
    settings_file.write_text(text.replace("[strategy]", "[strategy.cascade]\nkeep = 9\n[strategy]\ndepth = 3"))
    taken = load_settings(settings_file, {"strategy.cascade": "none", "strategy.depth": "none"}).strategy

    assert load_settings(settings_file).strategy.depth == 3
    assert (taken.cascade, taken.depth) == (None, None)
    assert load_settings(settings_file, given | {"strategy.calibrate": "none"}).strategy.calibrate == "none"


def test_the_page_of_settings_is_not_stale_and_says_what_every_key_means():
    assert PAGE.read_text(encoding="utf-8") == settings_page(), "stale: run `make settings`"
    assert [key.path for key in setting_keys().values() if not key.meaning] == []
    assert engine_key_hint("max_modellen") == "Is it max_model_len?"


def test_what_breaks_the_promise_passes_where_none_is_given(settings_file):
    keys = {"engine.long_prefill_token_threshold": 256, "engine.scheduler_reserve_full_isl": False}

    keywords = load_settings(settings_file, keys | {"packing.promise": "none"}).engine_keywords()

    assert (keywords["long_prefill_token_threshold"], keywords["scheduler_reserve_full_isl"]) == (256, False)


def test_vllms_own_values_of_refused_settings_pass(settings_file):
    defaults = {"disable_log_stats": False, "tokenizer_mode": "auto", "long_prefill_token_threshold": 0}

    keywords = load_settings(
        settings_file, {f"engine.{key}": value for key, value in defaults.items()}
    ).engine_keywords()

    assert keywords.items() >= defaults.items()


def test_engine_settings_pass_through_unrenamed(settings_file):
    settings = load_settings(settings_file, {"engine.gpu_memory_utilization": 0.9, "engine.tensor_parallel_size": 2})

    assert settings.engine_keywords()["tensor_parallel_size"] == 2
    assert settings.engine_keywords()["gpu_memory_utilization"] == 0.9


def test_deterministic_packing_means_one_sequence_and_no_prefix_cache(settings_file):
    keywords = load_settings(settings_file, {"packing.deterministic": True}).engine_keywords()

    assert keywords["max_num_seqs"] == 1
    assert keywords["enable_prefix_caching"] is False


def test_the_mark_that_windows_puts_in_front_of_a_file_is_read_past(settings_file):
    plain = load_settings(settings_file)
    settings_file.write_text("\ufeff" + settings_file.read_text(encoding="utf-8"), encoding="utf-8")

    assert load_settings(settings_file) == plain


@pytest.mark.parametrize(("name", "words"), [("m.gguf", "a GGUF file, expected a"), ("m.bin", "a file, expected a")])
def test_a_model_that_is_one_file_is_told_so(tmp_path, name, words):
    (tmp_path / name).touch()

    with pytest.raises(ConfigError, match=words):
        find_model_folder(str(tmp_path / name), None, tmp_path)


def test_capacity_is_no_part_of_what_a_ranking_depends_on(settings_file):
    plain = load_settings(settings_file).ranking_settings()
    roomy = load_settings(settings_file, {"engine.max_num_seqs": 8, "packing.batch_loads": 1}).ranking_settings()
    other = load_settings(settings_file, {"engine.dtype": "float32"}).ranking_settings()

    assert roomy == plain
    assert other != plain


def test_settings_that_came_later_leave_the_identity_of_runs_that_do_not_use_them(settings_file):
    """A new default in the digest would give every night of every user another run_id, and rank it again."""
    plain = load_settings(settings_file).ranking_settings()["inputs"]
    kept = {"queries", "documents", "candidates", "nested", "qrels", "partition", "columns", "top_k", "rank_base"}

    assert set(plain) == kept | {"allow_empty"}
    for later in ({"inputs.order_by": "rank"}, {"inputs.lower_score_is_better": True}):
        assert load_settings(settings_file, later).ranking_settings()["inputs"] != plain


@pytest.mark.fault(18, 81)
@pytest.mark.parametrize(
    ("now", "night"),
    [
        ("2026-11-28T16:29:59", date(2026, 11, 28)),  # 01:29:59 in Seoul: last night's
        ("2026-11-28T16:30:00", date(2026, 11, 29)),  # 01:30:00: tonight's
        ("2026-11-29T10:00:00", date(2026, 11, 29)),
    ],
)
def test_the_night_is_the_last_fire_time_not_after_now(now, night):
    settings = NightSettings(name="n", cron="30 1 * * *", timezone="Asia/Seoul")

    assert settings.night_at(datetime.fromisoformat(now).replace(tzinfo=UTC)) == night


@pytest.mark.fault(81)
@pytest.mark.parametrize("zone", ["Asia/Seoul", "Europe/Berlin", "America/New_York"])
def test_each_local_date_is_one_night_also_when_clocks_change(zone):
    settings = NightSettings(name="n", cron="30 1 * * *", timezone=zone)
    moments = [datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(days=day) for day in range(400)]

    nights = [settings.night_at(moment) for moment in moments]

    assert nights == [moment.date() for moment in moments]


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("strategy.window_size=10", ("strategy.window_size", 10)),
        ("night.name=trial", ("night.name", "trial")),
        ('night.name="7"', ("night.name", "7")),
        ("packing.deterministic=true", ("packing.deterministic", True)),
        ("inputs.queries=/a b/[x]=y.parquet", ("inputs.queries", "/a b/[x]=y.parquet")),
    ],
)
def test_an_override_is_a_dotted_path_and_a_toml_value(text, parsed):
    assert parse_override(text) == parsed


@pytest.mark.parametrize(
    ("known", "told"), [(None, "127.0.0.1"), ("a,.b", "a,.b,127.0.0.1"), ("127.0.0.1,a", "127.0.0.1,a"), ("*", "*")]
)
def test_loopback_is_asked_without_the_callers_proxy(monkeypatch, known, told):
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    if known is not None:
        monkeypatch.setenv("NO_PROXY", known)

    assert loopback_environment() == {"no_proxy": told, "NO_PROXY": told}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, ["sliding by first_token over all candidates, windows of 20"]),
        ({"name": "pointwise", "decode_mode": "yes_no", "depth": 50}, ["pointwise by yes_no over the first 50"]),
        (
            {"name": "single", "depth": 20, "cascade": {"keep": 5}, "consensus": {"shuffles": 3}},
            [
                "pointwise by yes_no over the first 20",
                "single by first_token over the best 5, windows of 20, each in 3 orders",
            ],
        ),
        ({"name": "pairwise", "decode_mode": "select"}, ["pairwise by select over all candidates, windows of 2"]),
    ],
)
def test_what_ranks_is_told_in_words(given, told):
    assert StrategySettings.model_validate(given).stages(20) == told


@pytest.mark.parametrize("text", ["window_size=3", "strategy.window_size", "="])
def test_an_override_of_another_form_is_refused(text):
    with pytest.raises(ConfigError, match="expected section.key=value"):
        parse_override(text)


def test_a_relative_path_is_taken_from_the_file_or_from_where_it_was_typed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "tiny").mkdir()
    (tmp_path / "own" / "deep").mkdir(parents=True)
    (tmp_path / "own" / "words.toml").write_text('[prompt]\ntemplate = "words/w.toml"\n')
    config = tmp_path / "own" / "deep" / "mine.toml"
    config.write_text(
        'preset = "../words.toml"\n[inputs]\nqueries = "q.parquet"\ndocuments = "~/d"\ncandidates = "s3://b/c"\n'
        '[engine]\nmodel = "owner/name"\n[night]\nalert_url_file = "$CREDENTIALS/url"\n[store]\nexport = "../out"\n'
    )

    typed = overrides_from(
        ["inputs.qrels=r/*.parquet", "engine.model=tiny", "store.spool=/s", "night.name=a/b"], tmp_path
    )
    settings = load_settings(config, {key: value for key, value in typed.items() if key != "night.name"})

    assert typed["night.name"] == "a/b"
    assert settings.inputs.model_dump(include={"queries", "documents", "candidates", "qrels"}) == {
        "queries": f"{tmp_path}/own/deep/q.parquet",
        "documents": f"{tmp_path}/home/d",
        "candidates": "s3://b/c",
        "qrels": f"{tmp_path}/r/*.parquet",
    }
    assert settings.prompt.template == f"{tmp_path}/own/words/w.toml"  # of the preset: from its own folder
    assert settings.engine.model == f"{tmp_path}/tiny"
    assert load_settings(config).engine.model == "owner/name"  # no folder there is called so
    assert settings.night.alert_url_file == "$CREDENTIALS/url"
    assert (settings.store.export, settings.store.spool) == (f"{tmp_path}/own/out", "/s")


def test_what_lies_in_the_checkout_is_named_from_there_wherever_that_is():
    """The text is in the run's identity: the sample's nights keep their ids in every checkout."""
    settings = load_settings(ROOT / "configs" / "sample.toml", overrides_from(["store.export=x"], ROOT / "var"))

    assert (settings.inputs.queries, settings.engine.model) == ("data/sample/queries.parquet", "models/sample")
    assert (settings.store.database, settings.store.export) == ("var/packrank.duckdb", "var/x")


def test_a_preset_that_is_not_there_is_told_with_those_that_are(tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text('preset = "qwen4"\n')

    with pytest.raises(
        ConfigError, match=r"preset = 'qwen4': no such file \(.*qwen4.toml\).*shipped preset: deepseek, .*"
    ):
        load_settings(config)
