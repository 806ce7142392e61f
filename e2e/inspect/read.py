"""Compares what inspect_ai reads from inspect.json with the other files of an export."""

import json
import sys
from pathlib import Path

from inspect_ai.log import read_eval_log

folder = Path(sys.argv[1])
log = read_eval_log(str(folder / "inspect.json"))
summary = json.loads((folder / "summary.json").read_text())
chats = [json.loads(line) for file in folder.glob("chat_completions/*.jsonl") for line in file.read_text().splitlines()]

assert log.status == "success", log.error
assert len(log.samples) == log.results.completed_samples == len(chats), (len(log.samples), len(chats))
assert len({(sample.id, sample.epoch) for sample in log.samples}) == len(log.samples)
values = [sample.scores["resolved"].as_float() for sample in log.samples]
shown = log.results.scores[0].metrics["mean"].value
assert abs(shown - sum(values) / len(values)) < 1e-9, (shown, values)

# The exported sample of each task, which summary.json counts.
first = [sample for sample in log.samples if sample.metadata["sample"] == 0]
assert sum(sample.scores["resolved"].as_int() for sample in first) == summary["resolved"]
predictions = json.loads((folder / "preds.json").read_text())
assert {sample.id: sample.scores["resolved"].answer for sample in first} == {
    task: entry["model_patch"] for task, entry in predictions.items()
}

texts = sorted([message.text for message in sample.messages] for sample in log.samples)
assert texts == sorted([message["content"] for message in chat] for chat in chats)
for sample in log.samples:
    called = [call.id for message in sample.messages for call in getattr(message, "tool_calls", None) or []]
    answered = [message.tool_call_id for message in sample.messages if message.role == "tool"]
    assert set(answered) <= set(called), (called, answered)
    assert sample.output.usage.output_tokens > 0

print(f"inspect_ai read {len(log.samples)} samples of {log.eval.dataset.samples} tasks; {shown:.1%} are resolved")
