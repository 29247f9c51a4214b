//! The text of answers, whole and in chunks, against the reference's.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use spinfer_tests::client::joined;
use spinfer_tests::reference::{Greedy, Reference};

use crate::{MODEL, PROMPTS, SERVER, alone, greedy, tolerance, with};

/// Whether a greedy text is the expected one. Otherwise it left it where the two likeliest tokens were as near to
/// each other as the backend's logits may move, which is said.
fn is_expected(prompt: &str, text: &str, expected: &Greedy) -> bool {
    let Some(margin) = expected.margin_of_difference(Reference::default_model(), text) else {
        return true;
    };
    // Each of the two may have moved.
    assert!(
        margin <= 2.0 * tolerance(),
        "after {prompt:?}: {text:?} instead of {:?}, {margin} apart",
        expected.text
    );
    println!("after {prompt:?} the text differs from a token on whose second was {margin} below");
    false
}

#[test]
fn greedy_text_equals_the_reference_s() {
    let _alone = alone();
    let reference = Reference::default_model();
    for prompt in PROMPTS {
        let expected = reference.greedy(prompt, 64);
        let answer = SERVER.complete(&greedy(prompt, 64));
        if !is_expected(prompt, &answer.completion(), &expected) {
            continue;
        }
        let json = answer.json();
        let finish = if expected.ended { "stop" } else { "length" };
        assert_eq!(json["choices"][0]["finish_reason"], finish);
        let prompt_tokens = reference.model.tokenize(prompt, true, true).unwrap().len();
        let completion_tokens = expected.tokens.len() + usize::from(expected.ended);
        let usage = &json["usage"];
        assert_eq!(usage["prompt_tokens"], prompt_tokens);
        assert_eq!(usage["completion_tokens"], completion_tokens);
        assert_eq!(usage["total_tokens"], prompt_tokens + completion_tokens);
    }
}

#[test]
fn a_prompt_of_several_chunks_gives_the_reference_s_text() {
    let _alone = alone();
    let prompt = "The history of the railway begins with wagonways in mines. ".repeat(60);
    let expected = Reference::default_model().greedy(&prompt, 16);
    is_expected(&prompt, &SERVER.complete(&greedy(&prompt, 16)).completion(), &expected);
}

#[test]
fn the_answer_has_the_reference_s_shape() {
    let json = SERVER.complete(&greedy("The capital of France is", 4)).json();
    assert_eq!(json["object"], "text_completion");
    assert_eq!(json["model"], MODEL);
    assert!(json["id"].as_str().unwrap().starts_with("cmpl-"));
    assert!(json["created"].as_u64().unwrap() > 1_700_000_000);
    assert!(json["system_fingerprint"].is_string());
    let choice = &json["choices"][0];
    assert_eq!(choice["index"], 0);
    assert_eq!(choice["logprobs"], Value::Null);
    assert_eq!(choice["finish_reason"], "length");
}

#[test]
fn the_first_chunk_leaves_before_the_second_token_is_computed() {
    let request_id = "first-chunk-test";
    let body =
        json!({"model": MODEL, "prompt": "Once", "max_tokens": 8, "stream": true}).to_string();
    let mut stream = TcpStream::connect(&SERVER.address).unwrap();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         x-request-id: {request_id}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("[DONE]"), "{answer}");
    // One call reserves, one computes the prompt; the third would be the second token's.
    let line = SERVER
        .wait_for_line(|line| line.contains("the first chunk leaves") && line.contains(request_id));
    assert!(line.contains("computes=2"), "{line}");
}

#[test]
fn joined_chunks_equal_the_whole_answer() {
    let _alone = alone();
    for extra in [json!({"temperature": 0}), json!({"seed": 7, "temperature": 1.0, "top_p": 0.9})] {
        for prompt in ["Once upon a time", "日本の首都は", "🙂🙃🙂"] {
            let mut body = json!({"model": MODEL, "prompt": prompt, "max_tokens": 32});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let whole = SERVER.complete(&body);
            let chunks = SERVER.chunks(&body);
            assert_eq!(joined(&chunks), whole.completion());
            let (last, others) = chunks.split_last().unwrap();
            assert_eq!(
                last["choices"][0]["finish_reason"],
                whole.json()["choices"][0]["finish_reason"]
            );
            for chunk in others {
                assert_eq!(chunk["choices"][0]["finish_reason"], Value::Null);
                assert_eq!(chunk["object"], "text_completion");
                assert_eq!(chunk["id"], last["id"]);
                assert!(chunk.get("usage").is_none());
            }
        }
    }
}

#[test]
fn usage_comes_in_a_last_chunk_of_its_own_when_asked_for() {
    let mut body = greedy("Once upon a time", 5);
    body["stream_options"] = json!({"include_usage": true});
    let chunks = SERVER.chunks(&body);
    let (last, others) = chunks.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 5);
    assert!(others.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null)));
}

