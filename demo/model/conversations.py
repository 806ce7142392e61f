"""Owns the words of a demonstration: prompts, turns, observations, and how a conversation becomes text and tokens.

The rollout driver renders the same conversations in production; golden_conversation.json lets it check itself.
"""

from __future__ import annotations

SYSTEM = "Fix the bug. One bash block per turn."
ASSISTANT_WEIGHT, OTHER_WEIGHT = 1.0, 0.2


def problem(package: str, function: str, first: int, last: int) -> str:
    return f"A test of {package} fails. The bug is in {function}, $F lines {first}-{last}."


def turn(word: str, command: str) -> str:
    return f"{word}\n```bash\n{command}\n```"


def look(first: int, last: int) -> str:
    return turn("Look.", f"grep -n '' $F | sed -n '{first},{last}p'")


def edit(first: int, last: int, old: str, new: str, again: bool) -> str:
    sed = f"sed -i '{first},{last}s/{old}/{new}/' $F; sh t"
    return turn("Retry.", f"git checkout -q .; {sed}") if again else turn("Edit.", sed)


def done() -> str:
    return turn("Done.", "echo SUBMIT")


def numbered(lines: list[str], first: int) -> str:
    """What `grep -n '' $F | sed -n 'a,bp'` prints, without the newline at its end."""
    return "\n".join(f"{first + i}:{line}" for i, line in enumerate(lines))


def verdict(passed: bool) -> str:
    return "1 passed" if passed else "1 failed"


def render(messages: list[dict]) -> str:
    return "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)


def tokens(messages: list[dict], tokenizer) -> tuple[list[int], list[float]]:
    """The rendered conversation's ids, and a weight for each: 1 on what the assistant writes, its <|im_end|> included."""
    ids: list[int] = []
    weights: list[float] = []
    for message in messages:
        pieces = (
            (f"<|im_start|>{message['role']}\n", OTHER_WEIGHT),
            (f"{message['content']}<|im_end|>", ASSISTANT_WEIGHT if message["role"] == "assistant" else OTHER_WEIGHT),
            ("\n", OTHER_WEIGHT),
        )
        for text, weight in pieces:
            part = tokenizer.encode(text, add_special_tokens=False).ids
            ids += part
            weights += [weight] * len(part)
    return ids, weights
