"""Parquet made to do harm: refused by name and limit, in bounded memory; honest large files are read.

A bomb is read in a child process, so that its peak memory can be told; the bound holds for all of them in turn.
"""

import base64
import json
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from tasks.inputs import pages
from tasks.inputs.footers import MAX_COLUMNS, MAX_FOOTER_BYTES
from tests.makers import ROOT, write_parquet

MB = 1 << 20


def read_in_a_child(*paths):
    answer = subprocess.run(
        [sys.executable, "-m", "tests.read_parquet", *map(str, paths)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr[-2000:]
    return [json.loads(line) for line in answer.stdout.splitlines()]


def write_groups(path, texts, num_groups, **options):
    """The same few rows again and again, each time a row group."""
    schema = pa.schema([("doc_id", pa.string()), ("text", texts.type)])
    table = pa.table({"doc_id": [f"d{number}" for number in range(len(texts))], "text": texts}, schema=schema)
    options = {"compression": "zstd", "write_statistics": False, "use_dictionary": False} | options
    with pq.ParquetWriter(path, schema, **options) as writer:
        for _ in range(num_groups):
            writer.write_table(table)
    return path


def page_bomb(path):
    return write_groups(path, pa.array(["x" * (140 * MB)]), 1)


def value_bomb(path):
    return write_groups(path, pa.array(["x" * (20 * MB)]), 4)  # each page is below the limit


def dictionary_bomb(path):
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2_048, np.int32)), pa.array(["x" * (20 * MB)]))
    return write_groups(path, texts, 1, use_dictionary=True, dictionary_pagesize_limit=1 << 30)  # 41 GB


def repeated_bomb(path):
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int32)), pa.array(["x" * MB]))
    return write_groups(path, texts, 1, use_dictionary=True, dictionary_pagesize_limit=2 * MB)  # 10 GB


def prefix_bomb(path):
    encodings = {"doc_id": "PLAIN", "text": "DELTA_BYTE_ARRAY"}
    return write_groups(path, pa.array(["x" * (10 * MB)] * 4), 1, column_encoding=encodings)


def skewed_bomb(path):
    """The mean says 3 KB; then come texts that fill memory, each allowed."""
    texts = pa.array(["s"] * 500_000 + ["x" * (12 * MB)] * 20)
    return write_groups(path, texts, 1, data_page_size=MB, write_batch_size=1)


def many_columns(path):
    return write_parquet(path, doc_id=["a"], text=["b"], **{f"c{number}": [1] for number in range(MAX_COLUMNS)})


def deep_nesting(path):
    kind = pa.int32()
    for _ in range(200):
        kind = pa.struct([("a", kind)])
    return write_parquet(path, doc_id=["a"], text=["b"], deep=pa.array([None], kind))


def long_footer(path):
    table = pa.table({"doc_id": ["a"], "text": ["b"]}).replace_schema_metadata({"k": "x" * (MAX_FOOTER_BYTES + 1)})
    pq.write_table(table, path)
    return path


BOMBS = {  # how it is made, what its message says
    page_bomb: "bytes once decompressed, at most 134,217,728 are read. Write smaller pages",
    value_bomb: "bytes once decompressed with 1 values, a text may have 16,777,216 bytes",
    dictionary_bomb: "a dictionary with a value of 20,971,520 bytes, a text may have 16,777,216",
    repeated_bomb: "decodes to more than 4,294,967,296 bytes, 1,000 times the file",
    prefix_bomb: "bytes once decompressed, at most 8,388,608 are read",
    skewed_bomb: "at most 134,217,728 are read at once",
    many_columns: f"{MAX_COLUMNS + 2:,} columns, at most {MAX_COLUMNS:,} are read",
    deep_nesting: "too deeply nested",
    long_footer: f"at most {MAX_FOOTER_BYTES:,} are read",
}


def test_a_bomb_is_refused_by_name_and_limit_in_bounded_memory(tmp_path):
    paths = [make(tmp_path / f"{make.__name__}.parquet") for make in BOMBS]

    found = read_in_a_child(*paths)

    for path, words, each in zip(paths, BOMBS.values(), found, strict=True):
        assert str(path) in each["told"], each
        assert words in each["told"], each
        assert len(each["told"].splitlines()) == 1
    assert {"repeated_bomb.parquet"} <= {path.name for path in paths if path.stat().st_size < 50_000}  # 10 GB
    assert found[-1]["peak_mb"] < 600, [(path.name, each["peak_mb"]) for path, each in zip(paths, found, strict=True)]


