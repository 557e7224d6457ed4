// The page's program: tool loops by plain fetch, with the headers that the openai package sends from Obsidian's window. See browser.py.
const PROMPT = "What is the weather?";
const MAX_STEPS = 5;
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const HEADERS = {
  "content-type": "application/json",
  "x-stainless-arch": "unknown",
  "x-stainless-lang": "js",
  "x-stainless-os": "Unknown",
  "x-stainless-package-version": "6.49.0",
  "x-stainless-retry-count": "0",
  "x-stainless-runtime": "browser:chrome",
  "x-stainless-runtime-version": "unknown",
};
const runTool = ({ city }) => `rain in ${city}`;

async function* events(body) {
  let rest = "";
  for (const reader = body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find((line) => line.startsWith("data: "))?.slice(6);
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function post(job, path, body) {
  const headers = { ...HEADERS, authorization: `Bearer ${job.apiKey ?? "unused"}` };
  const answer = await fetch(job.baseURL + path, { method: "POST", headers, body: JSON.stringify({ model: job.model, ...body, stream: job.stream }) });
  if (!answer.ok) throw Object.assign(new Error(await answer.text()), { status: answer.status });
  return answer;
}

async function chatMessage(job, messages) {
  const answer = await post(job, "/chat/completions", { messages, tools: [{ type: "function", function: { name: "get_weather", parameters } }] });
  if (!job.stream) {
    const [{ message, finish_reason }] = (await answer.json()).choices;
    return { message, finish: finish_reason };
  }
  const message = { role: "assistant", content: "" };
  let finish = null;
  for await (const { choices, error } of events(answer.body)) {
    if (error) throw new Error(error.message);
    for (const { delta, finish_reason } of choices) {
      message.content += delta.content ?? "";
      finish = finish_reason ?? finish;
      for (const piece of delta.tool_calls ?? []) {
        const calls = (message.tool_calls ??= []);
        const call = (calls[piece.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
        call.id += piece.id ?? "";
        call.function.name += piece.function?.name ?? "";
        call.function.arguments += piece.function?.arguments ?? "";
      }
    }
  }
  return { message, finish };
}

async function chat(job, steps) {
  const messages = [{ role: "user", content: PROMPT }];
  while (steps.length < MAX_STEPS) {
    const { message, finish } = await chatMessage(job, messages);
    const calls = (message.tool_calls ?? []).map((call) => ({ id: call.id, name: call.function.name, arguments: JSON.parse(call.function.arguments) }));
    steps.push({ text: message.content ?? "", calls, finish });
    if (!calls.length) return;
    messages.push(message, ...calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: runTool(call.arguments) })));
  }
}

async function response(job, input) {
  const answer = await post(job, "/responses", { input, tools: [{ type: "function", name: "get_weather", parameters, strict: null }] });
  if (!job.stream) return answer.json();
  let last = null;
  for await (const event of events(answer.body)) last = event;
  return last.response;
}

async function responses(job, steps) {
  const input = [{ role: "user", content: PROMPT }];
  while (steps.length < MAX_STEPS) {
    const { output, status } = await response(job, input);
    const made = output.filter((item) => item.type === "function_call");
    const calls = made.map((item) => ({ id: item.call_id, name: item.name, arguments: JSON.parse(item.arguments) }));
    const parts = output.filter((item) => item.type === "message").flatMap((item) => item.content);
    steps.push({ text: parts.map((part) => part.text).join(""), calls, finish: status });
    if (!calls.length) return;
    input.push(...output, ...calls.map((call) => ({ type: "function_call_output", call_id: call.id, output: runTool(call.arguments) })));
  }
}

const APIS = { chat, responses };

window.runJobs = (jobs) =>
  Promise.all(
    jobs.map(async (job) => {
      const steps = [];
      try {
        await APIS[job.api](job, steps);
        return { steps, error: null };
      } catch (error) {
        return { steps, error: { name: error.name, status: error.status ?? null, message: error.message } };
      }
    }),
  );
