"""Two rules that every serving benchmark's table obeys, on the article's figures, on drawn ones and from the command."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.cli import main
from tasks.engine.benchmark_table import NEEDED, BenchmarkTable, read_vllm_results, table_of_run
from tasks.system.errors import InputError

ARTICLE = {  # as the article prints it; 126.6 tokens after the first
    "duration": 66.09,
    "completed": 100,
    "total_output_tokens": 12_760,
    "mean_ttft_ms": 32_600.0,
    "mean_tpot_ms": 81.67,
    "mean_e2el_ms": 37_400.0,
    "p99_e2el_ms": 66_713.0,
}


def results_of(ttft_s, tpot_s, lengths):
    """What `vllm bench serve` would write of requests that all start at 0."""
    e2el = ttft_s + (lengths - 1) * tpot_s
    many = lengths > 1
    return {
        "duration": round(float(e2el.max()), 2),
        "completed": len(lengths),
        "total_output_tokens": int(lengths.sum()),
        "mean_ttft_ms": float(ttft_s.mean()) * 1000,
        "mean_tpot_ms": float(tpot_s[many].mean()) * 1000 if many.any() else 0.0,
        "std_tpot_ms": float(tpot_s[many].std()) * 1000 if many.any() else 0.0,
        "mean_e2el_ms": float(e2el.mean()) * 1000,
        "p99_e2el_ms": float(np.percentile(e2el, 99)) * 1000,
    }


def write(folder, *results):
    path = folder / "results.json"
    path.write_text("\n".join(json.dumps(each) for each in results), encoding="utf-8")
    return path


def test_the_articles_table_breaks_both_rules(tmp_path):
    (table,) = read_vllm_results(write(tmp_path, ARTICLE))

    late, short = table.broken_rules()

    assert "P99 E2EL 66,713 ms is above the duration of the benchmark, 66,090 ms" in late
    assert "Mean E2EL 37,400 ms is below 42,939 ms" in short
    assert "126.6 further tokens x mean TPOT 81.67 ms" in short


@pytest.mark.parametrize(
    ("changed", "num_broken"),
    [
        ({"p99_e2el_ms": 66_090.0}, 1),
        ({"mean_e2el_ms": 42_900.0}, 1),  # 42.9 s as it is quoted: within rounding of 42.94
        ({"p99_e2el_ms": 66_000.0, "mean_e2el_ms": 43_000.0}, 0),
    ],
)
def test_each_rule_is_about_its_own_figures(tmp_path, changed, num_broken):
    (table,) = read_vllm_results(write(tmp_path, ARTICLE | changed))

    assert len(table.broken_rules()) == num_broken


@given(st.integers(0, 10_000), st.integers(1, 60), st.integers(1, 200))
def test_true_tables_pass(number, num_requests, num_tokens):
    rng = np.random.default_rng(number)
    ttft, tpot = rng.uniform(0.01, 40, num_requests), rng.uniform(0.001, 0.3, num_requests)
    result = results_of(ttft, tpot, np.full(num_requests, num_tokens))
    tokens = result["total_output_tokens"] / result["completed"]
    means = [result[f"mean_{name}_ms"] / 1000 for name in ("ttft", "tpot", "e2el")]

    assert BenchmarkTable(result["duration"], tokens, *means, result["p99_e2el_ms"] / 1000).broken_rules() == []


def test_short_answers_with_long_gaps_are_no_lie_where_the_lengths_are_known(tmp_path):
    """Half of the answers short and slow, half long and fast: the mean of products is below the product of means."""
    lengths, tpot = np.array([2, 400] * 20), np.array([0.5, 0.01] * 20)
    result = results_of(np.full(40, 0.2), tpot, lengths)

    (unknown,) = read_vllm_results(write(tmp_path, result))
    (known,) = read_vllm_results(write(tmp_path, result | {"output_lens": lengths.tolist()}))

    assert "falls with the length" in unknown.broken_rules()[0]
    assert known.broken_rules() == []


def test_a_runs_own_covariance_is_part_of_the_sum():
    lengths, tpot = np.array([2, 400]), np.array([0.5, 0.01])
    serving = {
        "duration_s": 10.0,
        "mean_output_tokens": 201.0,
        "mean_ttft_s": 0.2,
        "mean_tpot_s": 0.255,
        "mean_e2el_s": 0.2 + (0.5 + 399 * 0.01) / 2,
        "p99_e2el_s": 5.0,
        "length_tpot_covariance_s": float(np.cov(lengths, tpot, bias=True)[0, 1]),
    }

    assert table_of_run(serving).broken_rules() == []
    assert table_of_run(serving | {"length_tpot_covariance_s": None}).broken_rules() != []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "empty"),
        ("[1]", "JSON object was expected, found int"),
        ("no json", "not the JSON of vllm bench serve"),
        (json.dumps(ARTICLE | {"completed": 0}), "no request was answered"),
        (json.dumps({**ARTICLE, "duration": "66"}), "duration is not a number"),
        (json.dumps({k: v for k, v in ARTICLE.items() if "e2el" not in k}), "--percentile-metrics ttft,tpot,itl,e2el"),
    ],
)
def test_a_file_that_is_no_result_is_refused_with_what_to_do(tmp_path, text, told):
    path = tmp_path / "results.json"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(InputError, match=told):
        read_vllm_results(path)


def test_the_command_checks_every_result_of_a_file_and_starts_nothing(tmp_path, capsys):
    true = ARTICLE | {"p99_e2el_ms": 60_000.0, "mean_e2el_ms": 43_000.0}
    path = write(tmp_path, true, ARTICLE)

    with pytest.raises(SystemExit) as ended:
        main(["study", "--check-table", str(path)])

    told = capsys.readouterr()
    out = " ".join(told.out.split())
    assert ended.value.code == 4
    assert "Both rules hold" in out
    assert "66,713 ms" in out
    assert "1 of 2 results cannot be true" in told.err
    assert list(tmp_path.iterdir()) == [path]


def test_the_fields_are_those_that_the_installed_vllm_writes():
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed")
    source = Path(found.origin).with_name("benchmarks") / "serve.py"
    if not source.exists():
        pytest.skip("this vLLM has no benchmarks")

    text = source.read_text(encoding="utf-8")

    assert [name for name in (*NEEDED, "output_lens") if f'"{name}":' not in text] == []
    for form in (
        "mean_{metric_attribute_name}_ms",
        "std_{metric_attribute_name}_ms",
        "p{p_word}_{metric_attribute_name}_ms",
    ):
        assert f'f"{form}"' in text
