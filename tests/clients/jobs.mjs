// What the programs share: the tools, and the reading of jobs and writing of results.
//
// A program reads {"baseURL", "jobs": [{"api", "model", "stream", "baseURL"?, …}]} from stdin and prints a list of results, one for each job, in order:
// {"steps": [{"text", "calls": [{"id", "name", "arguments"}], "finish", "usage"}],
//  "error": null | {"name", "status", "message"}, "ran": null | [{"name", "arguments"}]}
// A step is one answer of the model as the client's own API gives it. Arguments are what the client hands to a tool.

const CITY = { type: "string", description: "A city" };

export const TOOLS = {
  get_weather: {
    description: "The weather in a city",
    parameters: { type: "object", properties: { city: CITY, days: { type: "array" } }, required: ["city"] },
    run: ({ city }) => `rain in ${city}`,
  },
  list_notes: {
    description: "All notes",
    parameters: { type: "object", properties: {} },
    run: (given) => (Object.keys(given).length ? "too many arguments" : "one note, Ideas.md"),
  },
};

export const PROMPT = "What is the weather?";
export const MAX_STEPS = 5;

/** Runs a tool. A program that passes its job tells in `ran` what its client really handed to the tool. */
export function runTool(name, given, job) {
  if (job) (job.ran ??= []).push({ name, arguments: given });
  if (!(name in TOOLS)) throw new Error(`the model called a tool that is not there: ${name}`);
  return TOOLS[name].run(given);
}

function described(error) {
  const plain = error && typeof error === "object" ? error : { message: String(error) };
  return {
    name: plain.constructor?.name ?? "Error",
    status: plain.status ?? plain.statusCode ?? null,
    message: plain.message ?? JSON.stringify(plain),
  };
}

async function result(job, apis, baseURL) {
  const steps = [];
  try {
    await apis[job.api](job, job.baseURL ?? baseURL, steps);
    return { steps, error: null, ran: job.ran ?? null };
  } catch (error) {
    return { steps, error: described(error), ran: job.ran ?? null };
  }
}

/** Runs every job of stdin, a few at a time. `apis` has a function for each API: (job, baseURL, steps), which fills `steps` and throws what the client throws. */
export async function main(apis) {
  const chunks = [];
  for await (const chunk of process.stdin) chunks.push(chunk);
  const { baseURL, jobs } = JSON.parse(Buffer.concat(chunks).toString("utf8"));
  const results = new Array(jobs.length);
  let next = 0;
  const worker = async () => {
    while (next < jobs.length) {
      const place = next++;
      results[place] = await result(jobs[place], apis, baseURL);
    }
  };
  await Promise.all(Array.from({ length: 4 }, worker));
  process.stdout.write(JSON.stringify(results));
}
