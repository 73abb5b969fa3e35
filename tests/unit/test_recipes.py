"""Recipes of rerankers' owners: our ids are theirs, and pieces that are tokenised apart are those of the whole text."""

import re
from dataclasses import replace

import pytest

from tasks.prompt.chat_template import ChatTemplate
from tasks.prompt.templates import PromptTemplate, load_prompt_template
from tasks.prompt.tokens import ModelTokens
from tasks.ranking.recipe import build_recipe
from tasks.settings import load_settings
from tasks.system.errors import ConfigError
from tests.makers import CHATML, fit_builder, make_tokenizer, make_tokenizer_folder
from tests.prompts import FORMS, MULTI_TURN, PROMPTS, check_pieces, spliced_and_whole

# What the script on the card of Qwen/Qwen3-Reranker-0.6B writes (Apache-2.0).
# ---- pieces and the whole text


@pytest.mark.parametrize("form", ["two line breaks", "lines kept"])
def test_a_form_whose_pieces_a_tokenizer_would_join_is_refused(form):
    """GPT-2 splits a run of line breaks before a mark; the real ones of this kind are SmolLM2's and older."""
    template = replace(load_prompt_template(PROMPTS / "permutation.toml"), **FORMS[form])

    with pytest.raises(ConfigError, match="joins such a passage with what stands beside it.* not be tokenised once"):
        fit_builder(ModelTokens(make_tokenizer("gpt2")), template, ChatTemplate(CHATML, {}), "permutation")


@pytest.mark.parametrize("style", ["gpt2", "qwen"])
@pytest.mark.parametrize("form", ["a line each", "a turn each", "a turn each, lines kept"])
def test_pieces_are_those_of_the_whole_text(style, form):
    template = replace(load_prompt_template(PROMPTS / "permutation.toml"), **FORMS[form])
    check_pieces(fit_builder(ModelTokens(make_tokenizer(style)), template, ChatTemplate(CHATML, {}), "permutation"))


def test_a_model_owners_turns_are_one_for_each_passage():
    """RankGPT's form: the model's turn acknowledges each passage."""
    template = replace(load_prompt_template(PROMPTS / "permutation.toml"), **MULTI_TURN, system="You sort.")
    tokens = ModelTokens(make_tokenizer("qwen"))
    builder = fit_builder(tokens, template, ChatTemplate(CHATML, {}), "permutation")

    ids, _ = spliced_and_whole(builder, "tides?", ["the moon", "bread [1]"])

    turns = tokens.decode(ids).split("<|im_start|>")[1:]
    assert turns == [
        "system\nYou sort.<|im_end|>\n",
        "user\nHere come 2 texts about: tides?<|im_end|>\n",
        "assistant\nGo on.<|im_end|>\n",
        "user\n[1] the moon<|im_end|>\n",
        "assistant\nText [1] read.<|im_end|>\n",
        "user\n[2] bread (1)<|im_end|>\n",
        "assistant\nText [2] read.<|im_end|>\n",
        "user\nSort the 2 texts by how well they answer: tides?<|im_end|>\n",
        "assistant\n",
    ]


# ---- a prompt without a chat template

RAW = {
    "turns": "none", "system": "", "before": "<|im_start|>Q: {query}\n", "passage": "D: {text}", "after": "<|im_end|>"
}  # fmt: skip


def yes_no_builder(change, *, style="qwen", chat=CHATML):
    template = replace(load_prompt_template(PROMPTS / "yes_no.toml"), yes=("t",), no=("m",), **change)
    return fit_builder(ModelTokens(make_tokenizer(style)), template, ChatTemplate(chat, {}), "yes_no")


def asked_text(builder, query, passage):
    ids, _ = spliced_and_whole(builder, query, [passage])
    return builder.tokens.decode(ids)


def test_a_raw_prompt_is_what_the_template_says_and_no_more():
    assert asked_text(yes_no_builder(RAW), "q", "a  [2]\nb") == "<|im_start|>Q: q\nD: a [2] b<|im_end|>"


