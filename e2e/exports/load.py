"""Loads what we have exported and compares the logprobs of some rows with those that the trainer itself computed.

`load.py PEER FOLDER`: PEER is transformers (the merged models), peft (the adapters, beside the base model) or vllm (both). FOLDER has one folder
for every family with `base`, `merged`, `halves`, `adapter`, and `rows.json`: for each of the first three and for the adapter, the rows' logprobs.

`load.py PEER FOLDER FAMILY NAME` loads one of them; what it ends with is the rows' logprobs, as JSON.
"""

import json
import os
import pathlib
import subprocess
import sys

TOLERANCE = 1e-3
# In 16 bits a peer rounds what each layer puts out to 8 binary digits, the trainer nothing: only 32 bits are compared. Weights that were written
# in 16 bits are therefore read into 32.
LOADED = {"transformers": ["merged", "halves"], "peft": ["adapter"], "vllm": ["merged", "adapter"]}


def by_torch(model, rows: list[list[int]]) -> list[list[float]]:
    import torch

    found = []
    for row in rows:
        ids = torch.tensor([row])
        with torch.no_grad():
            every = torch.log_softmax(model(ids).logits[0, :-1].float(), dim=-1)
        found.append(every.gather(-1, ids[0, 1:, None])[:, 0].tolist())
    return found


def by_transformers(family: pathlib.Path, name: str, rows: list[list[int]]) -> list[list[float]]:
    import torch
    from transformers import AutoModelForCausalLM

    return by_torch(AutoModelForCausalLM.from_pretrained(family / name, dtype=torch.float32).eval(), rows)


def by_peft(family: pathlib.Path, name: str, rows: list[list[int]]) -> list[list[float]]:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(family / "base", dtype=torch.float32)
    return by_torch(PeftModel.from_pretrained(base, family / name).eval(), rows)


def by_vllm(family: pathlib.Path, name: str, rows: list[list[int]]) -> list[list[float]]:
    # The engine in this very process: what ends it is then raised here.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    request = LoRARequest(name, 1, str(family / name)) if name == "adapter" else None
    targets = attention_alone(family) if request else None
    size = json.loads((family / "base" / "config.json").read_text())["vocab_size"]
    llm = LLM(
        model=str(family / ("base" if request else name)), dtype="float32", skip_tokenizer_init=True, max_model_len=64, enforce_eager=True,
        max_num_seqs=8, max_logprobs=size, enable_lora=request is not None, max_lora_rank=8, lora_target_modules=targets, gpu_memory_utilization=0.1,
    )
    # Not `prompt_logprobs`, of which a whole row is one prompt: with an adapter and an output layer that is not the embedding vLLM takes the
    # adapters of the prompt's tokens for those of the rows (its issues 16668 and 29955), and ends where their numbers differ.
    begun = [row[:end] for row in rows for end in range(1, len(row))]
    asked = SamplingParams(max_tokens=1, temperature=0.0, logprobs=size, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": tokens} for tokens in begun], asked, lora_request=request, use_tqdm=False)
    next_of = iter(output.outputs[0].logprobs[0] for output in outputs)
    return [[next(next_of)[token].logprob for token in row[1:]] for row in rows]


def attention_alone(family: pathlib.Path) -> list[str] | None:
    """The layers that an adapter of a mixture of experts may target; None, for all layers, in other families.

    vLLM 0.32's CPU build crashes at the first row of a mixture that it serves with adapters, whichever layers they
    target. With adapters it computes experts with Triton's kernels (`select_unquantized_moe_backend`), and no Triton
    package supports CPUs. So this function makes vLLM choose the kernels as without adapters, and the returned list
    excludes the experts (vLLM has an option for this). The test shows that vLLM reads the adapter correctly; it does
    not show that vLLM serves it.
    """
    if "num_experts" not in json.loads((family / "base" / "config.json").read_text()):
        return None
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as experts

    chosen = experts.select_unquantized_moe_backend

    def as_without_adapters(moe_config):
        moe_config.is_lora_enabled = False
        return chosen(moe_config=moe_config)

    experts.select_unquantized_moe_backend = as_without_adapters
    return ["q_proj", "k_proj", "v_proj", "o_proj"]


def load(peer: str, family: pathlib.Path, name: str) -> None:
    rows = json.loads((family / "rows.json").read_text())["rows"]
    found = {"transformers": by_transformers, "peft": by_peft, "vllm": by_vllm}[peer](family, name, rows)
    print(json.dumps(found), flush=True)


def asked(peer: str, family: pathlib.Path, name: str) -> list[list[float]]:
    """From a process of its own: what one model leaves behind, memory or an engine, meets no other."""
    alone = [sys.executable, __file__, peer, str(family.parent), family.name, name]
    ended = subprocess.run(alone, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode != 0:
        sys.exit(f"{ended.stdout}\n{family.name}/{name}: {peer} ended with {ended.returncode}")
    said = [line for line in ended.stdout.splitlines() if line.startswith("[[")]
    assert said, f"{ended.stdout}\n{family.name}/{name}: {peer} said no logprobs"
    return json.loads(said[-1])


def main() -> None:
    peer, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    compared, largest = 0, 0.0
    families = sorted(path for path in folder.iterdir() if path.is_dir())
    for family in families:
        written = json.loads((family / "rows.json").read_text())["logprobs"]
        for name in LOADED[peer]:
            found = asked(peer, family, name)
            gap, moved = (
                max(abs(a - b) for one, other in zip(found, written[of], strict=True) for a, b in zip(one, other, strict=True))
                for of in (name, "base")
            )
            print(f"{family.name}/{name}: {sum(map(len, found))} tokens, largest gap {gap:.1e}; from the untrained model {moved:.2f}", flush=True)
            # Training has to show, or the untrained model would pass as well.
            assert moved > 20 * TOLERANCE, f"{family.name}/{name} is only {moved} from the model before training"
            assert gap <= TOLERANCE, f"{family.name}/{name}: a logprob is {gap} from the trainer's"
            compared, largest = compared + sum(map(len, found)), max(largest, gap)
    assert len(families) == 3 and compared, "nothing was compared"
    print(f"{compared} tokens, largest gap {largest:.1e} (tolerance {TOLERANCE})")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        main()
    else:
        load(sys.argv[1], pathlib.Path(sys.argv[2]) / sys.argv[3], sys.argv[4])
