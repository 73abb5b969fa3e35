"""Values of settings that would do harm as SQL or as code: they are bound, and nothing of a model's folder runs."""

import json
import shutil
from datetime import date

import pyarrow.parquet as pq
import pytest

from tasks.engine.engine_options import engine_options
from tasks.nightly.night import run_night
from tasks.nightly.prepare import NightRequest, prepare_night
from tasks.nightly.run_choice import store_of
from tasks.settings import PATH_SETTINGS, load_settings
from tasks.system.errors import ConfigError
from tests.makers import ROOT, WIDTH, make_adapter, make_inputs, make_settings, select, write_parquet

EVIL = 'o\'brien "x"; drop table runs; -- [y] $1 %s {z}*'
NIGHT = date(2026, 11, 29)
TABLES = {"runs", "scores", "rankings", "windows", "batches", "quarantine", "metrics"}


def move(paths, folder):
    """Files under hostile names in a hostile Hive folder."""
    moved = {}
    for name, path in paths.items():
        target = folder / f"{name}{EVIL}" / f"dt'{EVIL}=x'{EVIL}" / f"part {EVIL}.parquet"
        target.parent.mkdir(parents=True)
        shutil.move(path, target)
        moved[name] = str(target.parent.parent)
    return moved


def rename_columns(path, names):
    table = pq.read_table(path)
    pq.write_table(table.rename_columns([names.get(name, name) for name in table.column_names]), path)


def test_no_path_column_or_name_of_the_settings_reaches_sql_as_text(tmp_path, model_folder, fake_vllm):
    folder = tmp_path / EVIL
    paths = make_inputs(folder / "in", [1, 3, 6])
    paths["inputs.qrels"] = str(write_parquet(folder / "r.parquet", query_id=["q001"], doc_id=["d0001"], relevance=[1]))
    columns = {"queries": ["query_id", "text"], "documents": ["doc_id", "text", "title"]}
    columns |= {"candidates": ["query_id", "doc_id", "rank", "score"], "qrels": ["query_id", "doc_id", "relevance"]}
    values = {}
    for source, names in columns.items():
        rename_columns(paths[f"inputs.{source}"], {name: f"{name}{EVIL}" for name in names})
        values |= {f"inputs.columns.{source}.{name}": f"{name}{EVIL}" for name in names}
    for name in ("prompts/first_token.toml", "prompts/yes_no.toml", "models/instruct.toml"):
        shutil.copy(ROOT / "configs" / name, folder / f"{EVIL}{name.rpartition('/')[2]}")
    model = folder / f"model {EVIL}"
    shutil.copytree(model_folder, model)
    values |= move(paths, folder) | {
        "inputs.partition": f"dt'{EVIL}=x'{EVIL}",
        "prompt.template": str(folder / f"{EVIL}first_token.toml"),
        "prompt.cascade_template": str(folder / f"{EVIL}yes_no.toml"),
        "strategy.cascade.keep": 4,
        "strategy.cascade.decode_mode": "yes_no",
        "engine.lora": str(make_adapter(folder / f"adapter {EVIL}", width=WIDTH)),
        "store.database": str(folder / "var" / f"{EVIL}.duckdb"),
        "store.spool": str(folder / f"spool {EVIL}"),
        "store.export": str(folder / f"export {EVIL}"),
        "store.published_copy": True,
        "store.keep_nights": 1,
    }
    config = make_settings(folder, model, values)
    preset = folder / f"{EVIL}instruct.toml"
    config.write_text(f"preset = {json.dumps(str(preset))}\n" + config.read_text(encoding="utf-8"), encoding="utf-8")
    prepared = prepare_night(NightRequest(config=config, night=NIGHT, publish=True))

    run_night(prepared)

    named = {name for name in PATH_SETTINGS if name in values or name in ("preset", "engine.model")}
    assert named == set(PATH_SETTINGS) - {"inputs.nested", "night.alert_url_file"}
    assert {row["table_name"] for row in select(prepared, "select table_name from duckdb_tables()")} >= TABLES
    assert select(prepared, "select status, name from runs") == [{"status": "published", "name": "nightly"}]
    assert len(select(prepared, "select * from latest_scores")) == 10
    assert EVIL in select(prepared, "select input_partition from runs")[0]["input_partition"]
    exported = folder / f"export {EVIL}" / "nightly" / "night=2026-11-29" / "scores.parquet"
    assert pq.read_metadata(exported).num_rows == 10
    assert (folder / "var" / f"{EVIL}.published.duckdb").exists()


