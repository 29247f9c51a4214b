//! At home in Spin: applications of several components, as `spinfer up` reads them and as `spin up` hands
//! them over; what components see and what they must not; keys; TLS.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use spinfer_tests::server::{
    Application, Server, Setup, component, plugin, probe, probe_dependency, probe_p2,
};

const MODEL: &str = "smollm2-135m-instruct";

/// An application with this project's component, and two that use no models: of WASI 0.3 at `/three`, and of
/// WASI 0.2 at `/two/NAME`.
struct App {
    folder: tempfile::TempDir,
    /// The hosts that both probes may connect to.
    hosts: Vec<String>,
    /// What the one of WASI 0.3 lists of models.
    ai_models: Vec<&'static str>,
}

impl App {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("static/a.txt", "a"),
            ("static/sub/b.txt", "b"),
            ("static/sub/secret.txt", "not to be seen"),
            ("assets/page.html", "page"),
        ] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self { folder, hosts: Vec::new(), ai_models: Vec::new() }
    }

    /// As its author writes it.
    fn manifest(&self) -> Application {
        let text = format!(
            r#"
spin_manifest_version = 2
[application]
name = "three"
version = "1.0.0"

[variables]
greeting = {{ default = "hello" }}
name = {{ required = true }}
password = {{ required = true, secret = true }}

[[trigger.http-nn]]
route = "/v1/..."
component = "completions"
[[trigger.http-nn]]
route = "/three/..."
component = "three"
[[trigger.http-nn]]
route = "/two/:name/..."
component = "two"
[[trigger.http-nn]]
route = {{ private = true }}
component = "hidden"

[component.completions]
source = {completions:?}
ai_models = ["{MODEL}"]

[component.three]
source = {three:?}
files = ["static/**/*", {{ source = "assets", destination = "/pages" }}]
exclude_files = ["**/secret.txt"]
environment = {{ WHO = "three" }}
allowed_outbound_hosts = {hosts:?}
ai_models = {ai_models:?}
[component.three.variables]
canary = "{{{{ greeting }}}}, {{{{ name }}}} {{{{ password }}}}"

[component.two]
source = {two:?}
files = [{{ source = "static/a.txt", destination = "/a.txt" }}]
environment = {{ WHO = "two" }}
allowed_outbound_hosts = {hosts:?}
[component.two.variables]
canary = "{{{{ greeting }}}} from two"

[component.hidden]
source = "nowhere.wasm"
"#,
            completions = component(),
            three = probe(),
            two = probe_p2(),
            hosts = self.hosts,
            ai_models = self.ai_models,
        );
        let path = self.folder.path().join("spin.toml");
        fs::write(&path, text).unwrap();
        Application::Manifest(path)
    }

    /// As `spin up` makes it of that: with copies of the files, and templates that are still to be filled in.
    fn locked(&self) -> Application {
        let url = |path: &Path| format!("file://{}", path.display());
        let source = |path: &Path| json!({"content_type": "application/wasm", "source": url(path)});
        let assets = self.folder.path().join("assets-of-spin");
        for (to, from) in [
            ("three/static/a.txt", "static/a.txt"),
            ("three/static/sub/b.txt", "static/sub/b.txt"),
            ("three/pages/page.html", "assets/page.html"),
            ("two/a.txt", "static/a.txt"),
        ] {
            let to = assets.join(to);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(self.folder.path().join(from), to).unwrap();
        }
        let trigger = |id: &str, route: Value| {
            let config = json!({"component": id, "route": route});
            json!({"id": format!("trigger-{id}"), "trigger_type": "http-nn", "trigger_config": config})
        };
        let locked = json!({
            "spin_lock_version": 1,
            "must_understand": ["component_host_requirements"],
            "metadata": {
                "name": "three",
                "origin": url(&self.folder.path().join("spin.toml")),
                "triggers": {"http-nn": {}},
                "version": "1.0.0"
            },
            "variables": {
                "greeting": {"default": "hello"},
                "name": {},
                "password": {"secret": true}
            },
            "triggers": [
                trigger("completions", json!("/v1/...")),
                trigger("three", json!("/three/...")),
                trigger("two", json!("/two/:name/...")),
                trigger("hidden", json!({"private": true}))
            ],
            "components": [
                {"id": "completions", "source": source(&component()), "metadata": {"ai_models": [MODEL]}},
                {
                    "id": "three",
                    "source": source(&probe()),
                    "metadata": {
                        "ai_models": self.ai_models,
                        "allowed_outbound_hosts": self.hosts,
                        "build": {"command": "cargo build"}
                    },
                    "env": {"WHO": "three"},
                    "files": [{"source": url(&assets.join("three")), "path": "/"}],
                    "config": {"canary": "{{ greeting }}, {{ name }} {{ password }}"}
                },
                {
                    "id": "two",
                    "source": source(&probe_p2()),
                    "metadata": {"allowed_outbound_hosts": self.hosts},
                    "env": {"WHO": "two"},
                    "files": [{"source": url(&assets.join("two")), "path": "/"}],
                    "config": {"canary": "{{ greeting }} from two"}
                },
                {"id": "hidden", "source": source(Path::new("/nowhere.wasm"))}
            ]
        });
        let path = self.folder.path().join("spin.lock");
        fs::write(&path, locked.to_string()).unwrap();
        Application::Locked(path)
    }

    fn setup(&self, application: Application) -> Setup {
        Setup {
            application: Some(application),
            arguments: ["--variable", "name=World", "--variable", "password=pw-5f3a9c1e7b"]
                .map(str::to_owned)
                .to_vec(),
            ..Setup::default()
        }
    }
}

