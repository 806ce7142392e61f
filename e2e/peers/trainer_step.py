"""One GRPO step by another trainer, in a process of its own: what `make bench-trainer` measures beside ours.

trainer_step.py trl|plain FOLDER [--rows-at-once N] [--old-pass] [--gradients FILE]

FOLDER holds a Hugging Face model and rows.jsonl ({tokens, prompt, old, advantage}) with step.json ({temperature, rate, clip}). After a small step
that warms the process up, one step is timed: forward, backward, clipping of the gradient's norm, optimizer, but not the writing of gradients. One
line of JSON is printed: seconds, loss, norm of the gradient before clipping, and the process's peak memory in bytes.

trl: TRL's own GRPOTrainer, its loss (dapo: the mean over the batch's trained tokens) and its fused head, on rows padded as it pads them, with what
makes it fast on a CPU: all cores, attention by scaled_dot_product_attention, nothing checkpointed, AdamW fused. The old logprobs are given; with
--old-pass it also computes them by a forward pass of its own, as it does whenever vLLM has sampled.

plain: what a practised reader of PyTorch would write: a group's prompt computed once, completions behind it in one row of tokens, attention by
scaled_dot_product_attention (the prompt causal, every completion against prompt and itself with its own mask), the head in chunks with
checkpointing, AdamW fused. Only for groups that share one prompt.
"""

import argparse
import json
import os
import time

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM


def peak_bytes():
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


def read(folder):
    rows = [json.loads(line) for line in open(os.path.join(folder, "rows.jsonl"))]
    step = json.load(open(os.path.join(folder, "step.json")))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    return rows, step, model


