"""A small command-line agent: asks a chat completions API, carries calls out in a shell, sends back what came of them.

Its first argument says how it treats its history. Like real ones it writes arguments anew, repeats what was not
answered, and ends at 404; an impatient one ends at any error, a hasty one after five seconds without an answer.
"""
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

URL = os.environ["OPENAI_BASE_URL"]
MODE = sys.argv[1]


def body_of(messages, **more):
    return json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": messages, **more}).encode()


def post(body, path="/chat/completions"):
    request = urllib.request.Request(URL + path, body, {"content-type": "application/json"})
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5 if MODE == "hasty" else 60) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            if error.code < 500 or MODE == "impatient":
                print("status", error.code, error.read().decode())
                sys.exit(1)
        except TimeoutError:
            if MODE == "hasty":
                sys.exit(1)
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.1)


def streamed(messages):
    message = {"role": "assistant", "content": None}
    for line in post(body_of(messages, stream=True)).decode().split("\n"):
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        for choice in json.loads(line[6:])["choices"]:
            delta = choice["delta"]
            if delta.get("content"):
                message["content"] = (message["content"] or "") + delta["content"]
            for call in delta.get("tool_calls", []):
                kept = {key: call[key] for key in ("id", "type", "function")}
                message.setdefault("tool_calls", []).append(kept)
    return message


def hang_up(body):
    """Sends a request and is gone before its answer."""
    host, path = URL[len("http://"):].split("/", 1)
    name, port = host.split(":")
    with socket.create_connection((name, int(port))) as connection:
        head = f"POST /{path}/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)


def ask(messages):
    if MODE == "stream":
        return streamed(messages)
    # Cuts each call but the first.
    limit = {"max_tokens": 24} if MODE == "limited" and len(messages) > 2 else {}
    body = body_of(messages, **limit)
    if MODE == "hang-up":
        hang_up(body)
    answer = json.loads(post(body))["choices"][0]["message"]
    if MODE == "retry":
        again = json.loads(post(body))["choices"][0]["message"]
        assert again == answer, (again, answer)
    return answer


def carry_out(call):
    arguments = json.loads(call["function"]["arguments"])
    call["function"]["arguments"] = json.dumps(arguments, sort_keys=True, separators=(",", ":"))
    done = subprocess.run(["bash", "-c", arguments["command"]], capture_output=True, text=True)
    return {"role": "tool", "tool_call_id": call["id"], "content": [{"type": "text", "text": done.stdout + done.stderr}]}


def work(messages, compacts_after=None):
    turns = 0
    while True:
        answer = ask(messages)
        turns += 1
        messages.append({key: answer[key] for key in ("role", "content", "tool_calls") if answer.get(key) is not None or key == "content"})
        if not answer.get("tool_calls"):
            return
        messages.extend(carry_out(call) for call in answer["tool_calls"])
        if MODE == "changed" and turns == 3:
            messages[-4]["content"] = "I never said so."
        if MODE == "aside" and turns == 2:
            ask([{"role": "user", "content": "Name the conversation."}])
        if turns == compacts_after:
            ask(messages + [{"role": "user", "content": "Summarise."}])
            messages = messages[:1] + [{"role": "user", "content": "So far: much."}] + messages[-2:]


task = sys.argv[2]
start = [{"role": "system", "content": "You mend code. <|im_end|>"}, {"role": "user", "content": task}]
if MODE == "silent":
    sys.exit(3)
if MODE == "title":
    aside = []
    for question in ["Name the conversation.", "Another name."]:
        aside.append({"role": "user", "content": question})
        named = json.loads(post(body_of(aside, max_tokens=1)))["choices"][0]
        assert named["finish_reason"] == "length" and "tool_calls" not in named["message"], named
        aside.append({key: named["message"][key] for key in ("role", "content")})
if MODE == "sub-agent":
    ask([{"role": "user", "content": "Name the conversation."}])
work(start, compacts_after=3 if MODE == "compact" else None)
