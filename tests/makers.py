"""Small inputs for tests: Parquet files, settings, tokenizers, model folders. Literal and readable, nothing clever."""

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from string import ascii_letters
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from tasks.decode import DECODE_MODES
from tasks.decode.answer import Thinking
from tasks.prompt.answer_forms import AnswerForm
from tasks.prompt.chat_template import ChatTemplate
from tasks.prompt.prompts import Prompt, PromptBuilder
from tasks.prompt.templates import PromptTemplate
from tasks.prompt.tokens import ModelTokens
from tasks.schedule.windows import Window
from tasks.store.night_store import Store
from tasks.store.runs import Run, Runs
from tasks.store.tables import SCHEMAS
from tasks.system.database import DatabaseLimits, open_database

ROOT = Path(__file__).resolve().parent.parent
SAMPLE_MODEL = ROOT / "models" / "sample"
FAKE_VLLM = ROOT / "tests" / "fakes"

WORDS = [
    *("tide", "moon", "bread", "yeast", "river", "stone", "bridge", "cable", "star", "comet"),
    *("lens", "light", "seed", "soil", "rain", "bank", "coin", "vote", "law", "court"),
]

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def make_text(number: int, num_words: int = 12) -> str:
    """A passage of known length that differs from every other number's."""
    rng = np.random.default_rng(number)
    return " ".join(rng.choice(WORDS, num_words)) + f" {number}."


def make_inputs(
    folder: Path, lists: Sequence[int], *, num_words: int = 12, title: bool = True, first_query: int = 0
) -> dict[str, str]:
    """Queries q000.. with lists of the given lengths over shared documents; returns [inputs] paths."""
    folder.mkdir(parents=True, exist_ok=True)
    num_documents = max([*lists, 1]) + len(lists)
    queries = [f"q{number:03d}" for number in range(first_query, first_query + len(lists))]
    write_parquet(
        folder / "queries.parquet", query_id=queries, text=[f"what is {make_text(i, 2)}" for i in range(len(lists))]
    )
    documents = {
        "doc_id": [f"d{number:04d}" for number in range(num_documents)],
        "text": [make_text(number, num_words) for number in range(num_documents)],
    }
    if title:
        documents["title"] = [None if number % 3 else f"Title {number}" for number in range(num_documents)]
    write_parquet(folder / "documents.parquet", **documents)
    rows = [
        (query, f"d{(place + shift) % num_documents:04d}", place + 1, 100.0 - place)
        for shift, (query, length) in enumerate(zip(queries, lists, strict=True))
        for place in range(length)
    ]
    names = ("query_id", "doc_id", "rank", "score")
    columns = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    write_parquet(folder / "candidates.parquet", **columns)
    return {f"inputs.{name}": str(folder / f"{name}.parquet") for name in ("queries", "documents", "candidates")}


def write_parquet(path: Path, **columns: Any) -> Path:
    """One Parquet file of the given columns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def make_settings(folder: Path, model: Path, values: Mapping[str, object] | None = None) -> Path:
    """A settings file that ranks with windows of 4, stride 2, and keeps everything in `folder`."""
    base: dict[str, object] = {
        "night.cron": "30 1 * * *",
        "night.timezone": "Asia/Seoul",
        "strategy.name": "sliding",
        "strategy.decode_mode": "first_token",
        "strategy.window_size": 4,
        "strategy.stride": 2,
        "prompt.max_passage_tokens": 64,
        "prompt.min_passage_tokens": 8,
        "prompt.max_query_tokens": 64,
        "engine.model": str(model),
        "engine.max_model_len": 1024,
        "checks.canary": "off",  # the fake engine knows nothing of tides
        "store.database": str(folder / "var" / "test.duckdb"),
    }
    sections: dict[str, list[str]] = {}
    for dotted, value in (base | dict(values or {})).items():
        if value is not None:
            section, _, key = dotted.partition(".")
            sections.setdefault(section, []).append(f"{key} = {json.dumps(value)}")
    text = "\n".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
    path = folder / "nightly.toml"
    path.write_text(text, encoding="utf-8")
    return path


def make_model_folder(folder: Path) -> Path:
    """The sample model's small files: enough for prompts and for the fake engine."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        shutil.copyfile(SAMPLE_MODEL / name, folder / name)  # a test that writes here must not write there
    return folder


