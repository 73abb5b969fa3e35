"""What a night's model taught, as rows to train another model on: lists that it ordered, pairs, single passages.

The first columns of each form are what trainers read, by their names; the others say where a row is from. Pure: knows
nothing of databases and files.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import pyarrow as pa

from tasks.prompt.templates import PASSAGE_MARK, QUERY_MARK, PromptTemplate

Row = Mapping[str, Any]
TrainingForm = Literal["listwise", "pairwise", "pointwise"]

MAX_LETTERS = 26  # RankLLM's trainer reads the answer's letters from A on, and stumbles behind Z
TURN = pa.struct([("from", pa.string()), ("value", pa.string())])
SOURCE = [
    *(("query_id", pa.string()), ("run_id", pa.string())),
    *(("teacher", pa.string()), ("teacher_identity", pa.string()), ("prompt_digest", pa.string())),
]
WINDOW = [
    *(("round", pa.int32()), ("window_no", pa.int32()), ("attempt", pa.int32()), ("decode_mode", pa.string())),
]
SCHEMAS: Mapping[TrainingForm, pa.Schema] = {
    "listwise": pa.schema(
        [
            *(("query", pa.string()), ("docs", pa.list_(pa.string())), ("labels", pa.list_(pa.float64()))),
            *(("soft_labels", pa.list_(pa.float64())), ("order", pa.list_(pa.int32())), ("num_listed", pa.int32())),
            *(("conversations", pa.list_(TURN)), ("doc_ids", pa.list_(pa.string())), *SOURCE, *WINDOW),
        ]
    ),
    "pairwise": pa.schema(
        [
            *(("query", pa.string()), ("positive", pa.string()), ("negative", pa.string())),
            *(("label", pa.float64()), ("soft_label", pa.float64())),
            *(("positive_id", pa.string()), ("negative_id", pa.string()), *SOURCE, *WINDOW),
        ]
    ),
    "pointwise": pa.schema(
        [
            *(("query", pa.string()), ("passage", pa.string()), ("label", pa.float64()), ("soft_label", pa.float64())),
            *(("doc_id", pa.string()), ("rank", pa.int32()), ("first_stage_rank", pa.int32()), *SOURCE),
        ]
    ),
}


@dataclass(frozen=True, slots=True)
class TaughtList:
    """Candidates that the model put in order: those of a window, or of a round in which each was judged alone."""

    run_id: str  # that asked
    round: int
    window_no: int | None  # None where each was judged alone
    attempt: int | None
    decode_mode: str
    docs: tuple[int, ...]  # places in the query's first-stage order, as the prompt had them
    order: tuple[int, ...]  # places in `docs`, best first; those not named at the end
    num_listed: int  # of `order`, the first so many were named
    logprobs: tuple[float, ...] | None  # by place in `docs`; None where there are none, or one is not finite

    @property
    def labels(self) -> list[float]:
        """By place in `docs`: one over the place in the answer, 0 for what was not named."""
        labels = [0.0] * len(self.docs)
        for answered, place in enumerate(self.order[: self.num_listed]):
            labels[place] = 1.0 / (answered + 1)
        return labels


@dataclass(frozen=True, slots=True)
class TaughtQuery:
    """A query with the texts of its candidates, and all that the model said of it."""

    source: Row  # the columns of SOURCE
    text: str
    ranked: Sequence[Row]  # rank | first_stage_rank | doc_id, best first: those that the model placed
    doc_ids: Mapping[int, str]  # by place in the first-stage order, from 0
    passages: Mapping[str, str]  # by doc_id
    answers: Sequence[Row]  # as sql/evaluation.sql lists them

    def passage(self, doc: int) -> str:
        """The text of a candidate."""
        return self.passages[self.doc_ids[doc]]


def fell_back(answer: Row) -> bool:
    """Whether a window's answer named fewer than half of what it had to, as the view `fallbacks` has it."""
    return bool(answer["num_missing"] > answer["num_listed"])


def taught_lists(answers: Iterable[Row]) -> Iterator[TaughtList]:
    """The lists of a query's answers, which are sorted by round; windows that fell back teach nothing."""
    usable = (answer for answer in answers if not fell_back(answer))
    for _, of_round in groupby(usable, key=lambda answer: answer["round"]):
        alone = []
        for answer in of_round:
            if len(answer["docs"]) > 1:
                yield _of_window(answer)
            else:
                alone.append(answer)
        if len({answer["docs"][0] for answer in alone}) > 1:
            yield _of_judgments(alone)


def listwise_rows(query: TaughtQuery, template: PromptTemplate) -> Iterator[dict[str, Any]]:
    """A row a list, its documents as the prompt had them; `template` has the words of `conversations`."""
    for taught in taught_lists(query.answers):
        passages = [query.passage(doc) for doc in taught.docs]
        is_whole = taught.num_listed == len(taught.docs) <= MAX_LETTERS
        yield {
            "query": query.text,
            "docs": passages,
            "labels": taught.labels,
            "soft_labels": taught.logprobs,
            "order": taught.order,
            "num_listed": taught.num_listed,
            "conversations": conversation(template, query.text, passages, taught.order) if is_whole else None,
            "doc_ids": [query.doc_ids[doc] for doc in taught.docs],
            **_said_where(query, taught),
        }


