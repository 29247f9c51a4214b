"""The OpenAI Python client, unchanged, against the server at SPINFER_URL."""

import asyncio
import math
import os
import re

import openai

MODEL = "smollm2-135m-instruct"
OPTIONS = {"base_url": os.environ["SPINFER_URL"] + "/v1", "api_key": "none", "max_retries": 0}
PROMPT = "Once upon a time"
REQUEST = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
SAMPLED = {**REQUEST, "temperature": 1.0, "seed": 3}

# Ids of the model's vocabulary.
PROMPT_IDS = [6403, 1980, 253, 655]
PARIS = 7042
END = 2

client = openai.OpenAI(**OPTIONS)
create = client.completions.create


def joined(chunks: list, index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return "".join(choice.text for choice in choices if choice.index == index)


def texts(completion) -> list[str]:
    assert [choice.index for choice in completion.choices] == list(range(len(completion.choices)))
    return [choice.text for choice in completion.choices]


def counts(usage) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def close(one: list, other: list) -> bool:
    return len(one) == len(other) and all(
        a is b or math.isclose(a, b, abs_tol=1e-3) for a, b in zip(one, other)
    )


# Whole.
whole = create(**REQUEST)
assert whole.object == "text_completion" and whole.id.startswith("cmpl-"), whole
assert whole.choices[0].finish_reason == "length", whole
assert whole.choices[0].logprobs is None, whole
assert counts(whole.usage) == (4, 12, 16), whole.usage
assert whole._request_id, "no x-request-id"
text = whole.choices[0].text
assert text

# Streamed: chunk by chunk the same text.
chunks = list(create(**REQUEST, stream=True))
assert joined(chunks) == text, chunks
assert chunks[-1].choices[0].finish_reason == "length"
assert len(chunks) >= 12, len(chunks)
assert all(chunk.choices and chunk.usage is None for chunk in chunks)

# The usage of a stream comes in a last chunk of its own.
*others, last = create(**REQUEST, stream=True, stream_options={"include_usage": True})
assert joined(others) == text, others
assert all(chunk.choices and chunk.usage is None for chunk in others)
assert last.choices == [] and counts(last.usage) == (4, 12, 16), last

# Stop strings: the earliest match counts, whichever of the list it is.
for stop in (text[5:9], [text[9:12], text[5:9]], [*(f"<{number}>" for number in range(15)), text[5:9]]):
    stopped = create(**REQUEST, stop=stop).choices[0]
    sought = [stop] if isinstance(stop, str) else stop
    cut = min(text.find(string) for string in sought if string in text)
    assert stopped.text == text[:cut] and stopped.finish_reason == "stop", (stop, stopped)
    assert joined(list(create(**REQUEST, stop=stop, stream=True))) == text[:cut]

# A seed makes an answer repeatable.
assert texts(create(**SAMPLED, top_p=0.9)) == texts(create(**SAMPLED, top_p=0.9))

# Several choices: they differ, repeat, and are the same as chunks.
three = create(**SAMPLED, n=3)
assert len(texts(three)) == 3 and len(set(texts(three))) > 1, three
assert texts(create(**SAMPLED, n=3)) == texts(three)
assert three.usage.prompt_tokens == 4 and three.usage.completion_tokens <= 36, three.usage
chunks = list(create(**SAMPLED, n=3, stream=True))
assert [joined(chunks, index) for index in range(3)] == texts(three), chunks

# The best of several: of the same candidates, those with the highest mean log-probability.
scored = create(**SAMPLED, n=3, logprobs=0)
means = {
    choice.text: sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)
    for choice in scored.choices
}
best_first = sorted(means, key=means.get, reverse=True)
assert set(means) == set(texts(three)), (scored, three)
assert texts(create(**SAMPLED, n=2, best_of=3)) == best_first[:2]
best = create(**SAMPLED, best_of=3)
assert texts(best) == best_first[:1], (best, best_first)
assert counts(best.usage) == counts(three.usage), "all candidates count"

# Log-probabilities of prompt and completion.
scored = create(**{**REQUEST, "max_tokens": 4}, echo=True, logprobs=2)
logprobs = scored.choices[0].logprobs
assert scored.choices[0].text == PROMPT + create(**{**REQUEST, "max_tokens": 4}).choices[0].text
assert "".join(logprobs.tokens) == scored.choices[0].text, logprobs
assert len(logprobs.tokens) == scored.usage.total_tokens == 8, scored
assert logprobs.token_logprobs[0] is None and logprobs.top_logprobs[0] is None, logprobs
offset = 0
for position, token in enumerate(logprobs.tokens):
    assert logprobs.text_offset[position] == offset, logprobs
    offset += len(token)
    if position == 0:
        continue
    top = logprobs.top_logprobs[position]
    assert top[token] == logprobs.token_logprobs[position], logprobs
    if position < 4:
        assert len(top) in (2, 3), top
    else:
        assert len(top) == 2 and top[token] == max(top.values()), top

