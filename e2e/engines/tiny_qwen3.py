"""Writes a tiny random Qwen3 to FOLDER/model, as full weights of other random values to FOLDER/weights/w-v1 and w-v2, and LoRA adapters to
the first to FOLDER/adapters/a-v1 to a-v3."""

import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

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
for seed, name in enumerate(["model", "weights/w-v1", "weights/w-v2"]):
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / name)
    (folder / name / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / name / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t2"})
    )
rank = 8
for version in ("a-v1", "a-v2", "a-v3"):
    adapter = folder / "adapters" / version
    adapter.mkdir(parents=True)
    tensors = {}
    for layer in range(config.num_hidden_layers):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(rank, config.hidden_size)
        tensors[f"{name}.lora_B.weight"] = torch.randn(config.num_attention_heads * config.head_dim, rank)
    save_file(tensors, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"], "bias": "none"})
    )