def test_a_nested_input_under_a_hostile_name_is_read(tmp_path, model_folder, fake_vllm):
    path = tmp_path / EVIL / f"{EVIL}.parquet"
    lists = [[{"doc_id": f"{EVIL}{number}", "text": "tide", "score": 1.0} for number in range(3)]]
    write_parquet(path, **{EVIL: [EVIL], "text": ["moon"], "candidates": lists})
    values = {"inputs.nested": str(path), "inputs.columns.nested.query_id": EVIL}
    prepared = prepare_night(NightRequest(config=make_settings(tmp_path, model_folder, values), night=NIGHT))

    run_night(prepared)

    assert {row["query_id"] for row in select(prepared, "select query_id from scores")} == {EVIL}


@pytest.mark.parametrize("name", ["x'; drop table runs; --", "a b", "../up", "x\x1b[31m"])
def test_a_nights_name_is_letters_digits_and_marks(tmp_path, name):
    with pytest.raises(ConfigError, match=r"\[night\] name"):
        load_settings(make_settings(tmp_path, tmp_path, {"inputs.nested": "n"}), {"night.name": name})


HOSTILE_CODE = "from pathlib import Path\nPath(__file__).with_name('ran').touch()\n"


@pytest.fixture
def hostile_model(tmp_path, model_folder):
    """A model whose folder asks for its own code to be run, wherever such a thing can be asked for."""
    folder = tmp_path / "hostile"
    shutil.copytree(model_folder, folder)
    for name in ("modeling_x", "tokenization_x", "configuration_x"):
        (folder / f"{name}.py").write_text(HOSTILE_CODE)
    wanted = {"AutoConfig": "configuration_x.X", "AutoTokenizer": ["tokenization_x.X", None]}
    for name in ("tokenizer_config.json", "config.json"):
        document = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).unlink()
        (folder / name).write_text(json.dumps(document | {"auto_map": wanted, "tokenizer_class": "X"}))
    return folder


@pytest.mark.fault(85)
def test_code_of_a_models_folder_runs_nowhere_unless_that_is_set(tmp_path, hostile_model, fake_vllm):
    paths = make_inputs(tmp_path / "in", [3])
    config = make_settings(tmp_path, hostile_model, paths)
    prepared = prepare_night(NightRequest(config=config, night=NIGHT))

    run_night(prepared)

    assert not (hostile_model / "ran").exists()
    assert select(prepared, "select status from runs") == [{"status": "complete"}]
    plain = engine_options(prepared.settings, "stream", tmp_path / "tmp", tmp_path / "log")
    asked = load_settings(config, {"engine.trust_remote_code": True})
    assert plain.keywords["trust_remote_code"] is False
    assert plain.environment["HF_HUB_OFFLINE"] == "1"
    assert engine_options(asked, "stream", tmp_path / "tmp", tmp_path / "log").keywords["trust_remote_code"] is True
    assert prepare_night(NightRequest(config=config, night=NIGHT, overrides={"engine.trust_remote_code": True}))
    assert not (hostile_model / "ran").exists()  # tokens and prompts never need it
    assert store_of(prepared).path.exists()


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch ran') }}",
        "{% for each in messages %}{{ messages.append(1) }}{% endfor %}",
        "{{ self._TemplateReference__context }}{{ lipsum.__globals__['os'].popen('touch ran').read() }}",
    ],
)
def test_a_chat_template_stays_in_its_box(tmp_path, hostile_model, template, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (hostile_model / "chat_template.jinja").unlink()
    (hostile_model / "chat_template.jinja").write_text(template)
    config = make_settings(tmp_path, hostile_model, make_inputs(tmp_path / "in", [3]))

    with pytest.raises(ConfigError, match="chat template"):
        prepare_night(NightRequest(config=config, night=NIGHT))

    assert not (tmp_path / "ran").exists()
