"""Random cases of the objective, answered by verl's and TRL's own functions.

One JSON object a line: an `algorithm` as in a GrpoRun, the numbers it is given, and what the peer made of them. Nothing of the peers is
re-implemented: their functions are called with tensors in double precision, and gradients are autograd's. The crate `grpo-objective` answers
the same lines in its test `peers`, which also holds the list of permitted differences.

    cases.py NUMBER FILE [--seed N] [--short N FILE]    --short: every so-many-th line once more, for the repository
"""

import argparse
import json
import math
import random
import sys
from collections import defaultdict, deque
from types import SimpleNamespace

import numpy
import torch

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)

from trl.trainer.grpo_trainer import GRPOTrainer  # noqa: E402
from verl.trainer.ppo import core_algos, rollout_corr_helper  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402

# Figures beside the weights; they divide by zero where every token is left out.
rollout_corr_helper.compute_is_metrics = lambda **_: {}


class Draw(random.Random):
    """What a case is made of."""

    def number(self, low, high):
        return round(self.uniform(low, high), 4)

    def rewards(self, n):
        kind = self.random()
        if kind < 0.2:
            return [self.choice([0.0, 1.0, 0.1, -1.0])] * n
        if kind < 0.6:
            return [float(self.random() < 0.4) for _ in range(n)]
        return [self.number(-2, 2) for _ in range(n)]

    def lengths(self):
        """Trained tokens of each sequence: some without any, sometimes all."""
        kind = self.random()
        if kind < 0.03:
            return [0] * self.randint(1, 4)
        return [0 if self.random() < 0.1 else self.randint(1, 6) for _ in range(self.randint(1, 5))]

    def logprobs(self):
        """A function that draws (new, start, engine, reference, entropy). How far apart they are is drawn once a case."""
        far = self.choices([0.05, 0.4, 1.5, 0.0, 40.0], [4, 8, 3, 1, 1])[0]
        noise = self.choices([0.01, 0.3, 1.0, 0.0, 40.0], [4, 8, 2, 1, 1])[0]

        def one():
            new = self.number(-6, 0)
            start = round(new + self.uniform(-far, far), 4)
            engine = round(start + self.uniform(-noise, noise), 4)
            reference = round(new + self.uniform(-1, 1) * self.choice([0.3, 1.0, 2.2, far]), 4)
            return [new, start, engine, reference, self.number(0, 4)]

        return one


def case(peer, what, **fields):
    return {"peer": peer, "what": what, **fields}


class Rows:
    """Sequences as peers take them: padded, with untrained tokens between trained ones."""

    def __init__(self, draw, lengths):
        one = draw.logprobs()
        self.tokens = [[one() for _ in range(n)] for n in lengths]
        # Each row's mask: its trained tokens and one to three others, shuffled.
        masks = []
        for n in lengths:
            mask = [1] * n + [0] * draw.randint(1, 3)
            draw.shuffle(mask)
            masks.append(mask)
        self.width = max(len(mask) for mask in masks)
        self.masks = masks
        self.mask = torch.tensor([mask + [0] * (self.width - len(mask)) for mask in masks], dtype=torch.long)

        def column(at):
            rows = []
            for mask, tokens in zip(masks, self.tokens, strict=True):
                left = iter(tokens)
                row = [next(left)[at] if m else draw.number(-3, 0) for m in mask]
                rows.append(row + [0.0] * (self.width - len(row)))
            return torch.tensor(rows, dtype=torch.float64)

        self.new, self.start, self.engine, self.reference, self.entropy = (column(at) for at in range(5))
        self.new.requires_grad_(True)

    def of_trained(self, matrix):
        return [[matrix[i, j].item() for j in range(self.width) if self.mask[i, j]] for i in range(len(self.tokens))]

    def answer(self, loss):
        if loss.requires_grad:
            loss.backward()
        gradient = self.new.grad if self.new.grad is not None else torch.zeros_like(self.new)
        assert (gradient * (1 - self.mask) == 0).all() or not torch.isfinite(loss), "a gradient at an untrained token"
        sequences = [{"tokens": tokens} for tokens in self.tokens]
        value = loss.item()
        if not math.isfinite(value):
            return {"sequences": sequences, "loss": None}
        return {"sequences": sequences, "loss": value, "gradient": self.of_trained(gradient)}


# verl 0.9.1


