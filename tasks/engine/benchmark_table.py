"""Whether a serving benchmark's table can be true: two rules that its own figures must obey.

    P99 E2EL   is not above the duration of the benchmark
    mean E2EL  is not below mean TTFT + (mean output tokens - 1) x mean TPOT

The second is exact where all answers have the same length. Otherwise length and TPOT vary together, and their
covariance is part of the sum: pass it, or the least that it can be, where it is known. Knows nothing of engines.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tasks.system.errors import InputError

ROUNDING_S = 0.01  # durations are printed to hundredths of a second
ROUNDING_SHARE = 0.005  # figures are quoted to three digits
NEEDED = ("duration", "completed", "total_output_tokens")
NEEDED_MS = ("mean_ttft_ms", "mean_tpot_ms", "mean_e2el_ms", "p99_e2el_ms")
MS = 1000.0


@dataclass(frozen=True, slots=True)
class BenchmarkTable:
    """The figures that the rules need; None where the table has no such figure."""

    duration_s: float
    mean_output_tokens: float
    mean_ttft_s: float | None
    mean_tpot_s: float | None  # None: answers of one token
    mean_e2el_s: float | None
    p99_e2el_s: float | None
    covariance_s: float | None = None  # of answer length and TPOT, or the least that it can be; None: not known

    def broken_rules(self) -> list[str]:
        """A sentence for each rule that the table breaks."""
        return [told for told in (self._late_request(), self._short_mean()) if told is not None]

    def _late_request(self) -> str | None:
        if self.p99_e2el_s is None or self.p99_e2el_s <= self.duration_s + ROUNDING_S:
            return None
        return (
            f"P99 E2EL {_ms(self.p99_e2el_s)} is above the duration of the benchmark, {_ms(self.duration_s)}: "
            "no request can take longer than all of them together."
        )

    def _short_mean(self) -> str | None:
        if self.mean_ttft_s is None or self.mean_e2el_s is None:
            return None
        decode_s = (self.mean_output_tokens - 1) * self.mean_tpot_s if self.mean_tpot_s is not None else 0.0
        least_s = self.mean_ttft_s + decode_s + min(self.covariance_s or 0.0, 0.0)
        if self.mean_e2el_s >= least_s - ROUNDING_S - ROUNDING_SHARE * least_s:
            return None
        told = (
            f"Mean E2EL {_ms(self.mean_e2el_s)} is below {_ms(least_s)}: mean TTFT {_ms(self.mean_ttft_s)} + "
            f"{self.mean_output_tokens - 1:,.1f} further tokens x mean TPOT {(self.mean_tpot_s or 0.0) * MS:,.2f} ms"
        )
        if self.covariance_s is None:
            return f"{told}. Only a TPOT that falls with the length of the answer could explain it."
        return f"{told}, with {_ms(self.covariance_s)} allowed for a TPOT that falls with the length of the answer."


def table_of_run(serving: Mapping[str, Any]) -> BenchmarkTable:
    """Of a run's row of summary/serving, which knows the covariance to the digit."""
    tokens = serving["mean_output_tokens"]
    return BenchmarkTable(
        duration_s=serving["duration_s"] or 0.0,
        mean_output_tokens=1.0 if tokens is None else tokens,
        mean_ttft_s=serving["mean_ttft_s"],
        mean_tpot_s=serving["mean_tpot_s"],
        mean_e2el_s=serving["mean_e2el_s"],
        p99_e2el_s=serving["p99_e2el_s"],
        covariance_s=serving["length_tpot_covariance_s"] or 0.0,
    )


def read_vllm_results(path: Path) -> list[BenchmarkTable]:
    """Reads what `vllm bench serve --save-result` wrote; with `--append-result` the file holds several.

    Field names are those of vllm/benchmarks/serve.py (vLLM 0.32).

    Raises:
        InputError: no such file, not JSON, or a figure is missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None
    found, decoder, place = [], json.JSONDecoder(), 0
    while text[place:].strip():
        place += len(text[place:]) - len(text[place:].lstrip())
        try:
            result, place = decoder.raw_decode(text, place)
        except ValueError as error:
            raise InputError(f"{path}: not the JSON of vllm bench serve --save-result: {error}") from None
        found += result if isinstance(result, list) else [result]
    if not found:
        raise InputError(f"{path}: the file is empty. vllm bench serve --save-result writes it.")
    return [_table(f"{path}: result {number}", result) for number, result in enumerate(found, 1)]


def _table(where: str, result: Any) -> BenchmarkTable:
    if not isinstance(result, dict):
        raise InputError(f"{where}: a JSON object was expected, found {type(result).__name__}.")
    for name in (*NEEDED, *NEEDED_MS):
        value = result.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            hint = " Run with --percentile-metrics ttft,tpot,itl,e2el --metric-percentiles 99." if "_ms" in name else ""
            raise InputError(f"{where}: {name} is {'missing' if value is None else 'not a number'}.{hint}")
    if result["completed"] <= 0:
        raise InputError(f"{where}: completed is {result['completed']}: no request was answered.")
    ttft, tpot, e2el, p99 = (result[name] / MS for name in NEEDED_MS)
    lengths, spread = result.get("output_lens"), result.get("std_tpot_ms")
    covariance = None if not lengths or spread is None else -float(np.std(lengths)) * spread / MS
    mean_tokens = result["total_output_tokens"] / result["completed"]
    return BenchmarkTable(result["duration"], mean_tokens, ttft, tpot, e2el, p99, covariance)


def _ms(seconds: float) -> str:
    return f"{seconds * MS:,.0f} ms"
