"""Input that is staged for a test, by a tokenizer of words."""

from datetime import date

import numpy as np
import pyarrow.parquet as pq

from tasks.inputs.candidates import CandidateLimits
from tasks.inputs.staging import open_night_input, stage_input
from tasks.prompt.tokens import EncodedTexts
from tasks.settings import InputSettings
from tasks.system.database import DatabaseLimits

NIGHT = date(2026, 11, 29)


class WordTokens:
    """A tokenizer by words: word number n of a text is token n."""

    def count_query_tokens(self, texts):
        return np.array([len(text.split()) for text in texts], np.int32)

    def passage_lines(self, titles, texts):
        return [f"{title or ''} {text}" if text.strip() else "" for title, text in zip(titles, texts, strict=True)]

    def encode_lines(self, lines):
        lengths = [len(line.split()) for line in lines]
        ids = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
        return EncodedTexts(ids, np.array(lengths, np.int64))


def stage(tmp_path, paths, *, limits=None, max_passage_tokens=256, **inputs):
    given = {key.removeprefix("inputs."): value for key, value in paths.items()}
    found = open_night_input(InputSettings(**(given | inputs)), NIGHT)
    return stage_input(
        found,
        tmp_path / "staging",
        WordTokens(),
        limits
        or CandidateLimits(
            inputs.get("rank_base", 1),
            inputs.get("top_k"),
            0.2,
            None,
            50,
            order_by=inputs.get("order_by"),
            lower_score_is_better=inputs.get("lower_score_is_better", False),
        ),
        max_passage_tokens,
        DatabaseLimits("300MB", 2, tmp_path / "spill"),
    )


def partitioned(tmp_path, paths, nights):
    table = pq.read_table(paths["inputs.candidates"])
    for number, night in enumerate(nights):
        folder = tmp_path / "hive" / f"dt={night}"
        folder.mkdir(parents=True)
        pq.write_table(table.slice(0, 3 + number), folder / "part-0.parquet")
    return paths | {"inputs.candidates": str(tmp_path / "hive")}


def lists(staged):
    """Each query's documents, best first."""
    doc_ids = staged.doc_ids.to_pylist()
    return {
        query_id: [doc_ids[number] for number in staged.doc_index[staged.offsets[place] : staged.offsets[place + 1]]]
        for place, query_id in enumerate(staged.query_ids)
    }
