"""One run as one page: its numbers are the views', its texts are escaped, and it asks the network for nothing."""

import html
import json
import logging
import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser

import pytest

from flows.cli import main
from tasks.inputs.documents import nested_columns
from tasks.inputs.excerpts import find_passages
from tasks.inputs.locations import Wanted
from tasks.inputs.parquet_files import open_input
from tasks.inputs.staging import open_night_input
from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.report import charts
from tasks.report.run_report import report_night, report_run
from tasks.report.run_texts import PASSAGE_CHARS, beginning, read_texts
from tasks.report.summary import summarise
from tasks.settings import InputSettings
from tasks.store.night_store import Store
from tasks.store.runs import Runs, runs_of
from tasks.system.database import DatabaseLimits, read_sql
from tasks.system.redaction import hide_url_secrets
from tasks.system.workspace import Workspace
from tests.browser import OUTSIDE, OVERLAPPING
from tests.makers import FAKE_VLLM, make_finished_run, make_settings, make_text, rows, write_parquet

SCRIPT = "<script>alert(1)</script>"
HOSTILE_QUERY = f"</svg>{SCRIPT} $x$"
DOCS = [SCRIPT, "</svg>", *(f"d{number}" for number in range(12))]
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What a browser would find: every tag, what each data-key holds, and whether tags close as they open."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.values, self.shown, self.ids = [], [], {}, {}, []
        self.words = ""
        self._open, self._keys = [], []
        self.feed(text)
        self.close()
        assert self._open == [], "tags that were never closed"

    def handle_starttag(self, tag, attrs):
        self._note(tag, dict(attrs))
        if tag not in VOID:
            self._open.append(tag)
            self._keys.append(dict(attrs).get("data-key"))

    def handle_startendtag(self, tag, attrs):
        self._note(tag, dict(attrs))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag
        self._keys.pop()

    def handle_data(self, data):
        if self._open and self._open[-1] != "style":
            self.words += data
            if self._keys[-1]:
                self.shown[self._keys[-1]] = self.shown.get(self._keys[-1], "") + data

    def _note(self, tag, attributes):
        self.tags.append(tag)
        self.attributes.extend(attributes.items())
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if "data-value" in attributes:
            self.values[attributes["data-key"]] = attributes["data-value"]


def page_of(path):
    return Page(path.read_text(encoding="utf-8"))


def write_inputs(folder, lists):
    """query_id -> how many candidates; hostile ids and texts, half of it Korean."""
    texts = {query: f"{SCRIPT} 왜 밀물과 썰물이 있나요 {query}" for query in lists}
    write_parquet(folder / "queries.parquet", query_id=list(texts), text=list(texts.values()))
    write_parquet(
        folder / "documents.parquet",
        doc_id=DOCS,
        title=["</details>", *["달과 바다"] * (len(DOCS) - 1)],
        text=[f"{SCRIPT} & \x1b[31m\u202e {make_text(number)} 조석 <b>" for number in range(len(DOCS))],
    )
    rows = [(query, DOCS[place], place + 1) for query, length in lists.items() for place in range(length)]
    names = ("query_id", "doc_id", "rank")
    write_parquet(
        folder / "candidates.parquet", **{name: [row[number] for row in rows] for number, name in enumerate(names)}
    )
    write_parquet(
        folder / "qrels.parquet", query_id=list(lists), doc_id=[DOCS[1]] * len(lists), relevance=[2] * len(lists)
    )
    names = ("queries", "documents", "candidates", "qrels")
    return {f"inputs.{name}": str(folder / f"{name}.parquet") for name in names}


def store_at(folder):
    return Store(folder / "var" / "test.duckdb", DatabaseLimits("200MB", 1, folder / "spill"))


