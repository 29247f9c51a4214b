"""The OpenAI Python client, unchanged, against the server at SPINFER_URL."""

import asyncio
import os

import openai

MODEL = "smollm2-135m-instruct"
OPTIONS = {"base_url": os.environ["SPINFER_URL"] + "/v1", "api_key": "none", "max_retries": 0}
REQUEST = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}

client = openai.OpenAI(**OPTIONS)

# Whole.
whole = client.completions.create(**REQUEST)
assert whole.object == "text_completion" and whole.id.startswith("cmpl-"), whole
assert whole.choices[0].finish_reason == "length", whole
assert whole.usage.completion_tokens == 12, whole.usage
text = whole.choices[0].text
assert text

# Streamed: chunk by chunk the same text.
chunks = list(client.completions.create(**REQUEST, stream=True))
assert "".join(chunk.choices[0].text for chunk in chunks) == text, chunks
assert chunks[-1].choices[0].finish_reason == "length"
assert len(chunks) >= 12, len(chunks)

with_usage = list(
    client.completions.create(**REQUEST, stream=True, stream_options={"include_usage": True})
)
assert with_usage[-1].choices == [] and with_usage[-1].usage.completion_tokens == 12

# Stop strings and a seed.
stopped = client.completions.create(**REQUEST, stop=[text[5:9]])
assert stopped.choices[0].text == text[:5] and stopped.choices[0].finish_reason == "stop"
sampled = [
    client.completions.create(**{**REQUEST, "temperature": 1.0}, seed=3, top_p=0.9).choices[0].text
    for _ in range(2)
]
assert sampled[0] == sampled[1], sampled

# The list of models.
assert MODEL in [model.id for model in client.models.list()]
assert client.models.retrieve(MODEL).id == MODEL

# Errors arrive as the client's own exceptions.
try:
    client.completions.create(**{**REQUEST, "temperature": 9})
    raise AssertionError("no error")
except openai.BadRequestError as error:
    assert error.body["param"] == "temperature", error.body
try:
    client.completions.create(**{**REQUEST, "model": "none"})
    raise AssertionError("no error")
except openai.NotFoundError as error:
    assert error.body["code"] == "model_not_found", error.body


async def main() -> None:
    async with openai.AsyncOpenAI(**OPTIONS) as client:
        both = await asyncio.gather(*(client.completions.create(**REQUEST) for _ in range(2)))
        assert all(completion.choices[0].text for completion in both)
        streamed = ""
        async for chunk in await client.completions.create(**REQUEST, stream=True):
            streamed += chunk.choices[0].text
        assert streamed == text, (streamed, text)


asyncio.run(main())
print("ok")
