// AI SDK: @ai-sdk/openai-compatible on chat completions; @ai-sdk/openai on Responses, its default, and on chat completions. The SDK runs the tools itself.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { main, MAX_STEPS, PROMPT, runTool, TOOLS } from "./jobs.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;

const tools = Object.fromEntries(
  Object.entries(TOOLS).map(([name, { description, parameters }]) => [
    name,
    tool({ description, inputSchema: jsonSchema(parameters), execute: (given) => runTool(name, given) }),
  ]),
);

const step = ({ text, reasoningText, toolCalls, finishReason, usage }) => ({
  text,
  thought: reasoningText ?? null,
  calls: toolCalls.map((call) => ({ id: call.toolCallId, name: call.toolName, arguments: call.input, invalid: call.invalid ?? false })),
  finish: finishReason,
  usage: { input: usage.inputTokens ?? null, output: usage.outputTokens ?? null },
});

/** What a streamed answer gave: the steps that ended, and the error part that stood in the stream. */
async function streamed(request) {
  const answer = streamText({ ...request, onError: () => {} });
  let failure = null;
  for await (const part of answer.fullStream) if (part.type === "error") failure = part.error;
  if (failure !== null) throw failure;
  return { steps: await answer.steps, messages: (await answer.response).messages };
}

async function generated(request) {
  const answer = await generateText(request);
  return { steps: answer.steps, messages: answer.response.messages };
}

const loop = (provider) => async (job, baseURL, steps) => {
  const messages = [];
  for (const content of [PROMPT, ...(job.then ?? [])]) {
    messages.push({ role: "user", content });
    const request = { model: provider(baseURL)(job.model), messages, tools, stopWhen: stepCountIs(MAX_STEPS), maxRetries: 0 };
    const answer = await (job.stream ? streamed(request) : generated(request));
    steps.push(...answer.steps.map(step));
    messages.push(...answer.messages);
  }
};

await main({
  chat: loop((baseURL) => createOpenAICompatible({ name: "toolwire", baseURL, apiKey: "unused", includeUsage: true })),
  responses: loop((baseURL) => createOpenAI({ baseURL, apiKey: "unused" })),
  openai_chat: loop((baseURL) => createOpenAI({ baseURL, apiKey: "unused" }).chat),
});
