// A user's script: creates a message batch of LINES requests, polls it, reads its results. Prints what it got as JSON.

import Anthropic from "@anthropic-ai/sdk";

const LINES = Number(process.argv[2]);
const client = new Anthropic({ baseURL: process.env.BASE_URL, apiKey: "any", maxRetries: 8 });
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// A server that is down for a moment is asked again, as anybody would.
async function patiently(call) {
  for (;;) {
    try {
      return await call();
    } catch (error) {
      if (!(error instanceof Anthropic.APIConnectionError) && error.name !== "TypeError") throw error;
      await pause(200);
    }
  }
}

function request(number) {
  const messages = [{ role: "user", content: `Spell ${number}, please` }];
  return { custom_id: `c-${number}`, params: { model: "sim-small", max_tokens: 64, messages } };
}

const requests = Array.from({ length: LINES }, (_, number) => request(number));
let batch = await patiently(() => client.messages.batches.create({ requests }));
while (batch.processing_status !== "ended") {
  await pause(500);
  batch = await patiently(() => client.messages.batches.retrieve(batch.id));
}
const results = await patiently(async () => {
  const all = [];
  for await (const result of await client.messages.batches.results(batch.id)) all.push(result);
  return all;
});
const ids = new Set(results.map((result) => result.custom_id));
const good = results.filter(({ result }) => result.type === "succeeded" && result.message.content.length).length;
console.log(JSON.stringify({ status: batch.processing_status, lines: results.length, ids: ids.size, twice: results.length - ids.size, good }));
