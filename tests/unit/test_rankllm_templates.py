"""Templates of other rerankers' owners: what is asked equals what they would ask, or they are refused."""

import pytest

from tasks.errors import ConfigError
from tasks.prompt.prompts import PromptBuilder
from tasks.prompt.rankllm_templates import find_rankllm_template, load_rankllm_template
from tasks.prompt.sizes import SizeLimits, resolve_sizes
from tasks.prompt.templates import ChatTemplate
from tasks.prompt.tokens import ModelTokens
from tasks.schedule.windows import Window
from tests.makers import CHATML, make_text, make_tokenizer

NUMBERED = r"""
method: "singleturn_listwise"
system_message: "You sort search results for a librarian."
prefix: |
  Here are {num} texts, each with a number in []. Sort them for the question: {query}.
body: |
  [{rank}] {candidate}
suffix: |-
  The question again: {query}.
  Give the order of all {num} texts, such as [2] > [1], and nothing else.
output_validation_regex: r"^\[\d+\]( > \[\d+\])*$"
output_extraction_regex: r"\[(\d+)\]"
"""
LETTERED = (
    NUMBERED.replace("a number", "a letter").replace(r"\[(\d+)\]", r"\[([A-Z])\]").replace("[2] > [1]", "[B] > [A]")
)
BLANK_LINES = r"""
method: "singleturn_listwise"
prefix: |+
  Sort the texts by how well they answer, ties as [3] = [1] > [2].

  Question: {query}

body: "[{rank}] {candidate}\n\n"
output_extraction_regex: r"\[(\d+)\]"
"""
LIMITS = SizeLimits(2048, None, 64, 100, 8)


@pytest.fixture
def template(tmp_path):
    def write(text, name="theirs.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def rendered(sections, query, passages):
    """The owner's template as its own code joins it: prefix, each body, suffix; then the chat template."""
    names = [
        chr(ord("A") + place) if "A-Z" in sections["output_extraction_regex"] else str(place + 1)
        for place in range(len(passages))
    ]
    values = {"num": len(passages), "query": query}
    body = "".join(
        sections["body"].format(rank=name, candidate=passage) for name, passage in zip(names, passages, strict=True)
    )
    user = sections.get("prefix", "").format(**values) + body + sections.get("suffix", "").format(**values)
    system = sections.get("system_message")
    turns = ([("system", system)] if system else []) + [("user", user)]
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns)
    return text + "<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("yaml_text", "style"),
    [(NUMBERED, "gpt2"), (NUMBERED, "qwen"), (LETTERED, "gpt2"), (LETTERED, "qwen"), (BLANK_LINES, "qwen")],
    ids=["numbers-gpt2", "numbers-qwen", "letters-gpt2", "letters-qwen", "blank lines-qwen"],
)
@pytest.mark.parametrize(
    "passages",
    [
        ["tide moon.", "Why? Because!", "law (court) 12.", "비가 온다", "bread..."],
        [make_text(number, 15) for number in range(12)],
        ["ends with a bracket )", 'ends with a quote"', "3", "a"],
    ],
    ids=["marks", "twelve", "ends"],
)
def test_for_uncut_passages_the_ids_are_those_of_the_whole_prompt_as_one_string(template, style, yaml_text, passages):
    import yaml

    tokenizer = make_tokenizer(style)
    builder = PromptBuilder(
        ModelTokens(tokenizer),
        load_rankllm_template(template(yaml_text), "permutation"),
        ChatTemplate(CHATML, {}),
        "permutation",
    )
    sizes = resolve_sizes(builder, len(passages), LIMITS)
    pieces = builder.encode_passages(passages)

    prompt = builder.build(
        "q/0/0/0", Window(tuple(range(len(passages)))), "what is it?", pieces, [len(piece) for piece in pieces], sizes
    )

    whole = make_tokenizer(style)  # special tokens in a string of ours give their ids
    whole.encode_special_tokens = False
    text = rendered(yaml.safe_load(yaml_text), "what is it?", passages)
    assert prompt.truncated_passages == 0
    assert prompt.prompt_token_ids.tolist() == whole.encode(text, add_special_tokens=False).ids


def test_two_line_breaks_are_refused_where_a_tokenizer_joins_them_with_what_follows(template):
    with pytest.raises(ConfigError, match="ends a passage with"):
        PromptBuilder(
            ModelTokens(make_tokenizer("gpt2")),
            load_rankllm_template(template(BLANK_LINES), "permutation"),
            ChatTemplate(CHATML, {}),
            "permutation",
        )


def test_letters_serve_one_token_answers_as_well(template):
    loaded = load_rankllm_template(template(LETTERED), "first_token")

    assert (loaded.identifiers, loaded.answer_prefix, loaded.max_identifiers) == ("letters", "[", 26)


def test_a_think_block_in_an_owners_template_is_closed_by_force_too(template):
    assert "</think>" in load_rankllm_template(template(NUMBERED), "reasoning").close


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("singleturn_listwise", "multiturn_listwise", "only 'singleturn_listwise'"),
        ("singleturn_listwise", "pointwise", "only 'singleturn_listwise'"),
        ("[{rank}] {candidate}", "[{rank}] {candidate} ({score})", "body = "),
        ("[{rank}] {candidate}", 'TEXT{rank} = "{candidate}"', "body = "),
        ("  [{rank}] {candidate}\n", "  [{rank}]\n  {candidate}\n", "body = "),
        ("The question again: {query}", "The ids: {psg_ids}", "{psg_ids}"),
        (r"\[(\d+)\]", r"Passage (\d+)", "answers are read by"),
        ("suffix:", "fewshot: x\nsuffix:", "a section fewshot"),
        ("output_extraction_regex", "output_regex", "lacks output_extraction_regex"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_the_reason(template, old, new, words):
    changed = NUMBERED.replace(old, new)
    assert changed != NUMBERED

    with pytest.raises(ConfigError) as refused:
        load_rankllm_template(template(changed), "permutation")

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_numbers_cannot_be_answered_by_one_token(template):
    with pytest.raises(ConfigError, match="needs letters"):
        load_rankllm_template(template(NUMBERED), "first_token")


@pytest.mark.parametrize(
    ("text", "words"), [("a: [1", "not readable as YAML"), ("- 1", "has the texts"), ("", "has the texts")]
)
def test_a_file_that_is_no_template_is_refused(template, text, words):
    with pytest.raises(ConfigError, match=words):
        load_rankllm_template(template(text), "permutation")


def test_a_template_is_found_in_the_installed_package(tmp_path, monkeypatch):
    folder = tmp_path / "site" / "rank_llm" / "rerank" / "prompt_templates"
    folder.mkdir(parents=True)
    (tmp_path / "site" / "rank_llm" / "__init__.py").write_text("raise RuntimeError('never imported')")
    (folder / "house_template.yaml").write_text(NUMBERED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "site")

    assert find_rankllm_template("rank_llm:house_template") == folder / "house_template.yaml"
    with pytest.raises(ConfigError, match="It has house_template"):
        find_rankllm_template("rank_llm:other")


def test_without_the_package_the_way_out_is_told():
    import importlib.util

    if importlib.util.find_spec("rank_llm") is not None:
        pytest.skip("rank_llm is installed")
    with pytest.raises(ConfigError, match="not installed"):
        find_rankllm_template("rank_llm:rank_zephyr_template")
