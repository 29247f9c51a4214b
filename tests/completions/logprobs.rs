//! Log-probabilities: their shape, and their values against llama.cpp's own logits.

use serde_json::{Value, json};
use spinfer_tests::client::join_choices;
use spinfer_tests::reference::{Reference, log_softmax};

use crate::{MODEL, PROMPTS, SERVER, alone, error, greedy, tolerance, with};

fn choice(body: &Value) -> Value {
    let answer = SERVER.complete(body);
    assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    answer.json()["choices"][0].clone()
}

/// A list of a choice's log-probabilities.
fn list<'a>(choice: &'a Value, name: &str) -> &'a Vec<Value> {
    choice["logprobs"][name].as_array().unwrap_or_else(|| panic!("no {name} in {choice}"))
}

/// echo × logprobs × max_tokens × stream.
#[test]
fn the_lists_are_as_long_as_they_must_be() {
    let _alone = alone();
    let prompt = "The capital of France is";
    let tokens = 5;
    for echo in [false, true] {
        for logprobs in [None, Some(0), Some(1), Some(5)] {
            for max_tokens in [0, 1, 4] {
                let fields = json!({"echo": echo, "logprobs": logprobs});
                let body = with(&greedy(prompt, max_tokens), fields);
                let whole = SERVER.complete(&body).json();
                let choice = &whole["choices"][0];
                let mut joined = join_choices(&SERVER.chunks(&body));
                if logprobs.is_some() && joined[0]["logprobs"].is_null() {
                    // No chunk had a token; the whole answer has empty lists then.
                    assert!(list(choice, "tokens").is_empty());
                    joined[0]["logprobs"] = choice["logprobs"].clone();
                }
                assert_eq!(json!(joined), whole["choices"], "{body}");
                assert_eq!(whole["usage"]["completion_tokens"], max_tokens);
                let text = choice["text"].as_str().unwrap();
                assert_eq!(text.starts_with(prompt), echo, "{body}");
                let Some(n) = logprobs else {
                    assert_eq!(choice["logprobs"], Value::Null);
                    continue;
                };
                check_lists(choice, if echo { tokens } else { 0 }, max_tokens, n);
                let joined: String =
                    list(choice, "tokens").iter().map(|token| token.as_str().unwrap()).collect();
                assert_eq!(joined, text, "{body}");
                let start = if echo { 0 } else { prompt.len() as u64 };
                let mut offset = start;
                for (token, found) in list(choice, "tokens").iter().zip(list(choice, "text_offset"))
                {
                    assert_eq!(found.as_u64(), Some(offset), "{body}");
                    offset += token.as_str().unwrap().chars().count() as u64;
                }
            }
        }
    }
}

fn check_lists(choice: &Value, prompt: usize, generated: usize, n: usize) {
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(list(choice, name).len(), prompt + generated, "{name} of {choice}");
    }
    let content = list(choice, "content");
    assert_eq!(content.len(), prompt.saturating_sub(1) + generated);
    assert_eq!(choice["logprobs"]["refusal"], Value::Null);
    for at in 0..prompt + generated {
        let own = &list(choice, "token_logprobs")[at];
        let top = &list(choice, "top_logprobs")[at];
        if at == 0 && prompt > 0 {
            assert_eq!((own, top), (&Value::Null, &Value::Null));
            continue;
        }
        let token = list(choice, "tokens")[at].as_str().unwrap();
        let top = top.as_object().unwrap();
        assert_eq!(&top[token], own, "the same number in the map");
        let sizes = match (at < prompt, n) {
            (_, 0) => 1..=1,
            (true, n) => n..=n + 1,
            (false, 1) => 1..=2,
            (false, n) => n..=n,
        };
        assert!(sizes.contains(&top.len()), "{n} at {at}: {top:?}");
        let entry = &content[at - usize::from(prompt > 0)];
        assert_eq!((&entry["token"], &entry["logprob"]), (&json!(token), own));
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), top.len());
    }
}

/// 20 prompts, 100 positions each: every value that an answer has, against the f64 log-softmax of the
/// reference's logits, computed in the same chunks.
#[test]
fn the_values_are_those_of_the_reference_s_logits() {
    let _alone = alone();
    let reference = Reference::default_model();
    let (mut positions, mut worst) = (0, 0.0f64);
    for prompt in &PROMPTS[..20] {
        // The model's own continuation makes each prompt 101 tokens long.
        let mut ids = reference.model.tokenize(prompt, true, true).unwrap();
        ids.extend(reference.forced(&ids, 101));
        ids.truncate(101);
        let body = json!({
            "model": MODEL, "prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 5,
        });
        let choice = choice(&body);
        let rows = reference.every_logits(&ids[..100]);
        for (at, row) in rows.iter().enumerate() {
            let exact = log_softmax(row);
            let own = list(&choice, "token_logprobs")[at + 1].as_f64().unwrap();
            worst = worst.max((own - exact[ids[at + 1] as usize]).abs());
            let mut ranked: Vec<f64> = exact.clone();
            ranked.sort_by(|a, b| b.total_cmp(a));
            let entry = &list(&choice, "content")[at]["top_logprobs"];
            for (rank, alternative) in entry.as_array().unwrap().iter().take(5).enumerate() {
                let found = alternative["logprob"].as_f64().unwrap();
                worst = worst.max((found - ranked[rank]).abs());
            }
            positions += 1;
        }
        assert_eq!(self::choice(&body), choice, "the same to the last bit when repeated alone");
    }
    assert_eq!(positions, 2000);
    println!("log-probabilities of {positions} positions differ by up to {worst:e}");
    // A logit and the sum of all may both move.
    assert!(worst <= 1e-4 + 2.0 * f64::from(tolerance()), "{worst}");
}

