"""A tiny random Qwen3 for a real engine, and what transformers says of what the engine sampled from it.

`tiny_qwen3.py write FOLDER` writes the model to FOLDER/model, full weights of other random values to FOLDER/weights/w-v1 and w-v2, LoRA
adapters to the model to FOLDER/adapters/a-v1 to a-v3. Beside each is canary.json: the logprobs of some tokens.

`tiny_qwen3.py compare FOLDER ROWS TOLERANCE` reads rows that were sampled, one JSON object a line, and computes in 32 bits the logprob of each
of their tokens from the files that the row's version was made of. None may be further from the engine's than TOLERANCE; a token of a
greedy row must be the likeliest but for TOLERANCE; and from the files of every other version the same row must be four times as far, or the
comparison could not tell versions apart. Rows may be of adapters that others have written beside these.
"""

import collections
import json
import pathlib
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

RANK = 8
ALPHA = 16
VERSIONS = ["model", "weights/w-v1", "weights/w-v2", "adapters/a-v1", "adapters/a-v2", "adapters/a-v3"]


def read(folder: pathlib.Path, files: str) -> Qwen3ForCausalLM:
    """The model that a version is: its weights, or the first model's with an adapter's products added."""
    adapter = files.startswith("adapters/")
    model = Qwen3ForCausalLM.from_pretrained(folder / ("model" if adapter else files), dtype=torch.float32).eval()
    if adapter:
        said = json.loads((folder / files / "adapter_config.json").read_text())
        tensors = load_file(folder / files / "adapter_model.safetensors")
        for key, b in tensors.items():
            if key.endswith(".lora_B.weight"):
                layer = model.get_submodule(key.removeprefix("base_model.model.").removesuffix(".lora_B.weight"))
                layer.weight.data += said["lora_alpha"] / said["r"] * (b.float() @ tensors[key.replace("lora_B", "lora_A")].float())
    return model


def write(folder: pathlib.Path) -> None:
    # The output layer has tensors of its own: with one that is the embedding vLLM's CPU build cannot be given other full weights.
    config = Qwen3Config(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, max_position_embeddings=4096, eos_token_id=2, tie_word_embeddings=False, initializer_range=0.2,
    )
    # vLLM starts with a tokenizer; nothing here is ever turned into text with it.
    tokenizer = {
        "version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": {f"t{id}": id for id in range(config.vocab_size)}, "unk_token": "t0"},
    }
    for seed, files in enumerate(VERSIONS):
        torch.manual_seed(seed)
        if files.startswith("adapters/"):
            write_adapter(config, folder / files)
            continue
        Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / files)
        (folder / files / "tokenizer.json").write_text(json.dumps(tokenizer))
        (folder / files / "tokenizer_config.json").write_text(
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "t0", "eos_token": "t2"})
        )
    for files in VERSIONS:
        tokens = [7 * at % config.vocab_size for at in range(1, 33)]
        row = {"prompt": tokens[:1], "token_ids": tokens[1:], "temperature": 1.0}
        found = logprobs(read(folder, files), row)[torch.arange(len(tokens) - 1), torch.tensor(tokens[1:])]
        (folder / files / "canary.json").write_text(json.dumps({"tokens": tokens, "logprobs": found.tolist()}))


def write_adapter(config: Qwen3Config, path: pathlib.Path) -> None:
    """An adapter to the projections of queries and values, as PEFT writes it."""
    tensors = {}
    outputs = {"q_proj": config.num_attention_heads * config.head_dim, "v_proj": config.num_key_value_heads * config.head_dim}
    for n in range(config.num_hidden_layers):
        for name, size in outputs.items():
            key = f"base_model.model.model.layers.{n}.self_attn.{name}"
            tensors[f"{key}.lora_A.weight"] = (0.3 * torch.randn(RANK, config.hidden_size)).to(torch.bfloat16)
            tensors[f"{key}.lora_B.weight"] = (0.3 * torch.randn(size, RANK)).to(torch.bfloat16)
    path.mkdir(parents=True)
    save_file(tensors, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA, "target_modules": list(outputs), "bias": "none",
    }))


def logprobs(model: Qwen3ForCausalLM, row: dict) -> torch.Tensor:
    """Of every token at each of the row's places; temperature 0 reports those of temperature 1."""
    ids = row["prompt"] + row["token_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, len(row["prompt"]) - 1 : -1]
    return torch.log_softmax(logits / (row["temperature"] or 1.0), dim=-1)


def gaps(model: Qwen3ForCausalLM, row: dict) -> torch.Tensor:
    """How far the engine's logprob of each token is from the model's."""
    own = logprobs(model, row)[torch.arange(len(row["token_ids"])), torch.tensor(row["token_ids"])]
    return (own - torch.tensor(row["token_logprobs"])).abs()


def compare(folder: pathlib.Path, rows: pathlib.Path, tolerance: float) -> None:
    sampled = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    models = {files: read(folder, files) for files in {*VERSIONS, *(row["files"] for row in sampled)}}
    tokens, largest, others = collections.Counter(), collections.defaultdict(float), {}
    for row in sampled:
        version, files = row["version"], row["files"]
        gap = gaps(models[files], row).max().item()
        assert gap <= tolerance, f"a token of {version} has a logprob that is {gap} from transformers' for {files}"
        if row["temperature"] == 0:
            every = logprobs(models[files], row)
            short = every.max(dim=-1).values - every[torch.arange(len(row["token_ids"])), torch.tensor(row["token_ids"])]
            assert short.max().item() <= tolerance, f"a greedy token of {version} is not the likeliest of {files}"
        # One token says little; the row has to be far as a whole.
        nearest = min(gaps(model, row).max().item() for other, model in models.items() if other != files)
        assert nearest > 4 * tolerance, f"a row of {version} is only {nearest} from another version"
        tokens[version] += len(row["token_ids"])
        largest[version] = max(largest[version], gap)
        others[version] = min(others.get(version, nearest), nearest)
    assert len(tokens) > 1, "nothing was compared"
    for version, count in tokens.items():
        print(f"{version}: {count} tokens, largest gap {largest[version]:.1e}; from any other version at least {others[version]:.1f}")
    print(f"{sum(tokens.values())} tokens of {len(tokens)} versions, largest gap {max(largest.values()):.1e} (tolerance {tolerance})")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(pathlib.Path(sys.argv[2]))
    else:
        compare(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), float(sys.argv[4]))
