// @anthropic-ai/sdk: Messages by hand and with its tool runner, counting tokens, listing models. The same as anthropic_python.py.
import Anthropic from "@anthropic-ai/sdk";
import { betaTool } from "@anthropic-ai/sdk/helpers/beta/json-schema";
import { main, MAX_STEPS, PROMPT, runTool, TOOLS } from "./jobs.mjs";

const MAX_TOKENS = 1000;

const connect = (baseURL) => new Anthropic({ baseURL: baseURL.replace(/\/v1$/, ""), apiKey: "unused", maxRetries: 0, timeout: 20_000 });

const tools = Object.entries(TOOLS).map(([name, { description, parameters }]) => ({ name, description, input_schema: parameters }));

const stepOf = (message) => ({
  text: message.content.map((block) => (block.type === "text" ? block.text : "")).join(""),
  calls: message.content.filter((block) => block.type === "tool_use").map(({ id, name, input }) => ({ id, name, arguments: input })),
  finish: message.stop_reason,
  usage: { input: message.usage.input_tokens, output: message.usage.output_tokens },
  message,
});

async function messages(job, baseURL, steps) {
  const client = connect(baseURL);
  const history = [{ role: "user", content: PROMPT }];
  const questions = [...(job.then ?? [])];
  while (steps.length < MAX_STEPS) {
    const request = { model: job.model, max_tokens: MAX_TOKENS, messages: history, tools, ...job.more };
    const message = job.stream ? await client.messages.stream(request).finalMessage() : await client.messages.create(request);
    const step = stepOf(message);
    steps.push(step);
    if (job.once) return;
    const results = step.calls.map(({ id, name, arguments: given }) => ({ type: "tool_result", tool_use_id: id, content: runTool(name, given) }));
    if (!(results.length || questions.length)) return;
    const asked = results.length ? results : [{ type: "text", text: questions.shift() }];
    history.push({ role: "assistant", content: message.content }, { role: "user", content: asked });
  }
}

/** The package's own loop. It first asks for a thread that the server keeps. */
async function runner(job, baseURL, steps) {
  const runnable = Object.entries(TOOLS).map(([name, { description, parameters }]) =>
    betaTool({ name, description, inputSchema: parameters, run: (given) => runTool(name, given, job) }),
  );
  let history = [];
  for (const content of [PROMPT, ...(job.then ?? [])]) {
    history.push({ role: "user", content });
    const request = { model: job.model, max_tokens: MAX_TOKENS, messages: history, tools: runnable, max_iterations: MAX_STEPS, stream: job.stream };
    for await (const answer of connect(baseURL).beta.messages.toolRunner(request)) {
      const message = job.stream ? await answer.finalMessage() : answer;
      steps.push(stepOf(message));
      history = [...history, { role: "assistant", content: message.content }];
    }
  }
}

async function count(job, baseURL, steps) {
  const counted = await connect(baseURL).messages.countTokens({ model: job.model, messages: [{ role: "user", content: PROMPT }], tools });
  steps.push({ tokens: counted.input_tokens });
}

/** All models, in pages, and one by its id. */
async function models(job, baseURL, steps) {
  const client = connect(baseURL);
  const listed = [];
  for await (const model of client.models.list({ limit: job.limit })) listed.push(model.id);
  steps.push({ models: listed, one: await client.models.retrieve(job.model) });
}

await main({ messages, runner, count, models });