@pytest.fixture(scope="module")
def nights(tmp_path_factory, model_folder):
    """Two published nights of one series, the later with an engine timeline; returns folder and the later's run_id."""
    folder = tmp_path_factory.mktemp("nights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(FAKE_VLLM))
        for night, lists in ((28, {"q1": 6, "gone": 3}), (29, {"q1": 8, HOSTILE_QUERY: 14, "한국어": 5, "new": 1})):
            inputs = write_inputs(folder / str(night), lists)
            sizes = {"strategy.decode_mode": "permutation", "prompt.max_passage_tokens": 16}
            config = make_settings(folder, model_folder, inputs | sizes)
            run_id = run_night(prepare_night(NightRequest(config, date(2026, 11, night), publish=True)))
    with store_at(folder).unit_of_work() as database:
        database.query_text(
            f"insert into engine_steps by name select '{run_id}' as run_id, 0 as shard, 0 as batch_no, step, "
            "now() + to_milliseconds(step) as started_at, 1.0 as elapsed_ms, 2 as num_prefill_seqs, step % 7 as "
            "num_decode_seqs, 3 as num_waiting_seqs, 100 as prefill_tokens, 2 as decode_tokens, step % 50 as blocks_used "
            "from range(5000) as steps(step)"
        )
    return folder, run_id


@pytest.fixture(scope="module")
def page(nights):
    folder, run_id = nights
    return page_of(report_run(folder / "var" / "test.duckdb", run_id, folder / "page.html"))


def raw(value):
    return repr(value) if isinstance(value, float) else "" if value is None else str(value)


@pytest.mark.parametrize(("view", "at_least"), [("run_summary", 25), ("serving_benchmark", 22)])
def test_the_pages_numbers_are_the_views(nights, page, view, at_least):
    folder, run_id = nights
    (row,) = rows(folder / "var" / "test.duckdb", f"select * from {view} where run_id = '{run_id}'")
    shown = {key.partition(".")[2]: value for key, value in page.values.items() if key.startswith(f"{view}.")}

    assert {column: raw(row[column]) for column in shown} == shown
    assert len(shown) + (view == "run_summary") * 3 >= at_least


def test_quality_and_churn_are_the_views_too(nights, page):
    folder, run_id = nights
    means = rows(
        folder / "var" / "test.duckdb",
        f"select ranking, value from metrics where run_id = '{run_id}' and query_id is null",
    )
    (churn,) = rows(
        folder / "var" / "test.duckdb",
        f"select overlap_at_10, num_moved, has_new_first from churn where run_id = '{run_id}' and query_id = 'q1'",
    )

    for mean in means:
        assert page.values[f"metrics.nDCG@10.{mean['ranking']}"] == raw(mean["value"])
    assert {column: page.values[f"churn.q1.{column}"] for column in churn} == {c: raw(v) for c, v in churn.items()}
    assert page.values["churn.mean_overlap_at_10"] == raw(churn["overlap_at_10"])
    assert page.values["churn.num_new_firsts"] == str(int(churn["has_new_first"]))
    counts = ("num_common_queries", "num_new_queries", "num_gone_queries")
    assert [page.values[f"churn.{name}"] for name in counts] == ["1", "3", "1"]
    volumes = [page.values[f"volumes.candidates.{name}"] for name in ("number", "usual_number", "num_nights")]
    assert volumes == ["28", "9.0", "1"]


def test_a_text_that_is_cut_ends_with_dots_whatever_its_white_space(tmp_path):
    text = "one  two\n\nthree " * 40
    write_parquet(tmp_path / "n.parquet", query_id=["q"], text=["x"], candidates=[[{"doc_id": "a", "text": text}]])
    make_finished_run(tmp_path / "x.duckdb", "r", {"q": (["a", "b"], ["b", "a"])})
    (run,) = runs_of(
        Store(tmp_path / "x.duckdb", DatabaseLimits("200MB", 1, tmp_path / "spill")).query(
            "runs/find_run", {"run_id": "r"}
        )
    )
    inputs = InputSettings(nested=str(tmp_path / "n.parquet"))
    found = open_night_input(inputs, run.night)

    texts = read_texts(replace(run, input_digest=found.digest), {"q": ["a"]}, inputs)

    shown = beginning(texts.passages["q", "a"], PASSAGE_CHARS)
    assert shown.endswith("…")
    assert len(shown) > PASSAGE_CHARS - 10


def test_checks_are_sentences_and_judged_documents_are_marked(nights, page):
    assert "Queries that the model did not rank at all, including those that killed an engine" in page.words
    assert page.shown["check_results.volume.passed"] == "passed"
    assert page.values["run_summary.ranked_by"] == "sliding by permutation over all candidates, windows of 4"
    assert "relevant 2" in page.words
    assert {"gained", "lost"} & set(page.words.split())


def test_five_queries_that_gained_and_five_that_lost_are_shown(tmp_path):
    database = tmp_path / "x.duckdb"
    gains = {f"q{number}": number / 100 for number in (-9, -7, -3, -2, 0, 1, 2, 3, 4, 5, 6, 7, 8)}
    make_finished_run(database, "r", {query: (["a", "b"], ["b", "a"]) for query in gains})
    with Store(database, DatabaseLimits("200MB", 1, tmp_path / "spill")).unit_of_work() as opened:
        for query, gain in gains.items():
            for ranking, measured in (("first_stage", 0.5), ("reranked", 0.5 + gain)):
                opened.query_text(
                    "insert into metrics (run_id, measure, query_id, ranking, value, num_queries, qrels_digest) "
                    f"values ('r', 'nDCG@10', '{query}', '{ranking}', {measured}, 1, 'd')"
                )

    page = page_of(report_run(database, "r", None))

    shown = re.findall(r"(q-?\d+)\s+nDCG", page.words)
    assert shown == ["q8", "q7", "q6", "q5", "q4", "q-9", "q-7", "q-3", "q-2"]


def test_the_page_shows_blocks_in_use_against_the_cache_and_what_limits_them(nights, page):
    """It once showed a budget of four times the cache, used to 13 %."""
    folder, run_id = nights
    (row,) = rows(folder / "var" / "test.duckdb", read_sql("summary/budget").replace("$run_id", f"'{run_id}'"))

    assert 0 < row["blocks_at_once"] < row["num_gpu_blocks"]
    assert 0 < row["cache_share"] <= 1
    assert row["most_blocks_in_use"] == 49
    assert {column: raw(value) for column, value in row.items() if f"budget.{column}" in page.values} == {
        key.partition(".")[2]: value for key, value in page.values.items() if key.startswith("budget.")
    }
    for words in ("At most 49 of the engine's ", "Limited by", "Blocks committed together"):
        assert words in page.words
    assert "Share of the budget" not in page.words


@pytest.mark.parametrize(
    ("batch", "limits", "expected"),
    [
        # prompts, prompt tokens, cached, output tokens, blocks | cache, max_num_seqs, max_num_batched_tokens
        ((580, 58_000, 0, 580, 580), (92, 256, 2_048), ("max_num_batched_tokens", 20.48, 21)),
        ((580, 58_000, 29_000, 580, 580), (92, 256, 2_048), ("max_num_batched_tokens", 40.96, 41)),
        ((580, 58_000, 0, 580, 580), (92, 8, 2_048), ("max_num_seqs", 8.0, 8)),
        ((40, 40_000, 0, 40, 400), (92, 256, 65_536), ("cache", 9.1, 91)),
        ((40, 40_000, 0, 4_000, 400), (92, 256, 2_048), ("cache", 9.1, 91)),  # long answers outlive a step
        ((4, 400, 0, 4, 4), (92, 256, 2_048), ("number of prompts", 4.0, 4)),
        ((4, 16_000, 0, 4, 128), (92, 256, 2_048), ("max_num_batched_tokens", 1.0, 32)),  # one, in several steps
    ],
)
def test_what_limits_the_sequences_at_once_is_named(tmp_path, batch, limits, expected):
    database = tmp_path / "var" / "test.duckdb"
    make_finished_run(database, "r", {"q": (["a"], ["a"])})
    with store_at(tmp_path).unit_of_work() as opened:
        names = ("num_gpu_blocks", "max_num_seqs", "max_num_batched_tokens")
        opened.query_text(
            f"update runs set {', '.join(f'{name} = {value}' for name, value in zip(names, limits, strict=True))}"
        )
        opened.query_text(
            "insert into batches (run_id, shard, batch_no, driver, num_prompts, prompt_tokens, cached_tokens, "
            "output_tokens, num_blocks, block_budget, last_block_waste_tokens, num_preemptions, submitted_at, "
            f"finished_at, engine_s) values ('r', 0, 0, 'stream', {', '.join(map(str, batch))}, 999, 0, 0, now(), now(), 1)"
        )

    (row,) = rows(database, "select * from kv_budget_use")

    assert (row["limited_by"], pytest.approx(row["seqs_at_once"]), row["blocks_at_once"]) == expected
    assert row["cache_share"] == pytest.approx(row["blocks_at_once"] / 91)
    assert row["blocks_committed_together"] == batch[-1]


def test_a_page_asks_the_network_for_nothing(nights, page):
    text = (nights[0] / "page.html").read_text(encoding="utf-8")

    assert not {"script", "iframe", "img", "object", "embed", "base", "form"} & set(page.tags)
    assert page.tags.count("link") == 1
    for name, value in page.attributes:
        if name in ("href", "src", "xlink:href"):
            assert value.startswith(("#", "data:,")), (name, value)
        assert not name.startswith("on")
    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    assert text.count("url(") == text.count("url(#")


def test_texts_and_ids_are_shown_as_they_are_and_never_run(nights, page):
    text = (nights[0] / "page.html").read_text(encoding="utf-8")

    assert SCRIPT not in text
    assert html.escape(HOSTILE_QUERY) in text
    assert f"{SCRIPT} 왜 밀물과 썰물이 있나요 {HOSTILE_QUERY}" in page.words
    assert f"</details>: {SCRIPT} & " in page.words
    assert "달과 바다" in page.words
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert page.words.count("</svg><script>a…") == 1  # beside its bar


def test_charts_are_there_once_with_ids_of_their_own_and_words(nights, page):
    drawn = ["quality", "latency", "sequences", "blocks", "budget", "waste"]

    assert [name.removeprefix("chart-") for name in page.ids if name.startswith("chart-")] == drawn
    assert len(set(page.ids)) == len(page.ids)
    assert page.tags.count("svg") == len(drawn)
    assert page.tags.count("figcaption") == len(drawn)
    assert sum(name == "aria-label" and bool(value) for name, value in page.attributes) == len(drawn) + 1
    assert "TTFT, to the first" in page.words
    assert "5,000 steps, each point the largest of about 2" in page.words


def test_the_same_run_makes_the_same_page(nights, tmp_path):
    folder, run_id = nights
    made = [report_run(folder / "var" / "test.duckdb", run_id, tmp_path / name) for name in ("a.html", "b.html")]

    assert made[0].read_bytes() == made[1].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_without_a_run_id_it_is_the_newest_finished_run_and_its_path_is_printed(nights, capsys):
    folder, run_id = nights

    main(["report", "--database", str(folder / "var" / "test.duckdb")])

    written = folder / "var" / "reports" / f"{run_id}.html"
    assert capsys.readouterr().out == f"{written}\n"
    assert f"<title>{run_id} · packrank</title>" in written.read_text(encoding="utf-8")


def test_without_a_run_id_a_trial_is_passed_over(tmp_path, capsys):
    database = tmp_path / "x.duckdb"
    make_finished_run(database, "night", {"q": (["a"], ["a"])}, hour=2)
    make_finished_run(database, "trial", {"q": (["a"], ["a"])}, hour=3, is_limited=True)

    main(["report", "--database", str(database)])

    assert capsys.readouterr().out.endswith("/night.html\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-run", "--database", "x.duckdb"], "no run 'no-run'"),
        (["--database", "x.duckdb"], "no complete or published run"),
        (["--database", "none.duckdb"], "no such database"),
    ],
)
def test_a_run_that_is_not_there_is_one_line_and_exit_code_1(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    make_finished_run(tmp_path / "x.duckdb", "dead", {"q": (["a"], ["a"])}, status="failed")

    with pytest.raises(SystemExit) as ended:
        main(["report", *arguments])

    told = capsys.readouterr().err
    assert ended.value.code == 1
    assert words in told
    assert len(told.splitlines()) == 1


def bare_page(folder, **settings):
    """The page of a run without windows, judgments, timeline and an earlier night."""
    database = folder / "x.duckdb"
    orders = {"q1": (["a", "b", "c"], ["c", "a", "b"]), "q2": (["a", "b"], ["a", "b"])}
    make_finished_run(database, "bare", orders, settings=settings)
    return page_of(report_run(database, "bare", None))


def test_what_a_run_does_not_have_is_said_in_a_sentence(tmp_path):
    page = bare_page(tmp_path)

    for words in (
        "Complete: every query has a row; not published.",
        "Quality: no judgments.",
        "Latency: no requests were sent to the engine.",
        "or run packrank study.",
        "KV-cache use: no batch was asked.",
        "Changes since the last published night: no earlier night of its name is published.",
        "1 of 2 (50%)",
        "cannot be read again, so ids only",
        "4 places",
    ):
        assert words in page.words
    assert "svg" not in page.tags
    assert page.tags.count("details") == 2  # q1, which moved, and the settings
    linked = [value[1:] for name, value in page.attributes if name == "href" and value.startswith("#")]
    assert linked == ["cuts", "movers", "provenance"]  # a section without content has no entry either
    assert set(linked) <= set(page.ids)


def test_a_run_that_failed_says_so_in_words(tmp_path):
    make_finished_run(tmp_path / "x.duckdb", "dead", {}, status="complete")
    store = Store(tmp_path / "x.duckdb", DatabaseLimits("200MB", 1, tmp_path / "spill"))
    error = "EngineError: hub https://me:secret@hub/x?token=abc is away"
    store.write(lambda database: Runs(database).finish("dead", "failed", error))

    page = page_of(report_run(store.path, "dead", None))

    assert "Failed." in page.words
    assert page.shown["trouble"] == "EngineError: hub https://***@hub/x?*** is away"


def test_input_of_another_day_stands_at_the_head_of_page_and_summary(tmp_path):
    warning = "candidates: dt=2026-11-27 is 2 days older than the night 2026-11-29."
    make_finished_run(tmp_path / "x.duckdb", "r", {"q": (["a"], ["a"])}, input_warnings=[warning])
    store = Store(tmp_path / "x.duckdb", DatabaseLimits("200MB", 1, tmp_path / "spill"))

    page = page_of(report_run(store.path, "r", None))
    first = summarise(store, "r")[0]

    assert page.shown["notice"].strip() == warning  # behind the title, which is a tag of its own
    assert (first.title, first.rows) == ("Input of another day", ((warning,),))


@pytest.mark.parametrize("change", ["changed", "gone"])
def test_inputs_that_are_no_longer_what_they_were_leave_ids_and_a_line(tmp_path, change):
    inputs = {key.removeprefix("inputs."): path for key, path in write_inputs(tmp_path / "in", {"q1": 3}).items()}
    if change == "gone":
        (tmp_path / "in" / "documents.parquet").unlink()

    page = bare_page(tmp_path, inputs=inputs)

    assert ("have changed since" if change == "changed" else "cannot be read again") in page.shown["movers_note"]
    assert "밀물" not in page.words


def test_secrets_in_settings_stay_there(tmp_path):
    url = "nowhere://me:pass@word@host/x?token=abc"
    page = bare_page(tmp_path, inputs={"nested": url}, engine={"hf_token": "hf_abc", "max_model_len": 64})

    assert page.shown["settings.inputs.nested"] == "nowhere://***@host/x?***"
    assert page.shown["settings.engine.hf_token"] == "***"
    assert page.shown["settings.engine.max_model_len"] == "64"
    text = (tmp_path / "reports" / "bare.html").read_text(encoding="utf-8")
    for secret in ("word@", "token=abc", "hf_abc"):
        assert secret not in text
    assert hide_url_secrets("a s3://k:s@b/x?y=1 b") == "a s3://***@b/x?*** b"


def test_a_page_that_cannot_be_made_is_a_warning(tmp_path, caplog):
    make_finished_run(tmp_path / "x.duckdb", "one", {"q": (["a"], ["a"])})
    store = Store(tmp_path / "x.duckdb", DatabaseLimits("200MB", 1, tmp_path / "spill"))
    (tmp_path / "reports").write_text("in the way", encoding="utf-8")

    with caplog.at_level(logging.WARNING, "tasks"):
        assert report_night(store, "one") is None

    (record,) = caplog.records
    assert "run_id=one has no report page: PackrankError: " in record.getMessage()
    (tmp_path / "reports").unlink()
    assert report_night(store, "one") == Workspace(store.path).report("one")


def test_passages_of_the_nested_layout_are_the_querys_own(tmp_path):
    lists = [[{"doc_id": "d", "text": f"{query} 글", "score": 1.0}, {"doc_id": "e", "text": None}] for query in "ab"]
    write_parquet(tmp_path / "n.parquet", query_id=["a", "b"], text=["x", "y"], candidates=lists)
    path = str(tmp_path / "n.parquet")
    opened = open_input("nested", path, nested_columns({}), Wanted(date(2026, 1, 1)), allow_empty=False)

    found = find_passages(opened, {"b": ["d", "e"], "nobody": ["d"]}, 100)

    assert found == {("b", "d"): "b 글", ("b", "e"): ""}


@pytest.mark.parametrize("num_queries", [1, 30, 31, 5_000])
def test_a_chart_of_any_number_of_queries_is_small(num_queries):
    rows = [{"query_id": f"q{number}", "difference": 0.5 - number / num_queries} for number in range(num_queries)]

    chart = charts.difference_chart(rows, "nDCG@10")

    assert len(chart.svg) < 250_000
    assert ("q0" in chart.svg) == (num_queries <= 30)
    assert "currentColor" in chart.svg
    assert "#010203" not in chart.svg


def test_an_id_in_a_chart_is_no_markup_and_no_formula():
    hostile = "</svg>\x00\ufffe$\\frac$"
    chart = charts.difference_chart([{"query_id": hostile, "difference": 0.0}], "nDCG@10")

    assert "&lt;/svg&gt;  $\\frac$" in chart.svg
    assert chart.svg.count("</svg>") == 1


def test_help_names_the_page(capsys):
    main(["report", "--help"])

    assert "no network" in " ".join(capsys.readouterr().out.split())


def test_settings_on_the_page_are_those_of_the_run(nights, page):
    folder, run_id = nights
    (row,) = rows(folder / "var" / "test.duckdb", f"select settings, resolved from runs where run_id = '{run_id}'")

    assert page.shown["settings.strategy.window_size"] == str(json.loads(row["settings"])["strategy"]["window_size"])
    assert {f"resolved.{name}" for name in json.loads(row["resolved"])} <= {
        ".".join(key.split(".")[:2]) for key in page.shown
    }


# ---- in a real browser, from disk


@pytest.fixture(scope="module")
def pages(nights, tmp_path_factory):
    """A page with everything on it, and one with almost nothing."""
    folder, run_id = nights
    bare = tmp_path_factory.mktemp("bare")
    make_finished_run(bare / "x.duckdb", "bare", {"q" * 200: (["d" * 300, "e"], ["e", "d" * 300])})
    return {
        "full": report_run(folder / "var" / "test.duckdb", run_id, bare / "full.html"),
        "bare": report_run(bare / "x.duckdb", "bare", None),
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["full", "bare"])
def test_a_page_opens_from_disk_in_silence_and_needs_no_sideways_scrolling(browser, pages, name, width, scheme):
    url = pages[name].as_uri()

    browser.open(url, width, scheme)
    browser.value("document.querySelectorAll('details').forEach(each => each.open = true)")

    assert browser.value("document.documentElement.scrollWidth") <= width
    wider = "[...document.querySelectorAll('.table')].filter(each => each.scrollWidth > each.clientWidth + 1)"
    assert browser.value(f"{wider}.map(each => each.innerText.slice(0, 40))") == []
    requested = [told["request"]["url"] for method, told in browser.told if method == "Network.requestWillBeSent"]
    assert [each for each in requested if not each.startswith("data:")] == [url]
    assert [told for method, told in browser.told if method != "Network.requestWillBeSent"] == []


@pytest.mark.parametrize("width", [390, 1280])
def test_no_chart_is_cut_off_and_no_label_lies_on_another(browser, pages, width):
    browser.open(pages["full"].as_uri(), width, "light")
    assert browser.value(OUTSIDE) == []
    assert browser.value(OVERLAPPING) == []
    assert browser.value("document.querySelectorAll('svg').length") == 6


def test_dark_is_dark_and_the_charts_follow(browser, pages):
    def brightness(expression):
        return sum(int(each) for each in re.findall(r"\d+", browser.value(expression))[:3])

    seen = {}
    for scheme in ("light", "dark"):
        browser.open(pages["full"].as_uri(), 1280, scheme)
        seen[scheme] = (
            brightness("getComputedStyle(document.body).backgroundColor"),
            brightness("getComputedStyle(document.querySelector('svg text')).fill"),
        )

    assert seen["light"][0] > 600 > 200 > seen["light"][1]
    assert seen["dark"][0] < 200 < 600 < seen["dark"][1]
