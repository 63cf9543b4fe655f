// A user's script: uploads LINES requests, creates a batch, polls it, reads its answers. Prints what it got as JSON.

import OpenAI, { toFile } from "openai";

const LINES = Number(process.argv[2]);
const client = new OpenAI({ baseURL: process.env.BASE_URL + "/v1", apiKey: "any", maxRetries: 8 });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// A server that is down for a moment is asked again, as anybody would.
async function patiently(call) {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof OpenAI.APIConnectionError) && error.name !== "TypeError") throw error;
      await pause(200);
    }
  }
}

function line(number) {
  const body = { model: "sim-small", messages: [{ role: "user", content: `Name ${number}, please` }] };
  return JSON.stringify({ custom_id: `c-${number}`, method: "POST", url: "/v1/chat/completions", body });
}

const content = Buffer.from(Array.from({ length: LINES }, (_, number) => line(number)).join("\n"));
const file = await patiently(async () => client.files.create({ file: await toFile(content, "input.jsonl"), purpose: "batch" }));
let batch = await patiently(() =>
  client.batches.create({ input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" }),
);
while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
  await pause(500);
  batch = await patiently(() => client.batches.retrieve(batch.id));
}
const output = await patiently(async () => (await client.files.content(batch.output_file_id)).text());
const answers = output.split("\n").filter(Boolean).map((text) => JSON.parse(text));
const ids = new Set(answers.map((answer) => answer.custom_id));
const good = answers.filter((answer) => answer.response.body.choices[0].message.content).length;
console.log(JSON.stringify({ status: batch.status, lines: answers.length, ids: ids.size, twice: answers.length - ids.size, good }));
