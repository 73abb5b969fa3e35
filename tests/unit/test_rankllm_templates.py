"""Templates of other rerankers' owners: what is asked equals what they would ask, or they are refused."""

from pathlib import Path

import pytest
import yaml

from tasks.decode import DECODE_MODES
from tasks.prompt.chat_template import ChatTemplate
from tasks.prompt.passages import FieldPieces
from tasks.prompt.rankllm_templates import find_rankllm_template, load_rankllm_template
from tasks.prompt.sizes import SizeLimits, resolve_sizes
from tasks.prompt.tokens import ModelTokens
from tasks.schedule.windows import Window
from tasks.system.errors import ConfigError
from tests.makers import CHATML, fit_builder, make_text, make_tokenizer


def load_owners(path, decode_mode):
    return load_rankllm_template(path, DECODE_MODES[decode_mode])


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
    tokenizer = make_tokenizer(style)
    builder = fit_builder(
        ModelTokens(tokenizer),
        load_owners(template(yaml_text), "permutation"),
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


@pytest.mark.parametrize("style", ["gpt2", "qwen"])
def test_the_first_stages_score_stands_behind_each_passage_as_its_owners_write_it(template, style):
    loaded = load_owners(template(SCORED), "permutation")
    builder = fit_builder(ModelTokens(make_tokenizer(style)), loaded, ChatTemplate(CHATML, {}), "permutation")
    passages, scores = ["tide moon.", "Why? Because!", "비가 온다"], ["12.310", "0.000", "-3.142"]
    pieces = builder.encode_lines(builder.passage_lines([None] * 3, passages)).split()
    fields = builder.encode_lines(builder.field_lines([[score] for score in scores])).split()
    shown = FieldPieces(fields, [len(field) for field in fields])
    lengths = [len(piece) for piece in pieces]

    prompt = builder.build(
        "q/0/0/0", Window((0, 1, 2)), "what is it?", pieces, lengths, resolve_sizes(builder, 3, LIMITS), shown
    )

    assert (loaded.fields, loaded.field) == (("score",), "first stage says {value:.3f}")
    body = "".join(
        f"[{rank}] {text}\nfirst stage says {score}\n"
        for rank, (text, score) in enumerate(zip(passages, scores, strict=True), 1)
    )
    sections = yaml.safe_load(SCORED) | {"body": "{rank}"}
    text = rendered(sections, "what is it?", passages).replace("123", body, 1)
    whole = make_tokenizer(style)
    whole.encode_special_tokens = False
    assert prompt.prompt_token_ids.tolist() == whole.encode(text, add_special_tokens=False).ids


def test_two_line_breaks_are_refused_where_a_tokenizer_joins_them_with_what_follows(template):
    with pytest.raises(ConfigError, match="ends a passage with"):
        fit_builder(
            ModelTokens(make_tokenizer("gpt2")),
            load_owners(template(BLANK_LINES), "permutation"),
            ChatTemplate(CHATML, {}),
            "permutation",
        )


def test_letters_serve_one_token_answers_as_well(template):
    loaded = load_owners(template(LETTERED), "first_token")

    assert (loaded.identifiers, loaded.answer_prefix, loaded.max_identifiers) == ("letters", "[", 26)


def test_a_think_block_in_an_owners_template_is_closed_by_force_too(template):
    assert "</think>" in load_owners(template(NUMBERED), "reasoning").close


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("singleturn_listwise", "multiturn_listwise", "it lacks prefix_user"),
        ("singleturn_listwise", "ranking", "only 'singleturn_listwise', 'multiturn_listwise', 'pointwise' are known"),
        ("[{rank}] {candidate}", "[{rank}] {candidate} ({score})", "{score}, which must be on a line of its own"),
        ("[{rank}] {candidate}", "[{rank}] {candidate} ({date})", "body = "),
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
        load_owners(template(changed), "permutation")

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


TURNS = r"""
method: "multiturn_listwise"
system_message: "You sort texts."
prefix_user: "I have {num} texts about {query}."
prefix_assistant: "Show them."
body_user: "[{rank}] {candidate}"
body_assistant: "I have read [{rank}]."
suffix_user: "Now sort all {num} of them by how well they answer {query}, as in [2] > [1]."
output_extraction_regex: r"\[(\d+)\]"
"""
PAIR = """
method: "pointwise"
message_roles: "reranker"
instruction: >-
  Tell whether the document
  answers the query
body: "Instruction: {instruction} Query: {query} Document: {doc_content}"
"""
SCORED = NUMBERED.replace("[{rank}] {candidate}\n", "[{rank}] {candidate}\n  first stage says {score}\n")
NAMED = NUMBERED.replace("[{rank}] {candidate}", 'TEXT{rank} = "{candidate}"').replace("all {num} texts", "{psg_ids}")
ENCODED = 'method: "pointwise"\nbody: "Question: {query} Text: {doc_content} Good: "\n'
PAIRWISE = 'method: "pairwise"\nbody: "Question: {query} One: {doc1} Other: {doc2} Better: "\n'
FUSED = 'method: "rankfid"\ntext: "Question: {query} Text: [{index}] {passage}"\noutput_extraction_regex: x\n'

# RankLLM's templates (its HEAD of 2026-08-22): their form in words of our own, and why one is refused.
ALL_19 = {
    **dict.fromkeys(
        (
            "nemotron_non_thinking", "nemotron_nonthinking", "nemotron_thinking", "qwen_non_thinking", "qwen_thinking",
            "rank_gpt_apeer", "rank_zephyr", "reasonrank",
        ),
        (NUMBERED, ""),
    ),
    "rank_zephyr_alpha": (LETTERED, ""),
    "rank_gpt": (TURNS, ""),
    "pointwise_vllm": (PAIR, ""),
    "insert_rank": (SCORED, ""),
    "rank_lrl": (NAMED, "suffix holds {psg_ids}"),
    **dict.fromkeys(("monot5", "monoelectra", "jina"), (ENCODED, "'pointwise' without message_roles is the input of a cross-encoder")),
    "duot5": (PAIRWISE, "it asks for one of two, by a model with an encoder"),
    **dict.fromkeys(("rank_fid", "rank_fid_score"), (FUSED, "it gives each passage to an encoder of its own")),
}  # fmt: skip


def loads_or_tells(path, name, reason):
    """Loads for the decode mode that it is for, or is refused in one line."""
    decode_mode = "yes_no" if name == "pointwise_vllm" else "permutation"
    if not reason:
        return load_owners(path, decode_mode)
    with pytest.raises(ConfigError) as refused:
        load_owners(path, decode_mode)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    return None


@pytest.mark.parametrize("name", ALL_19)
def test_each_of_rankllms_templates_loads_or_says_why_not(template, name):
    text, reason = ALL_19[name]

    loads_or_tells(template(text), name, reason)

    assert len(ALL_19) == 19


def test_the_installed_packages_templates_load_or_say_why_not():
    """Run with the package: `pip install rank-llm --no-deps`, or its src on PYTHONPATH."""
    import importlib.util

    found = importlib.util.find_spec("rank_llm")
    if found is None or not found.submodule_search_locations:
        pytest.skip("rank_llm is not installed")
    folder = Path(found.submodule_search_locations[0]) / "rerank" / "prompt_templates"

    for path in folder.glob("*.yaml"):
        name = path.stem.removesuffix("_template")
        assert name in ALL_19
        loads_or_tells(path, name, ALL_19[name][1])


@pytest.mark.parametrize("style", ["gpt2", "qwen"])
def test_a_turn_for_each_passage_has_the_ids_of_the_whole_conversation(template, style):
    builder = fit_builder(
        ModelTokens(make_tokenizer(style)),
        load_owners(template(TURNS), "permutation"),
        ChatTemplate(CHATML, {}),
        "permutation",
    )
    passages = ["tide moon.", "Why? Because!", "비가 온다"]
    pieces = builder.encode_passages(passages)
    sizes = resolve_sizes(builder, 3, LIMITS)

    prompt = builder.build("q/0/0/0", Window((0, 1, 2)), "what?", pieces, [len(piece) for piece in pieces], sizes)

    turns = [("system", "You sort texts."), ("user", "I have 3 texts about what?."), ("assistant", "Show them.")]
    for place, passage in enumerate(passages, 1):
        turns += [("user", f"[{place}] {passage}"), ("assistant", f"I have read [{place}].")]
    turns += [("user", "Now sort all 3 of them by how well they answer what?, as in [2] > [1].")]
    text = "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in turns) + "<|im_start|>assistant\n"
    whole = make_tokenizer(style)
    whole.encode_special_tokens = False
    assert prompt.prompt_token_ids.tolist() == whole.encode(text, add_special_tokens=False).ids


def test_a_query_and_a_document_are_the_chat_templates_to_put_into_words(template):
    loaded = load_owners(template(PAIR), "yes_no")

    assert (loaded.turns, loaded.system) == ("query_document", "Tell whether the document answers the query")
    assert {"yes", "YES", " Yes"} <= set(loaded.yes)
    with pytest.raises(ConfigError, match="decode_mode = 'yes_no'"):
        load_owners(template(PAIR), "permutation")


def test_numbers_cannot_be_answered_by_one_token(template):
    with pytest.raises(ConfigError, match="needs letters"):
        load_owners(template(NUMBERED), "first_token")


@pytest.mark.parametrize(
    ("text", "words"), [("a: [1", "not readable as YAML"), ("- 1", "has the texts"), ("", "has the texts")]
)
def test_a_file_that_is_no_template_is_refused(template, text, words):
    with pytest.raises(ConfigError, match=words):
        load_owners(template(text), "permutation")


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
