use std::cell::RefCell;

use serde_json::{Value, json};

use super::*;
use crate::generation::BackendErrorKind;
use crate::testing::{CACHED_TOKENS, FakeBody, FakePlatform, block_on, byte, certain, letters};
use crate::tokenizer::TokenId;

/// Continues every prompt with `Hi 🦀!` and the end of the sequence; prompts end with `>`.
fn crab(tokens: &[TokenId]) -> Vec<f32> {
    let Some(end) = tokens.iter().rposition(|token| *token == byte(b'>')) else {
        // Within a prompt.
        return letters(tokens);
    };
    let text = "Hi 🦀!".as_bytes();
    certain(text.get(tokens.len() - end - 1).map_or(2, |next| byte(*next)))
}

fn post(
    platform: &FakePlatform,
    fields: &Value,
) -> Result<Reply<<FakePlatform as Platform>::Context>, ApiError> {
    let mut body = json!({"model": "m", "prompt": "say>", "temperature": 0, "max_tokens": 20});
    for (name, value) in fields.as_object().unwrap() {
        body[name] = value.clone();
    }
    let body = body.to_string();
    block_on(respond(Endpoint::Completions, body.as_bytes(), &Settings::default(), platform))
}

fn whole(platform: &FakePlatform, fields: &Value) -> Value {
    match post(platform, fields).unwrap() {
        Reply::Json(body) => serde_json::from_str(&body).unwrap(),
        other => panic!("no JSON but {other:?}"),
    }
}

/// The events of a stream, and how it ended for the log.
fn events(
    platform: &FakePlatform,
    fields: &Value,
    leaves_after: Option<usize>,
) -> (Vec<String>, Result<(), ApiError>) {
    let mut fields = fields.clone();
    fields["stream"] = true.into();
    let Reply::Stream(stream) = post(platform, &fields).unwrap() else {
        panic!("a stream was asked for")
    };
    let written = RefCell::new(Vec::new());
    let ended = block_on(stream.write(FakeBody { written: Some(&written), leaves_after }));
    let events = written
        .into_inner()
        .into_iter()
        .map(|event| event.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap().to_owned())
        .collect();
    (events, ended)
}

fn chunks(platform: &FakePlatform, fields: &Value) -> Vec<Value> {
    let (mut events, ended) = events(platform, fields, None);
    ended.unwrap();
    assert_eq!(events.pop().unwrap(), "[DONE]");
    events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

#[test]
fn a_whole_answer_has_everything() {
    let answer = whole(&FakePlatform::new(crab), &json!({}));
    let id = answer["id"].as_str().unwrap();
    assert!(id.starts_with("cmpl-") && id.len() == 5 + 32, "{id}");
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["created"], 1_800_000_000);
    assert_eq!(answer["model"], "m");
    assert!(answer["system_fingerprint"].is_string());
    assert_eq!(
        answer["choices"],
        json!([{"index": 0, "text": "Hi 🦀!", "logprobs": null, "finish_reason": "stop"}])
    );
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 13})
    );
}

#[test]
fn ids_and_unseeded_answers_differ() {
    let platform = FakePlatform::new(letters);
    let fields = json!({"temperature": 1});
    let (first, second) = (whole(&platform, &fields), whole(&platform, &fields));
    assert_ne!(first["id"], second["id"]);
    assert_ne!(first["choices"], second["choices"]);
    let fields = json!({"temperature": 1, "seed": -5});
    assert_eq!(whole(&platform, &fields)["choices"], whole(&platform, &fields)["choices"]);
}

#[test]
fn the_limit_cuts_at_every_length() {
    let platform = FakePlatform::new(crab);
    for (max_tokens, text) in [
        (0, ""),
        (1, "H"),
        (3, "Hi "),
        (4, "Hi \u{fffd}"),
        (6, "Hi \u{fffd}"),
        (7, "Hi 🦀"),
        (8, "Hi 🦀!"),
    ] {
        let answer = whole(&platform, &json!({"max_tokens": max_tokens}));
        assert_eq!(answer["choices"][0]["text"], text, "{max_tokens}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{max_tokens}");
        assert_eq!(answer["usage"]["completion_tokens"], max_tokens);
    }
    assert_eq!(whole(&platform, &json!({"max_tokens": 9}))["choices"][0]["finish_reason"], "stop");
}

