"""LiteLLM's `text_completion`, unchanged, against the server at SPINFER_URL."""

import asyncio
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it fetches a list of prices
import litellm

litellm.suppress_debug_info = True

REQUEST = {
    "model": "text-completion-openai/smollm2-135m-instruct",
    "api_base": os.environ["SPINFER_URL"] + "/v1",
    "api_key": "none",
    "max_retries": 0,
    "prompt": "Once upon a time",
    "max_tokens": 12,
    "temperature": 0,
}


def complete(**changes):
    return litellm.text_completion(**{**REQUEST, **changes})


def joined(chunks: list, index: int = 0) -> str:
    choices = [choice for chunk in chunks for choice in chunk.choices]
    return "".join(choice.text or "" for choice in choices if choice.index == index)


# Plain.
whole = complete()
text = whole.choices[0].text
assert text and whole.choices[0].finish_reason == "length", whole
assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (4, 12), whole.usage
assert complete(prompt=[6403, 1980, 253, 655]).choices[0].text == text

# Streamed.
chunks = list(complete(stream=True))
assert joined(chunks) == text, chunks
assert chunks[-1].choices[0].finish_reason == "length", chunks[-1]
measured = list(complete(stream=True, stream_options={"include_usage": True}))
assert joined(measured) == text, measured
assert [chunk.usage.total_tokens for chunk in measured if getattr(chunk, "usage", None)] == [16]

# Two choices, and two prompts.
two = complete(n=2, temperature=1, seed=3, logprobs=1)
assert [choice.index for choice in two.choices] == [0, 1], two
assert two.usage.completion_tokens == sum(len(choice.logprobs.tokens) for choice in two.choices)
assert [choice.text for choice in complete(n=2).choices] == [text, text]
prompts = complete(prompt=["Once upon a time", "The capital of France is"])
assert len(prompts.choices) == 2 and prompts.choices[0].text == text, prompts

# Log-probabilities of the prompt.
scored = complete(echo=True, logprobs=1, max_tokens=1).choices[0].logprobs
assert len(scored.tokens) == 5 and scored.token_logprobs[0] is None, scored

# Errors have kinds of its own.
for changes, kind in (
    ({"temperature": 9}, litellm.BadRequestError),
    ({"suffix": " the end."}, litellm.BadRequestError),
    ({"prompt": [6403] * 100_000}, litellm.ContextWindowExceededError),
    ({"model": "text-completion-openai/none"}, litellm.NotFoundError),
):
    try:
        complete(**changes)
        raise AssertionError(f"{changes} was not refused")
    except kind:
        pass


async def main() -> None:
    assert (await litellm.atext_completion(**REQUEST)).choices[0].text == text
    chunks = [chunk async for chunk in await litellm.atext_completion(**REQUEST, stream=True)]
    assert joined(chunks) == text, chunks


asyncio.run(main())
print("ok")
