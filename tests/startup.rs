//! Starting and stopping: what is refused and how, what is cached, and what is not.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use spinfer_gguf::write::Writer;
use spinfer_tests::models::{header, weights};
use spinfer_tests::server::{Application, Server, Setup};

const MODEL: &str = "smollm2-135m-instruct";

/// A models' folder whose only model has these weights; nothing if `None`.
fn models_with(weights: Option<&[u8]>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bad")).unwrap();
    if let Some(weights) = weights {
        fs::write(folder.path().join("bad/model.gguf"), weights).unwrap();
    }
    folder
}

fn setup(models: &Path) -> Setup {
    Setup { ai_models: vec!["bad".into()], models: models.to_owned(), ..Setup::default() }
}

/// The server ends with exit code 1 and a message that holds all of `words`.
fn assert_refused(setup: &Setup, words: &[&str]) {
    let (status, output) = Server::refuse(setup);
    assert_eq!(status.code(), Some(1), "{output}");
    let start = output.find("Error: ").unwrap_or_else(|| panic!("no sentence in:\n{output}"));
    let sentence = &output[start..];
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in {sentence:?}");
    }
    assert!(!output.contains("panicked") && !output.contains("stack backtrace"), "{output}");
}

#[test]
fn missing_weights_are_named() {
    let models = models_with(None);
    assert_refused(&setup(models.path()), &["bad/model.gguf", "there is no"]);
}

#[test]
fn garbage_is_named() {
    let models = models_with(Some(b"this is not a model"));
    assert_refused(&setup(models.path()), &["bad/model.gguf"]);
    let models = models_with(Some(b""));
    assert_refused(&setup(models.path()), &["bad/model.gguf"]);
}

#[test]
fn truncated_weights_are_named() {
    let whole = fs::read(weights(MODEL)).unwrap();
    for length in [4, 100, 1 << 16, 4 << 20, whole.len() - 1] {
        let models = models_with(Some(&whole[..length]));
        assert_refused(&setup(models.path()), &["bad/model.gguf"]);
    }
}

#[test]
fn what_makes_llama_cpp_abort_is_a_sentence() {
    let mut twice: Vec<String> = (0..300).map(|index| format!("t{index}")).collect();
    twice[7] = "t8".into();
    let spm: Vec<String> = (0..300).map(|index| format!("s{index}")).collect();
    let kinds: Vec<(&str, Writer)> = vec![
        ("block_count", header().set("llama.block_count", 0u32)),
        ("block_count", header().set("llama.block_count", 513u32)),
        ("t8", header().set("tokenizer.ggml.tokens", twice)),
        ("epsilon", header().set("llama.attention.layer_norm_rms_epsilon", f32::NAN)),
        ("epsilon", header().set("llama.attention.layer_norm_rms_epsilon", -1.0f32)),
        ("none", header().set("tokenizer.ggml.model", "none")),
        (
            "byte",
            header()
                .set("tokenizer.ggml.model", "llama")
                .set("tokenizer.ggml.scores", vec![0.0f32; spm.len()])
                .set("tokenizer.ggml.tokens", spm),
        ),
        // The header is right, but there are no tensors: llama.cpp's own refusal, from the child.
        ("", header()),
    ];
    for (word, writer) in kinds {
        let models = models_with(Some(&writer.to_bytes()));
        assert_refused(&setup(models.path()), &["bad/model.gguf", word]);
    }
}

#[test]
fn an_unknown_pre_tokenizer_is_named_and_offered_a_way_out() {
    let models = models_with(Some(&header().set("tokenizer.ggml.pre", "martian").to_bytes()));
    assert_refused(&setup(models.path()), &["martian", "tokenizer.json"]);
}