#[test]
fn stop_strings_cut_the_text() {
    let platform = FakePlatform::new(crab);
    for (stop, text, tokens) in [
        (json!("i 🦀"), "H", 7),
        (json!("H"), "", 1),
        (json!(["nothing", "!"]), "Hi 🦀", 8),
        (json!("!!"), "Hi 🦀!", 9),
        (json!(["🦀!", "i"]), "H", 2),
    ] {
        let answer = whole(&platform, &json!({"stop": stop}));
        assert_eq!(answer["choices"][0]["text"], text, "{stop}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{stop}");
        assert_eq!(answer["usage"]["completion_tokens"], tokens, "{stop}");
    }
    let limited = whole(&platform, &json!({"stop": "!?", "max_tokens": 8}));
    assert_eq!(limited["choices"][0]["text"], "Hi 🦀!");
    assert_eq!(limited["choices"][0]["finish_reason"], "length");
}

#[test]
fn a_stream_is_the_answer_in_chunks() {
    let platform = FakePlatform::new(crab);
    let chunks = chunks(&platform, &json!({}));
    let texts = chunks
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap())
        .collect::<Vec<_>>();
    assert_eq!(texts, ["H", "i", " ", "🦀", "!", ""]);
    for chunk in &chunks {
        assert_eq!(chunk["id"], chunks[0]["id"]);
        assert_eq!(chunk["object"], "text_completion");
        assert_eq!(chunk["model"], "m");
        assert_eq!(chunk["choices"].as_array().unwrap().len(), 1);
        assert!(chunk["choices"][0]["logprobs"].is_null());
        assert!(chunk.get("usage").is_none());
    }
    let reasons =
        chunks.iter().map(|chunk| chunk["choices"][0]["finish_reason"].clone()).collect::<Vec<_>>();
    assert_eq!(reasons[..5], vec![Value::Null; 5]);
    assert_eq!(reasons[5], "stop");
}

#[test]
fn the_joined_stream_equals_the_whole_answer() {
    for rule in [crab as crate::testing::Rule, letters] {
        let platform = FakePlatform::new(rule);
        for fields in [
            json!({"max_tokens": 5}),
            json!({"temperature": 1, "seed": 3}),
            json!({"temperature": 2, "seed": 4, "top_p": 0.5, "stop": ["a", "bc", "Hi 🦀!!"]}),
            json!({"stop": "🦀", "max_tokens": 5}),
            json!({"max_tokens": 0}),
        ] {
            let whole = whole(&platform, &fields);
            let chunks = chunks(&platform, &fields);
            let joined = chunks
                .iter()
                .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap())
                .collect::<String>();
            assert_eq!(joined, whole["choices"][0]["text"].as_str().unwrap(), "{fields}");
            let last = &chunks.last().unwrap()["choices"][0]["finish_reason"];
            assert_eq!(*last, whole["choices"][0]["finish_reason"], "{fields}");
        }
    }
}

#[test]
fn usage_comes_in_a_last_chunk_when_asked_for() {
    let platform = FakePlatform::new(crab);
    let mut chunks = chunks(&platform, &json!({"stream_options": {"include_usage": true}}));
    let last = chunks.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        last["usage"],
        json!({"prompt_tokens": 4, "completion_tokens": 9, "total_tokens": 13})
    );
    assert!(chunks.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
}

#[test]
fn a_failure_in_mid_stream_is_the_last_event() {
    let platform = FakePlatform::new(crab);
    platform.fails_after.set(Some(2));
    let (events, ended) = events(&platform, &json!({}), None);
    assert_eq!(events.len(), 3);
    let error: Value = serde_json::from_str(&events[2]).unwrap();
    assert_eq!(error["error"]["type"], "server_error");
    assert!(error["error"]["message"].as_str().unwrap().contains("out of order"));
    assert_eq!(ended.unwrap_err().status, 500);
    assert_eq!(post(&platform, &json!({})).unwrap_err().status, 500);
}

#[test]
fn a_reader_who_leaves_ends_the_work() {
    let platform = FakePlatform::new(crab);
    // One step more would fail: none is computed after the write that nobody took.
    platform.fails_after.set(Some(3));
    let (events, ended) = events(&platform, &json!({}), Some(2));
    assert_eq!((events.len(), ended), (2, Ok(())));
}

#[test]
fn refusals_of_the_backend_have_their_status() {
    let platform = FakePlatform::new(crab);
    for (kind, status, code) in [
        (BackendErrorKind::Busy, 429, Some("rate_limit_exceeded")),
        (BackendErrorKind::TooLarge, 400, Some("context_length_exceeded")),
        (BackendErrorKind::NoModel, 404, Some("model_not_found")),
        (BackendErrorKind::Failed, 500, None),
    ] {
        for stream in [false, true] {
            platform.open_error.replace(Some(BackendError { kind, message: "so".into() }));
            let error = post(&platform, &json!({"stream": stream})).unwrap_err();
            assert_eq!((error.status, error.code), (status, code));
        }
    }
}

