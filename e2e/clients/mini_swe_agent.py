"""mini-swe-agent 2.4.6 itself, its agent and its batch runner, with our environment class: `mini_swe_agent.py GATEWAY FOLDER`.

The sandboxes of the gateway must see FOLDER. Prints a line for every behaviour that was seen, and fails at the first that was not.
"""

import gc
import http.client
import http.server
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

GATEWAY, FOLDER = sys.argv[1], pathlib.Path(sys.argv[2])
CLASS = "grpo_sandbox.SandboxPoolEnvironment"
CLIENTS = pathlib.Path(__file__).resolve().parents[2] / "sandbox-image/clients/mini_swe_agent"
sys.path.insert(0, str(CLIENTS))
os.environ.update(
    MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=str(FOLDER / "config"), LITELLM_LOCAL_MODEL_COST_MAP="True", HF_HUB_OFFLINE="1"
)

from minisweagent.agents.default import DefaultAgent  # noqa: E402
from minisweagent.environments import get_environment  # noqa: E402
from minisweagent.models.test_models import DeterministicModel, make_output  # noqa: E402

import grpo_sandbox  # noqa: E402

SENTINEL = grpo_sandbox.SENTINEL
SETTINGS = {"environment_class": CLASS, "gateway": GATEWAY, "cwd": str(FOLDER), "container_timeout": "2h"}


def seen(what):
    print(f"ok: {what}", flush=True)


def status(lease):
    try:
        return urllib.request.urlopen(f"{GATEWAY}/v1/leases/{lease}").status
    except urllib.error.HTTPError as error:
        return error.code


def agent(commands, **settings):
    outputs = [make_output(f"step {n}", [{"command": command}]) for n, command in enumerate(commands)]
    env = get_environment({**SETTINGS, "image": "task:1", **settings})
    templates = {"system_template": "You fix bugs in {{ cwd }}.", "instance_template": "{{ task }}"}
    return DefaultAgent(DeterministicModel(outputs=outputs), env, cost_limit=0, **templates)


def default_agent():
    submit = f"echo {SENTINEL}; cat patch.txt"
    steps = ["pwd; echo err >&2; exit 3", "echo $MINE", "printf 'a\\nb\\n' > patch.txt", f"echo 'not yet: {SENTINEL}'", f"echo {SENTINEL}; exit 1", submit]
    run = agent(steps, env={"MINE": "forwarded"}, forward_env=["HOME"])
    result = run.run("fix it")
    assert result == {"exit_status": "Submitted", "submission": "a\nb\n"}, result
    observed = [message["content"] for message in run.messages if message["role"] == "user"][1:]
    assert f"<returncode>3</returncode>\n<output>\n{FOLDER}\nerr\n</output>" in observed[0], observed[0]
    assert "forwarded" in observed[1], observed[1]
    assert run.n_calls == 6, "a sentinel that is not the first line, or of a command that failed, submits nothing"
    seen("DefaultAgent runs, observes and submits")
    told = run.serialize()["info"]["config"]
    assert told["environment_type"] == CLASS and told["environment"]["image"] == "task:1", told
    json.dumps(run.serialize())
    seen("the trajectory says which environment it was")
    lease = run.env.lease
    assert status(lease) == 200
    run.env.cleanup()
    assert status(lease) == 404
    seen("cleanup gives the sandbox back")


def out_of_time():
    env = get_environment({**SETTINGS, "image": "task:1", "timeout": 1})
    output = env.execute({"command": "echo so far; sleep 600 & echo $!; wait"})
    assert output["returncode"] == -1 and output["output"].startswith("so far\n"), output
    assert "after 1 seconds" in output["exception_info"], output
    pid = output["output"].split()[-1]
    state = pathlib.Path(f"/proc/{pid}/stat")
    assert not state.exists() or ") Z " in state.read_text()
    seen("a command out of time is killed with its children, and what it printed is kept")
    lease = env.lease
    del env
    gc.collect()
    assert status(lease) == 404
    seen("an environment that is dropped gives its sandbox back")


