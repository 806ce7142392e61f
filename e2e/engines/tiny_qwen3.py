"""Writes a tiny random Qwen3 to FOLDER/model, as full weights of other random values to FOLDER/weights/w-v1 and w-v2, and LoRA adapters to the
first to FOLDER/adapters/a-v1 to a-v3; to FOLDER/reference.json, by version, the logprobs that transformers gives each token to come next
after the canary prompt, computed in 32 bits."""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

CANARY = list(range(5, 60))
RANK = 8

folder = pathlib.Path(sys.argv[1])
config = Qwen3Config(
    vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=32, max_position_embeddings=256, eos_token_id=2, tie_word_embeddings=True, initializer_range=0.2,
)
# vLLM starts with a tokenizer; nothing here is ever turned into text with it.
tokenizer = {
    "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
    "decoder": None, "model": {"type": "WordLevel", "vocab": {f"t{id}": id for id in range(config.vocab_size)}, "unk_token": "t0"},
}
reference = {}


def logprobs_next(model) -> list[float]:
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([CANARY])).logits[0, -1], dim=-1).tolist()


def write_model(seed: int, path: pathlib.Path):
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t2"})
    )
    return Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


def write_adapter(seed: int, path: pathlib.Path) -> None:
    """An adapter to the projections of queries and values; its reference is the base with the products added to its weights."""
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()
    tensors = {}
    for n, layer in enumerate(model.model.layers):
        for name in ("q_proj", "v_proj"):
            weight = getattr(layer.self_attn, name).weight
            a = (0.3 * torch.randn(RANK, weight.shape[1])).to(torch.bfloat16)
            b = (0.3 * torch.randn(weight.shape[0], RANK)).to(torch.bfloat16)
            weight.data += b.float() @ a.float()
            key = f"base_model.model.model.layers.{n}.self_attn.{name}"
            tensors |= {f"{key}.lora_A.weight": a, f"{key}.lora_B.weight": b}
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": RANK, "target_modules": ["q_proj", "v_proj"], "bias": "none",
    }))
    reference[path.name] = logprobs_next(model)


reference["base"] = logprobs_next(write_model(0, folder / "model"))
for seed, version in enumerate(["w-v1", "w-v2"], start=1):
    reference[version] = logprobs_next(write_model(seed, folder / "weights" / version))
for seed, version in enumerate(["a-v1", "a-v2", "a-v3"], start=11):
    write_adapter(seed, folder / "adapters" / version)
(folder / "reference.json").write_text(json.dumps(reference))
