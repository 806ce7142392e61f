"""An environment for mini-swe-agent 2.4 whose commands run in sandboxes of a SandboxPool.

Needs this file on the Python path, and nothing but the standard library beside mini-swe-agent itself:

    environment:
      environment_class: grpo_sandbox.SandboxPoolEnvironment
      gateway: http://my-pool-gateway:8080
      image: docker.io/swebench/sweb.eval.x86_64.astropy_1776_astropy-12907:latest
      cwd: /testbed

The batch runner tells the image to four built-in environments only. Tell it to this one by the first command, which is not run:

    run:
      env_startup_command: "use-image {{ image_name | default(docker_image | default('')) }} for {{ instance_id }}"

Every call has an id, so one that is made again, because its connection broke or the gateway was restarted, does nothing twice. A sandbox that is lost
raises SandboxLost, which ends the episode and says whose fault it was; no command's result is made up.
"""

import dataclasses
import json
import logging
import os
import platform
import shlex
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
import weakref

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge

SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
# The first word of a command that names the image and is not run.
USE_IMAGE = "use-image"
# Answers after which the same call is made again: the gateway is away for a moment, or a sandbox's network is.
AGAIN = (502, 503, 504)
# Longest that the gateway lets anybody wait for a sandbox in one call, seconds.
LONGEST_WAIT = 600
# Added to the time that the other side may take, seconds.
MARGIN = 60

logger = logging.getLogger("minisweagent.environment")


class GatewayError(RuntimeError):
    """The gateway refused a call. `code` and `fault` (Infrastructure, Workload or Client) are its own words."""

    def __init__(self, doing, status, body):
        self.status = status
        self.code = body.get("code", "")
        self.fault = body.get("fault", "Infrastructure")
        self.cause = body.get("cause")
        super().__init__(f"{doing}: {self.code or status}: {body.get('message', body)}")


class SandboxLost(GatewayError):
    """The sandbox is no more. `cause` says why; only fault Workload was brought about by what ran in it."""


class GatewayAway(RuntimeError):
    """The gateway did not answer within the environment's patience."""


@dataclasses.dataclass
class SandboxPoolConfig:
    image: str = ""
    """May be named by the first command instead."""
    gateway: str = dataclasses.field(default_factory=lambda: os.getenv("GRPO_GATEWAY_URL", ""))
    """Address of the pool's gateway; default: GRPO_GATEWAY_URL."""
    token_file: str = dataclasses.field(default_factory=lambda: os.getenv("GRPO_GATEWAY_TOKEN_FILE", ""))
    """File with a service-account token for the gateway, read with every call: the kubelet replaces it. Default: GRPO_GATEWAY_TOKEN_FILE."""
    run: str = "mini-swe-agent"
    """Whose turn in the queue it is."""
    cwd: str = "/"
    env: dict = dataclasses.field(default_factory=dict)
    forward_env: list = dataclasses.field(default_factory=list)
    """Names of variables of this process that commands get too; `env` wins."""
    timeout: int = 30
    """Of a command, seconds. It is killed then with all that it started."""
    interpreter: list = dataclasses.field(default_factory=lambda: ["bash", "-lc"])
    lease_timeout: int = 3600
    """How long to wait for a sandbox, seconds."""
    patience: int = 300
    """How long to wait for a gateway that does not answer, seconds."""
    ttl: int = 600
    """The sandbox outlives this process by so long at most, seconds. It is renewed while the process lives."""
    priority: str = "Agent"
    """Agent or Grader."""
    max_output_bytes: int = 8 << 20

    def model_dump(self, mode="python"):
        return dataclasses.asdict(self)


