//! The running server: `spinfer up` on a free port, with the real component and real models.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::models;
use crate::process::{Leashed, Memory};

/// How long a server may take to be ready. The first start compiles.
const READY: Duration = Duration::from_secs(300);

/// How a server is to be started.
#[derive(Clone)]
pub struct Setup {
    /// The models that the component may use.
    pub ai_models: Vec<String>,
    /// The models' folder; by default that of the tests' models.
    pub models: PathBuf,
    /// Lines of `[nn]` in the runtime configuration, beside `models`.
    pub nn: String,
    /// What the program is to do with the application: `up`, mostly.
    pub command: &'static str,
    /// `--variable` and other arguments.
    pub arguments: Vec<String>,
    /// The environment of the server.
    pub environment: Vec<(String, String)>,
    /// The cache; by default one that all servers of the tests share.
    pub cache: PathBuf,
    /// The component; by default the one that was built.
    pub component: PathBuf,
    /// The application, instead of one with that component alone.
    pub application: Option<Application>,
}

/// An application that a test has made.
#[derive(Clone)]
pub enum Application {
    /// Its `spin.toml`, for `spinfer up`.
    Manifest(PathBuf),
    /// What `spin up` has made of one, in a file, for the plugin.
    Locked(PathBuf),
    /// Its `spin.toml`, for a real `spin` with this data folder.
    BySpin {
        /// `spin.toml`.
        manifest: PathBuf,
        /// Where the plugin is installed.
        data: PathBuf,
    },
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            ai_models: vec!["smollm2-135m-instruct".into()],
            models: models::folder(),
            nn: String::new(),
            command: "up",
            arguments: Vec::new(),
            environment: Vec::new(),
            cache: target().join("test-cache"),
            component: component(),
            application: None,
        }
    }
}

/// Where builds and what tests keep are.
pub(crate) fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(target) => target.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"),
    }
}

fn from_env(name: &str, below_target: &str) -> PathBuf {
    let path = std::env::var_os(name).map_or_else(|| target().join(below_target), PathBuf::from);
    let path = std::path::absolute(path).expect("the working directory is there");
    assert!(path.is_file(), "{} isn't there: `cargo xtask test` builds it", path.display());
    path
}

/// The program `spinfer`.
pub fn binary() -> PathBuf {
    from_env("SPINFER_BIN", "release/spinfer")
}

/// The component of this project.
pub fn component() -> PathBuf {
    from_env("SPINFER_COMPONENT", "wasm32-wasip2/release/spinfer.wasm")
}

/// The component that tells what an instance can do.
pub fn probe() -> PathBuf {
    from_env("SPINFER_PROBE", "wasm32-wasip2/release/spinfer_probe.wasm")
}

/// The same of WASI 0.2.
pub fn probe_p2() -> PathBuf {
    from_env("SPINFER_PROBE_P2", "wasm32-wasip2/release/spinfer_probe_p2.wasm")
}

/// What the one of WASI 0.2 can depend on.
pub fn probe_dependency() -> PathBuf {
    from_env("SPINFER_PROBE_DEPENDENCY", "wasm32-wasip2/release/spinfer_probe_dependency.wasm")
}

/// What computes the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// llama.cpp.
    Ggml,
    /// OpenVINO.
    Openvino,
}

/// Which backend is tested where a model has weights for both: that of `SPINFER_TEST_BACKEND`.
///
/// # Panics
/// When that is none of them.
pub fn backend() -> Backend {
    match std::env::var("SPINFER_TEST_BACKEND").as_deref() {
        Ok("openvino") => Backend::Openvino,
        Ok("ggml") | Err(_) => Backend::Ggml,
        Ok(other) => panic!("SPINFER_TEST_BACKEND is {other:?}, but must be ggml or openvino"),
    }
}

impl Setup {
    /// The line of `[nn]` that chooses the backend that is tested, where the models have weights for it.
    fn choice_of_backend(&self) -> &'static str {
        let has = |id: &String| self.models.join(id).join("openvino_model.xml").is_file();
        match backend() {
            Backend::Openvino if self.ai_models.iter().all(has) => "backend = \"openvino\"\n",
            _ => "",
        }
    }
}

/// A server that runs until it is dropped, or until the tests' process ends however it ends.
pub struct Server {
    process: Leashed,
    /// `http://127.0.0.1:PORT`.
    pub url: String,
    /// `127.0.0.1:PORT`.
    pub address: String,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server and waits until it is ready.
    ///
    /// # Panics
    /// When it ends instead; the message has its output.
    pub fn start(setup: &Setup) -> Self {
        let mut server = Self::spawn(setup);
        let ready = server.process.wait(READY, |text| {
            let line = text.lines().find(|line| line.starts_with("Serving http"))?;
            Some(line["Serving ".len()..].to_owned())
        });
        server.url = ready.unwrap_or_else(|output| panic!("the server did not start:\n{output}"));
        server.address = server.url.rsplit('/').next().unwrap_or_default().to_owned();
        server
    }

    /// Starts a server at that address, and does not wait until it is ready.
    pub fn start_without_waiting(setup: &Setup, address: String) -> Self {
        let mut setup = setup.clone();
        setup.environment.push(("SPIN_HTTP_LISTEN_ADDR".into(), address.clone()));
        let mut server = Self::spawn(&setup);
        server.url = format!("http://{address}");
        server.address = address;
        server
    }