/// Both ways of starting give components the same.
fn assert_all_three_are_served(app: &App, application: Application) {
    let mut setup = app.setup(application);
    setup.environment = vec![("SPIN_VARIABLE_GREETING".into(), "good day".into())];
    let server = Server::start(&setup);
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], MODEL);
    let body = json!({"model": MODEL, "prompt": "The capital of France is", "max_tokens": 3, "temperature": 0});
    assert!(server.complete(&body).completion().contains("Paris"));

    let seen = server.get("/three/look?q").json();
    assert_eq!(seen["environment"], json!({"WHO": "three"}));
    assert_eq!(
        seen["files"],
        json!({"/pages/page.html": "page", "/static/a.txt": "a", "/static/sub/b.txt": "b"})
    );
    assert_eq!(seen["variable"], "good day, World pw-5f3a9c1e7b");
    let headers = &seen["headers"];
    assert_eq!(headers["spin-full-url"], format!("{}/three/look?q", server.url));
    assert_eq!(headers["spin-path-info"], "/look");
    assert_eq!(headers["spin-matched-route"], "/three/...");
    assert_eq!(headers["spin-component-route"], "/three");
    assert!(headers["spin-client-addr"].as_str().unwrap().starts_with("127.0.0.1:"));

    let seen = server.get("/two/somebody/look").json();
    assert_eq!(seen["environment"], json!({"WHO": "two"}));
    assert_eq!(seen["files"], json!({"/a.txt": "a"}));
    assert_eq!(seen["variable"], "good day from two");
    assert_eq!(seen["headers"]["spin-path-info"], "/look");
    assert_eq!(seen["headers"]["spin-path-match-name"], "somebody");

    for path in ["/", "/two", "/hidden", "/threefold"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    let (status, output) = server.stop();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(!output.contains("pw-5f3a9c1e7b"), "{output}");
}

#[test]
fn three_components_are_served_by_route() {
    let app = App::new();
    assert_all_three_are_served(&app, app.manifest());
}

#[test]
fn the_plugin_serves_what_spin_hands_over() {
    let app = App::new();
    assert_all_three_are_served(&app, app.locked());
}

#[test]
fn spin_s_questions_before_it_starts_the_plugin_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |argument| Command::new(plugin(folder.path())).arg(argument).output().unwrap();
    let help = ask("--help-args-only");
    let text = String::from_utf8(help.stdout).unwrap();
    assert!(help.status.success() && help.stderr.is_empty());
    assert!(text.contains("--listen") && !text.contains("Usage"), "{text}");
    let metadata = ask("--launch-metadata-only");
    assert!(metadata.status.success() && metadata.stdout.is_empty());
    let metadata: Value = serde_json::from_slice(&metadata.stderr).unwrap();
    let flags = metadata["all_flags"].as_array().unwrap();
    for flag in ["--listen", "--variable", "--runtime-config-file", "--allow-transient-write"] {
        assert!(flags.contains(&json!({"long": flag, "short": null})), "{flag} in {flags:?}");
    }
}