#[test]
fn a_seed_makes_an_answer_repeatable_and_its_absence_different() {
    let _alone = alone();
    let mut body = json!({"model": MODEL, "prompt": "Once", "max_tokens": 24, "temperature": 1.5});
    let texts: BTreeSet<String> = (0..4).map(|_| SERVER.complete(&body).completion()).collect();
    assert!(texts.len() > 1, "unseeded requests differ");
    body["seed"] = json!(42);
    let texts: BTreeSet<String> = (0..3).map(|_| SERVER.complete(&body).completion()).collect();
    assert_eq!(texts.len(), 1, "a seed repeats");
    let first = texts.first().unwrap().clone();
    body["seed"] = json!(-43);
    assert_ne!(SERVER.complete(&body).completion(), first);
}

/// Where `top_p` decides, mostly the likeliest tokens alone are read. `min_p` has all of them read.
#[test]
fn the_likeliest_tokens_give_what_all_give() {
    let _alone = alone();
    for (temperature, top_p) in [(0.8, 0.95), (1.0, 0.5), (1.6, 0.99)] {
        let fields = json!({
            "temperature": temperature, "top_p": top_p, "seed": 7, "n": 2, "logprobs": 3,
            "ignore_eos": true,
        });
        let body = with(&greedy("The history of the railway", 40), fields);
        let from_likeliest = SERVER.complete(&body).json();
        let from_all = SERVER.complete(&with(&body, json!({"min_p": 1e-30}))).json();
        assert_eq!(from_likeliest["choices"], from_all["choices"]);
    }
}

#[test]
fn ids_are_unique() {
    let ids: BTreeSet<String> = (0..8)
        .map(|_| SERVER.complete(&greedy("A", 1)).json()["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids.len(), 8);
}

#[test]
fn stop_strings_cut_the_text_before_their_earliest_match() {
    let _alone = alone();
    let whole = SERVER.complete(&greedy("1, 2, 3, 4,", 24)).completion();
    assert!(whole.contains(" 7, 8"), "{whole:?}");
    let mut body = greedy("1, 2, 3, 4,", 24);
    for stop in [json!(" 7, 8"), json!(["nothing", " 8,", " 7, 8"])] {
        body["stop"] = stop;
        let answer = SERVER.complete(&body);
        assert_eq!(answer.completion(), whole[..whole.find(" 7, 8").unwrap()]);
        assert_eq!(answer.json()["choices"][0]["finish_reason"], "stop");
        let chunks = SERVER.chunks(&body);
        assert_eq!(joined(&chunks), answer.completion());
        assert!(!joined(&chunks).contains(" 7"), "no part of a stop string is sent");
    }
    body["stop"] = json!("not there");
    assert_eq!(SERVER.complete(&body).completion(), whole);
}

#[test]
fn nothing_generated_is_an_answer_too() {
    let mut body = greedy("Once", 0);
    let answer = SERVER.complete(&body);
    assert_eq!(answer.completion(), "");
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 0);
    body["prompt"] = json!("");
    body["max_tokens"] = json!(2);
    assert_eq!(SERVER.complete(&body).status, 200, "an empty prompt starts from BOS");
}

#[test]
fn eight_at_once_are_each_what_it_is_alone() {
    let _alone = alone();
    let prompts: [&str; 8] = PROMPTS[..8].try_into().unwrap();
    let reference = Reference::default_model();
    let ids = prompts.map(|prompt| reference.model.tokenize(prompt, true, true).unwrap());
    let moved = reference.what_batching_moves(&ids);
    println!("batching moves logits by up to {moved}");
    let answers: Vec<String> = std::thread::scope(|scope| {
        let tasks: Vec<_> = prompts
            .iter()
            .map(|prompt| scope.spawn(move || SERVER.complete(&greedy(prompt, 48)).completion()))
            .collect();
        tasks.into_iter().map(|task| task.join().unwrap()).collect()
    });
    for (prompt, answer) in prompts.iter().zip(answers) {
        let expected = reference.greedy(prompt, 48);
        let margin = expected.margin_of_difference(reference, &answer).unwrap_or(0.0);
        // Each of the two best may move that far.
        assert!(
            margin <= 2.0 * (moved + tolerance()),
            "after {prompt:?}: {answer:?} differs at a token {margin} apart, and batching moves {moved}"
        );
    }
}

#[test]
fn sixty_four_at_once_all_have_an_answer() {
    let _alone = alone();
    std::thread::scope(|scope| {
        for index in 0..64 {
            scope.spawn(move || {
                let answer = SERVER.complete(&greedy(PROMPTS[index % PROMPTS.len()], 8));
                assert_eq!(answer.status, 200, "{}", answer.text);
            });
        }
    });
}
