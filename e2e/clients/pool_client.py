"""OpenAI's library and mini-swe-agent 2.4.6 as clients of an InferencePool: `pool_client.py URL`, with the token in API_KEY.

Prints a line for every behaviour that was seen, and fails at the first that was not.
"""

import os
import sys
import tempfile

URL, KEY = sys.argv[1] + "/v1", os.environ["API_KEY"]
FOLDER = tempfile.TemporaryDirectory()
os.environ.update(MSWEA_SILENT_STARTUP="1", MSWEA_GLOBAL_CONFIG_DIR=FOLDER.name, LITELLM_LOCAL_MODEL_COST_MAP="True")

import openai  # noqa: E402
from minisweagent.agents.default import DefaultAgent  # noqa: E402
from minisweagent.models.litellm_model import LitellmModel  # noqa: E402
from minisweagent.models.litellm_textbased_model import LitellmTextbasedModel  # noqa: E402

STEPS = 3
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)
model = client.models.list().data[0].id


def seen(what):
    print(f"ok: {what}", flush=True)


def ask(**fields):
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "calc.py subtracts."}], **fields)


def refused(kind, **fields):
    try:
        ask(**fields)
    except kind as error:
        return error
    raise AssertionError(f"{fields} was not refused with {kind.__name__}")


def openai_library():
    answer = ask(max_completion_tokens=16, temperature=0.5, stop=None)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.id and answer.created and answer.model == model, answer
    assert choice.message.role == "assistant" and isinstance(choice.message.content, str), answer
    assert choice.finish_reason in ("stop", "length"), answer
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens, answer
    assert 0 < answer.usage.completion_tokens <= 16, answer
    seen("an answer with its usage")
    for field, value in {"stream": True, "stop": ["END"], "n": 2, "response_format": {"type": "json_object"}}.items():
        error = refused(openai.BadRequestError, **{field: value})
        assert field in error.message, error
    seen("what is not supported is refused by its name")
    stranger = openai.OpenAI(base_url=URL, api_key="no token", max_retries=0)
    try:
        stranger.models.list()
        raise AssertionError("a caller without a token was let in")
    except openai.AuthenticationError:
        seen("a caller without a token is refused")


class Nowhere:
    """An environment that runs no command: what this policy writes is not to be run here."""

    def __init__(self):
        self.config = None

    def execute(self, action, cwd="", **_):
        return {"output": "nothing", "returncode": 0, "exception_info": ""}

    def get_template_vars(self, **_):
        return {}

    def serialize(self):
        return {}


def agent(model_class, **config):
    kwargs = {"api_base": URL, "api_key": KEY, "max_tokens": 32, "temperature": 0.7}
    llm = model_class(model_name=f"openai/{model}", model_kwargs=kwargs, cost_tracking="ignore_errors", **config)
    templates = {"system_template": "You fix bugs.", "instance_template": "{{ task }}"}
    return DefaultAgent(llm, Nowhere(), step_limit=STEPS, cost_limit=0, **templates)


def mini_swe_agent():
    # Every answer counts as a command: this policy knows another format.
    run = agent(LitellmTextbasedModel, action_regex=r"(?s)\A(.*)\Z")
    result = run.run("calc.py subtracts.")
    assert result["exit_status"] == "LimitsExceeded" and run.n_calls == STEPS, (result, run.n_calls)
    answered = [message["extra"]["response"] for message in run.messages if "response" in message.get("extra", {})]
    assert len(answered) == STEPS, run.messages
    assert all(response["usage"]["completion_tokens"] > 0 for response in answered), answered
    seen("mini-swe-agent asks for one answer after the other, and its history is read again")


def mini_swe_agent_with_tools():
    os.environ["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] = "1"
    try:
        agent(LitellmModel).run("calc.py subtracts.")
        raise AssertionError("tools were not refused")
    except Exception as error:
        assert "tools" in str(error), error
    seen("its model class with tools is refused by the name of the field")


openai_library()
mini_swe_agent()
mini_swe_agent_with_tools()
