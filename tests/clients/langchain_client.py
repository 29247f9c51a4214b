"""LangChain's `OpenAI`, unchanged, against the server at SPINFER_URL."""

import asyncio
import os

import openai
from langchain_core.prompts import PromptTemplate
from langchain_openai import OpenAI

OPTIONS = {
    "base_url": os.environ["SPINFER_URL"] + "/v1",
    "api_key": "none",
    "model": "smollm2-135m-instruct",
    "max_tokens": 12,
    "max_retries": 0,
}
PROMPTS = ["Once upon a time", "The capital of France is", "1, 2, 3, 4,"]

llm = OpenAI(**OPTIONS, temperature=0)

# One prompt, which it sends as a list of one.
text = llm.invoke(PROMPTS[0])
assert text
assert llm.invoke(PROMPTS[0], stop=[text[5:9]]) == text[: text.find(text[5:9])]
assert (PromptTemplate.from_template("Once {word} a time") | llm).invoke({"word": "upon"}) == text

# Streamed, and again as a stream that `invoke` reads.
chunks = list(llm.stream(PROMPTS[0]))
assert "".join(chunks) == text and len(chunks) >= 12, chunks
assert OpenAI(**OPTIONS, temperature=0, streaming=True).invoke(PROMPTS[0]) == text
assert "".join(llm.stream(PROMPTS[0], stream_options={"include_usage": True})) == text

# Several prompts in one request.
texts = llm.batch(PROMPTS)
assert texts == [llm.invoke(prompt) for prompt in PROMPTS], texts

# What it makes of usage, and of several choices of several prompts.
sampled = OpenAI(**OPTIONS, temperature=1, seed=3, n=2, best_of=3, logprobs=1, logit_bias={})
result = sampled.generate(PROMPTS)
assert [len(generations) for generations in result.generations] == [2, 2, 2], result
assert all(
    generation.generation_info["finish_reason"] in ("length", "stop")
    and len(generation.generation_info["logprobs"]["tokens"]) <= 12
    for generations in result.generations
    for generation in generations
), result
usage = result.llm_output["token_usage"]
assert 0 < usage["completion_tokens"] <= 3 * 3 * 12, usage
assert usage["prompt_tokens"] == llm.generate(PROMPTS).llm_output["token_usage"]["prompt_tokens"]
assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage
assert result.llm_output["system_fingerprint"], result.llm_output


async def main() -> None:
    assert await llm.ainvoke(PROMPTS[0]) == text
    assert await llm.abatch(PROMPTS) == texts
    assert "".join([chunk async for chunk in llm.astream(PROMPTS[0])]) == text


asyncio.run(main())

try:
    OpenAI(**{**OPTIONS, "model": "none"}).invoke(PROMPTS[0])
    raise AssertionError("no error")
except openai.NotFoundError as error:
    assert error.code == "model_not_found", error.body
print("ok")
