//! Clients that people really use, from their packages, against the running server.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use spinfer_gguf::{Header, tokenizer};
use spinfer_llama::{Model, Token};
use spinfer_tests::models::weights;
use spinfer_tests::reference::{Reference, best, log_softmax};
use spinfer_tests::server::{Server, Setup};

const MODEL: &str = "smollm2-135m-instruct";

/// A file or folder beside the clients' scripts.
fn beside_scripts(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(name)
}

/// What `cargo xtask test` has installed: where a variable says, or at its usual place.
fn installed(variable: &str, below_tools: &str) -> PathBuf {
    let path = std::env::var_os(variable).map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools").join(below_tools),
        PathBuf::from,
    );
    assert!(path.exists(), "{} isn't there: `cargo xtask test` makes it", path.display());
    path
}

/// A script in the Python that has the clients' packages.
fn python(script: &str) -> Command {
    let mut command = Command::new(installed("SPINFER_TEST_PYTHON", "clients/bin/python"));
    command.arg(beside_scripts(script));
    command
}

/// Runs a client against a server of its own, in an environment that holds no keys, proxies or
/// settings; what it printed.
fn run(client: &mut Command) -> String {
    let server = Server::start(&Setup::default());
    let home = tempfile::tempdir().expect("a temporary folder");
    let given: Vec<_> = client
        .get_envs()
        .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
        .collect();
    let output = client
        .env_clear()
        .envs(given)
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home.path())
        .env("SPINFER_URL", &server.url)
        .output()
        .expect("the client starts");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{stdout}{}\n{}",
        String::from_utf8_lossy(&output.stderr),
        server.output()
    );
    stdout
}

#[test]
fn openai_python() {
    run(&mut python("openai_python.py"));
}

/// `cargo xtask test` leaves this one out where there is no Node.
#[test]
fn openai_node() {
    let packages = installed("SPINFER_TEST_NODE_MODULES", "node/node_modules");
    run(Command::new("node").arg(beside_scripts("openai_node.js")).env("NODE_PATH", packages));
}

#[test]
fn langchain() {
    run(&mut python("langchain_client.py"));
}

#[test]
fn litellm() {
    run(&mut python("litellm_client.py"));
}

#[test]
fn simon_willisons_llm() {
    run(&mut python("llm_client.py"));
}

/// Requests made from the OpenAPI document, sensible and not, must have the answers that it declares.
#[test]
fn answers_keep_to_the_openapi_document() {
    print!("{}", run(&mut python("schemathesis_run.py")));
}

/// The same with ten times as many; `cargo xtask test --all` runs it.
#[test]
#[ignore = "takes about ten minutes"]
fn answers_keep_to_the_openapi_document_over_thousands_of_requests() {
    print!("{}", run(python("schemathesis_run.py").arg("--all")));
}

/// lm-evaluation-harness, whose figures must be those of the model's own logits.
#[test]
fn lm_evaluation_harness() {
    let folder = tokenizer_folder();
    let printed = run(python("lm_eval_client.py").env("SPINFER_TOKENIZER", folder.path()));
    let ways: Value = serde_json::from_str(&printed).unwrap_or_else(|_| panic!("{printed}"));
    let ways = ways.as_object().expect("the ways of tokenizing");
    assert_eq!(ways.len(), 5);

    let reference = Reference::default_model();
    let pairs: Vec<_> = documents("pairs")
        .iter()
        .map(|pair| {
            let (ids, from) =
                split(&reference.model, text(pair, "context"), text(pair, "continuation"));
            score(reference, &ids, from)
        })
        .collect();
    let whole: Vec<_> = documents("texts")
        .iter()
        .map(|document| {
            let (ids, from) = split(&reference.model, "", text(document, "text"));
            score(reference, &ids, from).0
        })
        .collect();
    let beginnings: Vec<_> = documents("beginnings")
        .iter()
        .map(|document| {
            let greedy = reference.greedy(text(document, "text"), 24).text;
            greedy.split("\n\n").next().unwrap_or_default().to_owned()
        })
        .collect();

    for (way, found) in ways {
        let scores = found["spinfer_pairs"].as_array().expect("a list");
        assert_eq!(scores.len(), pairs.len(), "{way}");
        for (index, (score, &(sum, is_greedy))) in scores.iter().zip(&pairs).enumerate() {
            assert_close(&score[0], sum, &format!("{way}, pair {index}"));
            assert_eq!(score[1], is_greedy, "{way}, pair {index}");
        }
        let scores = found["spinfer_texts"].as_array().expect("a list");
        assert_eq!(scores.len(), whole.len(), "{way}");
        for (index, (score, &sum)) in scores.iter().zip(&whole).enumerate() {
            assert_close(score, sum, &format!("{way}, text {index}"));
        }
        assert_eq!(found["spinfer_beginnings"], json!(beginnings), "{way}");
    }
    assert!(pairs.iter().any(|pair| pair.1) && pairs.iter().any(|pair| !pair.1), "{pairs:?}");
}

/// The model's tokenizer as Hugging Face's libraries want it.
fn tokenizer_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let header = Header::read(&weights(MODEL)).expect("a header");
    let derived = tokenizer::derive(&header).expect("a tokenizer");
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    });
    fs::write(folder.path().join("tokenizer.json"), derived.tokenizer_json).expect("written");
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).expect("written");
    folder
}

/// The documents of a task.
fn documents(name: &str) -> Vec<Value> {
    let path = beside_scripts("lm_eval_tasks").join(name).with_extension("jsonl");
    let lines = fs::read_to_string(path).expect("the task's documents");
    lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn text<'a>(document: &'a Value, key: &str) -> &'a str {
    document[key].as_str().expect("a text")
}

/// The ids of context and continuation, and where the continuation begins, by the harness's rules:
/// spaces at the context's end belong to the continuation, and nothing at all is BOS.
fn split(model: &Model, context: &str, continuation: &str) -> (Vec<Token>, usize) {
    let tokenize = |text: &str| model.tokenize(text, false, true).expect("tokenizes");
    if context.is_empty() {
        let bos = model.bos().expect("the model has one");
        let ids = [bos].into_iter().chain(tokenize(continuation)).collect();
        return (ids, 1);
    }
    let ids = tokenize(&format!("{context}{continuation}"));
    (ids, tokenize(context.trim_end()).len())
}

/// The sum of the log-probabilities of the ids at `from` and later by llama.cpp's own logits, and
/// whether each of them is the likeliest at its place.
fn score(reference: &Reference, ids: &[Token], from: usize) -> (f64, bool) {
    let rows = reference.every_logits(ids);
    let (mut sum, mut is_greedy) = (0.0, true);
    for (position, &id) in ids.iter().enumerate().skip(from) {
        let logits = &rows[position - 1];
        let (likeliest, margin) = best(logits);
        let behind = logits[likeliest as usize] - logits[id as usize];
        let ahead = if likeliest == id { margin } else { behind };
        // Batching moves logits a little; a document whose answer hangs on that is no good.
        assert!(!is_greedy || ahead > 0.01, "a near tie at {position} of {ids:?}");
        is_greedy &= likeliest == id;
        sum += log_softmax(logits)[id as usize];
    }
    (sum, is_greedy)
}

#[track_caller]
fn assert_close(found: &Value, expected: f64, what: &str) {
    let found = found.as_f64().expect("a number");
    assert!((found - expected).abs() < 1e-3, "{what}: {found}, and not {expected}");
}
