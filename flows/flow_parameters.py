"""Parameters that several flows have, as Prefect's page asks for them: with examples."""

from datetime import date
from typing import Annotated, Any

from pydantic import Field

ISO_DATE = r"^\d{4}-\d{2}-\d{2}$"  # a server checks a parameter's pattern, not its format

ConfigParameter = Annotated[str, Field(examples=["configs/sample.toml", "configs/own.toml"])]
NightParameter = Annotated[date | None, Field(json_schema_extra={"pattern": ISO_DATE}, examples=["2026-11-30"])]
OverridesParameter = Annotated[dict[str, Any] | None, Field(examples=[{"strategy.window_size": 10}])]
