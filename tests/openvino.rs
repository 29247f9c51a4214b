//! The second backend: the same component and the same weights, computed by OpenVINO.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use spinfer_tests::client::joined;
use spinfer_tests::models::{self, Weights};
use spinfer_tests::process::Leashed;
use spinfer_tests::server::{Server, Setup, binary, component};

const MODEL: &str = "smollm2-135m-instruct-openvino";
const OF_LLAMA_CPP: &str = "smollm2-135m-instruct";

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

/// Ten texts, of each of which the first 32 tokens are a prompt.
const TEXTS: [&str; 10] = [
    "The history of the railway begins with wagonways in the mines of Europe, where carts were pulled along \
     wooden rails by horses long before anyone had thought of steam engines or timetables.",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who had never caught a fish, \
     although he went out in his boat every morning before the sun rose.",
    "Photosynthesis is the process by which green plants and some other organisms use sunlight to make food from \
     carbon dioxide and water. It takes place mainly in the leaves, whose cells have chloroplasts.",
    "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n    if n < 2:\n        return n\n    return \
     fibonacci(n - 1) + fibonacci(n - 2)\n\nprint(fibonacci(10))\n",
    "Dear Sir or Madam,\n\nI am writing to apply for the position of systems engineer that you have advertised in \
     last week's newspaper. I have worked with compilers and operating systems for ten years.",
    "Water boils at a lower temperature on high mountains, because the pressure of the air is lower there. This is \
     why potatoes take longer to cook in the Andes than they do in Lima.",
    "To bake bread you need flour, water, salt and yeast. Mix the flour with the salt, dissolve the yeast in warm \
     water, and knead everything together for ten minutes until the dough is smooth.",
    "In 1969, humans first walked on the Moon. The flight of Apollo 11 took four days, and half a billion people \
     watched on television as two astronauts climbed down the ladder.",
    "The three primary colors of light are red, green and blue. A screen has tiny lamps of these three colors, and \
     makes all others by mixing them in different amounts at every point.",
    "Shakespeare wrote at least thirty-seven plays, among them tragedies, comedies and histories. Many of them were \
     first performed at the Globe, a round wooden theatre on the south bank of the Thames.",
];

/// The first 32 tokens of each text.
fn prompts(server: &Server) -> Vec<Value> {
    TEXTS
        .map(|text| {
            let body = json!({"model": MODEL, "prompt": text}).to_string();
            let answer = server.post("/tokenize", "application/json", body.as_bytes()).json();
            let mut tokens = answer["tokens"].as_array().unwrap().clone();
            assert!(tokens.len() >= 32, "{} tokens: {text}", tokens.len());
            tokens.truncate(32);
            Value::from(tokens)
        })
        .into()
}

/// The greedy tokens after a prompt, and how far the likeliest was above the second at each, in nats.
fn choices(server: &Server, model: &str, prompt: &Value) -> Vec<(Value, f64)> {
    let mut body = greedy(prompt.clone(), 32);
    body["model"] = model.into();
    body["logprobs"] = 2.into();
    body["return_token_ids"] = true.into();
    let answer = server.complete(&body);
    assert_eq!(answer.status, 200, "{}", answer.text);
    let answer = answer.json();
    let choice = &answer["choices"][0];
    let tokens = choice["token_ids"].as_array().unwrap();
    let best = choice["logprobs"]["content"].as_array().unwrap().iter().map(|entry| {
        let value = |rank: usize| entry["top_logprobs"][rank]["logprob"].as_f64().unwrap();
        value(0) - value(1)
    });
    tokens.iter().cloned().zip(best).collect()
}

/// The same weights in both backends: llama.cpp computes with them in single precision, too, when they are stored
/// so. With the Q4_1 file it rounds what goes into products to 8 bits, and its texts leave these earlier.
#[test]
fn greedy_texts_are_those_of_llama_cpp() {
    let server = server();
    let prompts = prompts(&server);
    let own: Vec<_> = prompts.iter().map(|prompt| choices(&server, MODEL, prompt)).collect();
    for weights in [Weights::F32, Weights::Q4_1] {
        let file = weights.file();
        let folder = file.parent().and_then(Path::parent).unwrap().to_owned();
        let setup =
            Setup { ai_models: vec![OF_LLAMA_CPP.into()], models: folder, ..Setup::default() };
        let other = Server::start(&setup);
        let (mut equal, mut margins) = (0, Vec::new());
        for (prompt, own) in prompts.iter().zip(&own) {
            let theirs = choices(&other, OF_LLAMA_CPP, prompt);
            match own.iter().zip(&theirs).find(|(own, theirs)| own.0 != theirs.0) {
                None => equal += 1,
                Some((own, _)) => margins.push(own.1),
            }
        }
        println!("{} weights in llama.cpp: {equal} of 10 texts are equal", weights.name());
        println!("where others leave, the second choice was this far below: {margins:.3?}");
        if weights == Weights::F32 {
            assert!(equal >= 8, "{equal} of 10");
            assert!(margins.iter().all(|margin| *margin <= 0.05), "{margins:?}");
        }
    }
}