/// Someone who can be connected to, and answers requests with 200.
fn neighbour() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            use std::io::{Read, Write};
            let mut stream = stream;
            let _ = stream.read(&mut [0; 1024]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
        }
    });
    address
}

/// The host goes on, for this component and the others.
fn assert_goes_on(server: &Server) {
    assert_eq!(server.get("/three/look").status, 200);
    assert_eq!(server.get("/two/x/look").status, 200);
    let body = json!({"model": MODEL, "prompt": "Once", "max_tokens": 1});
    assert_eq!(server.complete(&body).status, 200);
}

#[test]
fn what_a_component_is_not_given_it_does_not_get() {
    let app = App::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), "outside").unwrap();
    let Application::Locked(locked) = app.locked() else { panic!("a locked app") };
    // As somebody with a hand in the folder of the files might do, behind the host's back.
    let inside = app.folder.path().join("assets-of-spin/three/link");
    std::os::unix::fs::symlink(outside.path(), inside).unwrap();
    let server = Server::start(&app.setup(Application::Locked(locked)));
    let neighbour = neighbour();
    let out = outside.path().display();
    for component in ["/three", "/two/x"] {
        for task in [
            format!("fetch?http://{neighbour}/"),
            format!("connect?{neighbour}"),
            "read?/etc/hostname".into(),
            "read?../../../../../../etc/hostname".into(),
            "read?/static/../../../etc/hostname".into(),
            format!("read?{out}/secret"),
            "read?/link/secret".into(),
            "write?/new.txt".into(),
            "write?/static/a.txt".into(),
            format!("write?{out}/secret"),
        ] {
            let answer = server.get(&format!("{component}/{task}"));
            assert_eq!(answer.status, 500, "{component}/{task}: {}", answer.text);
            assert!(!answer.text.contains("outside"), "{component}/{task}: {}", answer.text);
        }
    }
    assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "outside");
    let model = server.get(&format!("/three/model?{MODEL}"));
    assert_eq!(model.status, 500);
    assert!(model.text.contains("may not use a model"), "{}", model.text);
    server.wait_for_line(|line| line.contains("allowed_outbound_hosts") && line.contains("three"));
    assert_goes_on(&server);
}

#[test]
fn what_a_component_is_given_it_gets() {
    let neighbour = neighbour();
    let mut app = App::new();
    app.hosts = vec![format!("*://{neighbour}")];
    app.ai_models = vec![MODEL];
    let mut setup = app.setup(app.manifest());
    setup.arguments.push("--allow-transient-write".into());
    let server = Server::start(&setup);
    for component in ["/three", "/two/x"] {
        let get = |task: &str| server.get(&format!("{component}/{task}"));
        assert_eq!(get(&format!("fetch?http://{neighbour}/")).text, "200");
        assert_eq!(get(&format!("connect?{neighbour}")).json(), "connected");
        assert_eq!(get("connect?127.0.0.1:1").status, 500, "no other port");
        assert_eq!(get("write?/new.txt").json(), "written");
        assert_eq!(get("look").json()["files"]["/new.txt"], "written");
    }
    assert_eq!(server.get(&format!("/three/model?{MODEL}")).json(), "loaded");
    assert!(!app.folder.path().join("new.txt").exists(), "only copies are written");
    assert_goes_on(&server);
}

