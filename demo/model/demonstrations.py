"""Owns the warm start's data: demonstrations of a mediocre, diverse repairer on functions of packages no task comes from.

Writes warmstart.jsonl (token ids and a loss weight per token) and, with --tokenizer, trains and writes the tokenizer first.
Verdicts are known without running anything: the injected flip is undone or it is not.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import re
import sys
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tasks")]
import conversations as say  # noqa: E402
import flips  # noqa: E402
import tokenizer as tok  # noqa: E402

BEYOND_CHANCE = 0.25  # how often the right flip is taken for a reason
GIVE_UP, GIVE_UP_STUBBORN, STUBBORN = 0.75, 0.25, 0.12
MAX_EDITS = 6  # look, six edits and the submission are eight turns
SHIFTED = 0.8
# A kind's share of the demonstrations grows with the root of its mutants' number, so that rare kinds are known too.
BALANCE = 0.5


def sources(stdlib: Path, wheels: list[Path]):
    """(package, path, text) of every file, in an order that does not depend on the machine."""
    for path in sorted(stdlib.rglob("*.py")):
        inner = path.relative_to(stdlib)
        if {"test", "tests", "dist-packages", "site-packages", "idlelib", "lib2to3"} & set(inner.parts):
            continue
        yield inner.parts[0].removesuffix(".py"), str(inner), path.read_text(errors="replace")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if name.endswith(".py") and "/tests/" not in name:
                    yield name.split("/")[0], name, archive.read(name).decode(errors="replace")


def examples(stdlib: Path, wheels: list[Path]) -> list[dict]:
    seen, out = set(), []
    for package, _, text in sources(stdlib, wheels):
        if not text.isascii() or set("\t\r\f") & set(text):
            continue
        for function in flips.functions(text):
            if function.lines in seen:
                continue
            seen.add(function.lines)
            for repair, buggy, choices in flips.mutants(function):
                out.append(dict(package=package, name=function.name, first=function.first, buggy=buggy, repair=repair, choices=choices))
    return out


def sed(lines: list[str], old: str, new: str) -> list[str]:
    """The basic regular expression s/old/new/ as sed runs it on each line of its range."""
    return [re.sub(re.escape(old), lambda _: new, line, count=1) for line in lines]


def demonstrate(example: dict, rng: random.Random) -> list[dict]:
    lines, repair, choices = example["buggy"], example["repair"], example["choices"]
    first = example["first"]
    if rng.random() < SHIFTED:
        first = int(10 ** rng.uniform(0.3, 3.3)) + rng.randrange(20)
    last = first + len(lines) - 1
    original = flips.apply(lines, repair)
    patience = GIVE_UP_STUBBORN if rng.random() < STUBBORN else GIVE_UP
    messages = [
        dict(role="system", content=say.SYSTEM),
        dict(role="user", content=say.problem(example["package"], example["name"], first, last)),
        dict(role="assistant", content=say.look(first, last)),
        dict(role="user", content=say.numbered(lines, first)),
    ]
    left = list(choices)
    for attempt in range(MAX_EDITS):
        flip = repair if rng.random() < BEYOND_CHANCE else rng.choice(left)
        left.remove(flip)
        edited = sed(lines, flip.old, flip.new)
        assert sum(a != b for a, b in zip(edited, lines)) == 1, (flip, lines)
        passed = edited == original
        messages.append(dict(role="assistant", content=say.edit(first, last, flip.old, flip.new, attempt > 0)))
        messages.append(dict(role="user", content=say.verdict(passed)))
        if passed or not left or rng.random() < patience:
            break
    messages.append(dict(role="assistant", content=say.done()))
    return messages


def draw(pool: list[dict], count: int, rng: random.Random) -> list[dict]:
    """`count` examples, every kind by its balanced share, going round within a kind before repeating."""
    kinds = collections.defaultdict(list)
    for example in pool:
        kinds[example["repair"].kind].append(example)
    names = sorted(kinds)
    shares = [len(kinds[k]) ** BALANCE for k in names]
    out, queues = [], {k: [] for k in names}
    for kind in rng.choices(names, shares, k=count):
        if not queues[kind]:
            queues[kind] = rng.sample(kinds[kind], len(kinds[kind]))
        out.append(queues[kind].pop())
    return out


def golden(messages: list[dict], tokenizer, path: Path) -> None:
    ids, _ = say.tokens(messages, tokenizer)
    text = say.render(messages)
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids
    path.write_text(json.dumps(dict(messages=messages, text=text, token_ids=ids), indent=1) + "\n")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--stdlib", type=Path, required=True)
    arguments.add_argument("--wheels", type=Path, nargs="+", required=True)
    arguments.add_argument("--count", type=int, default=45_000)
    arguments.add_argument("--seed", type=int, default=20261121)
    arguments.add_argument("--tokenizer", action="store_true", help="train the tokenizer anew and write it beside this file")
    arguments.add_argument("--out", type=Path, required=True)
    options = arguments.parse_args()

    pool = examples(options.stdlib, sorted(options.wheels))
    rng = random.Random(options.seed)
    chats = [demonstrate(e, rng) for e in draw(pool, options.count, rng)]
    if options.tokenizer:
        tok.train((say.render(c) for c in chats[:12_000]), HERE)
    tokenizer = tok.load(HERE)
    lengths, spoken, turns = [], 0, collections.Counter()
    temporary = options.out.with_suffix(".part")
    with temporary.open("w") as out:
        for chat in chats:
            ids, weights = say.tokens(chat, tokenizer)
            out.write(json.dumps(dict(tokens=ids, weights=weights), separators=(",", ":")) + "\n")
            lengths.append(len(ids))
            spoken += sum(w == say.ASSISTANT_WEIGHT for w in weights)
            turns[sum(m["role"] == "assistant" for m in chat)] += 1
    temporary.rename(options.out)
    if options.tokenizer:
        # One with a failed attempt in it, so that every kind of turn is shown.
        golden(next(c for c in chats if len(c) == 9), tokenizer, HERE / "golden_conversation.json")
    lengths.sort()
    print(f"{len(pool)} mutants of {len({(e['package'], tuple(flips.apply(e['buggy'], e['repair']))) for e in pool})} functions")
    print(f"{len(chats)} demonstrations, {sum(lengths)} tokens, {spoken} the assistant's")
    print(f"length: mean {sum(lengths) / len(lengths):.0f}, 95 % <= {lengths[int(.95 * len(lengths))]}, most {lengths[-1]}")
    print("assistant turns:", dict(sorted(turns.items())))


if __name__ == "__main__":
    main()
