"""The texts of a run's queries and passages, which are no part of the database: read again from the run's inputs.

Only as long as those are what they were. Knows nothing of what shows them.
"""

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.excerpts import find_passages, find_query_texts
from tasks.inputs.fields import NOTHING_WANTED, WantedFields
from tasks.inputs.qrels import read_qrels
from tasks.inputs.shown_fields import find_fields_of
from tasks.inputs.staging import NightInput, open_night_input
from tasks.prompt.passage_form import PLAIN_FIELD, decimals_of, fields_line
from tasks.settings import InputName, InputSettings, stored_inputs
from tasks.store.runs import Run
from tasks.system.errors import first_line
from tasks.system.redaction import hide_url_secrets, printable

QUERY_CHARS, PASSAGE_CHARS = 300, 110  # shown of a text; the rest is in the inputs
TEXT_SOURCES = ("queries", "documents")  # or nested
TEXT_INPUTS: tuple[InputName, ...] = ("queries", "documents", "candidates", "nested")


@dataclass(frozen=True, slots=True)
class RunTexts:
    """Some texts or their beginnings; `note` says why they are missing."""

    queries: Mapping[str, str]
    passages: Mapping[tuple[str, str], str]  # by (query_id, doc_id), titles first
    note: str | None = None
    grades: Mapping[tuple[str, str], int] = field(default_factory=dict)  # of those judged
    fields: Mapping[tuple[str, str], str] = field(default_factory=dict)  # the line beside each passage


@dataclass(frozen=True, slots=True)
class TextSource:
    """A run's inputs, opened again."""

    opened: NightInput

    def read(self, wanted: Mapping[str, Collection[str]], max_chars: int | None = None) -> RunTexts:
        """The texts of some queries and, up to `max_chars`, of their documents: query_id -> doc_ids.

        Raises:
            InputError: see `read_batches`.
        """
        queries, documents = (self.opened.inputs.get(name) or self.opened.inputs["nested"] for name in TEXT_SOURCES)
        return RunTexts(find_query_texts(queries, wanted), find_passages(documents, wanted, max_chars))


def open_texts(run: Run, inputs: InputSettings, fields: WantedFields = NOTHING_WANTED) -> TextSource | None:
    """Where a run's texts are; None where that is no longer what the run read.

    Raises:
        InputError: an input is not there, or cannot be read.
    """
    found = open_night_input(inputs, run.night, fields)
    return TextSource(found) if found.digest == run.input_digest else None


def run_inputs(run: Run) -> InputSettings:
    """Where a run's settings say that its texts are.

    Raises:
        ConfigError: see `stored_inputs`.
    """
    return stored_inputs(run.run_id, run.stored_settings, TEXT_INPUTS)


def read_texts(
    run: Run, wanted: Mapping[str, Collection[str]], given: InputSettings | None, *, with_fields: bool = False
) -> RunTexts:
    """The texts of some queries and of their documents; whatever goes wrong, there are still ids.

    Args:
        run: whose inputs are read.
        wanted: query_id -> doc_ids.
        given: where the texts are; as the run's settings say if not given, which hold no secrets of URLs.
        with_fields: whether to read what stood beside the passages too, which goes through all candidates.
    """
    try:
        inputs = given or run_inputs(run)
        source = open_texts(run, inputs, _wanted_fields(run) if with_fields else NOTHING_WANTED)
        if source is None:
            return RunTexts({}, {}, "The run's inputs have changed since: ids only, no texts.")
        fields = _field_lines(run, wanted, inputs, source.opened) if source.opened.fields.names else {}
        texts = source.read(wanted, 2 * PASSAGE_CHARS)
        return replace(texts, grades=_grades(run, wanted, inputs), fields=fields)
    except Exception as error:  # other people's files and file systems
        return RunTexts(
            {}, {}, f"The run's inputs cannot be read again, so ids only: {hide_url_secrets(first_line(error))}"
        )


def _wanted_fields(run: Run) -> WantedFields:
    resolved = json.loads(run.resolved)
    return WantedFields(tuple(resolved.get("fields", ())), decimals_of(resolved.get("field", PLAIN_FIELD)))


def _field_lines(
    run: Run, wanted: Mapping[str, Collection[str]], inputs: InputSettings, found: NightInput
) -> dict[tuple[str, str], str]:
    resolved = json.loads(run.resolved)
    values = find_fields_of(found, wanted, inputs.order_by, lower_score_is_better=inputs.lower_score_is_better)
    return {pair: fields_line(resolved["field"], resolved["fields"], each) for pair, each in values.items()}


def _grades(run: Run, wanted: Mapping[str, Collection[str]], inputs: InputSettings) -> dict[tuple[str, str], int]:
    """The judgments of these documents; none where they cannot be read any more, which texts do not wait for."""
    if inputs.qrels is None:
        return {}
    with suppress(Exception):  # other people's files, as above
        rows = read_qrels(inputs, run.night).rows
        judged = rows.filter(pc.is_in(rows.column("query_id"), value_set=pa.array(sorted(wanted), pa.string())))
        columns = (judged.column(name).to_pylist() for name in ("query_id", "doc_id", "relevance"))
        return {(query, doc): grade for query, doc, grade in zip(*columns, strict=True) if doc in set(wanted[query])}
    return {}


def beginning(text: str, max_chars: int) -> str:
    """One line of a text's first characters, with three dots where there is more.

    >>> beginning("Tides  come twice a day", 12), beginning("Tides", 12)
    ('Tides come…', 'Tides')
    """
    line = " ".join(printable(text).split())
    if len(line) <= max_chars:
        return line
    cut = line[:max_chars]
    return (cut[: cut.rfind(" ")] if " " in cut[max_chars // 2 :] else cut).rstrip() + "…"
