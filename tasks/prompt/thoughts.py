"""The marks that model families put around their thoughts, and where a thought ends."""

import re
from collections.abc import Sequence

# The marks that model families put around their thoughts. Source: their chat templates, and vLLM's reasoning parsers
# (vllm/reasoning of 0.32). A mark that is missing here makes a thought look like an answer: add it to both tables, and
# to CLOSING_OF in tasks/decode/permutation.py. [prompt] thoughts names the marks of a family that is not here.
THINK_START, THINK_END = "<think>", "</think>"  # what our own prompts write
THINK_NAME = r"(?:[a-z]{1,16}:)?(?:think|thinking|thought)(?::[^\s<>]{1,40})?"
OPENINGS = (
    rf"<{THINK_NAME}>",  # DeepSeek, Qwen, EXAONE <thought>, Seed-OSS <seed:think>, MiniMax <mm:think>, <think:...>
    r"\[THINK\]",  # Magistral
    r"\u25c1think\u25b7",  # Kimi
    r"<\|open\|>\s{0,4}think\s{0,4}<\|sep\|>",  # Kimi K3
    r"<\|START_THINKING\|>",  # Command A
    r"<\|channel\|?>\s{0,4}(?:analysis|commentary|thought)",  # gpt-oss, Gemma 4
    r"<\|start\|>assistant(?!\s{0,4}<\|channel)",  # gpt-oss: a turn begins with its analysis unless told otherwise
    r"\Aanalysis(?=\w)",  # gpt-oss without its special tokens
    r"Here(?:'s| is) my thought process:",  # Granite
)
CLOSINGS = (
    rf"</{THINK_NAME}>",
    r"\[/THINK\]",
    r"\u25c1/think\u25b7",
    r"<\|close\|>\s{0,4}think\s{0,4}<\|sep\|>",
    r"<\|END_THINKING\|>",
    r"<\|channel\|>\s{0,4}final(?:\s{0,4}<\|message\|>)?",
    r"<channel\|>",
    r"assistantfinal",
    r"Here(?:'s| is) my response:",
)
OPENING = re.compile("|".join(OPENINGS), re.IGNORECASE)
CLOSING = re.compile("|".join(CLOSINGS), re.IGNORECASE)


def opened_thought(text: str) -> str | None:
    """The mark of the think block that is open at the end of a text, so that a thought comes next; None if none is.

    >>> opened_thought("user: tides? assistant: [THINK]"), opened_thought("<think></think>")
    ('[THINK]', None)
    """
    opening = _last(OPENING, text)
    closing = _last(CLOSING, text)
    if opening is None or (closing is not None and closing.start() > opening.start()):
        return None
    return opening[0]


def in_known_marks(text: str, marks: Sequence[str]) -> str:
    """The text with a pair of marks of the model's own, where it has one, as <think> and </think>."""
    for mark, known in zip(marks, (THINK_START, THINK_END), strict=False):
        text = text.replace(mark, known)
    return text


def closes_thought(text: str) -> bool:
    """Whether a think block ends somewhere in the text."""
    return CLOSING.search(text) is not None


def behind_thoughts(text: str) -> str:
    """What follows the last think block, up to one that is never closed, which thinks to the end.

    >>> behind_thoughts("[2]</think>[1] > [2]<thought>or")
    '[1] > [2]'
    """
    return OPENING.split(CLOSING.split(text)[-1], maxsplit=1)[0]


def _last(marks: re.Pattern[str], text: str) -> re.Match[str] | None:
    return max(marks.finditer(text), key=re.Match.start, default=None)
