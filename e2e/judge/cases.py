"""Random cases of a judge of turns, answered by OpenClaw-RL's own functions.

    cases.py FOLDER OUT --number N --seed S

FOLDER holds the repository Gen-Verse/OpenClaw-RL at 0d034dd (MIT License), of which two files are read: `swe-rl/swe_prm.py` (votes, prompts)
and `slime/slime/ray/rollout.py` (step-wise rewards). Nothing of them is re-implemented, and no text of theirs is written out: of a prompt
only its checksum. OUT gets `votes.jsonl`, `prompts.jsonl` and `steps.jsonl`, one case a line; the crates `grpo-records`, `grpo-driver` and
`grpo-objective` answer the same lines in tests that also hold the list of permitted differences. Standard library only.
"""

import argparse
import ast
import hashlib
import json
import logging
import pathlib
import random
import sys
import types


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made


def judge(folder):
    """`swe_prm` with its imports of HTTP and tokenizers stubbed: neither is called here."""
    for name in ("slime", "slime.utils"):
        module(name)
    module("slime.utils.http_utils", post=None)
    module("slime.utils.processing_utils", load_tokenizer=None)
    sys.path.insert(0, str(folder / "swe-rl"))
    import swe_prm

    return swe_prm


def step_wise(folder):
    """The one method of `RolloutManager` that turns rewards of steps into advantages, without the imports of its file."""
    source = (folder / "slime/slime/ray/rollout.py").read_text()
    name = "_post_process_step_wise_rewards"
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == name]
    space = {"logger": logging.getLogger("original"), "Sample": types.SimpleNamespace}
    logging.getLogger("original").setLevel(logging.ERROR)
    exec(compile(ast.Module(body=found, type_ignores=[]), name, "exec"), space)
    return space[name]


BOXES = ["1", "+1", "-1", " 1 ", "1.0", "-1.0", "+1.00", "0", "2", "one", "", "{1}", "\\text{+1}", "+ 1", "1.", ".5", "--1", "1e0", "-1\n", "10"]
PROSE = ["The command failed. ", "Good step.\n", "It puts a score in braces {like this}. ", "\\boxed", "\\box{1} ", "", "é漢 "]


def vote(draw, original):
    boxes = draw.choices([0, 1, 2], [2, 14, 4])[0]
    text = draw.choice(PROSE)
    for _ in range(boxes):
        text += "\\boxed{" + draw.choice(BOXES) + "}" + draw.choice(PROSE)
    if draw.random() < 0.05:
        text += "\\boxed{1"
    return {"text": text, "boxes": boxes, "sign": original._extract_prm_sign_from_text(text)}


LINES = ["def add(a, b):", "    return a - b", "cat: b.py: No such file", "1 passed in 0.01s", "漢字 é", "{'a': 1}", "%s {0} {problem}", "x" * 90, ""]


def text(draw, longest):
    """A text, as what is repeated and where that is cut: cases stay small."""
    length = draw.choice([1999, 2000, 2001, 3999, 4000, 4001, 7999, 8000, 8001]) if draw.random() < 0.2 else draw.randint(0, longest)
    return {"unit": "".join(draw.choice(LINES) + "\n" for _ in range(draw.randint(1, 4))), "length": length}


def written(made):
    return (made["unit"] * (made["length"] // len(made["unit"]) + 1))[: made["length"]]


def prompt(draw, original):
    agent = original.SweRewardAgent(
        max_history_steps=draw.choice([1, 2, 8]),
        max_problem_len=draw.choice([50, 8000]),
        max_output_len=draw.choice([100, 4000, 5000]),
        max_history_output_len=draw.choice([10, 1000]),
    )
    steps = []
    for number in range(draw.randint(1, 12)):
        steps.append({"action": draw.choice(["ls -la", "cat {}", "sed -i 's/a/b/' é.py\ngit diff", "grep -rn \"x\" ."]) + f" # {number}",
                      "returncode": draw.choice([0, 0, 0, 1, 2, 127, -9]), "output": text(draw, draw.choice([20, 300, 300, 6000]))})
    # As its server of sandboxes reports an output.
    debug = []
    for step in steps:
        output = written(step["output"])
        debug.append({"action": step["action"], "returncode": step["returncode"], "output_len": len(output), "output_head": output[:2000], "output_tail": output[-2000:]})
    at = draw.randrange(len(steps))
    problem, response = text(draw, draw.choice([30, 9000])), text(draw, 200)
    system, user = agent._build_reward_messages(problem_statement=written(problem), step_debug=debug, policy_response=written(response), step_index=at)
    asked = system["content"] + "\0" + user["content"]
    return {"historySteps": agent.max_history_steps, "problemLength": agent.max_problem_len, "outputLength": agent.max_output_len,
            "historyOutputLength": agent.max_history_output_len, "problem": problem, "steps": steps, "at": at, "response": response,
            "sha256": hashlib.sha256(asked.encode()).hexdigest()}


def steps(draw, original):
    """The rows of some groups, one a step, as `dynamic_history` makes them: `advantages` has null for a row that is left out."""
    rows, samples = [], []
    rewards = draw.choice([lambda: draw.choice([-1.0, 1.0]) + draw.choice([-1.0, -1 / 3, 1 / 3, 1.0]), lambda: draw.choice([0.0, 1.0]), lambda: round(draw.uniform(-2, 2), 4)])
    for group in range(draw.randint(1, 3)):
        for episode in range(draw.randint(1, 6)):
            for step in range(draw.randint(1, 6)):
                reward = rewards()
                rows.append({"group": group, "episode": episode, "step": step, "reward": reward})
                meta = {"step_scores_with_outcome": [reward], "step_token_spans": [[0, 2]], "step_indices": [step]}
                samples.append(types.SimpleNamespace(metadata={"step_wise": meta}, group_index=group, index=len(samples), loss_mask=[1, 1], remove_sample=False))
    this = types.SimpleNamespace(args=types.SimpleNamespace(rewards_normalization=True, dynamic_history=True))
    kept, _, _, _ = original(this, samples)
    return {"rows": rows, "advantages": [one[0] if one else None for one in kept]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--number", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    made = {"votes": (vote, judge(given.folder)), "steps": (steps, step_wise(given.folder))}
    made["prompts"] = (prompt, made["votes"][1])
    for name, (case, original) in made.items():
        draw = random.Random(f"{name} {given.seed}")
        with open(given.out / f"{name}.jsonl", "w") as file:
            for _ in range(given.number):
                print(json.dumps(case(draw, original), ensure_ascii=False), file=file)


main()
