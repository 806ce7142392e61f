// The JavaScript libraries that qwen-code (openai 5.11.0) and Claude Code are built on, against the recording endpoint's streams.
//
//   javascript_client.mjs URL    exits with 0 if every object holds what the server sent. APIS_NODE_MODULES: the folder with both libraries.
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const load = createRequire(`${process.env.APIS_NODE_MODULES}/`);
const { OpenAI } = load("openai");
const { Anthropic } = load("@anthropic-ai/sdk");

const url = process.argv[2];
const TEXT = 'Héllo 😀\u2028\u0085\n<|im_end|> "quoted" \\ Done.\n';
const ARGUMENTS = '{"command": "ls", "10": 1.0, "a": [1, "é😀"]}';
const user = (content) => ({ role: "user", content });

async function collect(stream) {
  const all = [];
  for await (const one of stream) all.push(one);
  return all;
}

async function refused(ask, status) {
  await assert.rejects(ask, (error) => error.status === status);
}

async function openai() {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const ask = (messages) =>
    client.chat.completions.create({ model: "policy", messages, stream: true, stream_options: { include_usage: true } });
  for (const said of ["x", "wait"]) {
    const chunks = await collect(await ask([user(said)]));
    const texts = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta.content)).filter(Boolean);
    assert.deepEqual(texts, [TEXT]);
    assert.deepEqual(chunks.map((chunk) => chunk.choices[0]?.finish_reason).filter(Boolean), ["stop"]);
    assert.equal(chunks.at(-1).usage.total_tokens, 42);
  }
  const chunks = await collect(await ask([user("call")]));
  const deltas = chunks.flatMap((chunk) => chunk.choices.map((choice) => choice.delta));
  const calls = deltas.flatMap((delta) => delta.tool_calls ?? []);
  assert.deepEqual(calls.map((call) => call.index), [0, 1]);
  assert.deepEqual(calls.map((call) => call.function.arguments), [ARGUMENTS, "{}"]);
  assert.equal(deltas.map((delta) => delta.reasoning_content ?? "").join(""), "Where am I?");

  // The library's own accumulator, and a history with what JavaScript makes of the arguments.
  const message = await client.chat.completions.stream({ model: "policy", messages: [user("call")] }).finalMessage();
  const rewritten = JSON.stringify(JSON.parse(ARGUMENTS));
  message.tool_calls[0].function.arguments = rewritten;
  const results = message.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: [{ type: "text", text: "lib" }] }));
  const answer = await client.chat.completions.create({ model: "policy", messages: [user("a"), message, ...results, user("repeat")] });
  const heard = JSON.parse(answer.choices[0].message.content);
  assert.equal(heard.messages[1].calls[0][2], rewritten);
  assert.deepEqual(heard.messages.map((one) => one.id), [null, null, "call_a7_0", "call_a7_1", null]);
  await refused(() => ask([user("end")]), 404);

  const events = await collect(await client.responses.create({ model: "policy", input: "call", stream: true }));
  const items = events.filter((event) => event.type === "response.output_item.done").map((event) => event.item);
  assert.deepEqual(items.map((item) => item.type), ["reasoning", "message", "function_call", "function_call"]);
  assert.equal(items[2].arguments, ARGUMENTS);
}

async function anthropic() {
  const client = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
  const asked = (said) => ({ model: "policy", max_tokens: 7, messages: [user(said)] });
  for (const said of ["x", "wait"]) {
    const message = await client.messages.stream(asked(said)).finalMessage();
    assert.deepEqual(message.content.map((block) => block.text), [TEXT]);
    assert.equal(message.usage.input_tokens, 40);
  }
  const message = await client.messages.stream(asked("call")).finalMessage();
  assert.deepEqual(message.content.map((block) => block.type), ["thinking", "text", "tool_use", "tool_use"]);
  assert.deepEqual(message.content[2].input, JSON.parse(ARGUMENTS));
  assert.equal(message.stop_reason, "tool_use");
  await refused(() => client.messages.create(asked("end")), 404);
}

for (const check of [openai, anthropic]) {
  await check();
  console.log(`javascript: ${check.name}`);
}
