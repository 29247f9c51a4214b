//! What the default model lacks: tokens for filling gaps, a vocabulary that wants BOS, and one
//! without BOS.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::{Value, json};
use spinfer_tests::models::weights;
use spinfer_tests::server::{Server, Setup};

use crate::{MODEL, SERVER, alone, error, greedy, with};

/// Three tokens of the default model that stand for those of a model that fills gaps.
const FIM: [u32; 3] = [4, 5, 6];

/// A model folder whose files are the default model's, with settings of its own.
fn model_folder(root: &Path, id: &str, settings: &str) {
    let folder = root.join(id);
    fs::create_dir(&folder).expect("a folder");
    let of_default = weights(MODEL);
    for file in fs::read_dir(of_default.parent().expect("a folder")).expect("files") {
        let file = file.expect("a file");
        if file.file_name() == "model.toml" {
            continue;
        }
        symlink(fs::canonicalize(file.path()).expect("a file"), folder.join(file.file_name()))
            .expect("a link");
    }
    fs::write(folder.join("model.toml"), settings).expect("settings");
}

#[test]
fn gaps_are_filled_between_prompt_and_suffix() {
    let _alone = alone();
    let root = tempfile::tempdir().unwrap();
    let [prefix, suffix, middle] = FIM;
    let settings = format!("fim = {{ prefix = {prefix}, suffix = {suffix}, middle = {middle} }}");
    model_folder(root.path(), "filler", &settings);
    let setup = Setup {
        ai_models: vec!["filler".into()],
        models: root.path().to_owned(),
        ..Setup::default()
    };
    let server = Server::start(&setup);
    let body = json!({
        "model": "filler", "prompt": "def add(a, b):\n    return", "suffix": "\n\nprint(add(1, 2))",
        "max_tokens": 8, "temperature": 0,
    });
    let filled = server.complete(&body);
    let tokens = |text: &str| {
        let body = json!({"prompt": text}).to_string();
        let answer = server.post("/tokenize", "application/json", body.as_bytes()).json();
        answer["tokens"].as_array().unwrap().clone()
    };
    let assembled = [
        vec![json!(prefix)],
        tokens("def add(a, b):\n    return"),
        vec![json!(suffix)],
        tokens("\n\nprint(add(1, 2))"),
        vec![json!(middle)],
    ]
    .concat();
    let length = assembled.len();
    let plain = with(&body, json!({"prompt": assembled, "suffix": null}));
    assert_eq!(server.complete(&plain).completion(), filled.completion());
    assert_eq!(filled.json()["usage"]["prompt_tokens"], length);

    let echoed = server.complete(&with(&body, json!({"echo": true})));
    let expected = format!("def add(a, b):\n    return{}\n\nprint(add(1, 2))", filled.completion());
    assert_eq!(echoed.completion(), expected);
    let scored = server.complete(&with(&body, json!({"echo": true, "logprobs": 1})));
    assert_eq!((scored.status, &scored.json()["error"]["param"]), (400, &json!("suffix")));
    let (status, refused) = error(&with(&greedy("a", 1), json!({"suffix": "b"})));
    assert_eq!((status, refused["param"].as_str()), (400, Some("suffix")));
    assert_eq!(SERVER.complete(&with(&greedy("a", 1), json!({"suffix": ""}))).status, 200);
}

#[test]
fn bos_is_added_to_text_once_and_never_to_ids() {
    let _alone = alone();
    let gemma = "gemma-3-270m";
    let server = Server::start(&Setup { ai_models: vec![gemma.into()], ..Setup::default() });
    let tokens = |fields: Value| {
        let body = fields.to_string();
        let answer = server.post("/tokenize", "application/json", body.as_bytes()).json();
        answer["tokens"].as_array().unwrap().clone()
    };
    let bos = json!(2);
    let own = tokens(json!({"prompt": "The capital of France is", "add_special_tokens": false}));
    let all = tokens(json!({"prompt": "The capital of France is"}));
    assert_eq!(all, [vec![bos.clone()], own.clone()].concat());

    let scored = json!({
        "model": gemma, "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 1,
    });
    let ask = |prompt: Value| {
        let answer = server.complete(&with(&scored, json!({"prompt": prompt})));
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.json()
    };
    let text = ask(json!("The capital of France is"));
    // BOS counts, but is not in the arrays; position 0 is the prompt's own first token.
    assert_eq!(text["usage"]["prompt_tokens"], own.len() + 1);
    let logprobs = &text["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), own.len() + 1);
    assert_eq!(logprobs["tokens"][0], "The");
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    assert_eq!(logprobs["text_offset"][0], 0);
    assert_eq!(text["choices"][0]["text"].as_str().unwrap().find("The capital"), Some(0));
    // Not twice, when it is there already; then it is the prompt's own, and shown.
    let twice = ask(json!("<bos>The capital of France is"));
    assert_eq!(twice["usage"]["prompt_tokens"], own.len() + 1);
    assert_eq!(twice["choices"][0]["logprobs"]["tokens"][0], "<bos>");
    let ids = ask(json!(all));
    assert_eq!(ids["choices"][0]["logprobs"], twice["choices"][0]["logprobs"]);
    // Ids are taken as they are.
    assert_eq!(ask(json!(own))["usage"]["prompt_tokens"], own.len());
    let empty = server.complete(&json!({"model": gemma, "prompt": "", "max_tokens": 1}));
    assert_eq!(empty.json()["usage"]["prompt_tokens"], 1);
}

/// The default model's weights under a header that names no beginning of sequence.
#[test]
fn without_bos_an_empty_prompt_starts_from_the_end() {
    let _alone = alone();
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("plain")).unwrap();
    let path = root.path().join("plain/model.gguf");
    spinfer_tests::models::rewritten(MODEL, &path, |file| {
        // For most pre-tokenizers llama.cpp has a default id; not for this one.
        file.set("tokenizer.ggml.pre", "chatglm-bpe").unset("tokenizer.ggml.bos_token_id")
    });
    let setup = Setup {
        ai_models: vec!["plain".into()],
        models: root.path().to_owned(),
        ..Setup::default()
    };
    let server = Server::start(&setup);
    assert_eq!(server.get("/tokenizer_info").json()["bos_token"], Value::Null);
    let body = json!({"model": "plain", "prompt": "", "max_tokens": 3, "temperature": 0});
    let from_nothing = server.complete(&body);
    let from_the_end = server.complete(&with(&body, json!({"prompt": [2]})));
    assert_eq!(from_nothing.completion(), from_the_end.completion());
    assert_eq!(from_nothing.json()["usage"]["prompt_tokens"], 1);
}
