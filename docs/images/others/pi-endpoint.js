// Tells pi of the run's endpoint, by each API that it speaks: `--provider completions`, `responses` or `messages`.
export default function (pi) {
  const { OPENAI_BASE_URL: openai, ANTHROPIC_BASE_URL: anthropic, OPENAI_MODEL: id } = process.env;
  const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 };
  const model = { id, name: id, reasoning: false, input: ["text"], cost, contextWindow: 200000, maxTokens: 16384 };
  const register = (name, api, baseUrl) => pi.registerProvider(name, { baseUrl, apiKey: "OPENAI_API_KEY", api, models: [model] });
  register("completions", "openai-completions", openai);
  register("responses", "openai-responses", openai);
  register("messages", "anthropic-messages", anthropic);
}
