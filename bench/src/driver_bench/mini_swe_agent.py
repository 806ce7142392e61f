"""Episodes of mini-swe-agent without end, with the classes and texts that its batch runner has for SWE-bench
(swebench_backticks.yaml): one thread for each episode, LiteLLM as the model's client. Sandboxes are simulated:
every command ends at once with the same output. A trajectory is saved when its episode ends, as the batch runner does.

    mini_swe_agent.py URL THREADS TURNS FILE-WITH-OUTPUT FOLDER-FOR-TRAJECTORIES
"""

import pathlib
import sys
import threading

import litellm
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import get_config_from_spec
from minisweagent.models import get_model


class PlayedSandbox:
    def __init__(self, output):
        self.output = output

    def execute(self, action, cwd=""):
        return {"output": self.output, "returncode": 0, "exception_info": ""}

    def get_template_vars(self, **kwargs):
        return {}

    def serialize(self):
        return {"info": {"config": {"environment": {}, "environment_type": "played"}}}


def episodes(number, config, output, folder):
    environment = PlayedSandbox(output)
    while True:
        agent = DefaultAgent(get_model(config=config["model"]), environment, **config["agent"])
        agent.run(f"Fix parse() in lib/read.py, case {number}.")
        agent.save(folder / f"{number}.traj.json")


def main():
    url, threads, turns, output, folder = sys.argv[1:]
    config = get_config_from_spec("swebench_backticks.yaml")
    config["agent"] |= {"step_limit": int(turns), "cost_limit": 0}
    config["model"] |= {
        "model_name": "openai/policy",
        "model_class": "litellm_textbased",
        "model_kwargs": {"drop_params": True, "api_base": url, "api_key": "none"},
    }
    # With a price, so that counting the cost of an answer does not fail.
    price = {"input_cost_per_token": 1e-9, "output_cost_per_token": 1e-9, "max_tokens": 4096}
    litellm.register_model({"openai/policy": price | {"litellm_provider": "openai", "mode": "chat"}})
    output = pathlib.Path(output).read_text()
    arguments = [(number, config, output, pathlib.Path(folder)) for number in range(int(threads))]
    workers = [threading.Thread(target=episodes, args=each) for each in arguments]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


main()