#[test]
fn nan_is_an_error_of_the_server() {
    let platform = FakePlatform::new(|_| vec![f32::NAN; 300]);
    for fields in [json!({}), json!({"temperature": 1}), json!({"echo": true, "logprobs": 1})] {
        let error = post(&platform, &fields).unwrap_err();
        assert_eq!(error.status, 500);
        assert!(error.message.contains("the model produced NaN"), "{}", error.message);
    }
    let short = FakePlatform::new(|_| vec![0.0; 3]);
    assert_eq!(post(&short, &json!({"temperature": 1})).unwrap_err().status, 500);
}

#[test]
fn unknown_models_are_404() {
    let error = post(&FakePlatform::new(crab), &json!({"model": "../m"})).unwrap_err();
    assert_eq!(
        (error.status, error.code, error.param.as_deref()),
        (404, Some("model_not_found"), Some("model"))
    );
}

#[test]
fn the_other_style_of_vocabulary_keeps_leading_spaces() {
    let platform = FakePlatform::new(|tokens| {
        let hello = 3 + 256 + 9;
        certain(if tokens.len() == 1 { hello } else { 2 })
    });
    let answer = whole(&platform, &json!({"model": "fallback", "prompt": ">"}));
    assert_eq!(answer["choices"][0]["text"], " hello");
}

