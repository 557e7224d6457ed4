// TanStack AI: chat() runs the tools itself. It always streams on the wire; `stream: false` only gathers the text.
// `openaiCompatible` speaks either API; the adapters that are made for OpenAI itself convert tools in a way of their own.
import { chat, maxIterations, toolDefinition } from "@tanstack/ai";
import { createOpenaiChat, createOpenaiChatCompletions } from "@tanstack/ai-openai";
import { openaiCompatible } from "@tanstack/ai-openai/compatible";
import { main, MAX_STEPS, PROMPT, runTool, TOOLS } from "./jobs.mjs";

const toolsOf = (job) =>
  Object.entries(TOOLS).map(([name, { description, parameters }]) =>
    toolDefinition({ name, description, inputSchema: parameters }).server((given) => runTool(name, given, job)),
  );

/** Gathers the client's own events into steps: an answer of the model ends with RUN_FINISHED. */
function gatherInto(steps) {
  let step = { text: "", calls: [] };
  const read = {
    TEXT_MESSAGE_CONTENT: ({ delta }) => (step.text += delta),
    TOOL_CALL_START: ({ toolCallId, toolCallName }) => step.calls.push({ id: toolCallId, name: toolCallName }),
    TOOL_CALL_END: ({ toolCallId, input }) => (step.calls.find((call) => call.id === toolCallId).arguments = input),
    RUN_FINISHED: ({ finishReason, usage, metadata }) => {
      const finish = finishReason ?? metadata?.tanstack?.finishReason ?? null;
      steps.push({ ...step, finish, usage: usage && { input: usage.promptTokens, output: usage.completionTokens } });
      step = { text: "", calls: [] };
    },
  };
  return { name: "gather", onChunk: (_, chunk) => void read[chunk.type]?.(chunk) };
}

/** The text of all answers, as the client gives it. */
async function answered(request, stream) {
  if (!stream) return await chat({ ...request, stream: false });
  let text = "";
  for await (const chunk of chat(request)) {
    if (chunk.type === "RUN_ERROR") throw new Error(chunk.message);
    if (chunk.type === "TEXT_MESSAGE_CONTENT") text += chunk.delta;
  }
  return text;
}

const loop = (adapter) => async (job, baseURL, steps) => {
  const options = { baseURL, apiKey: job.apiKey ?? "unused", maxRetries: 0 };
  const messages = [];
  for (const content of [PROMPT, ...(job.then ?? [])]) {
    messages.push({ role: "user", content });
    const answers = [];
    const request = { adapter: adapter(job.model, options), messages, tools: toolsOf(job), debug: false };
    const text = await answered(
      { ...request, agentLoopStrategy: maxIterations(MAX_STEPS), middleware: [gatherInto(answers)] },
      job.stream,
    ).finally(() => steps.push(...answers));
    if (text !== answers.map((step) => step.text).join("")) throw new Error(`the text differs from the events': ${text}`);
    messages.push({ role: "assistant", content: text });
  }
};

const forOpenai = (create) => (model, { apiKey, ...config }) => create(model, apiKey, config);

await main({
  chat: loop((model, options) => openaiCompatible(options)(model)),
  responses: loop((model, options) => openaiCompatible({ ...options, api: "responses" })(model)),
  openai_chat: loop(forOpenai(createOpenaiChatCompletions)),
  openai_responses: loop(forOpenai(createOpenaiChat)),
});
