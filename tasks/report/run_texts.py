"""The texts of a run's queries and passages, which are no part of the database: read again from the run's inputs.

Only as long as those are what they were. Knows nothing of what shows them.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from tasks.inputs.excerpts import find_passages, find_query_texts
from tasks.inputs.parquet_files import ParquetInput
from tasks.inputs.qrels import read_qrels
from tasks.inputs.staging import open_night_input
from tasks.settings import InputName, InputSettings, stored_inputs
from tasks.store.runs import Run
from tasks.system.errors import first_line
from tasks.system.redaction import hide_url_secrets, printable

QUERY_CHARS, PASSAGE_CHARS = 300, 110  # shown of a text; the rest is in the inputs
TEXT_INPUTS: tuple[InputName, ...] = ("queries", "documents", "candidates", "nested")


@dataclass(frozen=True, slots=True)
class RunTexts:
    """Some texts or their beginnings; `note` says why they are missing."""

    queries: Mapping[str, str]
    passages: Mapping[tuple[str, str], str]  # by (query_id, doc_id), titles first
    note: str | None = None
    grades: Mapping[tuple[str, str], int] = field(default_factory=dict)  # of those judged


@dataclass(frozen=True, slots=True)
class TextSource:
    """A run's inputs, opened again."""

    queries: ParquetInput
    documents: ParquetInput

    def read(self, wanted: Mapping[str, Collection[str]], max_chars: int | None = None) -> RunTexts:
        """The texts of some queries and, up to `max_chars`, of their documents: query_id -> doc_ids.

        Raises:
            InputError: see `read_batches`.
        """
        queries = find_query_texts(self.queries, wanted)
        return RunTexts(queries, find_passages(self.documents, wanted, max_chars))


def open_texts(run: Run, inputs: InputSettings) -> TextSource | None:
    """Where a run's texts are; None where that is no longer what the run read.

    Raises:
        InputError: an input is not there, or cannot be read.
    """
    found = open_night_input(inputs, run.night)
    if found.digest != run.input_digest:
        return None
    opened = [found.inputs.get(name) or found.inputs["nested"] for name in ("queries", "documents")]
    return TextSource(*opened)


def run_inputs(run: Run) -> InputSettings:
    """Where a run's settings say that its texts are.

    Raises:
        ConfigError: see `stored_inputs`.
    """
    return stored_inputs(run.run_id, run.stored_settings, TEXT_INPUTS)


def read_texts(run: Run, wanted: Mapping[str, Collection[str]], given: InputSettings | None) -> RunTexts:
    """The texts of some queries and of their documents; whatever goes wrong, there are still ids.

    Args:
        run: whose inputs are read.
        wanted: query_id -> doc_ids.
        given: where the texts are; as the run's settings say if not given, which hold no secrets of URLs.
    """
    try:
        inputs = given or run_inputs(run)
        source = open_texts(run, inputs)
        if source is None:
            return RunTexts({}, {}, "The run's inputs have changed since: ids only, no texts.")
        return replace(source.read(wanted, 2 * PASSAGE_CHARS), grades=_grades(run, wanted, inputs))
    except Exception as error:  # other people's files and file systems
        return RunTexts(
            {}, {}, f"The run's inputs cannot be read again, so ids only: {hide_url_secrets(first_line(error))}"
        )


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