#[test]
fn the_owner_s_tokenizer_stands_in_for_an_unknown_pre_tokenizer() {
    let mut bytes = fs::read(weights(MODEL)).unwrap();
    let header = spinfer_gguf::Header::read(&weights(MODEL)).unwrap();
    let tokenizer = spinfer_gguf::tokenizer::derive(&header).unwrap().tokenizer_json;
    // The key, the type of a string, its length, and the value, which gets as long a name.
    let entry = b"tokenizer.ggml.pre\x08\0\0\0\x06\0\0\0\0\0\0\0smollm";
    let at = bytes.windows(entry.len()).position(|window| window == entry).unwrap();
    bytes[at + entry.len() - 6..at + entry.len()].copy_from_slice(b"martia");
    let models = models_with(Some(&bytes));
    assert_refused(&setup(models.path()), &["martia", "tokenizer.json"]);
    fs::write(models.path().join("bad/tokenizer.json"), tokenizer).unwrap();
    let server = Server::start(&setup(models.path()));
    let body =
        |model| json!({"model": model, "prompt": "The capital of France is", "temperature": 0});
    let expected = Server::start(&Setup::default()).complete(&body(MODEL)).completion();
    assert_eq!(server.complete(&body("bad")).completion(), expected);
}

#[test]
fn a_port_in_use_is_a_sentence() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let arguments = vec!["--listen".into(), address.clone()];
    assert_refused(&Setup { arguments, ..Setup::default() }, &["can't listen on", &address]);
}

#[test]
fn wrong_settings_are_named() {
    let wrong = |nn: &str| Setup { nn: nn.into(), ..Setup::default() };
    assert_refused(&wrong("sequence = 3"), &["sequence"]);
    assert_refused(&wrong("sequences = 1000"), &["sequences", "256"]);
    assert_refused(&wrong("context = 1000000"), &["KV cache", "MiB"]);
    // Tests are built without a GPU backend unless somebody wants them to be.
    assert_refused(&wrong("execution_target = \"gpu\""), &[MODEL, "a GPU is asked for", "vulkan"]);
    assert_refused(&wrong("gpu_layers = 4"), &[MODEL, "a GPU is asked for"]);
    let arguments = vec!["--variable".into(), "typo=1".into()];
    assert_refused(&Setup { arguments, ..Setup::default() }, &["typo"]);
}

#[test]
fn a_component_that_is_none_is_a_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let component = folder.path().join("garbage.wasm");
    fs::write(&component, b"garbage").unwrap();
    assert_refused(&Setup { component, ..Setup::default() }, &["garbage.wasm"]);
}

fn files_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}

#[test]
fn secrets_stay_out_of_the_cache_and_the_log() {
    let cache = tempfile::tempdir().unwrap();
    let canary = "canary-5f3a9c1e7b";
    let setup = Setup {
        cache: cache.path().join("cache"),
        arguments: vec!["--variable".into(), format!("canary={canary}")],
        environment: vec![("CANARY".into(), canary.into())],
        ..Setup::default()
    };
    let server = Server::start(&setup);
    let body = json!({"model": MODEL, "prompt": "Once", "max_tokens": 2});
    assert_eq!(server.complete(&body).status, 200);
    let (status, output) = server.stop();
    assert!(status.success(), "{output}");
    assert!(!output.contains(canary), "{output}");
    let files = files_below(&setup.cache);
    assert!(files.iter().any(|path| path.extension().is_some_and(|ext| ext == "cwasm")));
    for path in files {
        let content = fs::read(&path).unwrap();
        let found = content.windows(canary.len()).any(|window| window == canary.as_bytes());
        assert!(!found, "the canary is in {}", path.display());
    }
}

#[test]
fn a_damaged_cache_is_made_anew() {
    let cache = tempfile::tempdir().unwrap();
    let setup = Setup { cache: cache.path().join("cache"), ..Setup::default() };
    let body = json!({"model": MODEL, "prompt": "Once", "max_tokens": 2, "temperature": 0});
    let server = Server::start(&setup);
    let first = server.complete(&body).completion();
    server.stop();
    for path in files_below(&setup.cache) {
        let mut content = fs::read(&path).unwrap();
        let middle = content.len() / 2;
        if let Some(byte) = content.get_mut(middle) {
            *byte ^= 0xff;
        }
        fs::write(&path, content).unwrap();
    }
    let server = Server::start(&setup);
    assert_eq!(server.complete(&body).completion(), first);
    assert!(server.output().contains("component prepared"), "{}", server.output());
    server.stop();
    let server = Server::start(&setup);
    assert!(server.output().contains("component loaded"), "{}", server.output());
}