#[test]
fn the_other_endpoints() {
    let platform = FakePlatform::new(crab);
    let settings = Settings::default();
    let get = |endpoint| match block_on(respond(endpoint, b"", &settings, &platform)) {
        Ok(Reply::Json(body)) => serde_json::from_str::<Value>(&body).unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(get(Endpoint::Health), json!({"status": "OK"}));
    assert_eq!(get(Endpoint::Version), json!({"version": env!("CARGO_PKG_VERSION")}));
    let list = get(Endpoint::Models);
    assert_eq!(list["object"], "list");
    assert_eq!(
        list["data"][3],
        json!({
            "id": "m", "object": "model", "created": 1_700_000_000, "owned_by": "spinfer", "root": "m",
            "max_model_len": 256,
            "custom_metadata": {"provider_id": "ggml", "provider_resource_id": "m", "model_type": "llm"},
        })
    );
    assert_eq!(get(Endpoint::Model("m".into())), list["data"][3]);
    let unknown = respond(Endpoint::Model("x".into()), b"", &settings, &platform);
    let error = block_on(unknown).unwrap_err();
    assert_eq!((error.status, error.code), (404, Some("model_not_found")));
    assert_eq!(
        get(Endpoint::Providers),
        json!({"data": [{"api": "inference", "provider_id": "ggml",
            "provider_type": "remote::openai", "config": {}, "health": {"status": "OK"}}]})
    );
    assert_eq!(get(Endpoint::OpenApi)["openapi"].as_str().unwrap()[..3], *"3.1");
    assert_eq!(
        get(Endpoint::TokenizerInfo(Some("m".into()))),
        json!({"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "pad_token": null,
            "chat_template": null})
    );
}

#[test]
fn text_and_tokens_become_each_other() {
    let platform = FakePlatform::new(crab);
    let settings = Settings { default_model: Some("m".into()), ..Settings::default() };
    let call = |endpoint, body: Value| match block_on(respond(
        endpoint,
        body.to_string().as_bytes(),
        &settings,
        &platform,
    )) {
        Ok(Reply::Json(body)) => Ok(serde_json::from_str::<Value>(&body).unwrap()),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err((error.status, error.param.unwrap_or_default())),
    };
    let ids = json!([byte(b'a'), 2, byte(0xc3), byte(0xa9)]);
    assert_eq!(
        call(Endpoint::Tokenize, json!({"prompt": "a<|im_end|>é"})),
        Ok(json!({"count": 4, "max_model_len": 256, "tokens": ids}))
    );
    assert_eq!(
        call(Endpoint::Detokenize, json!({"tokens": ids})),
        Ok(json!({"prompt": "a<|im_end|>é"}))
    );
    assert_eq!(
        call(Endpoint::Detokenize, json!({"tokens": [1, 300]})),
        Err((400, "tokens[1]".to_owned()))
    );
    let unknown = json!({"prompt": "a", "model": "x"});
    assert_eq!(call(Endpoint::Tokenize, unknown), Err((404, "model".to_owned())));
}

/// The choice's lists side by side: tokens, their log-probabilities, offsets.
fn entries(choice: &Value) -> (Vec<String>, Vec<Value>, Vec<u64>) {
    let logprobs = &choice["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap().clone();
    let tokens = list("tokens").iter().map(|token| token.as_str().unwrap().to_owned()).collect();
    let offsets = list("text_offset").iter().map(|offset| offset.as_u64().unwrap()).collect();
    assert_eq!(list("tokens").len(), list("top_logprobs").len());
    (tokens, list("token_logprobs"), offsets)
}

#[test]
fn echo_puts_the_prompt_and_its_scores_first() {
    let platform = FakePlatform::new(letters);
    for (max_tokens, temperature) in [(0, 0), (1, 0), (4, 0), (0, 1), (1, 1), (4, 1)] {
        for n in [0, 1, 5] {
            let fields = json!({
                "prompt": "abc>", "echo": true, "logprobs": n, "seed": 1,
                "max_tokens": max_tokens, "temperature": temperature,
            });
            let answer = whole(&platform, &fields);
            let choice = &answer["choices"][0];
            let (tokens, logprobs, offsets) = entries(choice);
            let text = choice["text"].as_str().unwrap();
            assert!(text.starts_with("abc>") && text.len() == 4 + max_tokens, "{text}");
            assert_eq!(tokens.concat(), text);
            assert_eq!(offsets, (0..4 + max_tokens as u64).collect::<Vec<_>>());
            assert_eq!(answer["usage"]["completion_tokens"], max_tokens);
            assert!(logprobs[0].is_null() && choice["logprobs"]["top_logprobs"][0].is_null());
            assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 3 + max_tokens);
            for at in 1..tokens.len() {
                let top = choice["logprobs"]["top_logprobs"][at].as_object().unwrap();
                assert_eq!(top[&tokens[at]], logprobs[at], "{fields} {at}");
                let (least, most) = if at < 4 { (n, n + 1) } else { (n, n.max(2)) };
                let most = if n == 0 { 1 } else { most };
                assert!((least.max(1)..=most).contains(&top.len()), "{fields} {at}: {top:?}");
                // What the rule gives, to f64's precision.
                let before = text[..at].bytes().map(byte).collect::<Vec<_>>();
                let row = letters(&before);
                let sum = row.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>();
                let exact = f64::from(row[byte(text.as_bytes()[at]) as usize]) - sum.ln();
                assert!((logprobs[at].as_f64().unwrap() - exact).abs() < 1e-5, "{fields} {at}");
            }
        }
    }
}

#[test]
fn text_and_ids_are_echoed_alike() {
    let platform = FakePlatform::new(letters);
    let ids = "a é".bytes().map(byte).collect::<Vec<_>>();
    for extra in [json!({}), json!({"echo": true}), json!({"echo": true, "logprobs": 2})] {
        let with = |prompt: Value| {
            let mut fields = extra.clone();
            fields["prompt"] = prompt;
            whole(&platform, &fields)["choices"].clone()
        };
        assert_eq!(with(json!("a é")), with(json!(ids)), "{extra}");
        assert_eq!(with(json!(["a é"])), with(json!([ids])), "{extra}");
    }
}

/// A character in the middle of which the prompt ends, and the completion begins.
#[test]
fn an_echoed_character_may_span_prompt_and_completion() {
    let platform = FakePlatform::new(|tokens| certain(byte("🦀".as_bytes()[tokens.len() % 4])));
    let fields =
        json!({"prompt": [byte(0xf0), byte(0x9f)], "max_tokens": 2, "echo": true, "logprobs": 0});
    let choice = &whole(&platform, &fields)["choices"][0];
    assert_eq!(choice["text"], "🦀");
    let (tokens, _, offsets) = entries(choice);
    assert_eq!(tokens, ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\xa6", "bytes:\\x80"]);
    assert_eq!(offsets, [0; 4]);
    let streamed = chunks(&platform, &fields);
    let joined = streamed
        .iter()
        .map(|chunk| chunk["choices"][0]["text"].as_str().unwrap())
        .collect::<String>();
    assert_eq!(joined, "🦀");
}

#[test]
fn several_prompts_and_choices_come_in_order() {
    let platform = FakePlatform::new(letters);
    let fields = json!({"temperature": 1, "seed": 7, "max_tokens": 5});
    let with = |prompt: Value, n: usize| {
        let mut fields = fields.clone();
        fields["prompt"] = prompt;
        fields["n"] = n.into();
        whole(&platform, &fields)
    };
    // 3 × 3 choices on 4 rows, and 7 of one prompt.
    for (prompts, n) in [(vec!["a", "bcd", "ef"], 3), (vec!["a"], 7), (vec!["abc", "d"], 6)] {
        let together = with(json!(prompts), n);
        let choices = together["choices"].as_array().unwrap();
        assert_eq!(choices.len(), prompts.len() * n);
        for (i, prompt) in prompts.iter().enumerate() {
            let alone = with(json!(prompt), n);
            for j in 0..n {
                let choice = &choices[i * n + j];
                assert_eq!(choice["index"], i * n + j);
                assert_eq!(choice["text"], alone["choices"][j]["text"], "{prompts:?} {i} {j}");
            }
            assert_ne!(alone["choices"][0]["text"], alone["choices"][1]["text"]);
        }
        let lengths = prompts.iter().map(|prompt| prompt.len()).sum::<usize>();
        assert_eq!(together["usage"]["prompt_tokens"], lengths);
        assert_eq!(together["usage"]["completion_tokens"], prompts.len() * n * 5);
    }
}

#[test]
fn the_best_candidate_is_the_likeliest_of_all() {
    let platform = FakePlatform::new(letters);
    let sampled = json!({"temperature": 2, "seed": 3, "max_tokens": 6, "logprobs": 0});
    let with = |extra: Value| {
        let mut fields = sampled.clone();
        fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        whole(&platform, &fields)
    };
    let mean = |choice: &Value| {
        let (_, logprobs, _) = entries(choice);
        logprobs.iter().map(|logprob| logprob.as_f64().unwrap()).sum::<f64>() / 6.0
    };
    let all = with(json!({"n": 10}));
    let mut means = all["choices"].as_array().unwrap().iter().map(mean).collect::<Vec<_>>();
    means.sort_by(|a, b| b.total_cmp(a));
    let best = with(json!({"n": 3, "best_of": 10}));
    let found = best["choices"].as_array().unwrap().iter().map(mean).collect::<Vec<_>>();
    assert_eq!(found, means[..3]);
    assert_eq!(best["choices"][2]["index"], 2);
    assert_eq!(best["usage"]["completion_tokens"], 60);
    // Without log-probabilities in the answer, the same are the best.
    let silent = with(json!({"n": 3, "best_of": 10, "logprobs": null}));
    assert_eq!(silent["choices"][0]["text"], best["choices"][0]["text"]);
    assert!(silent["choices"][0]["logprobs"].is_null());
}

#[test]
fn tokens_past_a_stop_are_dropped_and_the_end_has_an_entry() {
    let platform = FakePlatform::new(crab);
    let tokens = |fields: Value| {
        let mut fields = fields;
        fields["logprobs"] = 0.into();
        fields["return_token_ids"] = true.into();
        let choice = whole(&platform, &fields)["choices"][0].clone();
        let (tokens, _, offsets) = entries(&choice);
        assert_eq!(choice["token_ids"].as_array().unwrap().len(), tokens.len());
        (tokens.concat(), offsets)
    };
    let crab = "bytes:\\xf0bytes:\\x9fbytes:\\xa6bytes:\\x80";
    assert_eq!(tokens(json!({"stop": "!"})).0, format!("Hi {crab}"));
    assert_eq!(tokens(json!({"stop": "i"})).0, "H");
    assert_eq!(tokens(json!({"stop": "H"})).0, "");
    assert_eq!(tokens(json!({"stop": "🦀"})).0, "Hi ");
    // The end of the sequence is a token, without text.
    let (all, offsets) = tokens(json!({}));
    assert_eq!(all, format!("Hi {crab}!<|im_end|>"));
    assert_eq!(offsets, [4, 5, 6, 7, 7, 7, 7, 8, 9]);
}

#[test]
fn stop_tokens_end_and_the_models_own_end_may_be_ignored() {
    let platform = FakePlatform::new(crab);
    let choice = |fields: Value| whole(&platform, &fields)["choices"][0].clone();
    let stopped = choice(json!({"stop_token_ids": [byte(b' ')]}));
    assert_eq!((&stopped["text"], &stopped["finish_reason"]), (&json!("Hi"), &json!("stop")));
    let ignored = choice(json!({"ignore_eos": true, "max_tokens": 12}));
    assert_eq!((&ignored["text"], &ignored["finish_reason"]), (&json!("Hi 🦀!"), &json!("length")));
    let both = choice(json!({"ignore_eos": true, "stop_token_ids": [2]}));
    assert_eq!(both["finish_reason"], "stop");
}

#[test]
fn nothing_stops_before_min_tokens() {
    let platform = FakePlatform::new(|_| {
        let mut logits = certain(2);
        logits[byte(b'x') as usize] = -1.0;
        logits
    });
    let choice = |fields: Value| whole(&platform, &fields)["choices"][0].clone();
    assert_eq!(choice(json!({}))["text"], "");
    let least = choice(json!({"min_tokens": 3}));
    assert_eq!((&least["text"], &least["finish_reason"]), (&json!("xxx"), &json!("stop")));
    let stopped = choice(
        json!({"min_tokens": 3, "ignore_eos": true, "stop": "x", "logit_bias": {"2": -100}}),
    );
    assert_eq!((&stopped["text"], &stopped["finish_reason"]), (&json!("xxx"), &json!("stop")));
}

#[test]
fn bias_and_penalties_change_what_is_chosen() {
    let platform = FakePlatform::new(|_| {
        let mut logits = certain(byte(b'a'));
        logits[byte(b'b') as usize] = -1.0;
        logits[byte(b'c') as usize] = -1.5;
        logits
    });
    let text = |fields: Value| {
        let mut fields = fields;
        fields["max_tokens"] = 4.into();
        whole(&platform, &fields)["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    assert_eq!(text(json!({})), "aaaa");
    assert_eq!(text(json!({"logit_bias": {byte(b'c').to_string(): 2}})), "cccc");
    assert_eq!(text(json!({"frequency_penalty": 0.75})), "aaba");
    assert_eq!(text(json!({"presence_penalty": 2})), "abca");
    assert_eq!(text(json!({"presence_penalty": -2})), "aaaa");
    // The prompt has an `a`, whose logit must not be 0 for a factor to change it.
    let slightly = json!({byte(b'a').to_string(): -0.5});
    assert_eq!(text(json!({"repetition_penalty": 3, "logit_bias": slightly})), "baaa");
}

#[test]
fn gaps_are_filled_from_both_sides() {
    let platform = FakePlatform::new(|tokens| {
        let framed = "{ab|cd}".bytes().map(byte).collect::<Vec<_>>();
        certain(if tokens.starts_with(&framed) { byte(b'!') } else { byte(b'?') })
    });
    let fill = |fields: Value| {
        let mut all = json!({"model": "fim", "prompt": "ab", "suffix": "cd", "max_tokens": 2});
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        whole(&platform, &all)
    };
    let answer = fill(json!({}));
    assert_eq!(answer["choices"][0]["text"], "!!");
    assert_eq!(answer["usage"]["prompt_tokens"], 7);
    assert_eq!(fill(json!({"prompt": [byte(b'a'), byte(b'b')]}))["choices"][0]["text"], "!!");
    assert_eq!(fill(json!({"echo": true}))["choices"][0]["text"], "ab!!cd");
    let (_, _, offsets) = entries(&fill(json!({"logprobs": 1}))["choices"][0]);
    assert_eq!(offsets, [2, 3]);
    let error = post(&platform, &json!({"suffix": "x"})).unwrap_err();
    assert_eq!((error.status, error.param.as_deref()), (400, Some("suffix")));
}

#[test]
fn ids_outside_the_vocabulary_are_named() {
    let platform = FakePlatform::new(letters);
    for (fields, param) in [
        (json!({"prompt": [1, 300]}), "prompt[1]"),
        (json!({"prompt": [[1], [2, 3, 999]]}), "prompt[1][2]"),
        (json!({"logit_bias": {"300": 1}}), "logit_bias.300"),
        (json!({"stop_token_ids": [5, 300]}), "stop_token_ids[1]"),
    ] {
        let error = post(&platform, &fields).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{fields}");
    }
}

#[test]
fn settings_cap_what_a_request_may_cost() {
    let platform = FakePlatform::new(letters);
    let settings = Settings {
        max_prompts: 3,
        max_choices: 6,
        max_logprobs: 100,
        max_echo_bytes: 20,
        ..Settings::default()
    };
    for (fields, param) in [
        (json!({"prompt": ["a", "b", "c", "d"]}), "prompt"),
        (json!({"n": 7}), "n"),
        (json!({"prompt": ["a", "b"], "best_of": 4}), "best_of"),
        (json!({"logprobs": 4, "max_tokens": 21}), "logprobs"),
        (json!({"logprobs": 0, "echo": true, "max_tokens": 98}), "logprobs"),
        (json!({"echo": true, "n": 6}), "echo"),
    ] {
        let mut body = json!({"model": "m", "prompt": "abcd"});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let body = body.to_string();
        let answer = respond(Endpoint::Completions, body.as_bytes(), &settings, &platform);
        let error = block_on(answer).unwrap_err();
        assert_eq!((error.status, error.param.as_deref()), (400, Some(param)), "{fields}");
    }
    let body = json!({"model": "m", "prompt": "abcd", "n": 5, "echo": true, "max_tokens": 1});
    let body = body.to_string();
    let answer = respond(Endpoint::Completions, body.as_bytes(), &settings, &platform);
    assert!(block_on(answer).is_ok());
}

/// Everything that is shown at once, joined as clients join it.
#[test]
fn streams_join_to_the_whole_answer_with_all_their_lists() {
    for rule in [crab as crate::testing::Rule, letters] {
        let platform = FakePlatform::new(rule);
        for fields in [
            json!({"logprobs": 2, "echo": true, "return_token_ids": true}),
            json!({"logprobs": 0, "max_tokens": 0, "echo": true}),
            json!({"logprobs": 1, "temperature": 1, "seed": 5, "n": 3, "stop": ["🦀!", "ab", "c"]}),
            json!({"logprobs": 1, "temperature": 1, "seed": 5, "n": 9, "prompt": ["x>", "yz>"], "echo": true}),
            json!({"logprobs": 3, "max_tokens": 5}),
            json!({"logprobs": 3, "stop": "🦀!?"}),
            json!({"return_token_ids": true, "top_k": 3, "temperature": 1, "seed": 1}),
        ] {
            let whole = whole(&platform, &fields);
            let mut joined = Vec::<Value>::new();
            for chunk in chunks(&platform, &fields) {
                let choice = chunk["choices"][0].clone();
                let index = choice["index"].as_u64().unwrap() as usize;
                joined.resize(joined.len().max(index + 1), Value::Null);
                join(&mut joined[index], choice);
            }
            assert_eq!(json!(joined), whole["choices"], "{fields}");
        }
    }
}

/// Appends texts and lists; other values are the last ones that aren't null.
fn join(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (name, value) in more {
                match name.as_str() {
                    "index" => drop(into.insert(name, value)),
                    _ => join(into.entry(name).or_insert(Value::Null), value),
                }
            }
        }
        (Value::Array(into), Value::Array(more)) => into.extend(more),
        (Value::String(into), Value::String(more)) => into.push_str(&more),
        (_, Value::Null) => {}
        (into, more) => *into = more,
    }
}

#[test]
fn obfuscation_is_noise_of_no_particular_length() {
    let platform = FakePlatform::new(crab);
    let with = |on: bool| {
        let options = json!({"include_obfuscation": on, "include_usage": true});
        chunks(&platform, &json!({"stream_options": options}))
    };
    assert!(with(false).iter().all(|chunk| chunk.get("obfuscation").is_none()));
    let noisy = with(true);
    let mut noises = Vec::new();
    for chunk in &noisy {
        let noise = chunk["obfuscation"].as_str().unwrap().to_owned();
        let text = chunk["choices"].get(0).map_or("", |choice| choice["text"].as_str().unwrap());
        assert_eq!((noise.len() + text.len()) % 16, 0);
        noises.push(noise);
    }
    noises.sort();
    noises.dedup();
    assert!(noises.len() > 2, "{noises:?}");
}

#[test]
fn what_was_not_computed_is_told() {
    let platform = FakePlatform::new(letters);
    // Two prompts, in two waves and in one; the later waves begin anew.
    for n in [1, 3] {
        let fields = json!({"model": "caching", "prompt": ["abcd", "efgh"], "n": n});
        let usage = whole(&platform, &fields)["usage"].clone();
        assert_eq!(usage["prompt_tokens_details"], json!({"cached_tokens": CACHED_TOKENS}));
        assert_eq!(usage["prompt_tokens"], 8);
    }
    let plain = whole(&platform, &json!({}))["usage"].clone();
    assert!(plain.get("prompt_tokens_details").is_none());
}

/// Scored prompts of which some have one token, in a wave that is not the first.
#[test]
fn short_prompts_in_later_waves_are_what_each_is_alone() {
    let platform = FakePlatform::new(letters);
    let prompts = ["abc", "de", "f", "gh", "i", "jkl", "m", "n"];
    for n in [1, 2, 3] {
        for max_tokens in [0, 3] {
            for temperature in [0, 1] {
                let fields = json!({
                    "n": n, "seed": 3, "max_tokens": max_tokens, "temperature": temperature,
                    "echo": true, "logprobs": 1,
                });
                let with = |prompt: Value| {
                    let mut fields = fields.clone();
                    fields["prompt"] = prompt;
                    whole(&platform, &fields)["choices"].as_array().unwrap().clone()
                };
                let together = with(json!(prompts));
                for (i, prompt) in prompts.iter().enumerate() {
                    for (j, alone) in with(json!(prompt)).into_iter().enumerate() {
                        let choice = &together[i * n + j];
                        assert_eq!(choice["text"], alone["text"], "{fields} {prompt} {j}");
                        assert_eq!(choice["logprobs"], alone["logprobs"], "{fields} {prompt} {j}");
                    }
                }
            }
        }
    }
}

#[test]
fn equal_prompts_have_different_choices_unless_there_is_a_seed() {
    let platform = FakePlatform::new(letters);
    let texts = |seed: Value| {
        let fields = json!({"prompt": ["abc", "abc"], "temperature": 1, "seed": seed});
        let answer = whole(&platform, &fields);
        (answer["choices"][0]["text"].clone(), answer["choices"][1]["text"].clone())
    };
    let (first, second) = texts(Value::Null);
    assert_ne!(first, second);
    let (first, second) = texts(json!(1));
    assert_eq!(first, second);
}

#[test]
fn a_stop_may_begin_before_min_tokens_and_end_after() {
    let platform = FakePlatform::new(|_| certain(byte(b'\n')));
    let choice = |min_tokens: usize| {
        let fields = json!({"min_tokens": min_tokens, "stop": "\n\n", "max_tokens": 9});
        whole(&platform, &fields)["choices"][0].clone()
    };
    assert_eq!((&choice(0)["text"], &choice(0)["finish_reason"]), (&json!(""), &json!("stop")));
    // The first that ends after the third token begins with that.
    assert_eq!((&choice(3)["text"], &choice(3)["finish_reason"]), (&json!("\n\n"), &json!("stop")));
}

#[test]
fn asking_for_all_tokens_is_asking_for_none_in_particular() {
    let platform = FakePlatform::new(letters);
    let text = |top_k: i64| {
        let fields = json!({"temperature": 1, "seed": 1, "top_k": top_k});
        whole(&platform, &fields)["choices"][0]["text"].clone()
    };
    assert_eq!(text(300), text(-1));
    assert_eq!(text(i64::MAX), text(-1));
}

#[test]
fn the_field_that_was_sent_is_named() {
    let platform = FakePlatform::new(letters);
    for field in ["max_tokens", "max_completion_tokens"] {
        let mut fields = json!({"max_tokens": null});
        fields[field] = 1000.into();
        let error = post(&platform, &fields).unwrap_err();
        assert_eq!(error.param.as_deref(), Some(field));
    }
}

#[test]
fn whom_a_request_is_for_is_logged() {
    let platform = FakePlatform::new(letters);
    whole(&platform, &json!({"user": "a\nb", "max_tokens": 1}));
    assert_eq!(*platform.logged.borrow(), ["user: \"a\\nb\""]);
}

#[test]
fn requests_about_tokens_have_their_limits_too() {
    let platform = FakePlatform::new(letters);
    let call = |endpoint, body: Value| {
        let body = body.to_string();
        let settings = Settings::default();
        let answer = block_on(respond(endpoint, body.as_bytes(), &settings, &platform));
        answer.map(drop).map_err(|error| (error.status, error.param.unwrap_or_default()))
    };
    let most = 64 * 256;
    let detokenize =
        |count: usize| call(Endpoint::Detokenize, json!({"model": "m", "tokens": vec![5; count]}));
    assert_eq!(detokenize(most), Ok(()));
    assert_eq!(detokenize(most + 1), Err((400, "tokens".to_owned())));
    let long = json!({"model": "m", "prompt": "x".repeat(13 * most + 1)});
    assert_eq!(call(Endpoint::Tokenize, long), Err((400, "prompt".to_owned())));
}

#[test]
fn ids_that_would_be_repeated_are_capped() {
    let platform = FakePlatform::new(letters);
    let settings = Settings { max_echo_bytes: 40, ..Settings::default() };
    let ask = |n: usize| {
        let body = json!({"model": "m", "prompt": "abcd", "n": n, "return_token_ids": true});
        let body = body.to_string();
        let answer = respond(Endpoint::Completions, body.as_bytes(), &settings, &platform);
        block_on(answer).map(drop).map_err(|error| error.param.unwrap_or_default())
    };
    assert_eq!(ask(2), Ok(()));
    assert_eq!(ask(3), Err("return_token_ids".to_owned()));
}
