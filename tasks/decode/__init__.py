"""One class a decode mode: what it needs of a tokenizer, how it asks, and how its answer is read. Pure.

A new mode is its file and its name here. The settings, the strategies that go with it and the recipe are derived.
"""

from tasks.decode.answer import DecodeMode
from tasks.decode.judged import QueryLikelihood, YesNo
from tasks.decode.letters import FirstToken, Select
from tasks.decode.permutation import Permutation, Reasoning

DECODE_MODES: dict[str, type[DecodeMode]] = {
    mode.name: mode for mode in (FirstToken, Permutation, Reasoning, Select, YesNo, QueryLikelihood)
}