class Gateway:
    """Calls to the gateway, each made until it is answered."""

    def __init__(self, url, patience, token_file=""):
        self.url = url.rstrip("/")
        self.patience = patience
        self.token_file = token_file
        # The gateway is in the cluster: no proxy leads there.
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def once(self, method, path, body=None, timeout=MARGIN):
        """One try. Answers (status, body)."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        request.add_header("content-type", "application/json")
        if self.token_file:
            with open(self.token_file) as file:
                request.add_header("authorization", "Bearer " + file.read().strip())
        try:
            with self.opener.open(request, timeout=timeout) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text or b"{}")
        except ValueError:
            return status, {"message": text.decode(errors="replace")}

    def call(self, doing, method, path, body=None, timeout=MARGIN, patience=None):
        deadline = time.monotonic() + (self.patience if patience is None else patience)
        pause = 0.2
        while True:
            try:
                status, answer = self.once(method, path, body, timeout)
            except (OSError, ValueError, urllib.error.URLError, EOFError) as error:
                status, answer = None, {"message": f"{type(error).__name__}: {error}"}
            except Exception as error:  # http.client's own: a connection that broke in the middle of an answer
                status, answer = None, {"message": f"{type(error).__name__}: {error}"}
            if status is not None and status < 300:
                return answer
            if status == 410:
                raise SandboxLost(doing, status, answer)
            if status is not None and status not in AGAIN:
                raise GatewayError(doing, status, answer)
            if time.monotonic() + pause > deadline:
                if status is None:
                    raise GatewayAway(f"{doing} at {self.url}: {answer['message']}")
                raise GatewayError(doing, status, answer)
            logger.debug("%s: %s; it is tried again", doing, answer.get("message", status))
            time.sleep(pause)
            pause = min(pause * 2, 5)


def _path(lease, rest=""):
    return f"/v1/leases/{urllib.parse.quote(lease, safe='')}{rest}"


def _keep_renewing(gateway, lease, ttl, ended):
    while not ended.wait(ttl / 3):
        try:
            status, _ = gateway.once("POST", _path(lease, "/renew"), {"ttlSeconds": ttl}, timeout=ttl / 4)
        except Exception as error:
            # If the sandbox is lost, its next use reports that. The loop tries again after its pause.
            logger.debug("renewing lease %s: %s", lease, error)
            continue
        if status in (404, 410):
            return


def _release(gateway, lease, ended):
    ended.set()
    try:
        gateway.once("DELETE", _path(lease))
    except Exception as error:
        logger.warning("giving lease %s back: %s; it ends by itself", lease, error)


class SandboxPoolEnvironment:
    """Runs bash commands in a sandbox of its own, which is given back when this object goes."""

    def __init__(self, *, config_class=SandboxPoolConfig, logger=logger, **kwargs):
        self.logger = logger
        known = {field.name for field in dataclasses.fields(config_class)}
        # Shipped configurations have keys that mean something to Docker only.
        for name in sorted(set(kwargs) - known):
            logger.debug("the environment's setting %s means nothing here", name)
        self.config = config_class(**{name: value for name, value in kwargs.items() if name in known})
        if not self.config.gateway:
            raise ValueError("environment.gateway (or GRPO_GATEWAY_URL) must name the pool's gateway, http://<pool>-gateway:8080")
        self.gateway = Gateway(self.config.gateway, self.config.patience, self.config.token_file)
        self.lease = None
        if self.config.image:
            self._take_sandbox()

    def _take_sandbox(self):
        lease = f"mini-swe-agent-{uuid.uuid4().hex}"
        ended = threading.Event()
        # Before it is asked for: an answer that never comes must not leave a sandbox behind. Runs when this object goes, or the process ends.
        self._finalizer = weakref.finalize(self, _release, self.gateway, lease, ended)
        wait = min(LONGEST_WAIT, self.config.lease_timeout)
        request = {
            "id": lease,
            "run": self.config.run,
            "image": self.config.image,
            "ttlSeconds": self.config.ttl,
            "waitSeconds": wait,
            "priority": self.config.priority,
        }
        doing = f"leasing a sandbox of {self.config.image}"
        try:
            self.gateway.call(doing, "POST", "/v1/leases", request, wait + MARGIN, self.config.lease_timeout)
        except BaseException:
            self._finalizer()
            raise
        self.lease = lease
        renewing = (self.gateway, lease, self.config.ttl, ended)
        threading.Thread(target=_keep_renewing, args=renewing, daemon=True).start()

    def _use_image(self, command):
        """`use-image [IMAGE] for INSTANCE`: as the batch runner can say it of any dataset."""
        words = shlex.split(command)[1:]
        instance = words[words.index("for") + 1] if "for" in words[:-1] else ""
        image = words[0] if words and words[0] != "for" else ""
        if not image and instance:
            image = f"docker.io/swebench/sweb.eval.x86_64.{instance.replace('__', '_1776_')}:latest".lower()
        if not image:
            raise ValueError(f"{command!r} names neither an image nor an instance")
        self.config.image = image
        self._take_sandbox()
        return {"output": "", "returncode": 0, "exception_info": ""}

    def execute(self, action, cwd="", *, timeout=None):
        command = action.get("command", "")
        if self.lease is None:
            if command.split(maxsplit=1)[:1] == [USE_IMAGE]:
                return self._use_image(command)
            raise ValueError(
                "no image: set environment.image, or with the batch runner run.env_startup_command: "
                f"\"{USE_IMAGE} {{{{ image_name | default('') }}}} for {{{{ instance_id }}}}\""
            )
        timeout = timeout or self.config.timeout
        forwarded = {name: os.environ[name] for name in self.config.forward_env if name in os.environ}
        request = {
            "id": uuid.uuid4().hex,
            "argv": [*self.config.interpreter, command],
            "cwd": cwd or self.config.cwd,
            "env": {name: str(value) for name, value in {**forwarded, **self.config.env}.items()},
            "timeoutSeconds": max(1, int(timeout)),
            "maxOutputBytes": self.config.max_output_bytes,
        }
        path = _path(self.lease, "/exec")
        # It is asked for again while it runs, and after.
        result = self.gateway.call("running a command", "POST", path, request, timeout + MARGIN, timeout + self.config.patience)
        output = self._told(result, timeout)
        self._check_finished(output)
        return output

    @staticmethod
    def _told(result, timeout):
        if result.get("timedOut"):
            said = f"the command and all that it started were killed after {timeout} seconds"
            return {
                "output": result["output"],
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {said}",
                "extra": {"exception_type": "TimeoutExpired", "exception": said},
            }
        code = result.get("exitCode")
        output = {
            "output": result["output"],
            "returncode": 128 + (result.get("signal") or 9) if code is None else code,
            "exception_info": "",
        }
        if killed := result.get("killed"):
            output["exception_info"] = f"The command met a limit of the sandbox: {killed}"
        return output

    @staticmethod
    def _check_finished(output):
        lines = output["output"].lstrip().splitlines(keepends=True)
        if output["returncode"] == 0 and lines and lines[0].strip() == SENTINEL:
            submission = "".join(lines[1:])
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})

    def get_template_vars(self, **kwargs):
        return recursive_merge(self.config.model_dump(), platform.uname()._asdict(), kwargs)

    def serialize(self):
        kind = type(self)
        config = {"environment": self.config.model_dump(), "environment_type": f"{kind.__module__}.{kind.__name__}"}
        return {"info": {"config": config}}

    def cleanup(self):
        """Gives the sandbox back. Happens by itself when the object goes or the process ends."""
        if self.lease is not None:
            self._finalizer()
            self.lease = None
