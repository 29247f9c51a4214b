"""Hooks and checks for Schemathesis; schemathesis_run.py sets the environment that they read.

Generated requests are made cheap, and most of them such that they get an answer. Only values that
are valid are replaced, by other valid ones, so what should be refused still should be.
"""

import atexit
import collections
import functools
import json
import os
import threading
import zlib

import jsonschema_rs
import schemathesis

MODEL = os.environ["SPINFER_MODEL"]
COUNTS = os.environ["SPINFER_COUNTS"]

MAX_TOKENS = 4
# No test model's context is that long: such a request is refused at once.
NEVER_FITS = 1 << 20
# Every vocabulary is larger.
VOCABULARY = 1000


# Requests.


@schemathesis.hook
def before_call(context, case, kwargs):
    if case.path == "/v1/models/{id}" and chosen(case.path_parameters, 1, 2):
        if case.path_parameters.get("id"):
            case.path_parameters["id"] = MODEL
    if case.query and isinstance(case.query.get("model"), str) and chosen(case.query, 1, 2):
        case.query["model"] = MODEL
    if not isinstance(case.body, dict):
        return
    body = dict(case.body)
    if case.path == "/v1/completions":
        make_cheap(body)
        if chosen(body, 7, 8):
            make_answerable(body)
    elif chosen(body, 7, 8):
        use_model_and_vocabulary(body)
    if body != case.body:
        valid = request_validator(context.operation, case.path).is_valid
        assert valid(body) == valid(case.body), f"{case.body} became {body}"
        case.body = body


def chosen(value, share, of):
    """True for this share of all values, always for the same ones."""
    text = json.dumps(value, sort_keys=True, default=str)
    return zlib.crc32(text.encode("utf-8", "surrogatepass")) % of < share


def make_cheap(body):
    """Bounds what the request costs: some 24 tokens, or 96 where there is no `max_tokens`."""
    for name in ("max_tokens", "max_completion_tokens"):
        if is_integer(body.get(name), MAX_TOKENS + 1, NEVER_FITS):
            body[name] = MAX_TOKENS
    if is_integer(body.get("n"), 3, 128):
        body["n"] = 2
    if is_integer(body.get("best_of"), 4, 20):
        body["best_of"] = 3
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        body["prompt"] = prompt[:64]
    elif is_list(prompt, is_id):
        body["prompt"] = prompt[:16]
    elif is_list(prompt, lambda item: isinstance(item, str)) and len(prompt) <= 2048:
        body["prompt"] = [text[:64] for text in prompt[:2]]
    elif is_list(prompt, lambda item: is_list(item, is_id)) and len(prompt) <= 2048:
        body["prompt"] = [ids[:16] for ids in prompt[:2]]


def make_answerable(body):
    """Keeps the rules that the schema doesn't say."""
    use_model_and_vocabulary(body)
    for name in ("max_tokens", "max_completion_tokens"):
        if is_integer(body.get(name), NEVER_FITS):
            body[name] = MAX_TOKENS
    if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        body["max_tokens"] = MAX_TOKENS
    limit = body.get("max_tokens")
    limit = body["max_completion_tokens"] if limit is None else limit
    if is_integer(limit, 0) and is_integer(body.get("min_tokens"), limit + 1):
        body["min_tokens"] = limit
    if isinstance(body.get("suffix"), str):
        body["suffix"] = ""
    stream = body.get("stream")
    needs_stream = is_options(body.get("stream_options")) and (stream is None or stream is False)
    if needs_stream or ("stream" not in body and chosen(body, 1, 3)):
        body["stream"] = True
    n = body.get("n")
    n = 1 if n is None else n
    if is_integer(body.get("best_of"), 1, 20) and is_integer(n, 1, 128):
        body["best_of"] = n if body.get("stream") is True else max(n, body["best_of"])


def use_model_and_vocabulary(body):
    if isinstance(body.get("model"), str):
        body["model"] = MODEL
    for name in ("prompt", "tokens"):
        ids = body.get(name)
        if is_list(ids, is_id):
            body[name] = [token % VOCABULARY for token in ids]
        elif is_list(ids, lambda item: is_list(item, is_id)):
            body[name] = [[token % VOCABULARY for token in inner] for inner in ids]
    if is_list(body.get("stop_token_ids"), lambda token: is_integer(token, 0)):
        body["stop_token_ids"] = [token % VOCABULARY for token in body["stop_token_ids"]]
    bias = body.get("logit_bias")
    if isinstance(bias, dict) and all(key.isascii() and key.isdigit() for key in bias):
        # What isn't a number from -100 to 100 comes last, so that it stays.
        bias = sorted(bias.items(), key=lambda item: not is_number(item[1], -100, 100))
        body["logit_bias"] = {str(int(key[-18:]) % VOCABULARY): value for key, value in bias}


def is_number(value, low, high):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high


def is_integer(value, low, high=float("inf")):
    """As JSON Schema has it: 1.0 is one, too."""
    return is_number(value, low, high) and value % 1 == 0


def is_id(value):
    return is_integer(value, 0, 2**32 - 1)


def is_list(value, of):
    return isinstance(value, list) and len(value) > 0 and all(map(of, value))


