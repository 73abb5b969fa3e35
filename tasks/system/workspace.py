"""Every path that the runs of a database use: all lie beside it, so that two databases share nothing."""

import re
from dataclasses import dataclass
from glob import escape
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Workspace:
    """The paths of one database's runs. Nothing is made here: who writes makes the folder."""

    database: Path

    @property
    def folder(self) -> Path:
        """All of it lies here, on one disk."""
        return self.database.parent

    @property
    def spool(self) -> Path:
        """Committed batches, unless `[store] spool` names another folder."""
        return self.folder / "spool"

    @property
    def staging(self) -> Path:
        """A night's input, laid out; of the night alone."""
        return self.folder / "staging" / self.database.stem

    @property
    def scratch(self) -> Path:
        """A night's temporary files, the engine's among them; of the night alone."""
        return self.folder / "tmp" / self.database.stem

    @property
    def spill(self) -> Path:
        """Where DuckDB writes what does not fit its memory."""
        return self.folder / "tmp" / f"{self.database.stem}.duckdb"

    @property
    def bench_scratch(self) -> Path:
        """As `scratch`, of `packrank bench`."""
        return self.folder / "tmp" / "bench"

    def shard_scratch(self, run_id: str, shard: int) -> Path:
        """As `scratch`, of one shard, whose staging lies in it as well."""
        return self.folder / "shards" / self.database.stem / f"{run_id}.{shard}"

    def engine_log(self, name: str) -> Path:
        """What an engine child printed; `name` is a run's id, with `.shard{number}` behind it for a shard's engine."""
        return self.folder / "logs" / f"{name}.engine.log"

    def engine_logs(self, run_id: str) -> list[Path]:
        """The logs of a run and its shards that are there."""
        own = re.compile(re.escape(run_id) + r"(\.shard\d+)?\.engine\.log")
        return [path for path in (self.folder / "logs").glob(f"{escape(run_id)}*") if own.fullmatch(path.name)]

    def rates(self, model_identity: str) -> Path:
        """What `packrank bench` measured of a model."""
        return self.folder / "rates" / f"{model_identity[:12]}.json"

    def report(self, run_id: str) -> Path:
        """The page of a run; a study's is `study-{name}`."""
        return self.folder / "reports" / f"{run_id}.html"

    @property
    def published_copy(self) -> Path:
        """The copy for tools that keep a connection open: a link to the newest one."""
        return self.database.with_name(f"{self.database.stem}.published.duckdb")