/// What the dependencies of both probes see, and how their connections end; it must be the same for both.
fn seen_by_dependencies(server: &Server, neighbour: &str) -> (Value, u16) {
    let told = |component: &str, task: &str| server.get(&format!("{component}/variable?/{task}"));
    let [of_three, of_two] = ["/three", "/two/x"].map(|component| {
        let seen = told(component, "look");
        assert_eq!(seen.status, 200, "{}", seen.text);
        let mut seen: Value = serde_json::from_str(seen.json().as_str().unwrap()).unwrap();
        seen.as_object_mut().unwrap().remove("headers");
        (seen, told(component, &format!("connect?{neighbour}")).status)
    });
    assert_eq!(told("/three", &format!("fetch?http://{neighbour}/")).status, of_three.1);
    // The components themselves have all of it in any case.
    for (component, environment, file) in
        [("/three", json!({"WHO": "three"}), "/a.txt"), ("/two/x", json!({"WHO": "two"}), "/a.txt")]
    {
        let own = server.get(&format!("{component}/look")).json();
        assert_eq!((&own["environment"], &own["files"][file]), (&environment, &json!("a")));
        let connection = server.get(&format!("{component}/connect?{neighbour}"));
        assert_eq!(connection.json(), "connected");
    }
    let as_three = Value::String(of_two.0.to_string().replace("two", "three"));
    assert_eq!((Value::String(of_three.0.to_string()), of_three.1), (as_three, of_two.1));
    of_two
}

#[test]
fn dependencies_give_imports_and_inherit_what_is_listed() {
    let neighbour = neighbour();
    let mut app = App::new();
    app.hosts = vec![format!("*://{neighbour}")];
    let Application::Manifest(path) = app.manifest() else { panic!("a manifest") };
    let manifest = fs::read_to_string(&path).unwrap().replace(
        "files = [\"static/**/*\", { source = \"assets\", destination = \"/pages\" }]",
        "files = [{ source = \"static/a.txt\", destination = \"/a.txt\" }]",
    );
    let nothing = json!({"environment": {}, "files": {}});
    let all = json!({"environment": {"WHO": "two"}, "files": {"/a.txt": "a"}});
    for (inherits, seen, connection) in [
        ("", nothing.clone(), 500),
        (", inherit_configuration = true", all.clone(), 200),
        (", inherit_configuration = [\"environment\", \"files\"]", all, 500),
    ] {
        let depends = |component: &str, on: &str| {
            let path = probe_dependency();
            format!(
                "[component.{component}.dependencies]\n\"{on}\" = {{ path = {path:?}{inherits} }}\n"
            )
        };
        let dependencies = depends("two", "fermyon:spin") + &depends("three", "spin:variables");
        fs::write(&path, format!("{manifest}\n{dependencies}")).unwrap();
        let server = Server::start(&app.setup(Application::Manifest(path.clone())));
        assert_eq!(seen_by_dependencies(&server, &neighbour), (seen, connection), "{inherits}");
        assert_goes_on(&server);
    }

    let Application::Locked(path) = app.locked() else { panic!("a locked app") };
    let mut locked: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let dependency = json!({
        "source": {
            "content_type": "application/wasm",
            "source": format!("file://{}", probe_dependency().display())
        },
        "export": null,
        "inherit": {"Some": ["allowed_outbound_hosts"]}
    });
    let components = &mut locked["components"];
    components[1]["files"] = components[2]["files"].clone();
    components[1]["dependencies"] = json!({"spin:variables@3.0.0": dependency});
    components[2]["dependencies"] = json!({"fermyon:spin/variables@2.0.0": dependency});
    fs::write(&path, locked.to_string()).unwrap();
    let server = Server::start(&app.setup(Application::Locked(path)));
    assert_eq!(seen_by_dependencies(&server, &neighbour), (nothing, 200));
}

#[test]
fn dependencies_that_do_not_fit_are_refused_at_the_start() {
    let app = App::new();
    let Application::Manifest(path) = app.manifest() else { panic!("a manifest") };
    let manifest = fs::read_to_string(&path).unwrap();
    for (name, dependency, words) in [
        ("a:b", probe_dependency(), &["\"a:b\"", "no such import", "fermyon:spin/variables@2.0.0"]),
        ("fermyon:spin", probe_p2(), &["\"fermyon:spin\"", "no export", "probe_p2.wasm"]),
        (
            "fermyon:spin",
            path.clone(),
            &["\"fermyon:spin\"", "no WebAssembly component", "spin.toml"],
        ),
        ("fermyon:spin", "nowhere.wasm".into(), &["\"fermyon:spin\"", "no file", "nowhere.wasm"]),
    ] {
        let dependencies =
            format!("[component.two.dependencies]\n\"{name}\" = {{ path = {dependency:?} }}\n");
        fs::write(&path, format!("{manifest}\n{dependencies}")).unwrap();
        let (status, output) = Server::refuse(&app.setup(Application::Manifest(path.clone())));
        assert_eq!(status.code(), Some(1), "{output}");
        for word in ["spin.toml", "component \"two\""].iter().chain(words) {
            assert!(output.contains(word), "{word} is not in {output}");
        }
    }
}

