"""A study that is small enough for a test."""

from tests.makers import make_inputs, make_settings, write_parquet

LISTS = [30, 24, 0, 1]


def make_study(folder, model_folder, **settings):
    """A study of three lists, its arms twice."""
    inputs = make_inputs(folder / "in", LISTS)
    write_parquet(
        folder / "in" / "qrels.parquet",
        query_id=["q000", "q000", "q001", "q001"],
        doc_id=["d0003", "d0009", "d0001", "d0020"],
        relevance=[2, 1, 3, 1],
    )
    values = {
        "strategy.name": None,
        "strategy.decode_mode": None,
        "strategy.window_size": None,
        "strategy.stride": None,
        "strategy.retries": 0,
        "prompt.max_passage_tokens": 16,
        "engine.max_model_len": 2048,
        "engine.max_num_batched_tokens": 1024,
        "inputs.qrels": str(folder / "in" / "qrels.parquet"),
        "study.limit_queries": 4,
        "study.repeats": 2,
        "study.quality_queries": 4,
        "study.window_sizes": [6],
        "study.max_num_seqs": [8],
        "study.max_num_batched_tokens": 8192,
        "study.without_prefix_caching": False,  # an engine less; what is said of it: tests/unit/test_study_claims.py
    }
    return make_settings(folder, model_folder, inputs | values | settings)
