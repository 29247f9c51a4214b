//! The second backend: the same component and the same weights, computed by OpenVINO.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use spinfer_tests::models;
use spinfer_tests::server::{Server, Setup};

const MODEL: &str = "smollm2-135m-instruct-openvino";

fn setup(models: &Path) -> Setup {
    Setup { ai_models: vec![MODEL.into()], models: models.to_owned(), ..Setup::default() }
}

fn server() -> Server {
    Server::start(&setup(&models::folder()))
}

fn texts(server: &Server, body: &Value) -> Vec<String> {
    let answer = server.complete(body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    let choices = answer["choices"].as_array().unwrap();
    choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
}

/// A greedy request.
fn greedy(prompt: impl Into<Value>, max_tokens: u32) -> Value {
    let prompt = prompt.into();
    json!({"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0})
}

/// Tokens that the weights give in float32, from the same file dequantised: [504, 3575, 282, 4649, 314] is "The
/// capital of France is", without a beginning of sequence.
#[test]
fn greedy_tokens_are_those_of_float32() {
    let server = server();
    let mut body = greedy(vec![504, 3575, 282, 4649, 314], 16);
    body["return_token_ids"] = true.into();
    let answer = server.complete(&body).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], " Paris.\n\nThe answer is: 2018-01");
    assert_eq!(
        choice["token_ids"],
        json!([7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33])
    );
    assert_eq!(answer["usage"]["prompt_tokens_details"], Value::Null, "nothing is cached");
    let card = server.get(&format!("/v1/models/{MODEL}")).json();
    assert_eq!(card["id"], MODEL);
}

#[test]
fn forks_and_ragged_batches_equal_separate_requests() {
    let server = server();
    let prompts = [
        "The capital of France is",
        "Once upon a time, in a small village by the sea, there lived",
        "1, 2, 3, 4,",
        "def add(a, b):",
    ];
    let alone: Vec<String> =
        prompts.iter().map(|prompt| texts(&server, &greedy(*prompt, 24)).remove(0)).collect();
    assert_eq!(texts(&server, &greedy(prompts.to_vec(), 24)), alone);
    let mut forks = greedy(prompts[1], 24);
    forks["n"] = 4.into();
    assert_eq!(texts(&server, &forks), vec![alone[1].clone(); 4]);
    // More than a wave: the prompts are computed again for each.
    let mut waves = greedy(prompts[..2].to_vec(), 12);
    waves["n"] = 10.into();
    let cut: Vec<String> =
        prompts[..2].iter().map(|prompt| texts(&server, &greedy(*prompt, 12)).remove(0)).collect();
    let expected: Vec<String> = cut.iter().flat_map(|text| vec![text.clone(); 10]).collect();
    assert_eq!(texts(&server, &waves), expected);
}

#[test]
fn scored_and_generated_values_agree() {
    let server = server();
    let mut body = greedy("The capital of France is", 8);
    body["logprobs"] = 3.into();
    let generated = server.complete(&body).json();
    let choice = &generated["choices"][0];
    let whole = format!("The capital of France is{}", choice["text"].as_str().unwrap());
    let scored =
        json!({"model": MODEL, "prompt": whole, "max_tokens": 0, "echo": true, "logprobs": 3});
    let scored = server.complete(&scored).json();
    let values = |choice: &Value| -> Vec<f64> {
        let values = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        values.iter().map(|value| value.as_f64().unwrap_or(0.0)).collect()
    };
    let (generated, scored) = (values(choice), values(&scored["choices"][0]));
    let behind = &scored[scored.len() - generated.len()..];
    let differ = generated.iter().zip(behind).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    println!("computed at once and one by one, values differ by up to {differ:.1e}");
    assert!(differ < 2e-3, "{generated:?} {behind:?}");
}

#[test]
fn a_client_that_leaves_frees_its_rows() {
    let server = server();
    let body = json!({"model": MODEL, "prompt": "Once", "max_tokens": 1000, "stream": true, "ignore_eos": true});
    let mut events = server.stream(&body);
    assert!(events.next().is_some());
    assert_eq!(server.metric("spinfer_sequences_held"), 1);
    drop(events);
    server.wait_for_metric("spinfer_sequences_held", |held| held == 0);
    assert_eq!(texts(&server, &greedy("The capital of France is", 2)), [" Paris."]);
}

/// A folder with the model, in which files can be replaced.
fn copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join(MODEL);
    fs::create_dir(&model).unwrap();
    for file in fs::read_dir(models::folder().join(MODEL)).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    folder
}

