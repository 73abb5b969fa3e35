"""`packrank sql`: every value as DuckDB prints it, in every format, and no file but the database within reach."""

import csv
import io
import json
import os

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.report.sql_shell import read_rows, run_statement, write_answer, write_result
from tasks.settings import StoreSettings
from tasks.system.errors import ConfigError, PackrankError, StoreError

VALUES = {  # SQL: what DuckDB prints
    "interval '1 day 2 hours'": "1 day 02:00:00",
    r"'\xAA'::blob": r"\xAA",
    "'101'::bit": "101",
    "union_value(n := 2)": "2",
    "{'a': 1}::variant": "{'a': 1}",
    "'infinity'::timestamp": "infinity",
    "'-infinity'::date": "-infinity",
    "'0044-03-15 (BC)'::date": "0044-03-15 (BC)",
    "'99999-01-01'::timestamp": "99999-01-01 00:00:00",
    "340282366920938463463374607431768211455::uhugeint": "340282366920938463463374607431768211455",
    "(10::bignum ** 3)::bignum": "1000",
    "'01:02:03+02'::timetz": "01:02:03+02",
    "'24:00:00'::time": "24:00:00",
    "'2026-11-29 20:00:00+00'::timestamptz": "2026-11-29 20:00:00+00",
    "'2026-01-01 00:00:00.123456789'::timestamp_ns": "2026-01-01 00:00:00.123456789",
    "'POINT(1 2)'::geometry": "POINT (1 2)",
    "'nan'::double": "nan",
    "'-inf'::float": "-inf",
    "1.50::decimal(38, 2)": "1.50",
    "12345678901234567890::hugeint": "12345678901234567890",
    "uuid '87a5e0c2-7a25-4f0c-9d0e-0a4a6b1f1c33'": "87a5e0c2-7a25-4f0c-9d0e-0a4a6b1f1c33",
    "'a'::enum('a', 'b')": "a",
    "'밀물 \"1\"'": '밀물 "1"',
    "null": None,
    "''": "",
}
IN_JSON = {"{'a': 1}": {"a": 1}, "2": {"n": 2}, "1.50": 1.5, "1000": 1000, "12345678901234567890": 12345678901234567890}
IN_JSON |= {"340282366920938463463374607431768211455": 340282366920938463463374607431768211455}


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    path = tmp_path_factory.mktemp("queries") / "x.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("create table t as select range as a, repeat('x', 200) || range as b from range(100_000)")
    return path


def refused(word):
    raise AssertionError(f"{word} is no word of JSON")


def written(database, statement, form, tmp_path):
    output = tmp_path / f"x.{form}"
    write_answer(database, statement, form, output)
    return output


ALL = "select " + ", ".join(VALUES)


def test_csv_has_every_value_as_duckdb_prints_it(database, tmp_path):
    text = written(database, ALL, "csv", tmp_path).read_text(encoding="utf-8")
    _, row = csv.reader(io.StringIO(text))

    assert row == [value or "" for value in VALUES.values()]
    assert text.endswith(',,""\n')  # null is nothing, an empty text is there


def test_json_is_strict_and_has_every_value(database, tmp_path):
    text = written(database, ALL, "json", tmp_path).read_text(encoding="utf-8")
    (row,) = json.loads(text, parse_constant=refused)

    assert list(row.values()) == [IN_JSON.get(value, value) for value in VALUES.values()]
    assert '":1.50,"' in text  # a decimal keeps its digits


def test_a_table_has_every_value(database, tmp_path):
    shown = " ".join(written(database, ALL, "table", tmp_path).read_text(encoding="utf-8").split())

    for value in VALUES.values():
        assert not value or value in shown


def test_parquet_has_every_value_and_its_own_types(database, tmp_path):
    path = written(database, ALL, "parquet", tmp_path)
    (row,) = duckdb.sql(f"set TimeZone = 'UTC'; select columns(*)::varchar from '{path}'").fetchall()
    types = [column.type for column in pq.read_schema(path)]

    assert list(row) == list(VALUES.values())
    assert pa.timestamp("us") in types
    assert pa.decimal128(38, 2) in types


def test_not_a_number_inside_a_list_or_a_text_is_strict_json_too(database, tmp_path):
    statement = """select ['nan'::double, 1.5] as l, 'NaN, "Infinity\\' as "NaN", {'x': [-'inf'::float]} as s"""
    (row,) = json.loads(
        written(database, statement, "json", tmp_path).read_text(encoding="utf-8"), parse_constant=refused
    )

    assert row == {"l": ["nan", 1.5], "NaN": 'NaN, "Infinity\\', "s": {"x": ["-inf"]}}


def test_lists_are_json_in_csv_and_lists_in_parquet(database, tmp_path):
    statement = "select ['a', null, 'b\"'] as l, [date '2026-11-29'] as d, [interval '1 day'] as i"
    _, row = csv.reader(io.StringIO(written(database, statement, "csv", tmp_path).read_text(encoding="utf-8")))
    table = pq.read_table(written(database, statement, "parquet", tmp_path))

    assert [json.loads(each) for each in row] == [["a", None, 'b"'], ["2026-11-29"], ["1 day"]]
    assert table.schema.field("d").type == pa.list_(pa.date32())
    assert table.column("i").to_pylist() == ["[1 day]"]  # Parquet files have no such list


