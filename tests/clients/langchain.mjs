// LangChain's ChatOpenAI with bindTools, on chat completions and on Responses.
import { HumanMessage, ToolMessage } from "@langchain/core/messages";
import { concat } from "@langchain/core/utils/stream";
import { ChatOpenAI } from "@langchain/openai";
import { main, MAX_STEPS, PROMPT, runTool, TOOLS } from "./jobs.mjs";

const tools = Object.entries(TOOLS).map(([name, { description, parameters }]) => ({
  type: "function",
  function: { name, description, parameters },
}));

/** Calls as a client gathers them that trusts the stream: by index, with names, ids and arguments appended. */
function gather(calls, chunk) {
  for (const piece of chunk.tool_call_chunks ?? []) {
    const call = (calls[piece.index] ??= { id: "", name: "", arguments: "" });
    call.id += piece.id ?? "";
    call.name += piece.name ?? "";
    call.arguments += piece.args ?? "";
  }
}

async function ask(model, messages, stream) {
  if (!stream) return { answer: await model.invoke(messages), gathered: null };
  let answer;
  const calls = {};
  for await (const chunk of await model.stream(messages)) {
    gather(calls, chunk);
    answer = answer === undefined ? chunk : concat(answer, chunk);
  }
  return { answer, gathered: Object.values(calls).map((call) => ({ ...call, arguments: JSON.parse(call.arguments || "{}") })) };
}

const loop = (useResponsesApi) => async (job, baseURL, steps) => {
  const model = new ChatOpenAI({
    model: job.model,
    apiKey: job.apiKey ?? "unused",
    maxRetries: 0,
    useResponsesApi,
    configuration: { baseURL },
  }).bindTools(tools);
  const messages = [new HumanMessage(PROMPT)];
  const questions = [...(job.then ?? [])];
  while (steps.length < MAX_STEPS) {
    const { answer, gathered } = await ask(model, messages, job.stream);
    const { finish_reason, status } = answer.response_metadata;
    steps.push({
      text: answer.text,
      calls: answer.tool_calls.map((call) => ({ id: call.id, name: call.name, arguments: call.args })),
      invalid: answer.invalid_tool_calls ?? [],
      gathered,
      finish: finish_reason ?? status ?? null,
      usage: answer.usage_metadata && { input: answer.usage_metadata.input_tokens, output: answer.usage_metadata.output_tokens },
    });
    messages.push(answer);
    for (const call of answer.tool_calls) {
      messages.push(new ToolMessage({ content: runTool(call.name, call.args), tool_call_id: call.id, name: call.name }));
    }
    if (answer.tool_calls.length) continue;
    if (!questions.length) return;
    messages.push(new HumanMessage(questions.shift()));
  }
};

await main({ chat: loop(false), responses: loop(true) });
