"""Prompt builders for tests, and a prompt's pieces beside its whole text."""

import re
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.prompt.chat_template import ChatTemplate
from tasks.prompt.sizes import SizeLimits, resolve_sizes
from tasks.prompt.templates import load_prompt_template
from tasks.prompt.tokens import Piece
from tasks.schedule.windows import Window
from tests.makers import CHATML, ROOT, fit_builder, make_text

CHAT = ChatTemplate(CHATML, {"eos_token": "<|im_end|>"})


MODES = ("first_token", "select")


PROMPTS = ROOT / "configs" / "prompts"


def build(builder, num_passages):
    """A window of short passages."""
    limits = SizeLimits(16_384, None, 40, 12, 4)
    sizes = resolve_sizes(builder, num_passages, limits)
    pieces = [piece[:12] for piece in builder.encode_passages([make_text(n, 3) for n in range(num_passages)])]
    ask = 1 if builder.mode.name == "select" else None
    window = Window(tuple(range(num_passages)), "select" if ask else "order", ask=ask)
    return builder.build("q/0/0/0", window, "why is the sea salt?", pieces, [len(piece) for piece in pieces], sizes)


def heads(text):
    return re.findall(r"^\[(\w)\] ", text, re.MULTILINE)


def make_builder(tokens, decode_mode="first_token", chat=CHAT, **changes):
    template = load_prompt_template(PROMPTS / f"{decode_mode}.toml")
    return fit_builder(tokens, replace(template, **changes), chat, decode_mode.removeprefix("ko/"))


MULTI_TURN = {
    "turns": "passages",
    "before": "Here come {num} texts about: {query}",
    "before_reply": "Go on.",
    "passage": "[{id}] {text}",
    "passage_reply": "Text [{id}] read.",
    "after": "Sort the {num} texts by how well they answer: {query}",
    "after_best": "",
}


FORMS = {  # the shipped `after` begins with a line break, which is kept apart from the last passage's
    "a line each": {"after": "Sort them for: {query}", "after_best": ""},
    "two line breaks": {"passage": "[{id}] {text}\n\n", "after": "Sort them for: {query}", "after_best": ""},
    "lines kept": {"lines": "keep", "after": "Sort them for: {query}", "after_best": ""},
    "a turn each": MULTI_TURN,
    "a turn each, lines kept": MULTI_TURN | {"lines": "keep"},
}


TEXTS = st.lists(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])) | st.text(" \n\t\r.'\"-()ab1가한[]/\u3000"),
    min_size=2,
    max_size=4,
)


def spliced_and_whole(builder, query, texts):
    """A prompt of whole passages, and the same text encoded at once."""
    sizes = resolve_sizes(builder, len(texts), SizeLimits(100_000, None, 10_000, 10_000, 1))
    pieces = builder.encode_passages(texts)
    prompt = builder.build("q/0/0/0", Window(tuple(range(len(texts)))), query, pieces, list(map(len, pieces)), sizes)
    lines = iter(builder.passage_lines([None] * len(texts), texts))
    data = {"query": lambda: builder.template.data(query), "passage": lambda: next(lines)}
    frame = builder._render(len(texts), len(texts))
    whole = [Piece(data[piece.kind](), True) if piece.kind in data else Piece(piece.text, False) for piece in frame]
    return prompt.prompt_token_ids, whole


def check_pieces(builder):
    @given(TEXTS)
    @example(["a\n", "\nb", " c "])
    @settings(max_examples=15)
    def check(texts):
        kept = [text for text in texts if text.strip()] or ["a"]
        ids, whole = spliced_and_whole(builder, "what is it?", kept)
        assert ids.tolist() == builder.tokens.encode_pieces(whole).tolist()

    check()