@pytest.mark.parametrize("form", ["csv", "json", "table", "parquet"])
def test_columns_of_one_name_are_all_there(database, tmp_path, form):
    path = written(database, 'select 1 as x, 20 as x, 300 as x, 4 as "a""b"', form, tmp_path)
    text = str(pq.read_table(path).to_pylist()) if form == "parquet" else path.read_text(encoding="utf-8")

    for word in ("x_1", "x_2", "20", "300"):
        assert word in text


def test_a_long_statement_and_the_order_of_its_rows(database, tmp_path):
    statement = f"select a from t where a not in ({', '.join(['-1'] * 100)}) order by a % 7 desc, a desc limit 5_000"
    rows = json.loads(written(database, statement, "json", tmp_path).read_text(encoding="utf-8"))

    assert [row["a"] for row in rows] == sorted(range(100_000), key=lambda a: (-(a % 7), -a))[:5_000]


@pytest.mark.parametrize(
    "statement", ["explain select 1", "show tables", "describe t", "pivot (select 1 as a) on a using count(*)"]
)
def test_statements_other_than_select_answer_too(database, tmp_path, statement):
    assert json.loads(written(database, statement, "json", tmp_path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("rest", ["select 1 where false", "", "-- nothing"])
def test_no_rows_are_an_empty_array(database, tmp_path, rest):
    assert json.loads(written(database, rest, "json", tmp_path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "statement",
    [
        "copy t to '{other}.csv'",
        "copy (select 1) to '{database}.wal'",
        "copy (select 1) to '{spill}/x.csv'",
        "export database '{other}'",
        "attach '{other}.duckdb' as other",
        "attach '{other}.duckdb' as other; create table other.x as select 1 as a",
        "explain analyze copy t to '{other}.csv'",
        "select * from read_csv('{readable}')",
        "select * from read_text('{readable}')",
        "select * from '{readable}'",
        "set enable_external_access = true",
        "reset lock_configuration",
        "set temp_directory = '{other}'",
        "set memory_limit = '100GB'",
        "install httpfs",
    ],
)
def test_a_statement_reaches_no_other_file(database, tmp_path, statement):
    readable = tmp_path / "readable.csv"
    readable.write_text("a\nsecret\n")
    before = sorted(path for path in database.parent.rglob("*") if path.is_file())
    names = {
        "other": tmp_path / "other",
        "database": database,
        "spill": database.with_name(f".x.duckdb.{os.getpid()}.spill"),
    }

    with pytest.raises(ConfigError) as told:
        read_rows(database, statement.format(**names, readable=readable), {})

    assert "secret" not in str(told.value)
    assert "Stack Trace" not in str(told.value)
    assert list(tmp_path.iterdir()) == [readable]
    assert sorted(path for path in database.parent.rglob("*") if path.is_file()) == before


def test_the_refusal_says_how_to_write_a_file(database):
    with pytest.raises(ConfigError, match=r"packrank sql --output FILE writes a result"):
        read_rows(database, "copy t to 'x.csv'", {})


def test_a_statement_spills_beside_the_database_and_leaves_nothing_there(database, monkeypatch):
    """Also where it writes into its spill folder, the one that is within its reach."""
    monkeypatch.setattr("tasks.report.sql_shell.StoreSettings", lambda: StoreSettings(memory_limit="20MB", threads=1))
    spill = f"{database.parent}/.x.duckdb.{os.getpid()}.spill"
    spilled = f"create temp table z as select * from t; copy (select 1) to '{spill}/x.csv'; select count(*) as n from z"

    assert read_rows(database, spilled, {}).to_pylist() == [{"n": 100_000}]
    assert list(database.parent.iterdir()) == [database]


@pytest.mark.parametrize("form", ["csv", "json", "table", "parquet"])
def test_an_output_that_cannot_be_written_is_one_line(database, tmp_path, form):
    with pytest.raises(PackrankError, match=r"none/x: cannot be written: .*No such file or directory"):
        write_answer(database, "select 1 as a", form, tmp_path / "none" / "x")
    with pytest.raises(PackrankError, match="cannot be written"):
        write_result(pa.table({"a": [1]}), form, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_was_there_is_kept_where_the_new_one_fails(database, tmp_path):
    path = written(database, "select 1 as a", "csv", tmp_path)
    before = path.read_bytes()

    with pytest.raises(ConfigError):
        write_answer(database, "select error('no') as a", "csv", path)

    assert path.read_bytes() == before


def test_the_database_is_no_output(database, tmp_path):
    (tmp_path / "link").symlink_to(database)
    before = database.read_bytes()

    with pytest.raises(ConfigError, match="that is the database itself"):
        write_answer(database, "select 1 as a", "csv", tmp_path / "link")

    assert database.read_bytes() == before


def test_a_folder_that_may_not_be_entered_is_told_in_one_line(tmp_path):
    me = os.geteuid()
    tmp_path.chmod(0)
    if me == 0:
        os.seteuid(65534)  # root may enter anything
    try:
        with pytest.raises(StoreError, match="no permission to open its folder"):
            run_statement(tmp_path / "x.duckdb", "select 1")
    finally:
        os.seteuid(me)
        tmp_path.chmod(0o700)
