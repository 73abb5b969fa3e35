"""What all sections of a settings file share."""

from typing import Annotated

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
)

PositiveInt = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,  # logs show those
    )