def pairwise_rows(query: TaughtQuery, top_k: int | None = None) -> Iterator[dict[str, Any]]:
    """A row for each named candidate of a list, of the first `top_k`, and each candidate behind it."""
    for taught in taught_lists(query.answers):
        labels, logprobs = taught.labels, taught.logprobs
        for answered, better in enumerate(taught.order[: taught.num_listed][:top_k]):
            for worse in taught.order[answered + 1 :]:
                yield {
                    "query": query.text,
                    "positive": query.passage(taught.docs[better]),
                    "negative": query.passage(taught.docs[worse]),
                    "label": labels[better] - labels[worse],
                    "soft_label": None if logprobs is None else logprobs[better] - logprobs[worse],
                    "positive_id": query.doc_ids[taught.docs[better]],
                    "negative_id": query.doc_ids[taught.docs[worse]],
                    **_said_where(query, taught),
                }


def pointwise_rows(query: TaughtQuery, top_k: int | None = None) -> Iterator[dict[str, Any]]:
    """A row for each candidate that the model placed, of the first `top_k`; soft where it was judged alone, too."""
    judged = {
        answer["docs"][0]: math.exp(answer["outcome_logprobs"][0])
        for answer in query.answers
        if len(answer["docs"]) == 1 and answer["outcome_logprobs"] and not fell_back(answer)
    }
    for row in query.ranked:
        if top_k is None or row["rank"] <= top_k:
            yield {
                "query": query.text,
                "passage": query.passages[row["doc_id"]],
                "label": 1.0 / row["rank"],
                "soft_label": judged.get(row["first_stage_rank"] - 1),
                **{name: row[name] for name in ("doc_id", "rank", "first_stage_rank")},
                **query.source,
            }


def conversation(
    template: PromptTemplate, query: str, passages: Sequence[str], order: Sequence[int]
) -> list[dict[str, str]]:
    """The prompt and its whole answer in the turns that RankLLM's trainer reads; `order`: places, best first."""
    content = {turn["role"]: turn["content"] for turn in template.messages(len(passages), len(passages))}
    words = [part.replace(QUERY_MARK, template.data(query)) for part in content["user"].split(PASSAGE_MARK)]
    lines = [template.data(text) + template.passage_tail for text in passages]
    asked = "".join(part for pair in zip(words, lines, strict=False) for part in pair) + words[-1]
    answer = " > ".join(f"[{template.identifier(place)}]" for place in order)
    turns = (("system", content["system"]), ("human", asked), ("gpt", answer))
    return [{"from": speaker, "value": text} for speaker, text in turns]


def row_maker(
    form: TrainingForm, template: PromptTemplate, top_k: int | None
) -> Callable[[TaughtQuery], Iterator[dict[str, Any]]]:
    """What makes the rows of a form out of a query."""
    makers: Mapping[TrainingForm, Callable[[TaughtQuery], Iterator[dict[str, Any]]]] = {
        "listwise": lambda query: listwise_rows(query, template),
        "pairwise": lambda query: pairwise_rows(query, top_k),
        "pointwise": lambda query: pointwise_rows(query, top_k),
    }
    return makers[form]


def _said_where(query: TaughtQuery, taught: TaughtList) -> dict[str, Any]:
    return {**query.source, "run_id": taught.run_id, **{name: getattr(taught, name) for name, _ in WINDOW}}


def _of_window(answer: Row) -> TaughtList:
    docs = tuple(answer["docs"])
    place_of = {doc: place for place, doc in enumerate(docs)}
    order = tuple(place_of[doc] for doc in answer["outcome_order"])
    logprobs = answer["outcome_logprobs"]
    by_place = dict(zip(order, logprobs, strict=True)) if logprobs else {}
    return TaughtList(
        **{name: answer[name] for name in ("run_id", "round", "window_no", "attempt", "decode_mode", "num_listed")},
        docs=docs,
        order=order,
        logprobs=_finite([by_place[place] for place in range(len(docs))] if by_place else []),
    )


def _of_judgments(answers: Sequence[Row]) -> TaughtList:
    """Best first by log-probability; equal ones keep first-stage order, as the strategy has it."""
    values = {answer["docs"][0]: answer["outcome_logprobs"][0] for answer in answers}
    docs = tuple(sorted(values))
    return TaughtList(
        **{name: answers[0][name] for name in ("run_id", "round", "decode_mode")},
        window_no=None,
        attempt=None,
        docs=docs,
        order=tuple(sorted(range(len(docs)), key=lambda place: -values[docs[place]])),
        num_listed=len(docs),
        logprobs=_finite([values[doc] for doc in docs]),
    )


def _finite(logprobs: Sequence[float]) -> tuple[float, ...] | None:
    """None where a trainer's softmax would make something else of them."""
    return tuple(logprobs) if logprobs and all(map(math.isfinite, logprobs)) else None