#[test]
fn folders_are_mounted_as_they_are_where_that_is_asked_for() {
    let app = App::new();
    let Application::Manifest(path) = app.manifest() else { panic!("a manifest") };
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("\"static/**/*\", ", "").replace(
        "files = [{ source = \"static/a.txt\", destination = \"/a.txt\" }]",
        "files = [{ source = \"static\", destination = \"/s\" }]",
    );
    fs::write(&path, text).unwrap();
    let mut setup = app.setup(Application::Manifest(path));
    setup.arguments.push("--direct-mounts".into());
    let server = Server::start(&setup);
    assert_eq!(server.get("/three/read?/pages/page.html").json(), "page");
    fs::write(app.folder.path().join("assets/page.html"), "changed").unwrap();
    assert_eq!(server.get("/three/read?/pages/page.html").json(), "changed");
    assert_eq!(server.get("/two/x/read?/s/sub/b.txt").json(), "b");
    assert_eq!(server.get("/two/x/write?/s/a.txt").status, 500);
}

#[test]
fn keys_are_asked_for_and_never_shown() {
    let (first, second) = ("sk-first-8d1c5e", "sk-second-2b7f90");
    let setup = Setup {
        arguments: vec!["--variable".into(), format!("api_keys={first}, {second}")],
        environment: vec![("RUST_LOG".into(), "trace".into())],
        ..Setup::default()
    };
    let server = Server::start(&setup);
    let body = json!({"model": MODEL, "prompt": "Once", "max_tokens": 1});
    for key in [first, second] {
        assert_eq!(server.complete_as(key, &body).status, 200);
        let header = format!("bearer {key}");
        for path in ["/v1/models", "/metrics", "/openapi.json", "/v1/openai/v1/models"] {
            assert_eq!(server.get_with(path, "authorization", &header).status, 200, "{path}");
        }
        assert_eq!(server.get_with("/nowhere", "authorization", &header).status, 404);
    }
    let wrong = "sk-first-8d1c5f-wrong";
    let answer = server.complete_as(wrong, &body);
    assert_eq!((answer.status, answer.header("www-authenticate")), (401, "Bearer"));
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "invalid_api_key");
    assert_eq!(error["type"], "invalid_request_error");
    assert!(!answer.text.contains(wrong), "{}", answer.text);
    for path in ["/v1/models", "/metrics", "/openapi.json", "/nowhere", "/v1/healthy"] {
        let answer = server.get(path);
        assert_eq!((answer.status, answer.header("www-authenticate")), (401, "Bearer"), "{path}");
        assert_eq!(answer.json()["error"]["code"], "invalid_api_key", "{path}");
        assert_ne!(answer.header("x-request-id"), "");
    }
    for path in ["/v1/health", "/v1/version", "/v1/openai/v1/health", "/.well-known/spin/health"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    assert_eq!(server.request("OPTIONS", "/v1/completions").status, 204);
    // With keys, pages from anywhere may ask.
    let page = server.get_with("/v1/health", "origin", "https://app.example.org");
    assert_eq!(page.header("access-control-allow-origin"), "https://app.example.org");
    let (_, output) = server.stop();
    assert!(output.contains("TRACE"), "everything was logged");
    for secret in [first, second, wrong] {
        let shown = output.lines().find(|line| line.contains(secret));
        assert_eq!(shown, None, "a key is in the log");
    }
}

/// A certificate for `localhost` and its key, in two files.
fn certificate(folder: &Path) -> (PathBuf, PathBuf) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (certificate, key)
}