def test_an_honest_file_of_any_form_is_read_whole(tmp_path):
    """Texts sorted by length, from 2 bytes to 1 MB, in all codecs and encodings of ids."""
    texts = ["w " * (1 << min(number // 40, 19)) for number in range(800)]  # 2 bytes to 1 MB
    table = pa.table({"doc_id": [f"d{number}" for number in range(800)], "text": texts})
    paths = []
    for codec in ("none", "snappy", "gzip", "zstd", "brotli", "lz4"):
        for version in ("1.0", "2.0"):
            paths.append(tmp_path / f"{codec}-{version}.parquet")
            pq.write_table(table, paths[-1], compression=codec, data_page_version=version)
    for encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"):
        paths.append(tmp_path / f"{encoding}.parquet")
        encodings = {"doc_id": encoding, "text": "PLAIN"}
        pq.write_table(table, paths[-1], use_dictionary=False, column_encoding=encodings)

    found = read_in_a_child(*paths)

    assert [(each["told"], each["rows"]) for each in found] == [("read", 800)] * len(paths)


@pytest.mark.fault(50, 51)
def test_more_than_two_gigabytes_of_text_stream_in_small_batches(tmp_path):
    """2.2 GB in two row groups of 1.1 GB: Arrow's `string` ends at 2 GB, so nothing puts row groups together.

    The file compresses well, so that this takes seconds: it shows memory and limits, not the time for 2.2 GB from disk.
    """
    path = tmp_path / "long.parquet"
    texts = pa.chunked_array([pa.array(["many words " * 9_532] * 1_000)] * 11)
    table = pa.table({"doc_id": ["d"] * 11_000, "text": texts})
    with pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=False) as writer:
        for _ in range(2):
            writer.write_table(table, row_group_size=11_000)
    sizes = [pq.read_metadata(path).row_group(number).column(1).total_uncompressed_size for number in range(2)]

    (found,) = read_in_a_child(path)

    assert min(sizes) > 1 << 30
    assert sum(sizes) > 1 << 31
    assert found["told"] == "read"
    assert found["rows"] == 22_000
    assert found["longest"] <= 2_048
    assert found["peak_mb"] < 600


def test_bytes_that_were_changed_anywhere_are_an_error_or_are_read_but_never_a_crash(tmp_path):
    source = tmp_path / "source.parquet"
    texts = pa.array([f"text number {number} " * 20 for number in range(300)])
    write_groups(source, texts, 3, use_dictionary=["doc_id"], write_statistics=True)
    whole = source.read_bytes()
    footer_bytes = int.from_bytes(whole[-8:-4], "little")
    rng, paths = random.Random(7), []
    for number in range(300):
        data = bytearray(whole)
        first = len(data) - 8 - footer_bytes if number % 2 else 4
        for _ in range(rng.choice([1, 2, 8])):
            data[rng.randrange(first, len(data) - 8)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        paths.append(tmp_path / f"{number}.parquet")
        paths[-1].write_bytes(data)

    found = read_in_a_child(*paths)

    assert len(found) == 300
    assert sum(each["told"] != "read" for each in found) > 50
    assert found[-1]["peak_mb"] < 600


class Keys(encryption.KmsClient):
    """A key service that hands keys out as they are."""

    def wrap_key(self, key, master):
        return base64.b64encode(key)

    def unwrap_key(self, key, master):
        return base64.b64decode(key)


def encrypted(path, column, *, plaintext_footer):
    factory = encryption.CryptoFactory(lambda _: Keys())
    how = encryption.EncryptionConfiguration("f", column_keys={"c": [column]}, plaintext_footer=plaintext_footer)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    table = pa.table({"doc_id": ["a"], "text": ["b"], "owner": ["c"]})
    pq.write_table(table, path, encryption_properties=properties)
    return path


def test_encrypted_columns_are_refused_by_name_and_others_of_the_file_are_read(tmp_path):
    text = encrypted(tmp_path / "text.parquet", "text", plaintext_footer=True)
    owner = encrypted(tmp_path / "owner.parquet", "owner", plaintext_footer=True)
    footer = encrypted(tmp_path / "footer.parquet", "text", plaintext_footer=False)

    found = read_in_a_child(text, owner, footer)

    assert f"documents: {text}: column 'text' is encrypted" in found[0]["told"]
    assert (found[1]["told"], found[1]["rows"]) == ("read", 1)
    assert f"{footer}: its footer is encrypted. Write it without" in found[2]["told"]


def test_a_footer_with_any_byte_changed_never_ends_the_process(tmp_path):
    """An unknown codec or a histogram of another length did, with SIGABRT."""
    source = tmp_path / "source.parquet"
    write_groups(source, pa.array(["moon", "tide"]), 1, write_statistics=True, store_schema=False)
    whole = source.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    paths = []
    for place in range(footer, len(whole) - 8):
        paths.append(tmp_path / f"{place}.parquet")
        paths[-1].write_bytes(whole[:place] + b"\x33" + whole[place + 1 :])

    found = read_in_a_child(*paths)

    assert len(found) == len(paths)
    assert sum("codec" in each["told"] for each in found) > 0


def test_a_page_header_is_what_pyarrow_wrote(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": ["x", "y", "x"]}), path, compression="none")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = path.read_bytes()

    dictionary = pages.read_page_header(data[chunk.dictionary_page_offset :])
    values = pages.read_page_header(data[chunk.data_page_offset :])

    assert (dictionary.kind, dictionary.num_values, dictionary.uncompressed_bytes) == (pages.DICTIONARY_PAGE, 2, 10)
    assert (values.kind, values.num_values) == (pages.DATA_PAGE, 3)
    assert chunk.dictionary_page_offset + dictionary.header_bytes + 10 == chunk.data_page_offset
    assert pages.read_page_header(data[chunk.data_page_offset :][: values.header_bytes - 1]) is None
