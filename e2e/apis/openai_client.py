"""OpenAI's library against the recording endpoint's codecs: chat completions and responses.

    openai_client.py URL    exits with 0 if every object holds what the server sent
"""

import json
import sys

import openai

TEXT = 'Héllo 😀\u2028\u0085\n<|im_end|> "quoted" \\ Done.\n'
ARGUMENTS = '{"command": "ls", "10": 1.0, "a": [1, "é😀"]}'
PARAMETERS = {"type": "object", "required": ["command"], "properties": {"command": {"type": "string"}}}
FUNCTION = {"name": "bash", "description": "Runs a command.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS = [{"type": "function", **FUNCTION}]
IMAGE = "data:image/png;base64,AAAA"

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)


def equal(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"


def user(text):
    return {"role": "user", "content": text}


def calls_of(message):
    return [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []]


def chat_messages():
    """A whole answer, and what comes back of it."""
    answer = client.chat.completions.create(model="policy", messages=[user("x")])
    equal(answer.choices[0].message.content, TEXT)
    equal(answer.choices[0].finish_reason, "stop")
    equal((answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens), (40, 2, 42))
    equal(answer.model, "policy")

    answer = client.chat.completions.create(model="policy", messages=[user("call")], tools=TOOLS)
    message = answer.choices[0].message
    equal(answer.choices[0].finish_reason, "tool_calls")
    equal(message.content, "I look.")
    equal(message.reasoning_content, "Where am I?")
    equal(calls_of(message), [("call_a7_0", "bash", ARGUMENTS), ("call_a7_1", "bash", "{}")])

    history = [{"role": "developer", "content": "Be brief."}, user([{"type": "text", "text": "a"}]), message]
    history += [{"role": "tool", "tool_call_id": call.id, "content": "lib"} for call in message.tool_calls]
    answer = client.chat.completions.create(
        model="policy", messages=[*history, user("repeat")], tools=TOOLS, max_completion_tokens=7, temperature=0.5
    )
    heard = json.loads(answer.choices[0].message.content)
    equal([one["role"] for one in heard["messages"]], ["System", "User", "Assistant", "Tool", "Tool", "User"])
    equal(heard["messages"][2]["reasoning"], "Where am I?")
    equal(heard["messages"][2]["calls"], [list(call) for call in calls_of(message)])
    equal(heard["messages"][4]["id"], "call_a7_1")
    equal(heard["max_tokens"], 7)
    equal(json.loads(heard["tools"]), TOOLS)
    equal(heard["overruled"], [["temperature", "0.5"]])

    answer = client.chat.completions.create(model="policy", messages=[user("call only")], tools=TOOLS)
    equal(answer.choices[0].message.content, None)


def chat_streams():
    for said in ["x", "wait"]:
        chunks = list(client.chat.completions.create(model="policy", messages=[user(said)], stream=True))
        contents = [choice.delta.content for chunk in chunks for choice in chunk.choices]
        equal([text for text in contents if text], [TEXT])
        equal(chunks[-1].choices[0].finish_reason, "stop")
        equal([chunk.usage for chunk in chunks], [None] * len(chunks))
        equal(len({chunk.id for chunk in chunks}), 1)
        options = {"include_usage": True}
        *_, last = client.chat.completions.create(
            model="policy", messages=[user(said)], stream=True, stream_options=options
        )
        equal((last.choices, last.usage.total_tokens), ([], 42))
    # The library's own accumulator.
    with client.chat.completions.stream(model="policy", messages=[user("call")], tools=TOOLS) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        message = stream.get_final_completion().choices[0].message
    equal([event.arguments for event in done], [ARGUMENTS, "{}"])
    equal(message.content, "I look.")
    equal(message.reasoning_content, "Where am I?")
    equal(calls_of(message), [("call_a7_0", "bash", ARGUMENTS), ("call_a7_1", "bash", "{}")])


def response_items():
    answer = client.responses.create(model="policy", input="x")
    equal(answer.output_text, TEXT)
    equal((answer.status, answer.usage.total_tokens), ("completed", 42))

    answer = client.responses.create(model="policy", input="call", tools=FLAT_TOOLS)
    check_items(answer.output)
    # Items come back as the library writes them.
    history = [user("a"), *answer.output]
    history += [{"type": "function_call_output", "call_id": f"call_a7_{at}", "output": "lib"} for at in range(2)]
    answer = client.responses.create(
        model="policy",
        instructions="Be brief.",
        input=[*history, user("repeat")],
        tools=[*FLAT_TOOLS, {"type": "web_search"}],
        max_output_tokens=7,
    )
    heard = json.loads(answer.output_text)
    equal([one["role"] for one in heard["messages"]], ["System", "User", "Assistant", "Tool", "Tool", "User"])
    equal(heard["messages"][2]["content"], "I look.")
    equal(heard["messages"][2]["reasoning"], "Where am I?")
    equal(heard["messages"][2]["calls"], [["call_a7_0", "bash", ARGUMENTS], ["call_a7_1", "bash", "{}"]])
    equal(json.loads(heard["tools"]), TOOLS)
    equal(heard["max_tokens"], 7)
    equal(heard["overruled"], [["tools[1]", '{"type":"web_search"}']])


def check_items(items):
    reasoning, message, first, second = items
    equal(reasoning.content[0].text, "Where am I?")
    equal(message.content[0].text, "I look.")
    equal((first.call_id, first.name, first.arguments), ("call_a7_0", "bash", ARGUMENTS))
    equal((second.call_id, second.arguments), ("call_a7_1", "{}"))


def response_streams():
    for said in ["x", "wait"]:
        with client.responses.stream(model="policy", input=said) as stream:
            events = list(stream)
            answer = stream.get_final_response()
        equal([event.delta for event in events if event.type == "response.output_text.delta"], [TEXT])
        equal([event.sequence_number for event in events], list(range(len(events))))
        equal(answer.output_text, TEXT)
    with client.responses.stream(model="policy", input="call", tools=FLAT_TOOLS) as stream:
        events = list(stream)
        check_items(stream.get_final_response().output)
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    equal(deltas, [ARGUMENTS, "{}"])
    # As clients read it that keep finished items.
    check_items([event.item for event in events if event.type == "response.output_item.done"])


def refused(kind, ask):
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError(f"the server did not answer with {kind.__name__}")


def errors():
    image = [{"type": "image_url", "image_url": {"url": IMAGE}}]
    error = refused(
        openai.BadRequestError,
        lambda: client.chat.completions.create(model="policy", messages=[user(image)]),
    )
    equal((error.param, error.type), ("messages[0].content[0]", "invalid_request_error"))
    assert "reads text only" in error.message, error.message
    image = [{"type": "input_image", "image_url": IMAGE, "detail": "auto"}]
    error = refused(openai.BadRequestError, lambda: client.responses.create(model="policy", input=[user(image)]))
    equal(error.param, "input[0].content[0]")
    error = refused(
        openai.BadRequestError, lambda: client.responses.create(model="policy", input="x", previous_response_id="resp_1")
    )
    equal(error.param, "previous_response_id")
    for ask in [
        lambda: client.chat.completions.create(model="policy", messages=[user("end")], stream=True),
        lambda: client.responses.create(model="policy", input="end"),
    ]:
        assert "has ended" in refused(openai.NotFoundError, ask).message
    equal([model.id for model in client.models.list()], ["policy"])


for check in [chat_messages, chat_streams, response_items, response_streams, errors]:
    check()
    print(f"openai {openai.__version__}: {check.__name__}")