def verl_advantages(draw):
    groups = [draw.rewards(draw.randint(1, 6)) for _ in range(draw.randint(1, 4))]
    flat = [reward for group in groups for reward in group]
    index = numpy.array([at for at, group in enumerate(groups) for _ in group], dtype=object)
    rewards = torch.zeros(len(flat), 3)
    rewards[:, 1] = torch.tensor(flat)
    mask = torch.ones(len(flat), 3)
    epsilon = draw.choice([1e-6, 1e-4, 0.01])
    # Not `grpo_vectorized`: it computes means in single precision, regardless of its input.
    name = draw.choice(["grpo", "grpo", "rloo", "rloo_vectorized"])
    std = draw.choice(["None", "Unbiased"])
    arguments = {"token_level_rewards": rewards, "response_mask": mask, "index": index, "epsilon": epsilon}
    if name.startswith("rloo"):
        advantage = {"estimator": "LeaveOneOut", "std": "None", "epsilon": epsilon}
    else:
        advantage = {"estimator": "Group", "std": std, "epsilon": epsilon}
        arguments["norm_adv_by_std_in_grpo"] = std != "None"
    found, _ = core_algos.get_adv_estimator_fn(name)(**arguments)
    left = iter(found[:, 0].tolist())
    return case("verl", "advantages", algorithm={"advantage": advantage}, groups=groups, advantages=[[next(left) for _ in group] for group in groups])


VERL_KL = {"K1": "k1", "K2": "k2", "K3": "low_var_kl", "Abs": "abs"}
VERL_AGGREGATION = {
    "TokenMean": "token-mean",
    "TokenSum": "token-sum",
    "SequenceMean": "seq-mean-token-mean",
    "SequenceSum": "seq-mean-token-sum",
}


def verl_reward(draw):
    n = draw.randint(1, 6)
    rows = Rows(draw, [n])
    estimator = draw.choice(list(VERL_KL))
    kl = {"coefficient": draw.number(0, 1), "estimator": estimator, "placement": "Reward"}
    reward = draw.number(-2, 2)
    # As verl does before advantages: what sampled against the reference, summed with the reward's tokens.
    penalty = core_algos.kl_penalty(rows.start, rows.reference, kl_penalty=VERL_KL[estimator]) * rows.mask
    shaped = reward - kl["coefficient"] * penalty.sum().item()
    return case("verl", "reward", algorithm={"kl": kl}, reward=reward, sequences=[{"tokens": rows.tokens[0]}], shaped=shaped)


def verl_loss(draw):
    rows = Rows(draw, draw.lengths())
    advantages = [draw.choice([draw.number(-2, 2), draw.number(-2, 2), 0.0]) for _ in rows.tokens]
    kind = draw.choice(["vanilla", "vanilla", "gspo", "cispo"])
    low, high = draw.choice([(0.2, 0.2), (0.2, 0.28), (0.0003, 0.0004), (0.9, 4.0)])
    clip = {"low": low, "high": high}
    if kind == "vanilla" and draw.random() < 0.5:
        clip["dual"] = draw.choice([1.1, 3.0, 10.0])
    aggregation = draw.choice(list(VERL_AGGREGATION))
    algorithm = {
        "loss": "Cispo" if kind == "cispo" else "Clipped",
        "ratio": "Sequence" if kind == "gspo" else "Token",
        "clip": clip,
        "aggregation": aggregation,
        "oldLogprobs": "Recompute",
    }
    mode, scale = VERL_AGGREGATION[aggregation], None
    if aggregation == "SequenceSum" and draw.random() < 0.5:
        scale = algorithm["aggregationLength"] = draw.randint(1, 2000)
        mode = "seq-mean-token-sum-norm"
    # The denominators count the whole batch, also what a correction masks out. verl takes them from this dictionary.
    batch = {
        "dp_size": 1,
        "batch_num_tokens": int(rows.mask.sum()),
        "global_batch_size": int((rows.mask.sum(-1) > 0).sum()),
        "loss_scale_factor": scale,
    }
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        use_dynamic_bsz=True,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=clip.get("dual", 1e30),
        global_batch_info=batch,
    )
    mask, weights = rows.mask, None
    if draw.random() < 0.5 and rows.mask.any():
        correction = {}
        log_ratio = rows.start - rows.engine
        pick = draw.randint(0, 3)
        if pick < 2:
            level = draw.choice(["token", "sequence"])
            upper, lower = draw.choice([1.2, 2.0, 5.0]), draw.choice([0.2, 0.5, 0.9])
            threshold = upper if pick == 0 else f"{lower}_{upper}"
            band = {"low": 0.0 if pick == 0 else lower, "high": upper}
            correction["truncatedImportance" if pick == 0 else "icePop"] = band
            correction["level"] = level.capitalize()
            weights, _ = rollout_corr_helper.compute_rollout_correction_weights(log_ratio, rows.mask, rollout_is=level, rollout_is_threshold=threshold)
        if pick >= 2 or draw.random() < 0.3:
            lower, upper = draw.choice([(0.5, 2.0), (0.8, 1.25), (0.99, 1.001)])
            correction["geometricMask"] = {"low": lower, "high": upper}
            # Its bounds are of the inverse ratio.
            mask, _ = rollout_corr_helper.compute_rollout_rejection_mask(
                log_ratio, rows.mask, rollout_rs="seq_mean_k1", rollout_rs_threshold=f"{1 / upper!r}_{1 / lower!r}"
            )
        algorithm["correction"] = correction
    # verl's losses take the mask as a tensor of any type, and its fully masked sequences stay in the given denominators.
    loss, _ = core_algos.get_policy_loss_fn(kind)(
        old_log_prob=rows.start,
        log_prob=rows.new,
        advantages=torch.tensor(advantages).unsqueeze(-1).expand_as(rows.new),
        response_mask=mask,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=weights,
    )
    if draw.random() < 0.3:
        coefficient = algorithm["entropyCoefficient"] = draw.number(0, 0.1)
        loss = loss - coefficient * core_algos.agg_loss(rows.entropy, rows.mask, mode, **batch)
    if draw.random() < 0.5:
        estimator = draw.choice(list(VERL_KL))
        straight = draw.random() < 0.4
        algorithm["kl"] = kl = {"coefficient": draw.number(0, 0.5), "estimator": estimator}
        if straight:
            kl["gradient"] = "StraightThrough"
        penalty = core_algos.kl_penalty(rows.new, rows.reference, kl_penalty=VERL_KL[estimator] + ("+" if straight else ""))
        loss = loss + kl["coefficient"] * core_algos.agg_loss(penalty, rows.mask, mode, **batch)
    answer = rows.answer(loss)
    for sequence, advantage in zip(answer["sequences"], advantages, strict=True):
        sequence["advantage"] = advantage
    return case("verl", "loss", algorithm=algorithm, **answer)


