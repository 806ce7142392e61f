"""Writes tiny random models of every family and what transformers computes with them: logits, loss, gradients, a greedy continuation.

The six beside this script are read by `cargo test --test reference`; run it again only when the model code is meant to change. With --random it
writes models of random geometry instead, which `make check-exports` has the same test read.

    make.py                                     the models beside this script
    make.py --random 30 --seed 7 --to FOLDER    thirty others

Needs the virtual environment that e2e/exports/install.sh makes.
"""

import argparse
import copy
import json
import pathlib
import random
import shutil

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config, Qwen3MoeConfig

FAMILIES = {"qwen2": Qwen2Config, "qwen3": Qwen3Config, "qwen3_moe": Qwen3MoeConfig}
COMMON = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, max_position_embeddings=64, initializer_range=0.3)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=10000.0)
MOE = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12)

# Grouped keys and values, query widths that are not the hidden size, both kinds of head, several rotary bases; as transformers 4 writes configs
# and as 5 does, in one file and in several, in 16 and 32 bits.
FIXED = {
    "qwen2": dict(family="qwen2", num_attention_heads=4, num_key_value_heads=2, rope_theta=1e6, tied=True, old=True),
    "qwen2-yarn": dict(family="qwen2", num_attention_heads=2, num_key_value_heads=1, rope=YARN, tied=False, file="4KB"),
    "qwen3": dict(family="qwen3", num_attention_heads=4, num_key_value_heads=2, head_dim=8, rope_theta=1e4, tied=True, old=True, lora=True),
    "qwen3-yarn": dict(family="qwen3", num_attention_heads=3, num_key_value_heads=1, head_dim=10, rope=YARN, tied=False, old=True),
    "moe": dict(family="qwen3_moe", num_attention_heads=4, num_key_value_heads=2, head_dim=6, rope_theta=1e7, tied=False, norm_topk_prob=True, bf16=True, **MOE),
    "moe-mixed": dict(
        family="qwen3_moe", num_attention_heads=2, num_key_value_heads=2, head_dim=8, rope_theta=1e4, tied=True, norm_topk_prob=False, old=True,
        file="9KB", num_hidden_layers=3, mlp_only_layers=[1], **MOE,
    ),
}


def drawn(rng: random.Random) -> dict:
    """A model of random geometry."""
    family = rng.choice(list(FAMILIES))
    # Not heads of two: the norm of two numbers leaves so little of a gradient that 32 bits of either program show 1e-4 of it.
    kv, shared, head = rng.choice([1, 2, 3]), rng.choice([1, 2, 3]), rng.choice([4, 8, 14])
    shape = dict(
        family=family, num_attention_heads=kv * shared, num_key_value_heads=kv, tied=rng.random() < 0.5, old=rng.random() < 0.5,
        vocab_size=rng.randint(17, 200), intermediate_size=rng.randint(3, 60), num_hidden_layers=rng.randint(1, 4),
        hidden_size=kv * shared * head if family == "qwen2" else rng.randint(5, 60), file=rng.choice(["5GB", "10KB"]), bf16=rng.random() < 0.3,
    )
    if family != "qwen2":
        shape["head_dim"] = head
    if rng.random() < 0.4:
        shape["rope"] = dict(YARN, factor=rng.choice([1.5, 4.0, 8.0]), rope_theta=rng.choice([1e4, 1e6]), beta_fast=rng.choice([8.0, 32.0]))
    else:
        shape["rope_theta"] = rng.choice([1e4, 1e6, 1e7])
    if family == "qwen3_moe":
        experts = rng.randint(2, 12)
        shape |= dict(
            num_experts=experts, num_experts_per_tok=rng.randint(1, min(4, experts)), moe_intermediate_size=rng.randint(3, 40),
            norm_topk_prob=rng.random() < 0.5, decoder_sparse_step=rng.choice([1, 1, 2]),
        )
    shape["lora"] = rng.random() < 0.5
    return shape


def made(shape: dict, seed: int):
    """The model, and the shape's config."""
    torch.manual_seed(seed)
    shape = COMMON | shape
    base = shape.pop("rope", None) or dict(rope_type="default", rope_theta=shape.pop("rope_theta"))
    extra = {key: shape.pop(key, None) for key in ("family", "tied", "old", "file", "bf16", "lora")}
    config = FAMILIES[extra["family"]](**shape, rope_parameters=dict(base), tie_word_embeddings=extra["tied"])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager").to(torch.float32).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Norms begin at one and biases at zero, which would hide one that is left out or applied twice.
            if "norm" in key:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
            if key.endswith("bias"):
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            if extra["bf16"]:
                parameter.copy_(parameter.to(torch.bfloat16))
    return model, config, extra