def make_tokenizer(style: str) -> Tokenizer:
    """A tokenizer trained here: byte-level 'gpt2' or 'qwen' (joins punctuation and line breaks), or 'metaspace'.

    'merged' is 'qwen' with one token for "[A", "[B", ... as real ones of that form have.

    '<|im_start|>' and '<|im_end|>' are special, '<think>' and '</think>' are added but not special.
    """
    tokenizer = Tokenizer(
        models.BPE(unk_token="<unk>" if style == "metaspace" else None, byte_fallback=style == "metaspace")
    )
    if style == "gpt2":
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif style in ("qwen", "merged"):
        split = pre_tokenizers.Split(Regex(QWEN_SPLIT), behavior="isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    spaces = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.decoder = spaces if style == "metaspace" else decoders.ByteLevel()
    alphabet = [] if style == "metaspace" else pre_tokenizers.ByteLevel.alphabet()
    fallback = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)]] if style == "metaspace" else []
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=alphabet, special_tokens=fallback, show_progress=False
    )
    corpus = [make_text(number, 20) for number in range(60)] + ["[1] > [2] > [3]\n", "What is it?\n\n", "한국어 글\n"]
    if style == "merged":
        corpus += [f"[{letter}\n" * 99 for letter in ascii_letters]
    tokenizer.train_from_iterator(corpus, trainer)
    trained = json.loads(tokenizer.to_str())
    tokenizer = Tokenizer.from_str(json.dumps(trained | {"added_tokens": []}))  # byte tokens are plain ones
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    return tokenizer


def fit_builder(tokens: ModelTokens, template: PromptTemplate, chat: ChatTemplate, decode_mode: str) -> PromptBuilder:
    """The prompts of a decode mode, by its name."""
    return PromptBuilder(tokens, chat, DECODE_MODES[decode_mode](tokens, template, chat, Thinking()))


def make_finished_run(
    database: Path,
    run_id: str,
    orders: Mapping[str, tuple[Sequence[str], Sequence[str]]],
    *,
    name: str = "test",
    status: str = "complete",
    settings: Mapping[str, object] | None = None,
    scores_run_id: str | None = None,
    hour: int = 1,
    night: date = date(2026, 11, 29),
    is_limited: bool = False,
    failed_checks: Sequence[str] | None = None,
    input_warnings: Sequence[str] = (),
) -> None:
    """A run as a night leaves it, without a night.

    Args:
        database: made if it is not there.
        run_id: the new run.
        orders: query_id -> (documents in first-stage order, the same as reranked).
        name: of the series.
        status: of the run.
        settings: as stored.
        scores_run_id: the run that computed the rows; this one if not given, else no row is written.
        hour: when it started.
        night: its night.
        is_limited: whether it is a trial.
        failed_checks: as its checks left them; not checked if not given.
        input_warnings: what of the input was not of its night.
    """
    store = Store(database, DatabaseLimits("200MB", 1, database.parent / "spill"))
    store.prepare()
    run = Run(
        run_id=run_id,
        name=name,
        night=night,
        started_at=datetime(2026, 11, 29, hour, 30, tzinfo=UTC),
        settings=json.dumps(settings or {}),
        resolved="{}",
        recipe="{}",
        input_digest="0",
        model="m",
        model_identity="i",
        strategy="sliding",
        decode_mode="first_token",
        versions="{}",
        host="h",
        is_limited=is_limited,
        input_warnings=list(input_warnings),
    )
    rankings = [
        {"run_id": run_id, "query_id": query, "scores_run_id": scores_run_id or run_id, "status": "ranked"}
        | {"num_candidates": len(after), "depth": len(after), "num_windows": 1, "num_rounds": 1}
        | dict.fromkeys(("query_digest", "candidates_digest", "documents_digest", "recipe_digest"), 0)
        for query, (_, after) in orders.items()
    ]
    scores = [
        {"run_id": run_id, "query_id": query, "doc_id": doc, "rank": rank, "score": 1.0 / rank}
        | {"score_kind": "reciprocal_rank", "first_stage_rank": before.index(doc) + 1, "status": "ranked"}
        for query, (before, after) in orders.items()
        for rank, doc in enumerate(after, 1)
    ]
    store.begin_run(run)
    with store.unit_of_work() as opened:
        opened.append("rankings", pa.Table.from_pylist(rankings, SCHEMAS["rankings"]))
        if scores_run_id is None:
            opened.append("scores", pa.Table.from_pylist(scores, SCHEMAS["scores"]))
        Runs(opened).finish(run_id, status, None)
        if failed_checks is not None:
            Runs(opened).note_checks(run_id, failed_checks)


