"""One query of one run, explained: question, what each window was shown and answered, order before and after."""

from pathlib import Path

from tasks.prompt.templates import LETTERS
from tasks.report.page_tables import Row
from tasks.report.run_texts import RunTexts, beginning, read_texts
from tasks.report.sql_shell import read_rows
from tasks.report.summary_tables import SummaryTable, listing, pairs
from tasks.store.runs import runs_of
from tasks.system.database import read_sql
from tasks.system.errors import PackrankError

TEXT_CHARS = 60  # of a document, its title first
FIELD_CHARS = 120  # of the fields beside it
LETTER_MODES = ("first_token", "select")  # passages have letters there, else numbers


def explain_query(database: Path, run_id: str, query_id: str, *, with_texts: bool = True) -> list[SummaryTable]:
    """One query of a run: its row, its windows with answers and cuts, and its order before and after.

    Args:
        database: where the run lies; open, read-only, for one statement at a time.
        run_id: any run, also a trial or one that is unfinished.
        query_id: one of its queries.
        with_texts: whether the question and the documents are read from the run's inputs.

    Raises:
        PackrankError: there is no such run, or it has no such query.
    """
    names = {"run_id": run_id, "query_id": query_id}

    def read(name: str) -> list[Row]:
        rows: list[Row] = read_rows(database, read_sql(f"explain/{name}"), names).to_pylist()
        return rows

    run = next(iter(runs_of(read_rows(database, read_sql("runs/find_run"), {"run_id": run_id}))), None)
    if run is None:
        raise PackrankError(f"{database}: no run {run_id!r}. `packrank runs` lists them.")
    ranking = next(iter(read("ranking")), None)
    if ranking is None:
        raise PackrankError(f"{database}: run {run_id!r} has no query {query_id!r}. Its table rankings lists them.")
    windows, order = read("windows"), read("order")
    wanted = {query_id: [row["doc_id"] for row in order]}
    texts = read_texts(run, wanted, None, with_fields=True) if with_texts else RunTexts({}, {})
    shown = [{"question": texts.queries[query_id]}] if query_id in texts.queries else []
    facts = [pair for row in (*shown, ranking) for pair in row.items()]
    tables = [
        pairs(f"Query {query_id} of run {run_id}", facts, _notes(windows, texts), name="query"),
        listing("Windows, candidates by first-stage rank in prompt order", list(map(_window, windows))),
        listing("Set aside", read("quarantine")),
        listing("Order before and after", [_place(row, query_id, texts) for row in order]),
    ]
    return [table for table in tables if table is not None]


def _notes(windows: list[Row], texts: RunTexts) -> str | None:
    notes = [] if texts.note is None else [texts.note]
    if windows and not any(window["outcome_order"] for window in windows):
        notes.append("What the windows answered is no longer kept, see [store.keep_outcomes].")
    return " ".join(notes) or None


def _window(window: Row) -> Row:
    """A window's row: what was shown, and what was answered in the identifiers of its prompt."""
    kept = ("round", "window_no", "attempt", "decode_mode")
    told = ("prompt_tokens", "truncated_passages", "parse_status")
    return {
        **{name: window[name] for name in kept},
        "shown": " ".join(str(doc + 1) for doc in window["docs"]),
        "answer": _answer(window),
        **{name: window[name] for name in told},
    }


def _answer(window: Row) -> str | None:
    """The model's text where it was not a clean one, a judged passage's log-probability, or identifiers, best first."""
    if window["answer"] is not None or not window["outcome_order"]:
        return str(window["answer"]) if window["answer"] is not None else None
    if len(window["docs"]) == 1:
        values = window["outcome_logprobs"]
        return f"{values[0]:.4f}" if values else None
    by_letter = window["decode_mode"] in LETTER_MODES
    identifiers = LETTERS if by_letter else [str(place) for place in range(1, len(window["docs"]) + 1)]
    identifier_of = dict(zip(window["docs"], identifiers, strict=False))
    return " > ".join(identifier_of[doc] for doc in window["outcome_order"][: window["num_listed"]])


def _place(row: Row, query_id: str, texts: RunTexts) -> Row:
    text = texts.passages.get((query_id, row["doc_id"]))
    shown = {} if text is None else {"text": beginning(text, TEXT_CHARS)}
    if texts.fields:
        shown = {"fields": beginning(texts.fields.get((query_id, row["doc_id"]), ""), FIELD_CHARS)} | shown
    return {"rank": row["rank"], "first_stage_rank": row["first_stage_rank"], "doc_id": row["doc_id"]} | shown | row