#[test]
fn connections_are_encrypted_with_a_certificate() {
    use ureq::tls::{Certificate, RootCerts, TlsConfig};
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = certificate(folder.path());
    let path = |path: &Path| path.display().to_string();
    let setup = Setup {
        arguments: vec!["--tls-cert".into(), path(&certificate), "--tls-key".into(), path(&key)],
        ..Setup::default()
    };
    let server = Server::start(&setup);
    assert!(server.url.starts_with("https://127.0.0.1:"), "{}", server.url);
    let root = Certificate::from_pem(&fs::read(certificate).unwrap()).unwrap();
    let tls = TlsConfig::builder().root_certs(RootCerts::new_with_certs(&[root])).build();
    let agent: ureq::Agent = ureq::Agent::config_builder().tls_config(tls).build().into();
    let url = server.url.replace("127.0.0.1", "localhost");
    let health = agent.get(format!("{url}/v1/health")).call().unwrap();
    assert_eq!(health.status(), 200);
    let body =
        json!({"model": MODEL, "prompt": "Once", "max_tokens": 2, "stream": true}).to_string();
    let mut answer = agent
        .post(format!("{url}/v1/completions"))
        .header("content-type", "application/json")
        .send(body.as_bytes())
        .unwrap();
    assert!(answer.body_mut().read_to_string().unwrap().ends_with("data: [DONE]\n\n"));
    // Whoever trusts somebody else, or speaks without encryption, gets nothing; the server goes on.
    assert!(ureq::get(format!("{url}/v1/health")).call().is_err());
    assert!(ureq::get(format!("{url}/v1/health").replace("https", "http")).call().is_err());
    assert_eq!(agent.get(format!("{url}/v1/health")).call().unwrap().status(), 200);
    // Nor does whoever connects and says nothing hold up the end.
    let _silent = TcpStream::connect(&server.address).unwrap();
    let (status, output) = server.stop();
    assert_eq!(status.code(), Some(0), "{output}");
    assert!(!output.contains("did not end within"), "{output}");
}

/// The program ends with exit code 1, and its error is one line that holds all of `words`.
fn assert_refused(what: &str, setup: &Setup, words: &[&str]) {
    let (status, output) = Server::refuse(setup);
    assert_eq!(status.code(), Some(1), "{what}: {output}");
    let errors: Vec<_> = output.lines().skip_while(|line| !line.starts_with("Error: ")).collect();
    assert_eq!(errors.len(), 1, "{what}: {output}");
    for word in words {
        assert!(errors[0].contains(word), "{what}: {word:?} is not in {:?}", errors[0]);
    }
}