/// What `spinfer export` lays out, under a host that isn't ours.
#[test]
fn stock_wasmtime_serves_the_same_component() {
    let path = |name: &str| {
        PathBuf::from(env::var_os(name).unwrap_or_else(|| panic!("`cargo xtask test` sets {name}")))
    };
    let (wasmtime, libraries) = (path("SPINFER_TEST_WASMTIME"), path("SPINFER_OPENVINO_LIBRARY"));
    let folder = tempfile::tempdir().unwrap();
    // It opens the library by the name that packages of Linux give it.
    let files = fs::read_dir(&libraries).unwrap().map(|file| file.unwrap());
    let library = files.map(|file| file.path()).find(|path| {
        path.file_name().and_then(|name| name.to_str()).unwrap().starts_with("libopenvino_c.so.")
    });
    let link = folder.path().join("libopenvino_c.so");
    symlink(fs::canonicalize(library.expect("the library")).unwrap(), link).unwrap();

    let laid_out = folder.path().join("stock");
    let mut export = Command::new(binary());
    export.args(["export", MODEL, "--to"]).arg(&laid_out);
    export.arg("--component").arg(component()).arg("--models").arg(models::folder());
    let export = export.output().unwrap();
    assert!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
    let line = String::from_utf8(export.stdout).unwrap();
    let line = line.trim().strip_prefix("wasmtime serve ").expect("a command").to_owned();

    let mut serve = Command::new(wasmtime);
    serve.args(["serve", "--addr", "127.0.0.1:0"]).args(line.split(' '));
    let places = [folder.path(), libraries.as_path()].map(|place| place.display().to_string());
    serve.env("LD_LIBRARY_PATH", places.join(":"));
    let process = Leashed::start(&serve);
    let url = process.wait(Duration::from_secs(120), |output| {
        let (_, rest) = output.split_once("http://")?;
        let address = rest.split_once('\n')?.0.trim_end_matches('/');
        Some(format!("http://{address}"))
    });
    let url = url.unwrap_or_else(|output| panic!("wasmtime doesn't serve:\n{output}"));

    let stock = Server::of_process(process, url, folder);

    let body = greedy("The capital of France is", 8);
    let answer = stock.complete(&body);
    assert_eq!(answer.completion(), " Paris.\n\nThe answer is:");
    assert_eq!(answer.json()["usage"]["prompt_tokens"], 5);
    assert_eq!(answer.json()["usage"]["completion_tokens"], 8);
    let chunks = stock.chunks(&body);
    assert!(chunks.len() > 4, "{chunks:?}");
    assert_eq!(joined(&chunks), answer.completion());
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
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

/// A library with all that is called of OpenVINO, which says that it is too old.
#[test]
fn an_old_library_is_refused_by_its_version() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("old.c"), folder.path().join("libopenvino_c.so"));
    let mut text = String::from(
        "typedef struct { const char *build, *description; } version;\n\
         int ov_get_openvino_version(version *v) {\n\
         v->build = \"2023.3.0-13775\"; v->description = \"OpenVINO\"; return 0; }\n\
         void ov_version_free(version *v) {}\n",
    );
    for name in [
        "core_create",
        "core_set_property",
        "core_read_model",
        "core_compile_model",
        "compiled_model_create_infer_request",
        "infer_request_infer",
    ] {
        text += &format!("int ov_{name}(void) {{ return -1; }}\n");
    }
    text += "const char *ov_get_last_err_msg(void) { return \"\"; }\n";
    fs::write(&source, text).unwrap();
    let mut compile = Command::new("cc");
    compile.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    assert!(compile.status().unwrap().success());
    let setup = Setup {
        nn: format!("[nn.openvino]\nlibrary = {:?}", library.display().to_string()),
        ..setup(&models::folder())
    };
    assert_refused(&setup, &[MODEL, "libopenvino_c.so", "2025.1 or later", "2023.3.0-13775"]);
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
