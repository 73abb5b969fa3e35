"""`[prompt]`: the words of a prompt, what stands in it beside the texts, and how long all that may be."""

from datetime import date
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.prompt.passage_form import own_name
from tasks.settings.input_section import IN_PASSAGES
from tasks.settings.section import PositiveInt, Section, Share

FieldName = Annotated[str, Field(min_length=1, examples=["score", "documents.date"])]


class SamplingSettings(Section):
    """How a model draws its thoughts, by vLLM's names; what is left out draws from all tokens as they are."""

    temperature: Annotated[float, Field(ge=0.0, le=2.0)]  # 0: greedy, over a preset that draws
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0  # the likeliest tokens with this probability together
    top_k: Annotated[int, Field(ge=0)] = 0  # the k likeliest tokens; 0: all
    min_p: Share = 0.0  # tokens with this share of the likeliest one's probability
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0  # for tokens that were written already
    repetition_penalty: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0  # for tokens of prompt and thought; 1: none


class PromptSettings(Section):
    """The words of a prompt and the lengths that they may have."""

    language: Literal["en", "ko"] = "en"  # of the prompt's words: configs/prompts/, or configs/prompts/ko/
    template: str | None = None  # TOML, or RankLLM's YAML; {decode_mode}.toml of the language if not given
    cascade_template: str | None = None  # the same, of the point-wise step of a cascade
    fields: list[FieldName] = []  # columns of candidates or documents that each passage opens with; part of its tokens
    chat_template_kwargs: dict[str, bool | int | float | str] = {}  # keyword arguments for the model's chat template
    turn_prefix: str = ""  # opens the model's turn, before the prompt template's answer_prefix: gpt-oss's final channel
    chat_template_date: date | None = None  # date for a chat template that writes today's date; the night if not given
    max_prompt_tokens: PositiveInt | None = None  # max_model_len less the answer if not given
    max_query_tokens: PositiveInt = 256  # a longer query is set aside
    max_passage_tokens: PositiveInt = 256  # a longer passage is cut
    min_passage_tokens: PositiveInt = 32  # passages are not shortened below this to make a prompt fit
    thinking_budget_tokens: PositiveInt = 1024  # of reasoning; then the thought is closed by force
    thoughts: Annotated[tuple[str, str], Field(strict=False)] | None = None  # the marks that open and close a thought
    sampling: SamplingSettings | None = None  # of reasoning: greedy if not given; seeded by strategy.seed and request

    @field_validator("fields")
    @classmethod
    def _fields_of_their_own(cls, value: list[str]) -> list[str]:
        own = [own_name(name) for name in value]
        for number, name in enumerate(own):
            if name in IN_PASSAGES:
                raise ValueError(
                    f"{name!r} cannot be a field: passages show it already. Name other columns, such as score or date"
                )
            if name in own[:number]:
                raise ValueError(f"{name!r} is named twice")
        return value

    @model_validator(mode="after")
    def _min_not_above_max(self) -> Self:
        if self.min_passage_tokens > self.max_passage_tokens:
            raise ValueError(
                f"min_passage_tokens = {self.min_passage_tokens} must be at most "
                f"max_passage_tokens = {self.max_passage_tokens}"
            )
        return self
