"""mini-swe-agent on the task that standard input has, against OPENAI_BASE_URL: run.py text|tools [OPTION...].

text: one bash block in each answer (mini_textbased.yaml). tools: its tool `bash` (mini.yaml). Agent, environment, prompts,
parsing and observations are the package's own; the model class stands here, because the package's would bring litellm.
Commands run in the working directory.
"""

import argparse
import json
import os
import sys
import time
import types
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "site"))

import yaml
from minisweagent import package_dir
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.utils import actions_text, actions_toolcall

CONFIGS = {"text": "mini_textbased.yaml", "tools": "mini.yaml"}
# The regular expression of the package's text class.
ACTION = r"```mswea_bash_command\s*\n(.*?)\n```"
# One answer may take as long as the episode: the endpoint ends it.
PATIENCE = 24 * 3600


class EndpointModel:
    """Asks for one answer at a time. An answer of 4xx ends the run; the endpoint says so when the episode is over."""

    def __init__(self, kind, config):
        self.is_text, self.settings = kind == "text", config
        self.config = types.SimpleNamespace(model_name=os.environ["OPENAI_MODEL"])

    def query(self, messages):
        shown = [{key: value for key, value in message.items() if key != "extra"} for message in messages]
        body = {"model": self.config.model_name, "messages": shown}
        if not self.is_text:
            body["tools"] = [actions_toolcall.BASH_TOOL]
        choice = ask(body)["choices"][0]
        message = choice["message"]
        return message | {"extra": {"actions": self.actions(message, choice.get("finish_reason")), "cost": 0.0}}

    def actions(self, message, finish_reason):
        error = self.settings["format_error_template"]
        reason = {"finish_reason": finish_reason}
        if self.is_text:
            text = message.get("content") or ""
            return actions_text.parse_regex_actions(
                text, action_regex=ACTION, format_error_template=error, template_kwargs=reason
            )
        calls = json.loads(json.dumps(message.get("tool_calls") or []), object_hook=lambda o: types.SimpleNamespace(**o))
        return actions_toolcall.parse_toolcall_actions(calls, format_error_template=error, template_kwargs=reason)

    def format_message(self, **message):
        return message

    def format_observation_messages(self, message, outputs, template_vars=None):
        how = {"observation_template": self.settings["observation_template"], "template_vars": template_vars}
        if self.is_text:
            return actions_text.format_observation_messages(outputs, **how)
        actions = message["extra"]["actions"]
        return actions_toolcall.format_toolcall_observation_messages(actions=actions, outputs=outputs, **how)

    def get_template_vars(self):
        return {"model_name": self.config.model_name}

    def serialize(self):
        return {}


def ask(body):
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"].rstrip("/") + "/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    for attempt in range(8):
        try:
            # No proxy of the task's environment: the endpoint is on loopback.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(request, timeout=PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code < 500:
                sys.exit(f"the endpoint refused with {error.code}: {error.read().decode(errors='replace')[:2000]}")
            failure = error
        except OSError as error:
            failure = error
        time.sleep(min(2**attempt, 30))
    sys.exit(f"the endpoint did not answer: {failure}")


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("kind", choices=CONFIGS)
    parser.add_argument("--turns", type=int, default=0)
    parser.add_argument("--command-timeout", type=int, default=30)
    parser.add_argument("--system", help="instead of the package's system text")
    options = parser.parse_args()
    config = yaml.safe_load((package_dir / "config" / CONFIGS[options.kind]).read_text())
    settings = config["agent"] | {"step_limit": options.turns, "cost_limit": 0.0}
    if options.system is not None:
        # As a value, not as a template: its braces stay.
        settings["system_template"] = "{{ system_text }}"
    environment = LocalEnvironment(timeout=options.command_timeout, **config["environment"])
    agent = DefaultAgent(EndpointModel(options.kind, config["model"]), environment, **settings)
    ended = agent.run(sys.stdin.read(), system_text=options.system)
    print(json.dumps({"exit_status": ended.get("exit_status"), "calls": agent.n_calls}))


main()