def clipped(step, new, old, advantages):
    low, high = step["clip"]
    ratio = torch.exp(new - old)
    return -torch.min(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def shortened(rows):
    """A small step: the beginnings of two rows."""
    return [dict(row, tokens=row["tokens"][: row["prompt"]][-32:] + row["tokens"][row["prompt"] :][:8], prompt=min(row["prompt"], 32), old=row["old"][:8]) for row in rows[:2]]


class Trl:
    def __init__(self, folder, rows, step, model, args):
        from datasets import Dataset
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast
        from trl import GRPOConfig, GRPOTrainer

        words = {f"t{i}": i for i in range(model.config.vocab_size)}
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="t0")), eos_token="t1", pad_token="t0")
        self.at_once = args.rows_at_once or len(rows)
        self.old_pass = args.old_pass
        config = GRPOConfig(
            output_dir=os.path.join(folder, "trl"), use_cpu=True, bf16=False, report_to="none", loss_type="dapo", beta=0.0, epsilon=step["clip"][0],
            epsilon_high=step["clip"][1], temperature=step["temperature"], learning_rate=step["rate"], gradient_checkpointing=False, num_generations=2,
            per_device_train_batch_size=2, max_completion_length=4096, optim="adamw_torch_fused", weight_decay=0.0, adam_beta2=0.999,
        )
        self.trainer = GRPOTrainer(
            model=model, reward_funcs=lambda completions, **_: [0.0] * len(completions), args=config, processing_class=tokenizer,
            train_dataset=Dataset.from_dict({"prompt": ["t2", "t3"]}),
        )
        self.trainer.model.train()
        self.trainer.create_optimizer()

    def step(self, rows, step, before_optimizer):
        trainer = self.trainer
        model = trainer.model
        longest = [max(len(f(row)) for row in rows) for f in (lambda r: r["tokens"][: r["prompt"]], lambda r: r["tokens"][r["prompt"] :])]
        items = sum(len(row["tokens"]) - row["prompt"] for row in rows)

        def pad(part, size, left):
            space = [0] * (size - len(part))
            return space + list(part) if left else list(part) + space

        def tensors(rows):
            prompts = [row["tokens"][: row["prompt"]] for row in rows]
            completions = [row["tokens"][row["prompt"] :] for row in rows]
            return {
                "prompt_ids": torch.tensor([pad(p, longest[0], True) for p in prompts]),
                "prompt_mask": torch.tensor([pad([1] * len(p), longest[0], True) for p in prompts]),
                "completion_ids": torch.tensor([pad(c, longest[1], False) for c in completions]),
                "completion_mask": torch.tensor([pad([1] * len(c), longest[1], False) for c in completions]),
                "old_per_token_logps": torch.tensor([pad(row["old"], longest[1], False) for row in rows]),
                "advantages": torch.tensor([row["advantage"] for row in rows]),
                "num_items_in_batch": torch.tensor(items),
            }

        # The denominator is of the whole batch, so pieces are summed.
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation
        total = 0.0
        if self.old_pass:
            with torch.no_grad():
                whole = tensors(rows)
                ids = torch.cat([whole["prompt_ids"], whole["completion_ids"]], 1)
                mask = torch.cat([whole["prompt_mask"], whole["completion_mask"]], 1)
                trainer._get_per_token_logps_and_entropies(model, ids, mask, longest[1], batch_size=self.at_once)
        for begin in range(0, len(rows), self.at_once):
            loss = trainer._compute_loss(model, tensors(rows[begin : begin + self.at_once]))
            loss.backward()
            total += loss.item()
        before_optimizer(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
        return total, norm.item()


class Plain:
    def __init__(self, folder, rows, step, model, args):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=step["rate"], weight_decay=0.0, fused=True)

    def step(self, rows, step, before_optimizer):
        model, config = self.model, self.model.config
        prompt = rows[0]["tokens"][: rows[0]["prompt"]]
        assert all(row["tokens"][: row["prompt"]] == prompt for row in rows)
        p = len(prompt)
        completions = [row["tokens"][p:] for row in rows]
        ids = list(prompt) + [token for c in completions for token in c]
        positions = list(range(p)) + [p + i for c in completions for i in range(len(c))]
        bounds, begin = [], p
        for c in completions:
            bounds.append((begin, begin + len(c)))
            begin += len(c)
        ids, positions = torch.tensor(ids), torch.tensor(positions)
        masks = [torch.cat([torch.ones(e - b, p, dtype=torch.bool), torch.ones(e - b, e - b, dtype=torch.bool).tril()], 1) for b, e in bounds]
        base = model.model
        cos, sin = base.rotary_emb(torch.zeros(1), positions[None])

        def rotate(x):
            half = x.shape[-1] // 2
            return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

        x = F.embedding(ids, base.embed_tokens.weight)
        for layer in base.layers:
            a = layer.self_attn
            y = layer.input_layernorm(x)
            heads = lambda z: z.view(len(ids), -1, a.head_dim)
            q = rotate(a.q_norm(heads(a.q_proj(y))).transpose(0, 1))
            k = rotate(a.k_norm(heads(a.k_proj(y))).transpose(0, 1))
            v = heads(a.v_proj(y)).transpose(0, 1)
            group = q.shape[0] // k.shape[0]
            k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
            out = [F.scaled_dot_product_attention(q[None, :, :p], k[None, :, :p], v[None, :, :p], is_causal=True)]
            for (b, e), mask in zip(bounds, masks):
                see = lambda z: torch.cat([z[None, :, :p], z[None, :, b:e]], 2)
                out.append(F.scaled_dot_product_attention(q[None, :, b:e], see(k), see(v), attn_mask=mask))
            mixed = torch.cat(out, 2)[0].transpose(0, 1).reshape(len(ids), -1)
            x = x + a.o_proj(mixed)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        x = base.norm(x)
        places = torch.tensor([place for b, e in bounds for place in [p - 1] + list(range(b, e - 1))])
        targets = torch.tensor([token for c in completions for token in c])
        old = torch.tensor([value for row in rows for value in row["old"]])
        advantages = torch.tensor([row["advantage"] for row, c in zip(rows, completions) for _ in c])
        x = x[places]

        def scores(x, targets):
            logits = model.lm_head(x) / step["temperature"]
            return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)

        new = torch.cat([checkpoint(scores, a, b, use_reentrant=False) for a, b in zip(x.split(256), targets.split(256))])
        loss = clipped(step, new, old, advantages).sum() / len(targets)
        loss.backward()
        before_optimizer(model)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item(), norm.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer", choices=["trl", "plain"])
    parser.add_argument("folder")
    parser.add_argument("--rows-at-once", type=int)
    parser.add_argument("--old-pass", action="store_true")
    parser.add_argument("--gradients")
    args = parser.parse_args()
    rows, step, model = read(args.folder)
    trainer = {"trl": Trl, "plain": Plain}[args.trainer](args.folder, rows, step, model, args)
    weights = {name: value.clone() for name, value in model.state_dict().items()} if args.gradients else None
    warm = shortened(rows)
    trainer.step([dict(row, tokens=warm[0]["tokens"][: warm[0]["prompt"]] + row["tokens"][row["prompt"] :], prompt=warm[0]["prompt"]) for row in warm], step, lambda _: None)
    if weights is not None:
        # The gradients are those of the weights in the folder.
        model.load_state_dict(weights)

    keeping = 0.0

    def keep(model):
        nonlocal keeping
        if args.gradients:
            from safetensors.torch import save_file

            began = time.perf_counter()
            save_file({name: p.grad.contiguous() for name, p in model.named_parameters() if p.grad is not None}, args.gradients)
            keeping = time.perf_counter() - began

    began = time.perf_counter()
    loss, norm = trainer.step(rows, step, keep)
    print(json.dumps({"seconds": time.perf_counter() - began - keeping, "loss": loss, "norm": norm, "peak_bytes": peak_bytes()}))


main()
