"""Copies a model whose output layer is its embedding to one that has an output layer of its own, with the same values.

`untied.py FROM TO`. Both models compute the same. vLLM's CPU build accepts new full weights only for the second one (docs/src/engines.md).
Needs no packages: a safetensors file is the length of its header in 8 bytes, the header as JSON, and the tensors.
"""

import json
import pathlib
import shutil
import struct
import sys

EMBEDDING = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"


def untied(source: pathlib.Path, target: pathlib.Path) -> None:
    target.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, target / name)
    config = json.loads((source / "config.json").read_text())
    if not config["tie_word_embeddings"]:
        raise SystemExit(f"{source}: the output layer is not the embedding")
    config["tie_word_embeddings"] = False
    (target / "config.json").write_text(json.dumps(config, indent=2))
    whole = (source / "model.safetensors").read_bytes()
    start = 8 + struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8:start]), whole[start:]
    first, last = header[EMBEDDING]["data_offsets"]
    header[OUTPUT] = header[EMBEDDING] | {"data_offsets": [len(data), len(data) + last - first]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (target / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data + data[first:last])


if __name__ == "__main__":
    untied(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