def test_a_turn_that_is_opened_by_setting_has_no_place_in_a_raw_prompt():
    template = replace(load_prompt_template(PROMPTS / "yes_no.toml"), yes=("t",), no=("m",), **RAW)
    chat = ChatTemplate(CHATML, {}, turn_prefix="<final>")

    with pytest.raises(ConfigError, match="turn_prefix = '<final>'.* answer_prefix"):
        fit_builder(ModelTokens(make_tokenizer("qwen")), template, chat, "yes_no")


def test_lines_are_kept_where_a_recipe_keeps_them_and_blank_texts_are_none():
    builder = yes_no_builder(RAW | {"lines": "keep"})

    assert asked_text(builder, "q\n ", " a  [2]\n\nb\n") == "<|im_start|>Q: q\n \nD:  a  [2]\n\nb\n<|im_end|>"
    assert builder.passage_lines([None, "T", "T"], [" \n", "", "a\nb"]) == ["", "", " T: a\nb"]
    assert builder.count_query_tokens(["\n "]).tolist() == [0]


@pytest.mark.parametrize(
    "change",
    [{"after": "!<|im_end|>"}, {"after": "\n<|im_end|>", "lines": "keep"}, {"before": "{query}", "passage": "{text}"}],
)
def test_a_passage_that_would_be_joined_with_what_follows_is_refused(change):
    with pytest.raises(ConfigError, match="ends a passage with ''.* could not be tokenised once"):
        yes_no_builder(RAW | change)


# ---- chat templates that take a query and a document

PAIR_CHAT = (  # of the form that vLLM's scoring API renders: no user's turn, an instruction from the system turn or a keyword
    "{% set task = (messages | selectattr('role', 'eq', 'system') | map(attribute='content') | first) or instruction "
    "or 'Judge it.' %}<|im_start|>{{ task }}\n"
    "Query: {{ (messages | selectattr('role', 'eq', 'query') | first).content }}\n"
    "Document: {{ (messages | selectattr('role', 'eq', 'document') | first).content }}<|im_end|>"
)


def test_a_chat_template_of_query_and_document_is_given_both(tmp_path):
    template = load_prompt_template(PROMPTS / "query_document.toml")
    builder = yes_no_builder({"turns": template.turns, "passage": template.passage} | BARE, chat=PAIR_CHAT)

    ids, _ = spliced_and_whole(builder, "q", ["the moon"])

    whole = make_tokenizer("qwen")
    whole.encode_special_tokens = False
    text = "<|im_start|>Judge it.\nQuery: q\nDocument: the moon<|im_end|>"
    assert ids.tolist() == whole.encode(text, add_special_tokens=False).ids


BARE = {"system": "", "before": "", "after": ""}


def test_an_instruction_goes_into_the_system_turn_or_a_keyword():
    change = {"turns": "query_document", "passage": "{text}"} | BARE

    assert asked_text(yes_no_builder(change | {"system": "Tides."}, chat=PAIR_CHAT), "q", "a").startswith(
        "<|im_start|>Tides."
    )
    template = replace(load_prompt_template(PROMPTS / "query_document.toml"), yes=("t",), no=("m",))
    told = fit_builder(
        ModelTokens(make_tokenizer("qwen")), template, ChatTemplate(PAIR_CHAT, {}, {"instruction": "Moons."}), "yes_no"
    )
    assert asked_text(told, "q", "a").startswith("<|im_start|>Moons.")


def test_a_model_that_takes_pairs_is_not_given_a_users_turn():
    with pytest.raises(ConfigError, match=r"chat template fails.*configs/prompts/query_document\.toml"):
        yes_no_builder({}, chat=PAIR_CHAT)


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (
            CHATML.replace("message['role']", "'user'").replace("message['content']", "'x'"),
            "does not keep the turns as given.*knows no roles query and document",
        ),
        (None, "needs a chat template with such roles"),
    ],
)
def test_a_model_that_takes_no_pairs_is_told(chat, words):
    with pytest.raises(ConfigError, match=words):
        yes_no_builder({"turns": "query_document", "passage": "{text}"} | BARE, chat=chat)


