"""RankLLM, packrank and bare `LLM.generate` on the same lists: DL19, 8 queries x 40, window 20, stride 10.

    python -m tests.benchmarks.peer [--repeats 3] [--queries 8] [--candidates 40] [--variants first_token ...]

Takes whatever `rank_llm` is importable, and says so if none is. All contestants get the same texts, cut beforehand to 128
tokens, and the same engine settings, each in an engine process of its own, loaded and warmed up on other queries; only the
ranking call is timed. RankLLM writes permutations of exactly 90 tokens (min_tokens = max_tokens). Ours is timed as it is
(`first_token`, `permutation`, which stops where the model does) and made to write the same 90. Bare calls ask the prompts
that ours asked, with the same sampling parameters, one call a round, right after ours.
"""

import argparse
import asyncio
import importlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
from tokenizers import Tokenizer

from tasks.engine.process import engine_on_demand
from tasks.prompt.answer_forms import AnswerForm
from tasks.system.environment import STATE, engine_environment
from tests.benchmarks.common import (
    SAMPLE_ENGINE,
    BareCalls,
    BareEngine,
    NotHere,
    median,
    options_of,
    prepare,
    rank_night,
    recording,
    rounds_of,
    run_bench,
    run_child,
    sample_model,
    scratch_folder,
)
from tests.conftest import find_test_data
from tests.makers import SAMPLE_MODEL, write_parquet

CUT_TOKENS = 128
CONTEXT_TOKENS, PERMUTATION_TOKENS = 4096, 90  # RankLLM counts the identifiers of a window of 20: 90 of these tokens
WINDOW = {"strategy.window_size": 20, "strategy.stride": 10, "strategy.retries": 0}  # RankLLM asks none again
ENGINE = {
    "enforce_eager": True,
    "dtype": "bfloat16",
    "gpu_memory_utilization": 0.5,
    "kv_cache_memory_bytes": 2 << 30,  # some 90,000 tokens: no contestant's prompts wait for the cache
    "max_num_seqs": 256,
    "max_num_batched_tokens": 4096,
    "enable_prefix_caching": False,  # a second repeat would find the first one's prompts
}
VARIANTS = {"first_token": None, "permutation": None, "permutation_90": AnswerForm(PERMUTATION_TOKENS)}
NO_END = "tests.benchmarks.no_end:NoEnd"  # for requests of at most 90 tokens: others end where they want to
FULL, WARM = "full", "warm"


def bench(repeats: int, num_queries: int, num_candidates: int, variants: Sequence[str]):
    sample_model()
    try:
        importlib.import_module("rank_llm")
    except ImportError as error:
        raise NotHere(
            f"no rank_llm is importable: put one on PYTHONPATH (its repository's src folder will do): {error}"
        ) from error
    with scratch_folder() as folder:
        _write_lists(folder, num_queries, num_candidates)
        seen = [_one_repeat(folder, variants) for _ in range(repeats)]
    rows = [{"what": name, **_row([each[name] for each in seen], num_queries * num_candidates)} for name in seen[0]]
    figures = {"repeats": repeats, "queries": num_queries, "candidates": num_candidates, "engine": ENGINE}
    for name in variants:
        last = seen[-1][name]
        figures |= {
            f"{name}_tokens_a_prompt": round(last["output_tokens"] / last["prompts"], 1),
            f"rank_llm_s_over_{name}_s": _ratio(seen, "rank_llm", name),
            f"{name}_s_over_bare_s": _ratio(seen, name, f"bare {name}"),
        }
    return figures, rows


def _one_repeat(folder: Path, variants: Sequence[str]):
    """Each contestant once: what drifts in the machine meets all of them."""
    quiet = engine_environment(STATE, folder / "tmp", model_is_folder=True, enforce_eager=True)
    quiet.pop("VLLM_ENABLE_V1_MULTIPROCESSING")  # RankLLM's engine is asynchronous, in a process of its own
    rank_llm = run_child("tests.benchmarks.peer", "--rank-llm", folder, environment=quiet)
    return {"rank_llm": rank_llm, **run_child("tests.benchmarks.peer", "--ours", folder, *variants)}