#[test]
fn a_signal_lets_running_requests_end() {
    let server = Server::start(&Setup::default());
    let body =
        json!({"model": MODEL, "prompt": "1, 2, 3, 4,", "max_tokens": 200, "temperature": 0});
    std::thread::scope(|scope| {
        let running = scope.spawn(|| server.complete(&body));
        server.wait_for_metric("vllm:generation_tokens_total", |count| count > 2);
        let pid = server.pid();
        let killed = Command::new("kill").args(["-TERM", &pid.to_string()]).status().unwrap();
        assert!(killed.success());
        let answer = running.join().unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        assert!(answer.json()["usage"]["completion_tokens"].as_u64().unwrap() > 2);
    });
    let (status, output) = server.stop();
    assert_eq!(status.code(), Some(0), "{output}");
}

/// Tells a server to load its models again, and waits until it has said how that went.
fn reload(server: &Server, outcome: &str) {
    let said = || server.output().matches(outcome).count();
    let before = said();
    let hangup = Command::new("kill").args(["-HUP", &server.pid().to_string()]).status().unwrap();
    assert!(hangup.success());
    server.wait_for(|output| output.matches(outcome).count() > before);
}

#[test]
fn models_are_loaded_again_at_sighup() {
    let (new, old) =
        ("new models and components answer now", "the old models and components go on");
    let models = models_with(None);
    let file = models.path().join("bad/model.gguf");
    std::os::unix::fs::symlink(weights(MODEL), &file).unwrap();
    let server = Server::start(&setup(models.path()));
    let ask = |model: &str| {
        server.complete(&json!({"model": model, "prompt": "Once", "max_tokens": 2})).status
    };
    assert_eq!((ask("bad"), ask("nickname")), (200, 404));

    fs::write(models.path().join("bad/model.toml"), "aliases = [\"nickname\"]").unwrap();
    let long =
        json!({"model": "bad", "prompt": "1, 2, 3, 4,", "max_tokens": 100, "temperature": 0});
    let mut running = server.stream(&long);
    assert!(running.next().is_some());
    reload(&server, new);
    assert_eq!((ask("bad"), ask("nickname")), (200, 200));
    assert_eq!(running.last().as_deref(), Some("[DONE]"), "it ends on the old model");

    fs::remove_file(&file).unwrap();
    fs::write(&file, "no model").unwrap();
    reload(&server, old);
    server.wait_for_line(|line| line.contains(old) && line.contains("bad/model.gguf"));
    assert_eq!((ask("bad"), ask("nickname")), (200, 200));

    fs::remove_file(&file).unwrap();
    fs::remove_file(models.path().join("bad/model.toml")).unwrap();
    std::os::unix::fs::symlink(weights(MODEL), &file).unwrap();
    reload(&server, new);
    assert_eq!((ask("bad"), ask("nickname")), (200, 404));
}

#[test]
fn a_component_must_be_what_its_digest_says_at_each_load() {
    let folder = tempfile::tempdir().unwrap();
    let component = folder.path().join("probe.wasm");
    fs::copy(spinfer_tests::server::probe(), &component).unwrap();
    let sum = Command::new("sha256sum").arg(&component).output().unwrap();
    let sha256 = String::from_utf8(sum.stdout).unwrap()[..64].to_owned();
    let manifest = format!(
        "spin_manifest_version = 2\napplication = {{ name = \"app\" }}\n\
         [[trigger.http-nn]]\nroute = \"/...\"\ncomponent = \"c\"\n\
         [component.c]\nsource = {{ path = \"probe.wasm\", digest = \"sha256:{sha256}\" }}\n"
    );
    let path = folder.path().join("spin.toml");
    fs::write(&path, manifest).unwrap();
    let application = Some(Application::Manifest(path));
    let server = Server::start(&Setup { application, ..Setup::default() });
    assert_eq!(server.get("/look").status, 200);
    fs::copy(spinfer_tests::server::probe_p2(), &component).unwrap();
    reload(&server, "the old models and components go on");
    server.wait_for_line(|line| line.contains("go on") && line.contains("SHA-256"));
    assert_eq!(server.get("/look").status, 200);
}