# TRL 1.16.0


def trl_trainer():
    """A GRPOTrainer without model, data and optimizer: what is left computes advantages and loss."""
    same = lambda value, *_, **__: value  # noqa: E731
    trainer = GRPOTrainer.__new__(GRPOTrainer)
    model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
    trainer.__dict__.update(
        accelerator=SimpleNamespace(device=torch.device("cpu"), gather=same, reduce=same, gather_for_metrics=same, process_index=0, num_processes=1, sync_gradients=False),
        model=model,
        ref_model=SimpleNamespace(),
        tools=None,
        environments=None,
        environment_factories=None,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        eos_token_ids=[1],
        pad_to_multiple_of=None,
        reward_weights=torch.ones(1),
        reward_funcs=[None],
        reward_func_names=["reward"],
        multi_objective_aggregation="sum_then_normalize",
        use_vllm=False,
        num_iterations=2,
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0,
        aux_loss_enabled=False,
        use_adaptive_entropy=False,
        log_multimodal=False,
        _pending_extra_logs=defaultdict(list),
        _pending_metrics=defaultdict(list),
        _is_vlm=False,
    )
    return trainer


def trl_both(draw, trainer):
    """Advantages and loss of one generation batch, through TRL's own two steps."""
    groups, size = draw.randint(1, 3), draw.randint(2, 4)
    n = groups * size
    lengths = [0 if draw.random() < 0.08 else draw.randint(1, 5) for _ in range(n)]
    if draw.random() < 0.02:
        lengths = [0] * n
    rows = Rows(draw, lengths)
    rewards = [None if draw.random() < 0.1 else reward for _ in range(groups) for reward in draw.rewards(size)]
    algorithm = {"advantage": {"std": draw.choice(["None", "Unbiased", "Batch"]), "epsilon": 1e-4}}
    scale = {"None": "none", "Unbiased": "group", "Batch": "batch"}[algorithm["advantage"]["std"]]

    kind = draw.choice(["grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo"])
    low, high = draw.choice([(0.2, 0.2), (0.2, 0.28), (0.0003, 0.0004), (0.9, 4.0)])
    length = draw.randint(1, 2000)
    clip = {"low": low, "high": high}
    delta = None
    if kind == "cispo":
        # No lower bound, and the upper one is of the ratio itself.
        clip = {"low": 1.0, "high": high}
    elif draw.random() < 0.3:
        delta = clip["dual"] = high + 1 + draw.choice([0.1, 2.0])
    level = draw.choice(["token", "sequence"])
    algorithm |= {
        "loss": "Cispo" if kind == "cispo" else "Clipped",
        "ratio": level.capitalize(),
        "clip": clip,
        "aggregation": {"grpo": "SequenceMean", "dr_grpo": "SequenceSum", "luspo": "SequenceSum"}.get(kind, "TokenMean"),
        "oldLogprobs": "Recompute",
    }
    if kind == "dr_grpo":
        algorithm["aggregationLength"] = length
    correct = draw.random() < 0.5
    correction = {}
    if correct:
        mode = draw.choice(["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
        least, most = draw.choice([None, 0.3, 0.8]), draw.choice([1.1, 2.0, 3.0])
        band = {"low": least or 0.0, "high": most}
        correction = {"truncatedImportance" if "truncate" in mode else "icePop": band, "level": mode.split("_")[0].capitalize()}
        trainer.vllm_importance_sampling_mode = mode
        trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max = least, most
    bound = draw.choice([None, None, 0.01, 0.2])
    if bound is not None:
        correction["sequenceMask"] = bound
    if correction:
        algorithm["correction"] = correction
    beta, biased = 0.0, False
    if draw.random() < 0.4:
        beta = draw.number(0.01, 0.5)
        # With one ratio a sequence TRL weighs the penalty by that one.
        biased = level == "token" and draw.random() < 0.5
        algorithm["kl"] = {"coefficient": beta, "estimator": "K3", "gradient": "ImportanceWeighted" if biased else "Estimator"}
    entropy = 0.0
    if algorithm["aggregation"] == "TokenMean" and draw.random() < 0.4:
        # Elsewhere TRL's entropy has another denominator than its policy loss.
        entropy = algorithm["entropyCoefficient"] = draw.number(0.001, 0.1)
    overlong = draw.random() < 0.2

    trainer.__dict__.update(
        args=SimpleNamespace(
            per_device_train_batch_size=n,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
            use_bias_correction_kl=biased,
            delta=delta,
        ),
        num_generations=size,
        scale_rewards=scale,
        mask_truncated_completions=overlong,
        beta=beta,
        use_vllm=correct,
        vllm_importance_sampling_correction=correct,
        off_policy_mask_threshold=bound,
        importance_sampling_level=level,
        loss_type=kind,
        epsilon_low=low,
        epsilon_high=1 + high if kind == "cispo" else high,
        max_completion_length=length,
        entropy_coef=entropy,
        _entropy_bonus_enabled=entropy != 0.0,
        _metrics={"train": defaultdict(list)},
        _logs={"prompt": deque(), "completion": deque(), "rewards": defaultdict(deque), "advantages": deque(), "extra": defaultdict(deque)},
    )
    # A completion ends with its last token, an end token or, where it was cut, another.
    cut = [draw.random() < 0.3 for _ in range(n)]
    completions = [[7] * (len(mask) - 1) + [7 if was else 1] for mask, was in zip(rows.masks, cut, strict=True)]
    engine = [row[: len(mask)] for row, mask in zip(rows.engine.tolist(), rows.masks, strict=True)]
    trainer._generate = lambda prompts: ([[5]] * n, completions, rows.masks, completions, engine, {}, None, None)
    trainer._calculate_rewards = lambda *_: torch.tensor([[float("nan") if reward is None else reward] for reward in rewards])

    def logprobs(model, *_, **__):
        if model is trainer.ref_model:
            return rows.reference, None, None
        return (rows.new, rows.entropy, None) if model == "now" else (rows.start, None, None)

    trainer._get_per_token_logps_and_entropies = logprobs
    inputs = trainer._generate_and_score_completions([{"prompt": "p"} for _ in range(n)])
    advantages = inputs["advantages"].tolist()
    rewards = [rewards[at : at + size] for at in range(0, n, size)]
    yield case(
        "trl",
        "advantages",
        algorithm={"advantage": algorithm["advantage"]},
        groups=rewards,
        advantages=[advantages[at : at + size] for at in range(0, n, size)],
    )
    loss = trainer._compute_loss("now", inputs)
    answer = rows.answer(loss)
    for at, (sequence, advantage) in enumerate(zip(answer["sequences"], advantages, strict=True)):
        sequence["advantage"] = advantage
        if overlong and cut[at]:
            sequence["cut"] = True
    if overlong:
        algorithm["maskOverlong"] = True
    yield case("trl", "loss", algorithm=algorithm, **answer)


def cases(number, seed):
    draw, trainer = Draw(seed), trl_trainer()
    made = 0
    while made < number:
        pick = draw.random()
        if pick < 0.12:
            some = [verl_advantages(draw)]
        elif pick < 0.17:
            some = [verl_reward(draw)]
        elif pick < 0.6:
            some = [verl_loss(draw)]
        else:
            some = trl_both(draw, trainer)
        for one in some:
            yield one
            made += 1


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("number", type=int)
    arguments.add_argument("file")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--short", nargs=2, metavar=("EVERY", "FILE"))
    given = arguments.parse_args()
    every, short = (int(given.short[0]), open(given.short[1], "w")) if given.short else (0, None)
    with open(given.file, "w") as file:
        for at, one in enumerate(cases(given.number, given.seed)):
            line = json.dumps(one, separators=(",", ":"), allow_nan=False) + "\n"
            file.write(line)
            if short and at % every == 0:
                short.write(line)
    print(f"{at + 1} cases in {given.file}", file=sys.stderr)


if __name__ == "__main__":
    main()