def _row(each: list[dict], num_documents: int):
    seconds = [one["s"] for one in each]
    last = each[-1]
    told = {name: last[name] for name in ("prompts", "prompt_tokens", "output_tokens", "reordered") if name in last}
    per_s = median([num_documents / one for one in seconds], 2)
    return (
        {"s": median(seconds, 2), "least_s": round(min(seconds), 2), "most_s": round(max(seconds), 2)}
        | {"documents_per_s": per_s}
        | told
    )


def _ratio(seen: list[dict], slow: str, fast: str):
    """The median of the repeats' ratios of seconds."""
    return median([each[slow]["s"] / each[fast]["s"] for each in seen])


def _write_lists(folder: Path, num_queries: int, num_candidates: int) -> None:
    """The first queries of DL19, and two others to warm up on, their passages cut for all contestants alike."""
    data = find_test_data()
    if data is None or not (data / "dl19").is_dir():
        raise NotHere("no dl19 among the test collections: set PACKRANK_TEST_DATA to their folder")
    queries, documents, candidates = (
        pq.read_table(data / "dl19" / f"{name}.parquet").to_pylist() for name in ("queries", "documents", "candidates")
    )
    texts = {row["doc_id"]: row["text"] for row in documents}
    chosen = {FULL: (queries[:num_queries], num_candidates), WARM: (queries[-2:], min(20, num_candidates))}
    for name, (some, most) in chosen.items():
        ids = {row["query_id"] for row in some}
        rows = [row for row in candidates if row["query_id"] in ids and row["rank"] <= most]
        shown = sorted({row["doc_id"] for row in rows})
        write_parquet(folder / name / "queries.parquet", **_columns(some, ("query_id", "text")))
        write_parquet(folder / name / "candidates.parquet", **_columns(rows, ("query_id", "doc_id", "rank", "score")))
        write_parquet(folder / name / "documents.parquet", doc_id=shown, text=_cut([texts[each] for each in shown]))


def _columns(rows: list[dict], names: tuple[str, ...]):
    return {name: [row[name] for row in rows] for name in names}


def _cut(texts: list[str]) -> list[str]:
    encoded = Tokenizer.from_file(str(SAMPLE_MODEL / "tokenizer.json")).encode_batch(texts, add_special_tokens=False)
    return [
        text if len(each.ids) <= CUT_TOKENS else text[: each.offsets[CUT_TOKENS - 1][1]]
        for text, each in zip(texts, encoded, strict=True)
    ]


# ---- ours, and bare calls of its prompts -------------------------------------------------------------------------


def run_ours(folder: Path, variants: Sequence[str]) -> None:
    """Child: every variant on one engine, and its bare calls on another right after it, each at rest meanwhile."""
    nights = {name: _nights(folder, name, VARIANTS[name]) for name in variants}
    options = options_of(nights[variants[0]][FULL], folder)
    forcing = replace(options, keywords={**options.keywords, "logits_processors": [NO_END]})
    ours, bare = {}, {}
    with engine_on_demand(forcing, 1, lambda _: None) as engine, BareEngine(options, folder) as bare_engine:
        for name, by_list in nights.items():
            rank_night(by_list[WARM], engine)
            prepared, prompts = recording(by_list[FULL], VARIANTS[name])
            ranked = rank_night(prepared, engine)
            ours[name] = {"s": ranked.makespan_s, "prompts": len(prompts), "prompt_tokens": ranked.prompt_tokens}
            ours[name] |= {"output_tokens": ranked.output_tokens, "batches": ranked.num_batches}
            forced = PERMUTATION_TOKENS if VARIANTS[name] else 0
            bare |= bare_engine.time([BareCalls(f"bare {name}", prompts, rounds_of(prompts), forced)])
    print(json.dumps(ours | bare))


