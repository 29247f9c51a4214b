"""Simon Willison's `llm`, unchanged, as a command line and as a library, against the server at SPINFER_URL."""

import json
import os
import subprocess
import sys
import tempfile

MODEL = "smollm2-135m-instruct"
PROMPT = "Once upon a time"
OPTIONS = {"temperature": 0, "max_tokens": 12}

user_path = tempfile.TemporaryDirectory()
os.environ["LLM_USER_PATH"] = user_path.name
with open(os.path.join(user_path.name, "extra-openai-models.yaml"), "w") as file:
    # JSON is YAML.
    json.dump(
        [
            {
                "model_id": "small",
                "model_name": MODEL,
                "api_base": os.environ["SPINFER_URL"] + "/v1",
                "completion": True,
            }
        ],
        file,
    )


def llm(*arguments: str, expect: int = 0) -> str:
    command = [sys.executable, "-m", "llm", *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == expect, done
    return done.stdout if expect == 0 else done.stderr


def prompt(*arguments: str, **options) -> str:
    pairs = [word for name, value in options.items() for word in ("-o", name, str(value))]
    text = llm("prompt", "-m", "small", PROMPT, *pairs, *arguments)
    assert text.endswith("\n")
    return text[:-1]


def logged() -> dict:
    return json.loads(llm("logs", "list", "-n", "1", "--json"))[0]


assert "small" in llm("models", "list")

# Streamed, as it does unless told otherwise, and whole.
text = prompt(**OPTIONS)
assert text and logged()["response"] == text
assert logged()["response_json"]["usage"]["total_tokens"] == 16, logged()
assert prompt("--no-stream", **OPTIONS) == text
assert logged()["response_json"]["usage"]["total_tokens"] == 16, logged()

# With log-probabilities: those of the chunks are those of the whole answer.
assert prompt("--no-stream", logprobs=2, **OPTIONS) == text
whole = logged()["response_json"]["choices"][0]["logprobs"]
assert prompt(logprobs=2, **OPTIONS) == text
chunks = logged()["response_json"]["logprobs"]
assert "".join(chunk["text"] for chunk in chunks) == text, chunks
streamed = [top for chunk in chunks for top in chunk["top_logprobs"]]
assert [top.keys() for top in streamed] == [top.keys() for top in whole["top_logprobs"]], chunks
for token, logprob, top in zip(whole["tokens"], whole["token_logprobs"], whole["top_logprobs"]):
    assert len(top) == 2 and top[token] == logprob == max(top.values()), whole

# An error ends the command with its sentence.
assert "temperature" in llm("prompt", "-m", "small", PROMPT, "-o", "temperature", "2.5", expect=1)

# The library.
import llm as library  # noqa: E402, it reads LLM_USER_PATH

model = library.get_model("small")
response = model.prompt(PROMPT, **OPTIONS)
assert "".join(response) == text
assert response.response_json["usage"]["total_tokens"] == 16, response.response_json
assert model.prompt(PROMPT, stream=False, **OPTIONS).text() == text
assert len(model.prompt(PROMPT, seed=3, max_tokens=4).text()) > 0
print("ok")