    /// Starts a server that is to end by itself; its exit status and output.
    pub fn refuse(setup: &Setup) -> (ExitStatus, String) {
        let mut server = Self::spawn(setup);
        let status = server.process.wait_for_end();
        let output = server.process.wait(READY, |_| None::<()>).unwrap_err();
        (status, output)
    }

    fn spawn(setup: &Setup) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let runtime = folder.path().join("runtime.toml");
        let models = std::path::absolute(&setup.models).expect("the working directory is there");
        let backend = setup.choice_of_backend();
        std::fs::write(&runtime, format!("[nn]\nmodels = {models:?}\n{backend}{}\n", setup.nn))
            .expect("the runtime configuration");
        let application = setup.application.clone().unwrap_or_else(|| {
            let path = folder.path().join("spin.toml");
            std::fs::write(&path, manifest(setup)).expect("spin.toml");
            Application::Manifest(path)
        });
        let mut program = start(setup.command, &application, folder.path());
        program
            .arg("--runtime-config-file")
            .arg(&runtime)
            .args(&setup.arguments)
            .env("SPIN_HTTP_LISTEN_ADDR", "127.0.0.1:0")
            .env("SPINFER_CACHE_DIR", &setup.cache)
            .env("RUST_LOG", "info,spinfer=debug,spinfer_host=debug,llama=warn")
            .envs(setup.environment.iter().cloned());
        let process = Leashed::start(&program);
        let (url, address) = (String::new(), String::new());
        Self { process, url, address, _folder: folder }
    }

    /// A program that serves at that URL, with the folder that it uses.
    pub fn of_process(process: Leashed, url: String, folder: tempfile::TempDir) -> Self {
        let address = url.rsplit('/').next().unwrap_or_default().to_owned();
        Self { process, url, address, _folder: folder }
    }

    /// Everything that the server has written so far.
    pub fn output(&self) -> String {
        self.process.output()
    }

    /// Waits for a line of the server's output that `find` accepts.
    ///
    /// # Panics
    /// When none comes within a minute.
    pub fn wait_for_line(&self, find: impl Fn(&str) -> bool) -> String {
        self.process
            .wait(Duration::from_secs(60), |text| {
                text.lines().find(|line| find(line)).map(str::to_owned)
            })
            .unwrap_or_else(|output| panic!("the line did not come:\n{output}"))
    }

    /// Waits until the server's output is accepted.
    ///
    /// # Panics
    /// When it is not within a minute.
    pub fn wait_for(&self, accept: impl Fn(&str) -> bool) {
        let waited = self.process.wait(Duration::from_secs(60), |text| accept(text).then_some(()));
        waited.unwrap_or_else(|output| panic!("it did not come:\n{output}"));
    }

    /// The value of a metric without regard to its labels; 0 when it isn't there yet.
    pub fn metric(&self, name: &str) -> u64 {
        let text = ureq::get(format!("{}/metrics", self.url))
            .call()
            .expect("the metrics")
            .body_mut()
            .read_to_string()
            .expect("text");
        text.lines()
            .filter(|line| line.starts_with(name) && !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
            .sum::<f64>() as u64
    }

    /// Waits until a metric has a value.
    ///
    /// # Panics
    /// When it does not within a minute.
    pub fn wait_for_metric(&self, name: &str, accept: impl Fn(u64) -> bool) -> u64 {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let value = self.metric(name);
            if accept(value) {
                return value;
            }
            assert!(Instant::now() < until, "{name} stays {value}");
            std::thread::yield_now();
        }
    }

    /// The server's process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The server's memory.
    pub fn memory(&self) -> Memory {
        self.process.memory()
    }

    /// Tells the server to stop as Ctrl-C does, and waits for its end.
    pub fn stop(self) -> (ExitStatus, String) {
        self.process.stop()
    }
}

/// How the program is started: by a person, or by `spin up`, which knows it under another name.
fn start(command: &str, application: &Application, folder: &Path) -> Command {
    match application {
        Application::Manifest(path) => {
            let mut program = Command::new(binary());
            program.args([command, "--from"]).arg(path);
            program
        }
        Application::BySpin { manifest, data } => {
            let mut program = Command::new("spin");
            program.args(["up", "--from"]).arg(manifest).env("SPIN_DATA_DIR", data);
            program
        }
        Application::Locked(path) => {
            let mut program = Command::new(plugin(folder));
            program
                .env("SPIN_LOCKED_URL", format!("file://{}", path.display()))
                .env("SPIN_WORKING_DIR", path.parent().expect("a file has a folder"))
                .env("SPIN_LOCAL_APP_DIR", "")
                .env("SPIN_VERSION", "4.1.0");
            program
        }
    }
}

/// The program as it is installed for Spin: by its plugin's name, in that folder.
///
/// # Panics
/// When the folder can't be written.
pub fn plugin(folder: &Path) -> PathBuf {
    let plugin = folder.join("trigger-http-nn");
    if !plugin.exists() {
        std::fs::copy(binary(), &plugin).expect("a copy");
    }
    plugin
}

fn manifest(setup: &Setup) -> String {
    format!(
        r#"
spin_manifest_version = 2
[application]
name = "spinfer"
[variables]
max_body_bytes = {{ default = "1048576" }}
api_keys = {{ default = "", secret = true }}
canary = {{ default = "", secret = true }}
[[trigger.http-nn]]
route = "/..."
component = "completions"
[component.completions]
source = {:?}
ai_models = {:?}
[component.completions.variables]
max_body_bytes = "{{{{ max_body_bytes }}}}"
api_keys = "{{{{ api_keys }}}}"
canary = "{{{{ canary }}}}"
"#,
        setup.component, setup.ai_models
    )
}
