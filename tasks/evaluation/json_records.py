"""Records of BEIR's and RankLLM's JSON. Ids are text: whole numbers in decimal, any other type is refused."""

from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, Field, FiniteFloat, TypeAdapter
from pydantic import ValidationError as InvalidRecord

from tasks.system.errors import InputError

T = TypeVar("T")
Id = Annotated[str, Field(min_length=1), BeforeValidator(lambda given: str(given) if type(given) is int else given)]
Title = Annotated[str | None, AfterValidator(lambda title: title or None)]  # BEIR writes "" where there is none
TEXT_KEYS = AliasChoices("text", "segment", "contents", "content", "body", "passage")  # in the order that RankLLM looks


class BeirQuery(BaseModel):
    """A line of queries.jsonl."""

    query_id: Id = Field(validation_alias="_id")
    text: str


class BeirDocument(BaseModel):
    """A line of corpus.jsonl."""

    doc_id: Id = Field(validation_alias="_id")
    title: Title = None
    text: str


class RankllmQuery(BaseModel):
    """The query of a request."""

    query_id: Id = Field(validation_alias="qid")
    text: str


class RankllmText(BaseModel):
    """What a candidate says."""

    title: Title = None
    text: str = Field(validation_alias=TEXT_KEYS)


class RankllmCandidate(BaseModel):
    """One of a request, in first-stage order."""

    doc_id: Id = Field(validation_alias="docid")
    score: FiniteFloat
    doc: RankllmText


class RankllmRequest(BaseModel):
    """A query with its candidates."""

    query: RankllmQuery
    candidates: list[RankllmCandidate]


def parse_json(kind: TypeAdapter[T], where: str, text: str) -> T:
    """The text as records of that kind.

    Raises:
        InputError: it is no JSON, or naming the first field that is something else.
    """
    try:
        return kind.validate_json(text)
    except InvalidRecord as error:
        raise InputError(f"{where}: {_complaint(error.errors()[0])}. Write it again.") from None  # it shows the text


def _complaint(detail: Any) -> str:
    field = "".join(f"{part}: " for part in [".".join(str(part) for part in detail["loc"])] if part)
    if detail["type"] in ("missing", "json_invalid"):
        return f"{field}{detail['msg']}".replace(" at line 1 column ", " at column ")
    return f"{field}{detail['msg']}, found {type(detail['input']).__name__}"
