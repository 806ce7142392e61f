"""Anthropic's library against the recording endpoint's codecs.

    anthropic_client.py URL    exits with 0 if every object holds what the server sent
"""

import json
import sys

import anthropic

TEXT = 'Héllo 😀\u2028\u0085\n<|im_end|> "quoted" \\ Done.\n'
INPUT = {"command": "ls", "10": 1.0, "a": [1, "é😀"]}
SCHEMA = {"type": "object", "required": ["command"], "properties": {"command": {"type": "string"}}}
TOOLS = [{"name": "bash", "description": "Runs a command.", "input_schema": SCHEMA}]

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)


def equal(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"


def asked(said, **more):
    messages = said if isinstance(said, list) else [{"role": "user", "content": said}]
    return {"model": "policy", "max_tokens": 7, "messages": messages, **more}


def check_blocks(message):
    thinking, text, first, second = message.content
    equal(thinking.thinking, "Where am I?")
    equal(text.text, "I look.")
    equal((first.id, first.name, first.input, list(first.input)), ("call_a7_0", "bash", INPUT, list(INPUT)))
    equal((second.id, second.input), ("call_a7_1", {}))
    equal(message.stop_reason, "tool_use")
    equal((message.usage.input_tokens, message.usage.output_tokens), (40, 2))


def messages():
    answer = client.messages.create(**asked("x"))
    equal([block.text for block in answer.content], [TEXT])
    equal((answer.stop_reason, answer.model, answer.role), ("end_turn", "policy", "assistant"))

    answer = client.messages.create(**asked("call", tools=TOOLS))
    check_blocks(answer)
    results = [
        {"type": "tool_result", "tool_use_id": f"call_a7_{at}", "content": [{"type": "text", "text": "lib"}]}
        for at in range(2)
    ]
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "repeat"}]},
    ]
    system = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be right."}]
    answer = client.messages.create(**asked(history, tools=TOOLS, system=system, stop_sequences=["x"]))
    heard = json.loads(answer.content[0].text)
    equal([one["role"] for one in heard["messages"]], ["System", "User", "Assistant", "Tool", "Tool", "User"])
    equal(heard["messages"][0]["content"], "Be brief.\nBe right.")
    equal(heard["messages"][2]["reasoning"], "Where am I?")
    calls = heard["messages"][2]["calls"]
    equal([call[:2] for call in calls], [["call_a7_0", "bash"], ["call_a7_1", "bash"]])
    equal([json.loads(call[2]) for call in calls], [INPUT, {}])
    equal(list(json.loads(calls[0][2])), list(INPUT))
    equal(json.loads(heard["tools"])[0]["function"], {"name": "bash", "description": "Runs a command.", "parameters": SCHEMA})
    equal(heard["max_tokens"], 7)
    equal(heard["overruled"], [["stop_sequences", '["x"]']])

    answer = client.messages.create(**asked("call only", tools=TOOLS))
    equal([block.type for block in answer.content], ["tool_use"])


def streams():
    for said in ["x", "wait"]:
        with client.messages.stream(**asked(said)) as stream:
            texts = list(stream.text_stream)
            answer = stream.get_final_message()
        equal(texts, [TEXT])
        equal(answer.content[0].text, TEXT)
        equal((answer.usage.input_tokens, answer.usage.output_tokens), (40, 2))
    with client.messages.stream(**asked("call", tools=TOOLS)) as stream:
        check_blocks(stream.get_final_message())
    events = list(client.messages.create(**asked("call", tools=TOOLS), stream=True))
    equal((events[0].type, events[-1].type), ("message_start", "message_stop"))
    deltas = [event.delta for event in events if event.type == "content_block_delta"]
    parts = [delta.partial_json for delta in deltas if delta.type == "input_json_delta"]
    equal([json.loads(part) for part in parts], [INPUT, {}])


def refused(kind, ask):
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError(f"the server did not answer with {kind.__name__}")


def errors():
    image = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]
    error = refused(anthropic.BadRequestError, lambda: client.messages.create(**asked(image_message(image))))
    equal(error.body["error"]["type"], "invalid_request_error")
    assert error.body["error"]["message"].startswith("messages[0].content[0]: "), error.body
    error = refused(anthropic.NotFoundError, lambda: client.messages.create(**asked("end"), stream=True))
    equal(error.body["error"], {"type": "not_found_error", "message": "the episode has ended"})


def image_message(image):
    return [{"role": "user", "content": image}]


def counts_and_models():
    said = asked("x", tools=TOOLS)
    del said["max_tokens"]
    equal(client.messages.count_tokens(**said).input_tokens, 1)
    equal([model.id for model in client.models.list()], ["policy"])


for check in [messages, streams, errors, counts_and_models]:
    check()
    print(f"anthropic {anthropic.__version__}: {check.__name__}")