#[test]
fn what_is_wrong_at_the_start_is_one_sentence() {
    let app = App::new();
    let Application::Manifest(path) = app.manifest() else { panic!("a manifest") };
    let text = fs::read_to_string(&path).unwrap();
    let in_manifest = path.display().to_string();
    for (what, from, to, words) in [
        (
            "a key",
            "exclude_files",
            "exclude_file",
            &["line 32", "did you mean `exclude_files`?"] as &[_],
        ),
        ("syntax", "[component.two]", "[component.two", &["line "]),
        ("a template", "{{ greeting }} from", "{{ greting }} from", &["\"two\"", "\"greting\""]),
        (
            "a file",
            "\"static/**/*\"",
            "\"statics/*\"",
            &["\"three\"", "statics/*", "matches nothing"],
        ),
        ("a folder", "source = \"assets\"", "source = \"asset\"", &["\"three\"", "asset"]),
        (
            "a host",
            "allowed_outbound_hosts = []",
            "allowed_outbound_hosts = [\"x\"]",
            &["SCHEME://"],
        ),
        ("a model", &format!("[\"{MODEL}\"]"), "[\"missing\"]", &["\"missing\"", "model.gguf"]),
        (
            "a store",
            "[component.two.variables]",
            "key_value_stores = [\"default\"]\n[component.two.variables]",
            &["\"two\"", "key_value_stores"],
        ),
        (
            "a component",
            &format!("{:?}", probe()),
            "\"missing.wasm\"",
            &["\"three\"", "missing.wasm"],
        ),
        (
            "a digest",
            &format!("source = {:?}", probe()),
            &format!("source = {{ path = {:?}, digest = \"sha256:{}\" }}", probe(), "0".repeat(64)),
            &["\"three\"", "SHA-256"],
        ),
    ] {
        assert!(text.contains(from), "{what}: {from}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
        let setup = app.setup(Application::Manifest(path.clone()));
        assert_refused(what, &setup, &[words, &[in_manifest.as_str()]].concat());
    }
    fs::write(&path, &text).unwrap();
    let with = |arguments: &[&str]| {
        let mut setup = app.setup(Application::Manifest(path.clone()));
        setup.arguments.extend(arguments.iter().map(|text| (*text).to_owned()));
        setup
    };
    assert_refused("a variable", &with(&["--variable", "nobody=x"]), &["\"nobody\"", &in_manifest]);
    let mut none = with(&[]);
    none.arguments.clear();
    assert_refused("no variable", &none, &["\"name\" is required", "SPIN_VARIABLE_NAME"]);
    let keys = Setup {
        arguments: vec!["--variable".into(), "api_keys=two words".into()],
        ..Setup::default()
    };
    assert_refused("a key of callers", &keys, &["api_keys", "key 1", "spin.toml"]);
    let missing = Setup {
        application: Some(Application::Manifest("/nowhere/spin.toml".into())),
        ..Setup::default()
    };
    assert_refused("no application", &missing, &["/nowhere/spin.toml"]);

    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = certificate(folder.path());
    let garbage = folder.path().join("garbage.pem");
    fs::write(&garbage, "no certificate").unwrap();
    let show = |path: &Path| path.display().to_string();
    let tls = |certificate: &Path, key: &Path| {
        with(&["--tls-cert", &show(certificate), "--tls-key", &show(key)])
    };
    assert_refused("garbage", &tls(&garbage, &key), &["TLS certificate", "garbage.pem"]);
    assert_refused("a garbage key", &tls(&certificate, &garbage), &["TLS key", "garbage.pem"]);
    let missing = folder.path().join("missing.pem");
    assert_refused("nothing", &tls(&missing, &key), &["TLS certificate", "missing.pem"]);
    let other = tempfile::tempdir().unwrap();
    let (_, other) = self::certificate(other.path());
    assert_refused("another's key", &tls(&certificate, &other), &["cert.pem", "key.pem"]);
}

#[test]
fn another_port_is_taken_where_that_is_asked_for() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let setup = Setup {
        arguments: vec!["--listen".into(), address.to_string(), "--find-free-port".into()],
        ..Setup::default()
    };
    let server = Server::start(&setup);
    assert_ne!(server.address, address.to_string());
    assert_eq!(server.get("/v1/health").status, 200);
}

/// Runs `spin` with a data folder in which the plugin is installed.
#[test]
fn real_spin_runs_the_application() {
    let data = tempfile::tempdir().unwrap();
    let plugins = data.path().join("plugins");
    let installed = plugins.join("trigger-http-nn");
    fs::create_dir_all(&installed).unwrap();
    fs::create_dir_all(plugins.join("manifests")).unwrap();
    plugin(&installed);
    let manifest = json!({
        "name": "trigger-http-nn",
        "version": env!("CARGO_PKG_VERSION"),
        "spinCompatibility": ">=4.0",
        "license": "Apache-2.0",
        "packages": []
    });
    fs::write(plugins.join("manifests/trigger-http-nn.json"), manifest.to_string()).unwrap();
    let app = App::new();
    let Application::Manifest(path) = app.manifest() else { panic!("a manifest") };
    let by_spin = Application::BySpin { manifest: path, data: data.path().to_owned() };
    let server = Server::start(&app.setup(by_spin));
    let body = json!({"model": MODEL, "prompt": "The capital of France is", "max_tokens": 3, "temperature": 0});
    assert!(server.complete(&body).completion().contains("Paris"));
    assert_eq!(server.get("/three/look").json()["environment"], json!({"WHO": "three"}));
    let (status, output) = server.stop();
    assert_eq!(status.code(), Some(0), "{output}");
}