/// The same, while seven other requests are computed beside it.
#[test]
fn values_move_no_more_than_batching_moves_them() {
    let _alone = alone();
    let reference = Reference::default_model();
    let ids: Vec<Vec<i32>> = PROMPTS[..8]
        .iter()
        .map(|prompt| {
            let mut ids = reference.model.tokenize(prompt, true, true).unwrap();
            ids.extend(reference.forced(&ids, 41));
            ids.truncate(41);
            ids
        })
        .collect();
    let moved = reference.what_batching_moves(&ids);
    println!("batching moves logits by up to {moved}");
    let moved = f64::from(moved + tolerance());
    let body = |ids: &[i32]| json!({"model": MODEL, "prompt": ids, "max_tokens": 0, "echo": true, "logprobs": 1});
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let tasks: Vec<_> = ids.iter().map(|ids| scope.spawn(|| choice(&body(ids)))).collect();
        tasks.into_iter().map(|task| task.join().unwrap()).collect()
    });
    for (ids, answer) in ids.iter().zip(&answers) {
        let rows = reference.every_logits(&ids[..40]);
        for (at, row) in rows.iter().enumerate() {
            let exact = log_softmax(row);
            let own = list(answer, "token_logprobs")[at + 1].as_f64().unwrap();
            // A logit and the sum of all may both move.
            let difference = (own - exact[ids[at + 1] as usize]).abs();
            assert!(difference <= 1e-4 + 2.0 * moved, "{difference}");
            let (best, margin) = spinfer_tests::reference::best(row);
            if f64::from(margin) > 2.0 * moved {
                let likeliest = &list(answer, "content")[at]["top_logprobs"][0]["bytes"];
                assert_eq!(*likeliest, json!(reference.piece(best)), "the argmax at {at}");
            }
        }
    }
}

/// Generated tokens have the values that scoring them as a prompt gives, and greedy ones are the
/// likeliest.
#[test]
fn generated_and_scored_values_agree() {
    let _alone = alone();
    let base = greedy("The three primary colors are", 12);
    let fields = json!({"logprobs": 3, "return_token_ids": true});
    for sampling in [json!({}), json!({"temperature": 1.2, "seed": 4})] {
        let body = with(&with(&base, fields.clone()), sampling.clone());
        let generated = choice(&body);
        let ids = |name: &str| generated[name].as_array().unwrap().clone();
        let all = [ids("prompt_token_ids"), ids("token_ids")].concat();
        let scoring = json!({
            "model": MODEL, "prompt": all, "max_tokens": 0, "echo": true, "logprobs": 3,
        });
        let scored = choice(&scoring);
        let from = ids("prompt_token_ids").len();
        for (at, value) in list(&generated, "token_logprobs").iter().enumerate() {
            let own = value.as_f64().unwrap();
            let again = list(&scored, "token_logprobs")[from + at].as_f64().unwrap();
            assert!((own - again).abs() < 0.05, "chunks differ, so logits may a little");
            let top = list(&generated, "top_logprobs")[at].as_object().unwrap();
            let highest = top.values().map(|v| v.as_f64().unwrap()).fold(f64::MIN, f64::max);
            if sampling == json!({}) {
                assert_eq!(own, highest, "greedy takes the likeliest");
            }
        }
    }
}

#[test]
fn the_end_of_the_sequence_has_an_entry_without_text() {
    let _alone = alone();
    let question = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n";
    let body = with(&greedy(question, 200), json!({"logprobs": 0}));
    let choice = choice(&body);
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(list(&choice, "tokens").last().unwrap(), "<|im_end|>");
    assert!(!choice["text"].as_str().unwrap().contains("<|im_end|>"));
    assert_eq!(json!(join_choices(&SERVER.chunks(&body))), json!([choice]));
}

#[test]
fn tokens_that_are_no_text_are_written_in_bytes() {
    let _alone = alone();
    let fields = json!({"logprobs": 0, "echo": true});
    let choice = choice(&with(&greedy("🙂a", 0), fields));
    let tokens = list(&choice, "tokens");
    assert!(tokens[0].as_str().unwrap().starts_with("bytes:\\x"), "{tokens:?}");
    let offsets: Vec<_> =
        list(&choice, "text_offset").iter().map(|offset| offset.as_u64().unwrap()).collect();
    assert_eq!(offsets.last(), Some(&1), "the character before it counts as one: {offsets:?}");
    let bytes: Vec<u8> = list(&choice, "content")
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert!("🙂a".as_bytes().ends_with(&bytes), "{bytes:?}");
}

#[test]
fn what_an_answer_may_hold_is_capped() {
    let body = json!({
        "model": MODEL, "prompt": "a", "n": 128, "logprobs": 20, "max_tokens": 100,
    });
    let (status, error) = error(&body);
    assert_eq!((status, error["param"].as_str()), (400, Some("logprobs")));
}