class Breaking(http.server.BaseHTTPRequestHandler):
    """Passes calls on, and breaks the connection instead of answering the first try of each."""

    tries, seen = {}, threading.Lock()

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        with self.seen:
            self.tries[body] = nth = self.tries.get(body, 0) + 1
        upstream = http.client.HTTPConnection(GATEWAY.split("//")[1])
        upstream.request(self.command, self.path, body, {"content-type": "application/json"})
        answer = upstream.getresponse()
        text = answer.read()
        if nth == 1:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_DELETE = do_POST

    def log_message(self, *_):
        pass


def broken_connections():
    proxy = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Breaking)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    env = get_environment({**SETTINGS, "image": "task:1", "gateway": f"http://127.0.0.1:{proxy.server_port}"})
    output = env.execute({"command": "echo run >> runs; wc -l < runs"})
    assert (output["returncode"], output["output"].strip()) == (0, "1"), output
    assert max(Breaking.tries.values()) >= 2
    proxy.shutdown()
    urllib.request.urlopen(urllib.request.Request(f"{GATEWAY}/v1/leases/{env.lease}", method="DELETE"))
    seen("calls whose answers are lost are made again and done once")


def lost_sandbox():
    env = get_environment({**SETTINGS, "image": "task:1"})
    urllib.request.urlopen(urllib.request.Request(f"{GATEWAY}/v1/leases/{env.lease}", method="DELETE"))
    try:
        env.execute({"command": "true"})
        raise AssertionError("a result was made up")
    except grpo_sandbox.GatewayError as error:
        assert error.code == "NoSuchLease", error
    seen("a sandbox that is gone ends the episode with an error")


def batch_runner():
    data, out = FOLDER / "data", FOLDER / "out"
    data.mkdir()
    rows = [
        {"instance_id": "a__b-1", "problem_statement": "fix it", "image_name": "registry.example/own:1"},
        {"instance_id": "Org__Repo-2", "problem_statement": "fix it", "image_name": ""},
    ]
    (data / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [{"command": f"echo {SENTINEL}; echo patched"}]
    config = {
        "agent": {"system_template": "s", "instance_template": "{{ task }}", "cost_limit": 0},
        "environment": SETTINGS,
        "model": {
            "model_name": "deterministic",
            "model_class": "minisweagent.models.test_models.DeterministicModel",
            "outputs": [{"role": "assistant", "content": "done", "extra": {"actions": command, "cost": 0.0}}],
        },
        "run": {"env_startup_command": "use-image {{ image_name | default(docker_image | default('')) }} for {{ instance_id }}"},
    }
    (FOLDER / "config.yaml").write_text(json.dumps(config))
    program = "from minisweagent.run.benchmarks.swebench import app; app()"
    runner = [sys.executable, "-c", program, "--subset", str(data), "--split", "test", "-w", "2"]
    environment = {**os.environ, "PYTHONPATH": str(CLIENTS), "HF_HOME": str(FOLDER / "hf")}
    ran = subprocess.run([*runner, "-o", str(out), "-c", str(FOLDER / "config.yaml")], env=environment, capture_output=True, text=True)
    assert ran.returncode == 0 and (out / "preds.json").exists(), ran.stdout + ran.stderr
    predictions = json.loads((out / "preds.json").read_text())
    assert {name: row["model_patch"] for name, row in predictions.items()} == {"a__b-1": "patched\n", "Org__Repo-2": "patched\n"}, predictions
    images = {}
    for row in rows:
        name = row["instance_id"]
        told = json.loads((out / name / f"{name}.traj.json").read_text())
        images[name] = told["info"]["config"]["environment"]["image"]
    assert images["a__b-1"] == "registry.example/own:1", images
    assert images["Org__Repo-2"] == "docker.io/swebench/sweb.eval.x86_64.org_1776_repo-2:latest", images
    seen("the batch runner's environments get each instance's image, which it tells to none but its own")


default_agent()
out_of_time()
broken_connections()
lost_sandbox()
batch_runner()