def test_a_cascade_whose_templates_want_other_passages_is_refused(tmp_path):
    model = make_tokenizer_folder(tmp_path / "model", "qwen", CHATML)
    words = (PROMPTS / "qwen3_reranker.toml").read_text("utf-8").replace('["yes"]', '["t"]').replace('["no"]', '["m"]')
    (tmp_path / "theirs.toml").write_text(words, "utf-8")
    config = tmp_path / "mine.toml"
    config.write_text('[inputs]\nnested = "x"\n[strategy.cascade]\nkeep = 20\n', "utf-8")
    overrides = {
        "engine.model": str(model),
        "strategy.decode_mode": "permutation",
        "prompt.cascade_template": str(tmp_path / "theirs.toml"),
    }

    with pytest.raises(ConfigError, match=r"\[prompt\] cascade_template: .*tokenised once, for both"):
        build_recipe(load_settings(config, overrides), model)


def test_what_was_asked_before_keeps_its_identity():
    listwise, pointwise = (load_prompt_template(PROMPTS / f"{mode}.toml") for mode in ("permutation", "yes_no"))
    later = {"lines", "turns", "before_reply", "passage_reply", "keeps_brackets"}

    assert not later & listwise.words.keys()
    assert later & pointwise.words.keys() == {"keeps_brackets"}  # their documents read otherwise now
    assert replace(listwise, lines="keep").words["lines"] == "keep"


# ---- Korean


@pytest.mark.parametrize(
    "decode_mode", ["first_token", "permutation", "query_likelihood", "reasoning", "select", "yes_no"]
)
def test_korean_words_say_all_that_the_english_do(decode_mode):
    """The same keys, placeholders and forms: only the words differ."""
    ours, theirs = (load_prompt_template(PROMPTS / folder / f"{decode_mode}.toml") for folder in ("ko", "."))

    for name in PromptTemplate.__dataclass_fields__:
        korean, english = getattr(ours, name), getattr(theirs, name)
        if name in ("system", "before", "after", "after_best", "after_bare"):
            assert bool(korean) == bool(english), name
            assert set(re.findall(r"{\w+}", korean)) == set(re.findall(r"{\w+}", english)), name
            assert not korean.strip() or re.search("[가-힣]", korean), name
        elif name != "passage":
            assert korean == english, name
    assert (ours.passage_head(0), ours.passage_tail) in {("[A] ", "\n"), ("[1] ", "\n"), ("문단: ", "\n")}
    assert ours.passage_tail == theirs.passage_tail


def test_the_language_chooses_the_words_of_every_step(tmp_path):
    model = make_tokenizer_folder(tmp_path / "model", "gpt2", CHATML)
    config = tmp_path / "mine.toml"
    config.write_text(
        '[inputs]\nnested = "x"\n[strategy.cascade]\ndecode_mode = "query_likelihood"\n[prompt]\nlanguage = "ko"\n',
        "utf-8",
    )
    overrides = {"engine.model": str(model), "engine.max_model_len": 16_000}

    asked = [each.mode.template for each in build_recipe(load_settings(config, overrides), model).askings.values()]
    own = load_settings(config, overrides | {"prompt.template": "configs/prompts/permutation.toml"})

    assert ["질문" in template.after for template in asked] == [True, True]
    assert own.templates["first_token"] == "configs/prompts/permutation.toml"
    with pytest.raises(ConfigError, match="'en' or 'ko'"):
        load_settings(config, overrides | {"prompt.language": "jp"})


def test_a_spelling_of_the_verdict_counts_with_its_counterpart_only():
    template = replace(load_prompt_template(PROMPTS / "yes_no.toml"), yes=("t", "two words"), no=("m", "b"))

    answers = fit_builder(ModelTokens(make_tokenizer("gpt2")), template, ChatTemplate(CHATML, {}), "yes_no").mode

    assert (len(answers.yes_ids), len(answers.no_ids)) == (1, 1)