/// Where the most numbers of half precision are in the weights.
fn largest_scales(xml: &str) -> std::ops::Range<usize> {
    let number = |tag: &str, name: &str| {
        let value = tag.split_once(&format!(" {name}=\""))?.1.split_once('"')?.0;
        value.parse::<usize>().ok()
    };
    let scales = xml.split("<data").filter_map(|rest| rest.split('>').next());
    let scales = scales.filter(|tag| tag.contains("element_type=\"f16\""));
    let places = scales.filter_map(|tag| Some((number(tag, "size")?, number(tag, "offset")?)));
    let (size, offset) = places.max().expect("scales of half precision");
    offset..offset + size
}

fn assert_refused(setup: &Setup, words: &[&str]) {
    let (status, output) = Server::refuse(setup);
    assert_eq!(status.code(), Some(1), "{output}");
    let start = output.find("Error: ").unwrap_or_else(|| panic!("no sentence in:\n{output}"));
    for word in words {
        assert!(output[start..].contains(word), "{word:?} is not in {}", &output[start..]);
    }
    assert!(!output.contains("panicked"), "{output}");
}

#[test]
fn a_library_that_is_not_there_or_is_another_is_named() {
    let nn = |library: &str| Setup {
        nn: format!("[nn.openvino]\nlibrary = {library:?}"),
        ..setup(&models::folder())
    };
    assert_refused(&nn("/nowhere"), &[MODEL, "OpenVINO", "/nowhere"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libopenvino_c.so");
    fs::write(&file, "no library").unwrap();
    assert_refused(&nn(&file.display().to_string()), &[MODEL, "can't load", "libopenvino_c.so"]);
}

#[test]
fn damaged_models_are_named() {
    let folder = copy();
    let model = folder.path().join(MODEL);
    let (xml, bin) = (model.join("openvino_model.xml"), model.join("openvino_model.bin"));
    let text = fs::read_to_string(&xml).unwrap();

    fs::write(&xml, &text[..text.len() / 2]).unwrap();
    assert_refused(&setup(folder.path()), &["openvino_model.xml", "OpenVINO can't read it"]);
    fs::write(&xml, text.replace("\"position_ids\"", "\"positions\"")).unwrap();
    assert_refused(&setup(folder.path()), &["openvino_model.xml", "positions"]);
    fs::write(&xml, &text).unwrap();

    let weights = fs::read(&bin).unwrap();
    let length = weights.len() as u64;
    fs::OpenOptions::new().write(true).open(&bin).unwrap().set_len(length / 2).unwrap();
    assert_refused(&setup(folder.path()), &["openvino_model.bin", "has not come whole"]);
    // The scales of the embeddings: now no numbers.
    let mut damaged = weights;
    damaged[largest_scales(&text)].fill(0xff);
    fs::write(&bin, damaged).unwrap();
    assert_refused(&setup(folder.path()), &["openvino_model.xml", "damaged"]);
    fs::write(&bin, vec![0xff; length as usize]).unwrap();
    assert_refused(&setup(folder.path()), &["openvino_model.xml", "OpenVINO can't read it"]);
    fs::remove_file(&bin).unwrap();
    assert_refused(&setup(folder.path()), &["openvino_model.bin"]);
}

#[test]
fn what_lies_beside_the_weights_is_checked() {
    let folder = copy();
    let model = folder.path().join(MODEL);
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    fs::write(model.join("config.json"), config.replace("49152", "49153")).unwrap();
    assert_refused(&setup(folder.path()), &["vocab_size is 49153", "49152"]);
    fs::write(model.join("config.json"), "{").unwrap();
    assert_refused(&setup(folder.path()), &["config.json"]);
    fs::remove_file(model.join("config.json")).unwrap();
    assert_refused(&setup(folder.path()), &["no config.json"]);
    fs::remove_file(model.join("tokenizer.json")).unwrap();
    assert_refused(&setup(folder.path()), &["no tokenizer.json"]);
}
