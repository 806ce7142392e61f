"""Loads what we have exported and compares the logprobs of some rows with those that the trainer itself computed.

`load.py PEER FOLDER`: PEER is transformers (the merged models), peft (the adapters, beside the base model) or vllm (both). FOLDER has one folder
for every family with `base`, `merged`, `halves`, `adapter`, and `rows.json`: for each of the first three and for the adapter, the rows' logprobs.
"""

import json
import pathlib
import sys

TOLERANCE = 1e-3
# In 16 bits a peer rounds what each layer puts out to 8 binary digits, the trainer nothing: only 32 bits are compared. Weights that were written
# in 16 bits are therefore read into 32.
MODELS = ["merged", "halves"]


def by_torch(model, rows: list[list[int]]) -> list[list[float]]:
    import torch

    found = []
    for row in rows:
        ids = torch.tensor([row])
        with torch.no_grad():
            every = torch.log_softmax(model(ids).logits[0, :-1].float(), dim=-1)
        found.append(every.gather(-1, ids[0, 1:, None])[:, 0].tolist())
    return found


def transformers_of(family: pathlib.Path, rows: list[list[int]]) -> dict:
    import torch
    from transformers import AutoModelForCausalLM

    load = lambda name: AutoModelForCausalLM.from_pretrained(family / name, dtype=torch.float32).eval()
    return {name: by_torch(load(name), rows) for name in MODELS}


def peft_of(family: pathlib.Path, rows: list[list[int]]) -> dict:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(family / "base", dtype=torch.float32)
    return {"adapter": by_torch(PeftModel.from_pretrained(base, family / "adapter").eval(), rows)}


def vllm_of(family: pathlib.Path, rows: list[list[int]]) -> dict:
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    prompts = [{"prompt_token_ids": row} for row in rows]

    def run(name: str, adapter: pathlib.Path | None) -> list[list[float]]:
        llm = LLM(
            model=str(family / name), dtype="float32", skip_tokenizer_init=True, max_model_len=64, enforce_eager=True, max_num_seqs=8,
            enable_lora=adapter is not None, max_lora_rank=8, gpu_memory_utilization=0.1,
        )
        request = LoRARequest("adapter", 1, str(adapter)) if adapter else None
        outputs = llm.generate(prompts, asked, lora_request=request, use_tqdm=False)
        found = []
        for row, output in zip(rows, outputs):
            found.append([at[token].logprob for token, at in zip(row[1:], output.prompt_logprobs[1:])])
        del llm
        return found

    return {"merged": run("merged", None), "adapter": run("base", family / "adapter")}


def main() -> None:
    peer, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    load = {"transformers": transformers_of, "peft": peft_of, "vllm": vllm_of}[peer]
    compared, largest = 0, 0.0
    families = sorted(path for path in folder.iterdir() if path.is_dir())
    for family in families:
        written = json.loads((family / "rows.json").read_text())
        base = written["logprobs"]["base"]
        for name, found in load(family, written["rows"]).items():
            wanted = written["logprobs"][name]
            gap = max(abs(a - b) for one, other in zip(found, wanted, strict=True) for a, b in zip(one, other, strict=True))
            # Training has to show, or the untrained model would pass as well.
            moved = max(abs(a - b) for one, other in zip(found, base) for a, b in zip(one, other))
            assert moved > 20 * TOLERANCE, f"{family.name}/{name} is only {moved} from the model before training"
            print(f"{family.name}/{name}: {sum(map(len, found))} tokens, largest gap {gap:.1e}; from the untrained model {moved:.2f}")
            assert gap <= TOLERANCE, f"{family.name}/{name}: a logprob is {gap} from the trainer's"
            compared, largest = compared + sum(map(len, found)), max(largest, gap)
    assert len(families) == 3 and compared, "nothing was compared"
    print(f"{compared} tokens, largest gap {largest:.1e} (tolerance {TOLERANCE})")


if __name__ == "__main__":
    main()