# Chat templates of the forms that model families have, in words of our own.
QWEN3_CHAT = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)
LLAMA3_CHAT = (
    "{{ bos_token }}{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{% if message['role'] == 'system' %}{{ 'Today Date: ' + date_string + '\n\n' }}{% endif %}"
    "{{ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GPT_OSS_CHAT = (
    "<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}\n\nReasoning: {{ reasoning_effort or 'medium' }}"
    "\n\nChannels: analysis, commentary, final.<|end|>{% for message in messages %}"
    "{% if message['role'] == 'system' %}{% set role, head = 'developer', '# Instructions\n\n' %}"
    "{% else %}{% set role, head = message['role'], '' %}{% endif %}"
    "{{ '<|start|>' + role + '<|message|>' + head + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
)
ZEPHYR_CHAT = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
ALWAYS_THINKING_CHAT = CHATML.replace("assistant\n'", "assistant\n<think>\n'")


def make_tokenizer_folder(folder: Path, style: str, chat: str, *, bos_token: str = "<|im_start|>") -> Path:
    """A model's folder without weights: a tokenizer made here and a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    make_tokenizer(style).save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(chat, encoding="utf-8")
    config = {"bos_token": bos_token, "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "config.json").write_text("{}", encoding="utf-8")
    return folder


WIDTH = 576  # of the sample model
LAYER_0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


def make_adapter(folder: Path, *, width: int = 64, layer: int = 0, fill: float = 1.0, **config: Any) -> Path:
    """A LoRA adapter of one layer."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj"],
        "base_model_name_or_path": "tiny",
    }
    (folder / "adapter_config.json").write_text(json.dumps(whole | config))
    name = LAYER_0.replace(".0.", f".{layer}.")
    tensors = {
        name: np.full((4, width), fill, np.float32),
        name.replace("lora_A", "lora_B"): np.ones((64, 4), np.float32),
    }
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def make_prompt(prompt_tokens: int, max_tokens: int = 1, number: int = 0) -> Prompt:
    """A prompt of the given size, in which nothing is said."""
    ids, form = np.zeros(prompt_tokens, np.int32), AnswerForm(max_tokens)
    return Prompt(f"q{number}", Window((0, 1)), "permutation", ids, form, 0, "", 0, 0)


def make_tiny_model(folder: Path) -> Path:
    """A Llama of one layer with random weights, a tokenizer made here and ChatML: the CPU engine loads it in seconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    make_tokenizer_folder(folder, "gpt2", CHATML)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=make_tokenizer("gpt2").get_vocab_size(with_added_tokens=True),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=2,  # of 32 dimensions: the CPU engine takes no fewer
        num_key_value_heads=1,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def store_at(database: Path) -> Store:
    """The store of a database file."""
    return Store(database, DatabaseLimits("200MB", 1, database.parent / "spill"))


def rows(database: Path, *statements: str) -> list[dict[str, Any]]:
    """Runs the statements on a database file; returns the rows of the last."""
    with store_at(database).unit_of_work() as opened:
        for statement in statements:
            told = opened.query_text(statement)
    return told.to_pylist()


def read_rows(database: Path, statement: str) -> list[dict[str, Any]]:
    """Rows of a database file that somebody else may have open, too."""
    with open_database(database, store_at(database).limits, read_only=True, wait_s=5.0) as opened:
        found: list[dict[str, Any]] = opened.query_text(statement).to_pylist()
    return found


def select(prepared: Any, statement: str) -> list[dict[str, Any]]:
    """Rows of a prepared night's database."""
    from tasks.nightly.run_choice import store_of

    with store_of(prepared).unit_of_work() as database:
        rows: list[dict[str, Any]] = database.query_text(statement).to_pylist()
    return rows


def value(prepared: Any, statement: str) -> Any:
    """The one value of a statement's one row."""
    (row,) = select(prepared, statement)
    (found,) = row.values()
    return found


def asked(log: Path) -> list[dict[str, Any]]:
    """What the fake engine was asked: nothing where it never was; the line that it is writing does not count."""
    if not Path(log).exists():
        return []
    whole, _, _ = Path(log).read_text(encoding="utf-8").rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]
