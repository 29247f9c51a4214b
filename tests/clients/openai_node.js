// The OpenAI client for Node, unchanged, against the server at SPINFER_URL. Version 6 is the last that Node 20 runs.

const assert = require("node:assert/strict");
const OpenAI = require("openai");

const MODEL = "smollm2-135m-instruct";
const SERVER = process.env.SPINFER_URL;
const REQUEST = { model: MODEL, prompt: "Once upon a time", max_tokens: 12, temperature: 0 };

const client = new OpenAI({ baseURL: `${SERVER}/v1`, apiKey: "none", maxRetries: 0 });

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

function joined(chunks, index = 0) {
  const choices = chunks.flatMap((chunk) => chunk.choices);
  return choices.filter((choice) => choice.index === index).map((choice) => choice.text).join("");
}

async function whole() {
  const completion = await client.completions.create(REQUEST);
  assert.equal(completion.object, "text_completion");
  assert.equal(completion.choices[0].finish_reason, "length");
  assert.deepEqual(completion.usage, { prompt_tokens: 4, completion_tokens: 12, total_tokens: 16, ...details(completion) });
  assert.ok(completion._request_id);
  const ids = { ...REQUEST, prompt: [[6403, 1980, 253, 655]] };
  assert.equal((await client.completions.create(ids)).choices[0].text, completion.choices[0].text);
  return completion;
}

// What a server may say beyond the three numbers.
function details({ usage: { prompt_tokens_details } }) {
  return prompt_tokens_details ? { prompt_tokens_details } : {};
}

async function streamed(text, usage) {
  const request = { ...REQUEST, stream: true };
  const chunks = await collect(await client.completions.create(request));
  assert.equal(joined(chunks), text);
  assert.equal(chunks.at(-1).choices[0].finish_reason, "length");
  assert.ok(chunks.every((chunk) => chunk.choices.length === 1 && chunk.usage === undefined));

  const measured = await collect(
    await client.completions.create({ ...request, stream_options: { include_usage: true } }),
  );
  const last = measured.pop();
  assert.equal(joined(measured), text);
  assert.deepEqual(last.choices, []);
  assert.equal(last.usage.total_tokens, usage.total_tokens);

  const sampled = { ...REQUEST, temperature: 1, seed: 3, n: 2 };
  const both = await client.completions.create(sampled);
  const interleaved = await collect(await client.completions.create({ ...sampled, stream: true }));
  assert.deepEqual(both.choices.map(({ index }) => index), [0, 1]);
  for (const { index, text } of both.choices) assert.equal(joined(interleaved, index), text);
}

async function metric(name) {
  const text = await (await fetch(`${SERVER}/metrics`)).text();
  const lines = text.split("\n").filter((line) => line.startsWith(name));
  return lines.reduce((sum, line) => sum + Number(line.split(" ").at(-1)), 0);
}

// Leaving a stream, in each of the client's ways, ends the work for it: nothing is held, and far fewer tokens were
// computed than were asked for.
async function aborted() {
  const long = { ...REQUEST, prompt: "1, 2, 3, 4,", max_tokens: 2000, stream: true };
  const ways = {
    controller: async () => {
      const stream = await client.completions.create(long);
      for await (const _ of stream) stream.controller.abort();
    },
    break: async () => {
      for await (const _ of await client.completions.create(long)) break;
    },
    signal: async () => {
      const leaving = new AbortController();
      for await (const _ of await client.completions.create(long, { signal: leaving.signal })) leaving.abort();
    },
    "without a stream": async () => {
      const leaving = new AbortController();
      const before = await metric("vllm:generation_tokens_total");
      const answer = client.completions.create({ ...long, stream: false }, { signal: leaving.signal });
      const refused = assert.rejects(answer, OpenAI.APIUserAbortError);
      while ((await metric("vllm:generation_tokens_total")) === before);
      leaving.abort();
      await refused;
    },
  };
  for (const [way, leave] of Object.entries(ways)) {
    const before = await metric("vllm:generation_tokens_total");
    await leave();
    while ((await metric("spinfer_sequences_held")) > 0);
    const computed = (await metric("vllm:generation_tokens_total")) - before;
    assert.ok(computed < 1900, `${way}: ${computed} tokens were computed for nobody`);
  }
}

// Errors are the client's own, after one request: nothing here is worth a retry.
async function refused() {
  let sent = 0;
  const counted = (...request) => (sent++, fetch(...request));
  const impatient = client.withOptions({ maxRetries: 2, fetch: counted });
  const expect = async (changes, kind, fields) => {
    sent = 0;
    await assert.rejects(impatient.completions.create({ ...REQUEST, ...changes }), (error) => {
      assert.ok(error instanceof kind, error);
      assert.ok(error.requestID && error.error.message, error);
      for (const [name, value] of Object.entries(fields)) assert.equal(error[name], value, name);
      return true;
    });
    assert.equal(sent, 1);
  };
  const invalid = (param) => ({ status: 400, type: "invalid_request_error", param });
  await expect({ temperature: 9 }, OpenAI.BadRequestError, invalid("temperature"));
  await expect({ temperature: 9, stream: true }, OpenAI.BadRequestError, invalid("temperature"));
  await expect({ suffix: " the end." }, OpenAI.BadRequestError, invalid("suffix"));
  await expect({ stop: "" }, OpenAI.BadRequestError, invalid("stop"));
  await expect({ model: "none" }, OpenAI.NotFoundError, { status: 404, code: "model_not_found" });
  await assert.rejects(client.models.retrieve("none"), OpenAI.NotFoundError);
}

async function main() {
  const { choices, usage } = await whole();
  await streamed(choices[0].text, usage);
  await aborted();
  await refused();
  const ids = (await client.models.list()).data.map(({ id }) => id);
  assert.ok(ids.includes(MODEL));
  console.log("ok");
}

main();