def save(folder: pathlib.Path, model, extra: dict) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    dtype = torch.bfloat16 if extra["bf16"] else torch.float32
    # A copy: converting there and back would leave the angles' frequencies rounded, and what is computed after it.
    copy.deepcopy(model).to(dtype).save_pretrained(folder, max_shard_size=extra["file"] or "5GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    path = folder / "config.json"
    written = json.loads(path.read_text())
    if extra["old"]:
        rope = written.pop("rope_parameters")
        written["rope_theta"] = rope.pop("rope_theta")
        kind = rope.pop("rope_type")
        written["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
        written["torch_dtype"] = written.pop("dtype")
        written.pop("layer_types", None)
        if extra["family"] == "qwen2":
            written.pop("head_dim", None)
    path.write_text(json.dumps(written, indent=1) + "\n")


def by_checkpoint_name(tensors: dict) -> dict:
    """Experts as a checkpoint has them, one by one: in memory they are fused."""
    named = {}
    for key, tensor in tensors.items():
        stem = key.rsplit(".", 1)[0]
        if key.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                gate, up = both.chunk(2, dim=0)
                named[f"{stem}.{expert}.gate_proj.weight"], named[f"{stem}.{expert}.up_proj.weight"] = gate, up
        elif key.endswith("experts.down_proj"):
            for expert, down in enumerate(tensor):
                named[f"{stem}.{expert}.down_proj.weight"] = down
        else:
            named[key] = tensor
    return {key: tensor.detach().clone().contiguous() for key, tensor in named.items()}


def computed(model, ids: torch.Tensor) -> tuple[dict, dict]:
    """Tensors and numbers; the margin is what the closest call of the greedy continuation was decided by."""
    model.zero_grad()
    result = model(ids, labels=ids)
    result.loss.backward()
    tensors = {"logits": result.logits.detach().clone(), "ids": ids.to(torch.int32)}
    grads = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
    grads = {key.replace(".default.weight", ".weight"): grad for key, grad in grads.items()}
    tensors |= {f"gradient:{key}": grad for key, grad in by_checkpoint_name(grads).items()}
    row, margin = ids[0, :6].tolist(), float("inf")
    with torch.no_grad():
        for _ in range(16):
            best = model(torch.tensor([row])).logits[0, -1].topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            row.append(best.indices[0].item())
    return tensors, {"loss": result.loss.item(), "greedy": row, "margin": margin}


def write(folder: pathlib.Path, shape: dict, seed: int) -> None:
    while True:
        model, config, extra = made(dict(shape), seed)
        ids = torch.randint(0, config.vocab_size, (2, 24))
        tensors, numbers = computed(model, ids)
        # A tie is nobody's error.
        if numbers["margin"] > 1e-3:
            break
        seed += 1000
    save(folder, model, extra)
    save_file(tensors, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(numbers) + "\n")
    if extra["lora"]:
        targets = ["q_proj", "v_proj", "o_proj"] + ([] if extra["family"] == "qwen3_moe" else ["gate_proj", "down_proj"])
        adapted = get_peft_model(model, LoraConfig(r=3, lora_alpha=7, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM"))
        with torch.no_grad():
            for key, parameter in adapted.named_parameters():
                if "lora_B" in key:
                    parameter.copy_(torch.randn_like(parameter) * 0.2)
        tensors, numbers = computed(adapted.eval(), ids)
        adapted.save_pretrained(folder / "adapter")
        (folder / "adapter/README.md").unlink(missing_ok=True)
        save_file(tensors, folder / "adapter/expected.safetensors")
        (folder / "adapter/expected.json").write_text(json.dumps(numbers) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--to", type=pathlib.Path, default=pathlib.Path(__file__).parent)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(arguments.seed)
    shapes = {f"random-{n:03}": drawn(rng) for n in range(arguments.random)} or FIXED
    for seed, (name, shape) in enumerate(shapes.items()):
        write(arguments.to / name, shape, seed + 10_000 * arguments.seed)
        print(f"{name}: {shape}")


if __name__ == "__main__":
    main()