def _nights(folder: Path, variant: str, form: AnswerForm | None):
    nights = {}
    for name in (FULL, WARM):
        values = {
            f"inputs.{each}": str(folder / name / f"{each}.parquet") for each in ("queries", "documents", "candidates")
        }
        values |= {f"engine.{key}": value for key, value in ENGINE.items()} | WINDOW
        values |= {"engine.max_model_len": CONTEXT_TOKENS + PERMUTATION_TOKENS, "prompt.max_passage_tokens": 160}
        values |= {"strategy.decode_mode": variant.removesuffix("_90"), "prompt.max_query_tokens": 128}
        work = folder / f"{variant}-{name}-{time.monotonic_ns()}"
        nights[name] = prepare(work, values | SAMPLE_ENGINE)
        if form is not None and name == WARM:
            nights[name], _ = recording(nights[name], form)
    return nights


# ---- RankLLM -----------------------------------------------------------------------------------------------------


def run_rank_llm(folder: Path) -> None:
    """Child: RankLLM's own engine and prompts; warm-up and timed call in one event loop, since its engine is bound to it."""
    from rank_llm.rerank import vllm_handler
    from rank_llm.rerank.listwise.rank_listwise_os_llm import RankListwiseOSLLM

    class Handler(vllm_handler.VllmHandler):
        """RankLLM's, with our engine settings over its own."""

        def __init__(self, **keywords):
            super().__init__(**keywords | ENGINE)

    vllm_handler.VllmHandler = Handler
    reranker = RankListwiseOSLLM(
        model=str(SAMPLE_MODEL), context_size=CONTEXT_TOKENS, device="cpu", window_size=20, stride=10
    )
    print(json.dumps(asyncio.run(_rerank(reranker, folder))), flush=True)


async def _rerank(reranker, folder: Path):
    await reranker.rerank_batch_async(_requests(folder / WARM), rank_end=40)
    requests = _requests(folder / FULL)
    most = max(len(request.candidates) for request in requests)
    started = time.monotonic()
    results = await reranker.rerank_batch_async(requests, rank_end=most, populate_invocations_history=True)
    seconds = time.monotonic() - started
    asked = [each for result in results for each in result.invocations_history]
    orders = [[each.docid for each in result.candidates] for result in results]
    before = [[each.docid for each in request.candidates] for request in _requests(folder / FULL)]
    if [sorted(each) for each in orders] != [sorted(each) for each in before]:
        raise SystemExit("rank_llm lost or doubled documents")
    return {
        "s": seconds,
        "prompts": len(asked),
        "prompt_tokens": sum(each.input_token_count for each in asked),
        "output_tokens": sum(each.output_token_count for each in asked),
        "reordered": sum(one != other for one, other in zip(orders, before, strict=True)),
    }


def _requests(folder: Path):
    from rank_llm.data import Candidate, Query, Request

    queries, documents, candidates = (
        pq.read_table(folder / f"{name}.parquet").to_pylist() for name in ("queries", "documents", "candidates")
    )
    texts = {row["doc_id"]: row["text"] for row in documents}
    found = []
    for query in queries:
        rows = [row for row in candidates if row["query_id"] == query["query_id"]]
        rows.sort(key=lambda row: row["rank"])
        docs = [Candidate(row["doc_id"], row["score"], {"text": texts[row["doc_id"]]}) for row in rows]
        found.append(Request(Query(query["text"], query["query_id"]), docs))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--queries", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=40)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    asked = parser.parse_args()
    run_bench("peer", lambda: bench(asked.repeats, asked.queries, asked.candidates, asked.variants))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ours"]:
        run_ours(Path(sys.argv[2]), sys.argv[3:])
    elif sys.argv[1:2] == ["--rank-llm"]:
        run_rank_llm(Path(sys.argv[2]))
    else:
        main()
