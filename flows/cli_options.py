"""What several commands of `packrank` take: their options, and how a database and a run of it are found.

Imports what it needs inside, as the commands do.
"""

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

NEWEST = "latest"  # as a run_id
AT_LEAST_1 = Number(gte=1)
Config = Annotated[Path, Parameter(help="Settings file, such as configs/sample.toml.")]
Overrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        help="section.key=value overrides the settings file; section.key=none unsets a key; may be repeated.",
        negative=(),
        show_default=False,
    ),
]
StoreOverrides = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        help="store.key=value overrides the run's own settings; may be repeated.",
        negative=(),
        show_default=False,
    ),
]
Measures = Annotated[
    tuple[str, ...],
    Parameter(
        help="Measure, in ir-measures syntax; may be repeated. nDCG@10, AP, RR, R@100 if not given.",
        negative=(),
        show_default=False,
    ),
]
Database = Annotated[
    Path | None,
    Parameter(
        name=("--database", "--config"),
        help="Database file, or a settings file that names it; var/packrank.duckdb of the checkout if not given.",
    ),
]
RunId = Annotated[
    str,
    Parameter(
        help="A run_id, or latest: the newest finished run, not a trial; of the settings file's series if given."
    ),
]
RowForm = Annotated[
    Literal["table", "json", "csv"], Parameter(name="--format", help="json and csv have values instead of words.")
]
Night = Annotated[date | None, Parameter(help="Logical date; the schedule's last fire time if not given.")]
LimitQueries = Annotated[int | None, Parameter(help="Only the first N queries, for a trial.", validator=AT_LEAST_1)]
Publish = Annotated[bool, Parameter(help="Show the result in latest_scores once the checks passed.", negative=())]
Full = Annotated[bool, Parameter(help="Every query: reuse nothing of the last published night.", negative=())]
Verbose = Annotated[bool, Parameter(help="Print all of the run's tables, before its result.", negative=())]
AsFlow = Annotated[bool, Parameter(help="Run as a Prefect flow run; --no-prefect runs without Prefect.")]


def read_overrides(texts: tuple[str, ...]) -> dict[str, object]:
    """What `--set` was given, paths seen from where they were typed."""
    from tasks.settings import overrides_from

    return overrides_from(texts, Path.cwd())


def is_settings(path: Path) -> bool:
    """Whether it is a settings file by its name."""
    return path.suffix == ".toml"


def find_database(source: Path | None, overrides: tuple[str, ...] = ()) -> tuple[Path, str | None]:
    """The database, and the series of the settings file that names it."""
    from tasks.settings import StoreSettings, load_settings
    from tasks.system.environment import checkout_path

    if source is not None and is_settings(source):
        settings = load_settings(Path.cwd() / source, read_overrides(overrides))
        return settings.database_path, settings.night.name
    return (checkout_path(StoreSettings().database) if source is None else Path.cwd() / source).resolve(), None


def find_run(source: Path | None, run_id: str) -> tuple[Path, str]:
    """The database, and the run of it that is meant."""
    from tasks.report.run_lookup import find_run_id

    database, series = find_database(source)
    return database, find_run_id(database, run_id, series)
