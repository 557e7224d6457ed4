// The openai package: chat completions by hand and by its own tool runner; Responses by sending the history again and by previous_response_id.
import OpenAI from "openai";
import { main, MAX_STEPS, PROMPT, runTool, TOOLS } from "./jobs.mjs";

const connect = (baseURL) => new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0, timeout: 20_000 });

const chatTools = Object.entries(TOOLS).map(([name, { description, parameters }]) => ({
  type: "function",
  function: { name, description, parameters },
}));
const responseTools = Object.entries(TOOLS).map(([name, { description, parameters }]) => ({
  type: "function",
  name,
  description,
  parameters,
  strict: false,
}));

const chatStep = ({ choices: [{ message, finish_reason }], usage }) => ({
  text: message.content,
  calls: (message.tool_calls ?? []).map((call) => ({ id: call.id, name: call.function.name, arguments: JSON.parse(call.function.arguments) })),
  finish: finish_reason,
  usage: usage && { input: usage.prompt_tokens, output: usage.completion_tokens },
});

/** The message as a client writes it that keeps its own form of the history: empty text, arguments spaced its way, a name on the result. */
function rewritten(message, results) {
  const calls = message.tool_calls.map((call) => ({
    ...call,
    function: { ...call.function, arguments: JSON.stringify(JSON.parse(call.function.arguments), null, 3) },
  }));
  const named = results.map((item, place) => ({ ...item, name: calls[place].function.name }));
  return [{ role: "assistant", content: "", tool_calls: calls }, ...named.reverse()];
}

const chat = (rewrite) => async (job, baseURL, steps) => {
  const { completions } = connect(baseURL).chat;
  const messages = [{ role: "user", content: PROMPT }];
  const questions = [...(job.then ?? [])];
  while (steps.length < MAX_STEPS) {
    const request = { model: job.model, messages, tools: chatTools };
    const completion = job.stream
      ? await completions.stream({ ...request, stream_options: { include_usage: true } }).finalChatCompletion()
      : await completions.create(request);
    const step = chatStep(completion);
    steps.push(step);
    const { message } = completion.choices[0];
    const results = step.calls.map(({ id, name, arguments: given }) => ({ role: "tool", tool_call_id: id, content: runTool(name, given) }));
    messages.push(...(rewrite && results.length ? rewritten(message, results) : [message, ...results]));
    if (results.length) continue;
    if (!questions.length) return;
    messages.push({ role: "user", content: questions.shift() });
  }
};

/** The package's own loop: it calls the tools and asks again until the model has no more calls. */
async function runner(job, baseURL, steps) {
  const tools = Object.entries(TOOLS).map(([name, { description, parameters }]) => ({
    type: "function",
    function: { name, description, parameters, parse: JSON.parse, function: (given) => runTool(name, given) },
  }));
  let messages = [];
  for (const content of [PROMPT, ...(job.then ?? [])]) {
    const request = { model: job.model, messages: [...messages, { role: "user", content }], tools };
    const run = connect(baseURL).chat.completions.runTools(
      job.stream ? { ...request, stream: true, stream_options: { include_usage: true } } : request,
      { maxChatCompletions: MAX_STEPS },
    );
    await run.done();
    steps.push(...run.allChatCompletions().map(chatStep));
    messages = run.messages;
  }
}

const responses = (chained) => async (job, baseURL, steps) => {
  const client = connect(baseURL);
  const history = [{ role: "user", content: PROMPT }];
  const questions = [...(job.then ?? [])];
  let request = { input: history };
  while (steps.length < MAX_STEPS) {
    const full = { model: job.model, tools: responseTools, ...request };
    const response = job.stream ? await client.responses.stream(full).finalResponse() : await client.responses.create(full);
    const calls = response.output.filter((item) => item.type === "function_call");
    steps.push({
      text: response.output_text,
      calls: calls.map((call) => ({ id: call.call_id, name: call.name, arguments: JSON.parse(call.arguments) })),
      finish: response.status,
      usage: response.usage && { input: response.usage.input_tokens, output: response.usage.output_tokens },
    });
    if (response.error) throw Object.assign(new Error(response.error.message), { name: response.error.code });
    const added = calls.map((call) => ({
      type: "function_call_output",
      call_id: call.call_id,
      output: runTool(call.name, JSON.parse(call.arguments)),
    }));
    if (!calls.length) {
      if (!questions.length) return;
      added.push({ role: "user", content: questions.shift() });
    }
    history.push(...response.output, ...added);
    request = chained ? { previous_response_id: response.id, input: added } : { input: history };
  }
};

await main({ chat: chat(false), rewritten: chat(true), runner, responses: responses(false), chained: responses(true) });
