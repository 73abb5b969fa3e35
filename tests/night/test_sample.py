"""The sample is what its source makes."""

import importlib.util

import pyarrow.parquet as pq

from tests.makers import ROOT


def test_the_sample_is_built_from_its_source(tmp_path):
    spec = importlib.util.spec_from_file_location("build_sample", ROOT / "data" / "sample" / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    build.build(ROOT / "data" / "sample" / "source", tmp_path)

    for name in ("queries", "documents", "candidates", "qrels"):
        assert pq.read_table(tmp_path / f"{name}.parquet").equals(
            pq.read_table(ROOT / "data" / "sample" / f"{name}.parquet")
        )
