"""Writes the golden files beside this script: tiny random Qwen3 models and what transformers computes with them.

Needs torch and transformers. Run again only when the model code is meant to change:
    python trainer-image/policy/tests/golden/make.py
"""

import json
import pathlib

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

HERE = pathlib.Path(__file__).parent

COMMON = dict(
    vocab_size=48,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    rms_norm_eps=1e-6,
    max_position_embeddings=64,
    initializer_range=0.3,
    attn_implementation="eager",
)
# Grouped keys and values, a query width that is not the hidden size, both kinds of head, two rotary bases.
MODELS = {
    "tied": dict(num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=10000.0, tie_word_embeddings=True),
    "untied": dict(num_attention_heads=3, num_key_value_heads=1, head_dim=6, rope_theta=1000000.0, tie_word_embeddings=False),
}

for seed, (name, shape) in enumerate(MODELS.items()):
    torch.manual_seed(seed)
    config = Qwen3Config(**COMMON, **shape)
    model = Qwen3ForCausalLM(config).to(torch.float32).eval()
    with torch.no_grad():
        # Norms are initialised to one, which would hide a norm that is left out or applied twice.
        for key, parameter in model.named_parameters():
            if "norm" in key:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
        ids = torch.randint(0, config.vocab_size, (2, 20))
        logits = model(ids).logits
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    # transformers writes what it was started with too; a model is these fields.
    written = json.loads((folder / "config.json").read_text())
    theta = written.get("rope_theta") or written["rope_parameters"]["rope_theta"]
    (folder / "config.json").write_text(json.dumps({
        **{key: written[key] for key in COMMON if key in written},
        **{key: written[key] for key in shape if key in written},
        "model_type": written["model_type"],
        "architectures": written["architectures"],
        "hidden_act": written["hidden_act"],
        "attention_bias": written["attention_bias"],
        "rope_theta": theta,
    }, indent=1) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)
    rows = [[[round(value, 6) for value in position] for position in row] for row in logits.tolist()]
    (folder / "logits.json").write_text(json.dumps({"ids": ids.tolist(), "logits": rows}) + "\n")