#[test]
fn models_are_listed_with_what_they_can_do() {
    let folder = weights(MODEL);
    let folder = folder.parent().unwrap().parent().unwrap();
    let mut list = Command::new(spinfer_tests::server::binary());
    let list = list.arg("models").arg(folder).output().unwrap();
    let text = String::from_utf8(list.stdout).unwrap();
    assert!(list.status.success(), "{text}");
    let words =
        [MODEL, "135 M parameters", "mostly Q4_1", "8192 tokens", "49152 tokens", "fills gaps"];
    for word in words {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

#[test]
fn what_was_prepared_before_is_only_read() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache");
    let prepare = Setup {
        cache: cache.clone(),
        nn: "cpu = \"x86-64-v2\"".into(),
        command: "prewarm",
        ..Setup::default()
    };
    let (status, output) = Server::refuse(&prepare);
    assert!(status.success() && output.contains("are prepared in"), "{output}");
    let before = files_below(&cache);
    let server = Server::start(&Setup { command: "up", ..prepare });
    assert!(server.output().contains("component loaded"), "{}", server.output());
    assert!(!server.output().contains("trying weights"), "{}", server.output());
    let body = json!({"model": MODEL, "prompt": "Once", "max_tokens": 1});
    assert_eq!(server.complete(&body).status, 200);
    assert_eq!(files_below(&cache), before, "nothing was added");
}

/// What `spinfer doctor` says of an application, and whether it can be served.
fn doctor(application: &Path) -> (bool, String) {
    let cache = tempfile::tempdir().unwrap();
    let mut doctor = Command::new(spinfer_tests::server::binary());
    doctor.args(["doctor", "--listen", "127.0.0.1:0", "--from"]).arg(application);
    let output = doctor.arg("--cache-dir").arg(cache.path().join("cache")).output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_doctor_says_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("models").join(MODEL);
    let component = spinfer_tests::server::component();
    let manifest = format!(
        "spin_manifest_version = 2\napplication = {{ name = \"app\" }}\n\
         [[trigger.http-nn]]\nroute = \"/...\"\ncomponent = \"c\"\n\
         [component.c]\nsource = {component:?}\nai_models = [{MODEL:?}]\n"
    );
    let path = folder.path().join("spin.toml");
    fs::write(&path, &manifest).unwrap();
    fs::create_dir_all(&model).unwrap();
    let (fine, said) = doctor(&path);
    assert!(!fine && said.contains("there is no") && said.contains("model.gguf"), "{said}");
    std::os::unix::fs::symlink(weights(MODEL), model.join("model.gguf")).unwrap();
    let (fine, said) = doctor(&path);
    assert!(fine && !said.contains("MISSING"), "{said}");
    fs::write(&path, manifest.replace("spinfer.wasm", "missing.wasm")).unwrap();
    let (fine, said) = doctor(&path);
    assert!(!fine && said.contains("missing.wasm"), "{said}");
    let mut with_tls = Command::new(spinfer_tests::server::binary());
    with_tls.args(["doctor", "--listen", "127.0.0.1:0", "--from"]).arg(&path);
    with_tls.args(["--tls-cert", "/nowhere/cert.pem", "--tls-key", "/nowhere/key.pem"]);
    let said = String::from_utf8(with_tls.output().unwrap().stdout).unwrap();
    assert!(said.contains("TLS") && said.contains("/nowhere/cert.pem"), "{said}");
    let (fine, said) = doctor(Path::new("/nowhere/spin.toml"));
    assert!(!fine && said.contains("/nowhere/spin.toml"), "{said}");
}

#[test]
fn help_says_what_there_is() {
    let help =
        Command::new(spinfer_tests::server::binary()).args(["up", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    for flag in ["--from", "--listen", "--runtime-config-file", "--variable", "--env"] {
        assert!(help.contains(flag), "{flag} is not in:\n{help}");
    }
}

#[test]
fn a_snapshotted_instance_sees_its_own_files_environment_and_random_numbers() {
    let setup = Setup {
        component: spinfer_tests::server::probe(),
        arguments: vec![
            "--env".into(),
            "PROBE=seen".into(),
            "--variable".into(),
            "canary=v".into(),
        ],
        ..Setup::default()
    };
    let server = Server::start(&setup);
    let (first, second) = (server.get("/").json(), server.get("/").json());
    assert_eq!(first["before"]["models"], json!([MODEL]), "the snapshot was taken: {first}");
    assert_eq!(first["before"]["environment"], json!({}));
    assert_eq!(first["before"]["time"], 0);
    assert_eq!(first["now"]["models"], json!([MODEL]));
    assert_eq!(first["now"]["environment"], json!({"PROBE": "seen"}));
    assert!(first["now"]["time"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(first["variable"], "v");
    assert_ne!(first["random"], second["random"]);
    server.wait_for_line(|line| line.contains("the probe logs"));
}

#[test]
fn a_guest_that_goes_past_its_limits_ends_its_own_request() {
    let setup = Setup {
        component: spinfer_tests::server::probe(),
        nn: "guest_time = 1.0\nguest_memory = 128".into(),
        ..Setup::default()
    };
    let server = Server::start(&setup);
    for (path, why) in [
        ("/runs-forever", "it has run for too long without computing"),
        ("/takes-all-memory", "wasm trap"),
    ] {
        std::thread::scope(|scope| {
            let greedy = scope.spawn(|| server.get(path));
            // As many as there are cores, and more, so that none of them could be kept.
            let others: Vec<_> = (0..8).map(|_| scope.spawn(|| server.get(path))).collect();
            assert_eq!(server.get("/").status, 200, "others are answered");
            for request in others.into_iter().chain([greedy]) {
                let answer = request.join().unwrap();
                assert_eq!(answer.status, 500, "{}", answer.text);
                assert_eq!(answer.json()["error"]["type"], "server_error");
            }
        });
        server.wait_for_line(|line| line.contains("the instance failed") && line.contains(why));
        assert_eq!(server.get("/").status, 200, "the server goes on");
    }
}

/// While a long request runs, another is answered with 429, and probes are not.
fn assert_second_is_told_to_come_later(nn: &str) {
    let server = Server::start(&Setup { nn: nn.into(), ..Setup::default() });
    let mut body =
        json!({"model": MODEL, "prompt": "1, 2, 3, 4,", "max_tokens": 400, "temperature": 0});
    std::thread::scope(|scope| {
        let first = scope.spawn(|| server.complete(&body));
        server.wait_for_metric("vllm:generation_tokens_total", |count| count > 2);
        let second = server.complete(&json!({"model": MODEL, "prompt": "Once", "max_tokens": 1}));
        assert_eq!((second.status, second.header("retry-after")), (429, "1"), "{}", second.text);
        let error = &second.json()["error"];
        assert_eq!(error["type"], "rate_limit_error");
        assert_eq!(error["code"], "rate_limit_exceeded");
        assert_eq!(server.get("/v1/health").status, 200);
        assert_eq!(first.join().unwrap().status, 200);
    });
    body["max_tokens"] = json!(1);
    assert_eq!(server.complete(&body).status, 200, "there is room again");
}

#[test]
fn too_many_requests_in_flight_are_told_to_come_later() {
    assert_second_is_told_to_come_later("requests_in_flight = 1");
}

#[test]
fn a_request_that_finds_no_room_in_time_is_told_to_come_later() {
    assert_second_is_told_to_come_later("sequences = 1\nmax_rows = 1\nlongest_wait = 0.05");
}

#[test]
fn while_it_loads_the_server_answers_that_it_is_not_ready() {
    // A fresh cache, so that the component is prepared, which takes seconds.
    let cache = tempfile::tempdir().unwrap();
    let setup = Setup { cache: cache.path().join("cache"), ..Setup::default() };
    let server = Server::start_without_waiting(&setup, free_address());
    let answer = server.get_when_listening("/v1/health");
    assert_eq!((answer.status, answer.header("retry-after")), (503, "1"), "{}", answer.text);
    assert_eq!(answer.json()["error"]["type"], "server_error");
    let pid = server.pid();
    assert!(Command::new("kill").args(["-TERM", &pid.to_string()]).status().unwrap().success());
    let (status, output) = server.stop();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(!output.contains("Serving"), "it stopped while it was loading:\n{output}");
}

/// An address that was free a moment ago.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}
