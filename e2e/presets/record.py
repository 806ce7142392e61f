#!/usr/bin/env python3
"""Renders the prompts and observations of mini-swe-agent and mini-swe-agent-plus with Jinja2, for the presets' test.

    pip install jinja2 pyyaml && pip download --no-deps mini-swe-agent==1.12.0
    python3 e2e/presets/record.py mini_swe_agent-1.12.0-py3-none-any.whl [PLUS.yaml]

PLUS.yaml is a copy of mini-swe-agent-plus's configuration; without it, it is fetched. Texts are rendered as the
originals render them; what the policy reads of a command is first decoded as their environments decode it. Only the
rendered texts are kept, of long ones the SHA-256. An output is a text and how often it is repeated.
"""

import hashlib
import io
import json
import pathlib
import sys
import urllib.request
import zipfile

import jinja2
import yaml

PLUS = (
    "https://raw.githubusercontent.com/Kwai-Klear/mini-swe-agent-plus/0ea04fa/"
    "src/minisweagent/config/extra/swebench_add_edit_tool.yaml"
)
OUT = pathlib.Path(__file__).parents[2] / "rollout-image/driver/src/agent/bash/presets/rendered.json"
STATEMENT = "Sums are wrong.\n\n```python\n>>> add(1, 2) {{ not a variable }}\n```\n"

OUTPUTS = [
    (0, "", 1),
    (0, "ok\n", 1),
    (1, "a\r\nb\rc\n\n", 1),
    (137, "killed", 1),
    (0, "x", 9999),
    (0, "x", 10000),
    (0, "0123\n5678\n", 1200),
    (2, "漢é😀\n", 4000),
]


def rendered(template, **variables):
    return jinja2.Template(template, undefined=jinja2.StrictUndefined).render(**variables)


def decoded(printed):
    return io.TextIOWrapper(io.BytesIO(printed.encode()), encoding="utf-8", errors="replace").read()


def kept(text):
    return text if len(text) < 2000 else {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def main():
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        one = yaml.safe_load(wheel.read("minisweagent/config/extra/swebench.yaml"))["agent"]
        code = wheel.read("minisweagent/agents/default.py").decode()
    # The text is a default in the code: read, not run.
    begin = code.index("timeout_template: str = (") + len("timeout_template: str = ")
    timeout = eval(code[begin:code.index("\n    )", begin) + len("\n    )")], {"__builtins__": {}})
    plus = open(sys.argv[2]).read() if len(sys.argv) > 2 else urllib.request.urlopen(PLUS).read()
    presets = {"MiniSweAgent1": (one, {}), "MiniSweAgentPlus": (yaml.safe_load(plus)["agent"], {"working_dir": "/testbed"})}
    texts = {}
    for name, (agent, variables) in presets.items():
        texts[name] = {
            "system": rendered(agent["system_template"]),
            "task": rendered(agent["instance_template"], task=STATEMENT, **variables),
            "formatErrors": [rendered(agent["format_error_template"], actions=["ls"] * blocks) for blocks in (0, 2)],
            "observations": [
                kept(rendered(agent["action_observation_template"], output={"returncode": status, "output": decoded(text * times)}))
                for status, text, times in OUTPUTS
            ],
            "timeout": rendered(timeout, action={"action": "sleep 99"}, output="so far\n"),
        }
    outputs = [{"status": status, "text": text, "times": times} for status, text, times in OUTPUTS]
    OUT.write_text(json.dumps({"statement": STATEMENT, "outputs": outputs, "presets": texts}, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