# The prompt alone.
prompt_only = create(**{**REQUEST, "max_tokens": 0}, echo=True, logprobs=2)
assert prompt_only.choices[0].text == PROMPT, prompt_only
assert prompt_only.choices[0].finish_reason == "length", prompt_only
assert prompt_only.usage.completion_tokens == 0 and prompt_only.usage.total_tokens == 4
assert close(prompt_only.choices[0].logprobs.token_logprobs, logprobs.token_logprobs[:4])

# Log-probabilities in a stream are those of the whole answer.
with_logprobs = create(**REQUEST, logprobs=1).choices[0].logprobs
chunks = list(create(**REQUEST, logprobs=1, stream=True))
streamed = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices[0].logprobs]
assert [token for part in streamed for token in part.tokens] == with_logprobs.tokens
assert [at for part in streamed for at in part.text_offset] == with_logprobs.text_offset
assert close([value for part in streamed for value in part.token_logprobs], with_logprobs.token_logprobs)

# Biases force a token, forbid one, and are not in the log-probabilities.
assert create(**REQUEST, logit_bias={str(PARIS): 100}).choices[0].text == " Paris" * 12
first = with_logprobs.tokens[0]
first_alone = create(**{**REQUEST, "max_tokens": 1}, logit_bias={})
assert first_alone.choices[0].text == first, first_alone
forced = create(**{**REQUEST, "max_tokens": 1}, logit_bias={str(PARIS): 100}, logprobs=1)
forced = forced.choices[0].logprobs
assert forced.tokens == [" Paris"] and forced.token_logprobs[0] < with_logprobs.token_logprobs[0]
assert forced.top_logprobs[0].keys() == {first, " Paris"}, forced
ended = create(**REQUEST, logit_bias={str(END): 100}).choices[0]
assert ended.text == "" and ended.finish_reason == "stop", ended

# Prompts as ids, and several at once.
assert texts(create(**{**REQUEST, "prompt": PROMPT_IDS})) == [text]
several = create(**{**REQUEST, "prompt": [PROMPT_IDS, [PARIS]], "max_tokens": 4})
assert several.choices[0].text == text[: len(several.choices[0].text)], several
assert len(texts(several)) == 2 and several.usage.prompt_tokens == 5, several
doubled = create(**{**REQUEST, "prompt": [PROMPT, " Paris"], "max_tokens": 4}, n=2)
assert texts(doubled) == [choice for choice in texts(several) for _ in range(2)], doubled

# The list of models.
assert MODEL in [model.id for model in client.models.list()]
assert client.models.retrieve(MODEL).id == MODEL

# Errors arrive as the client's own exceptions, after one request: nothing here is worth a retry.
sent = []
impatient = openai.OpenAI(
    **{**OPTIONS, "max_retries": 2},
    http_client=openai.DefaultHttpxClient(event_hooks={"request": [sent.append]}),
)


def refused(expected: type[openai.APIStatusError], **changes) -> openai.APIStatusError:
    sent.clear()
    try:
        impatient.completions.create(**{**REQUEST, **changes})
    except expected as error:
        assert len(sent) == 1, f"{len(sent)} requests"
        assert error.message and error.request_id and error.type == "invalid_request_error", error
        return error
    raise AssertionError(f"{changes} was not refused")


for changes in (
    {"temperature": 9},
    {"suffix": " the end."},
    {"best_of": 2, "stream": True},
    {"n": 3, "best_of": 2},
    {"logit_bias": {"49152": 1}},
    {"logprobs": 21},
    {"stop": ""},
    {"stream_options": {"include_usage": True}},
    {"prompt": [1, 49152]},
    {"prompt": []},
):
    error = refused(openai.BadRequestError, **changes)
    # Nested places are named in full: `logit_bias.49152`.
    assert re.match(r"\w+", error.param)[0] in changes, (error.body, changes)
too_long = refused(openai.BadRequestError, prompt=PROMPT_IDS * 10_000)
assert too_long.code == "context_length_exceeded", too_long.body
assert refused(openai.NotFoundError, model="none").code == "model_not_found"
assert refused(openai.NotFoundError, model="none", stream=True).code == "model_not_found"


async def main() -> None:
    async with openai.AsyncOpenAI(**OPTIONS) as client:
        both = await asyncio.gather(*(client.completions.create(**REQUEST) for _ in range(2)))
        assert [texts(completion) for completion in both] == [[text]] * 2, both
        chunks = [chunk async for chunk in await client.completions.create(**REQUEST, stream=True)]
        assert joined(chunks) == text, (chunks, text)
        try:
            await client.completions.create(**{**REQUEST, "temperature": 9})
            raise AssertionError("no error")
        except openai.BadRequestError as error:
            assert error.param == "temperature", error.body


asyncio.run(main())
print("ok")