def is_options(value):
    """`stream_options` that need a stream."""
    names = ("include_usage", "include_obfuscation")
    if not value or not isinstance(value, dict):
        return False
    return all(value.get(name) is None or isinstance(value[name], bool) for name in names)


# Validators.

validators = {}


def validator(document, pointer):
    if pointer not in validators:
        schema = {"$ref": pointer, "components": document["components"]}
        validators[pointer] = jsonschema_rs.Draft202012Validator(schema)
    return validators[pointer]


def request_validator(operation, path):
    document = operation.schema.raw_schema
    content = document["paths"][path]["post"]["requestBody"]["content"]
    return validator(document, content["application/json"]["schema"]["$ref"])


# Checks.


def check(rules):
    """Registers a check that whatever its function raises is a failure of."""

    @schemathesis.check
    @functools.wraps(rules)
    def checked(ctx, response, case):
        try:
            rules(response, case)
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}") from error

    return checked


def completion(response, case):
    """The request's body, where the answer is a completion."""
    endpoint = (case.method, case.path) == ("POST", "/v1/completions")
    return case.body if endpoint and response.status_code == 200 else None


def is_stream(response):
    return response.headers.get("content-type", [""])[0].startswith("text/event-stream")


def choices(body):
    """How many choices the request asks for."""
    prompt = body["prompt"]
    prompts = len(prompt) if isinstance(prompt, list) and isinstance(prompt[0], (list, str)) else 1
    return int(prompts * (body.get("n") or 1))


@check
def whole(response, case):
    """A completion that isn't a stream has all its choices in order."""
    body = completion(response, case)
    if body is None:
        return
    assert is_stream(response) == (body.get("stream") is True), "a stream, or not, unasked"
    if is_stream(response):
        return
    answer = response.json()
    assert answer["model"] == body["model"]
    assert [choice["index"] for choice in answer["choices"]] == list(range(choices(body)))
    for choice in answer["choices"]:
        assert ("token_ids" in choice) == (body.get("return_token_ids") is True), choice
        check_logprobs(choice, body)
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], usage


def check_logprobs(choice, body):
    logprobs = choice["logprobs"]
    if body.get("logprobs") is None or body.get("logprobs") is False:
        assert logprobs is None, logprobs
    if logprobs:
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        assert len({len(logprobs[name]) for name in names}) == 1, logprobs


@check
def stream(response, case):
    """A stream is well-formed, its events match the schema, and every choice ends."""
    body = completion(response, case)
    if body is None or not is_stream(response):
        return
    count("streams")
    document = case.operation.schema.raw_schema
    is_chunk = validator(document, "#/components/schemas/CompletionChunk")
    is_error = validator(document, "#/components/schemas/ErrorEnvelope")
    datas = events(response.content.decode())
    chunks = []
    for at, data in enumerate(datas):
        last = at == len(datas) - 1
        if data == "[DONE]":
            assert last, "[DONE] isn't last"
            continue
        event = json.loads(data)
        if "error" in event:
            is_error.validate(event)
            assert last, "an error isn't last"
            raise AssertionError(f"the stream failed: {data}")
        is_chunk.validate(event)
        chunks.append(event)
    assert datas and datas[-1] == "[DONE]", "the last event isn't [DONE]"
    check_chunks(chunks, body)


def events(text):
    """The data of each event, which is one line."""
    assert text.endswith("\n\n"), f"the stream ends with {text[-40:]!r}"
    datas = []
    for block in text[:-2].split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if lines:
            assert len(lines) == 1 and lines[0].startswith("data: "), block
            datas.append(lines[0].removeprefix("data: "))
    return datas


def check_chunks(chunks, body):
    options = body.get("stream_options") or {}
    if options.get("include_usage"):
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"], chunks[-1]
        del chunks[-1]
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    obfuscated = options.get("include_obfuscation") is True
    finished, begun = set(), set()
    for chunk in chunks:
        assert (chunk["id"], chunk["model"]) == (chunks[0]["id"], body["model"]), chunk
        assert ("obfuscation" in chunk) == obfuscated, chunk
        (choice,) = chunk["choices"]
        index = choice["index"]
        assert index not in finished, f"choice {index} goes on after its end"
        if choice["finish_reason"]:
            finished.add(index)
        check_logprobs(choice, body)
        with_ids = body.get("return_token_ids") is True
        assert ("token_ids" in choice) == ("prompt_token_ids" in choice) == with_ids, choice
        if with_ids:
            assert (choice["prompt_token_ids"] is None) == (index in begun), choice
        begun.add(index)
    assert finished == set(range(choices(body))), f"only {finished} of {choices(body)} end"


# Counts of what was sent.

lock = threading.Lock()
counts = collections.Counter()


def count(name):
    with lock:
        counts[name] += 1


@schemathesis.hook
def after_call(context, case, response):
    count("sent")
    count(f"{case.method} {case.path} {response.status_code}")


@schemathesis.hook
def after_network_error(context, case, request):
    count(f"{case.method} {case.path} without an answer")


@atexit.register
def write_counts():
    with open(COUNTS, "w") as file:
        json.dump(counts, file)
