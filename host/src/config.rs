//! The runtime configuration: a TOML file whose table `[nn]` says how models are run, and which may have
//! values of variables. Every value has a default.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Deserializer};
use spinfer_protocol::Backend;

use crate::app::Provider;
use crate::component::engine::{Cpu, TICK};
use crate::component::state::Limits;
use crate::nn::openvino::KvPrecision;
use crate::toml_file;

/// The longest sequence that can be asked for, in tokens.
pub const LONGEST_CONTEXT: u32 = 1 << 20;

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RuntimeConfig {
    /// How models are run.
    #[serde(default)]
    pub nn: NnConfig,
    /// Where values of variables come from, too.
    #[serde(default, alias = "variable_provider", alias = "config_provider")]
    pub variables_provider: Vec<Provider>,
    /// The folder of the file, which paths in it are relative to.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// The table `[nn]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NnConfig {
    /// The folder with the models, or several; relative to this file, and by default `models` beside
    /// `spin.toml`.
    #[serde(deserialize_with = "one_or_more")]
    pub models: Vec<PathBuf>,
    /// What computes models that have weights for several. Default: llama.cpp.
    pub backend: Option<Backend>,
    /// How OpenVINO is used.
    pub openvino: OpenvinoConfig,
    /// Where models compute. Default: on a GPU, if there is one that this program can use.
    pub execution_target: Option<ExecutionTarget>,
    /// How many layers of a model are kept on GPUs. Default: all.
    pub gpu_layers: Option<u32>,
    /// Threads that compute. Default: one for each core.
    pub threads: u32,
    /// The longest sequence in tokens. Default: as the model was trained, or less where the sequences
    /// together would take more memory than a quarter of the machine's or 1 GiB.
    pub context: Option<u32>,
    /// Sequences at a time, over all requests.
    pub sequences: u32,
    /// The most rows of one request that are computed together; more run in waves.
    pub max_rows: u32,
    /// The most tokens of one step.
    pub batch: u32,
    /// The most tokens of long prompts in a step while others are given their next tokens, which wait for
    /// it.
    pub chunk: u32,
    /// Whether prompts may begin with what earlier requests of the same caller have computed.
    pub prefix_cache: bool,
    /// Requests at a time; one more is answered with 429.
    pub requests_in_flight: u32,
    /// How many seconds a step waits at most for rows of the last one, whose guests choose tokens
    /// meanwhile, and for requests that have just come.
    pub gather: f64,
    /// How many seconds a request waits for room before it is answered with 429.
    pub longest_wait: f64,
    /// How many seconds a client may take to send a body, and may leave a part of an answer unread,
    /// before it is let go.
    pub client_timeout: f64,
    /// For which CPU components are compiled: by default for the machine's own.
    pub cpu: Cpu,
    /// The most MiB of memory of one instance; an instance that needs more ends, with a 500.
    pub guest_memory: u32,
    /// How many seconds an instance may run by itself, between two computations, before it ends likewise.
    pub guest_time: f64,
}

/// The table `[nn.openvino]`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OpenvinoConfig {
    /// The library, or a folder that has it; relative to the file. Default: where it usually is.
    pub library: Option<PathBuf>,
    /// In what the KV cache is kept.
    pub kv_precision: KvPrecision,
    /// How many requests are computed at a time.
    pub streams: u32,
}

impl Default for OpenvinoConfig {
    fn default() -> Self {
        Self { library: None, kv_precision: KvPrecision::default(), streams: 1 }
    }
}

/// Where a model computes, by the names of wasi-nn's `execution-target`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionTarget {
    /// On the CPU.
    Cpu,
    /// On a GPU.
    Gpu,
}

/// A path, or a list of them.
fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<PathBuf>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "models must be the path of a folder, or a list of such paths")]
    enum Paths {
        One(PathBuf),
        More(Vec<PathBuf>),
    }
    Ok(match Paths::deserialize(deserializer)? {
        Paths::One(path) => vec![path],
        Paths::More(paths) => paths,
    })
}

impl Default for NnConfig {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Self {
            models: Vec::new(),
            backend: None,
            openvino: OpenvinoConfig::default(),
            execution_target: None,
            gpu_layers: None,
            threads,
            context: None,
            sequences: 16,
            max_rows: 16,
            batch: 512,
            chunk: 128,
            prefix_cache: true,
            requests_in_flight: 256,
            gather: 0.015,
            longest_wait: 10.0,
            client_timeout: 60.0,
            cpu: Cpu::Native,
            guest_memory: 2048,
            guest_time: 30.0,
        }
    }
}

impl NnConfig {
    /// [`Self::gather`] as a duration.
    pub fn gather(&self) -> Duration {
        Duration::from_secs_f64(self.gather)
    }

    /// [`Self::longest_wait`] as a duration.
    pub fn longest_wait(&self) -> Duration {
        Duration::from_secs_f64(self.longest_wait)
    }

    /// [`Self::client_timeout`] as a duration.
    pub fn client_timeout(&self) -> Duration {
        Duration::from_secs_f64(self.client_timeout)
    }

    /// What an instance may use.
    pub fn guest_limits(&self) -> Limits {
        Limits {
            memory: (self.guest_memory as usize) << 20,
            ticks: (self.guest_time / TICK.as_secs_f64()).ceil() as u32,
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        let within = |name: &str, value: u32, least: u32, most: u32| {
            anyhow::ensure!(
                (least..=most).contains(&value),
                "nn.{name} is {value}, but must be {least} to {most}"
            );
            Ok(())
        };
        within("threads", self.threads, 1, 512)?;
        within("context", self.context.unwrap_or(1), 1, LONGEST_CONTEXT)?;
        within("sequences", self.sequences, 1, 256)?;
        within("openvino.streams", self.openvino.streams, 1, 64)?;
        within("max_rows", self.max_rows, 1, 256)?;
        within("batch", self.batch, self.sequences.max(32), 1 << 16)?;
        within("chunk", self.chunk, 16, 1 << 16)?;
        within("requests_in_flight", self.requests_in_flight, 1, 4096)?;
        within("guest_memory", self.guest_memory, 64, 4096)?;
        anyhow::ensure!(
            (0.0..=1.0).contains(&self.gather),
            "nn.gather is {}, but must be 0 to 1 second",
            self.gather
        );
        anyhow::ensure!(
            (0.0..=86_400.0).contains(&self.longest_wait),
            "nn.longest_wait is {}, but must be 0 to 86400 seconds",
            self.longest_wait
        );
        anyhow::ensure!(
            (0.1..=86_400.0).contains(&self.guest_time),
            "nn.guest_time is {}, but must be 0.1 to 86400 seconds",
            self.guest_time
        );
        anyhow::ensure!(
            (0.1..=86_400.0).contains(&self.client_timeout),
            "nn.client_timeout is {}, but must be 0.1 to 86400 seconds",
            self.client_timeout
        );
        Ok(())
    }
}

impl RuntimeConfig {
    /// Reads the file, or gives the defaults when there is none.
    pub fn load(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let mut config: Self = toml_file::read(path, "the runtime configuration")?;
        config
            .nn
            .check()
            .with_context(|| format!("in the runtime configuration {}", path.display()))?;
        config.folder = path.parent().unwrap_or(Path::new("")).to_owned();
        let library = config.nn.openvino.library.take();
        config.nn.openvino.library = library.map(|library| config.folder.join(library));
        config.nn.models.iter_mut().for_each(|models| *models = config.folder.join(&models));
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> anyhow::Result<RuntimeConfig> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runtime.toml");
        std::fs::write(&path, text).unwrap();
        RuntimeConfig::load(Some(&path))
    }

    #[test]
    fn everything_has_a_default() {
        assert_eq!(load("").unwrap().nn, NnConfig::default());
        assert_eq!(RuntimeConfig::load(None).unwrap(), RuntimeConfig::default());
        let config = load("[nn]\nsequences = 4\n").unwrap();
        assert_eq!(config.nn, NnConfig { sequences: 4, ..NnConfig::default() });
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let config = load("[nn]\nmodels = \"m\"").unwrap();
        assert_eq!(config.nn.models, [config.folder.join("m")]);
        assert!(config.folder.is_absolute());
        let config = load("[nn]\nmodels = [\"m\", \"/n\"]").unwrap();
        assert_eq!(config.nn.models, [config.folder.join("m"), "/n".into()]);
    }

    #[test]
    fn providers_of_variables_are_read_under_all_of_their_names() {
        for name in ["variables_provider", "variable_provider", "config_provider"] {
            let text = format!(
                "[[{name}]]\ntype = \"static\"\nvalues = {{ a = \"1\" }}\n[[{name}]]\ntype = \"env\"\nprefix = \"P\""
            );
            let expected = [
                Provider::Static { values: [("a".to_owned(), "1".to_owned())].into() },
                Provider::Env { prefix: Some("P".into()), dotenv_path: None },
            ];
            assert_eq!(load(&text).unwrap().variables_provider, expected);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("[nn]\nsequence = 4", &["line 2", "`sequence`", "did you mean `sequences`?"] as &[_]),
            ("[nm]\n", &["line 1", "`nm`", "nn"]),
            ("[nn]\nsequences = 0", &["nn.sequences is 0, but must be 1 to 256"]),
            ("[nn]\nsequences = 64\nbatch = 32", &["must be 64 to"]),
            (
                "[nn]\n\nthreads = \"two\"",
                &["line 3", "invalid type: string \"two\", expected u32"],
            ),
            ("[nn]\nlongest_wait = nan", &["longest_wait"]),
            ("[nn]\nmodels = 3", &["models must be the path of a folder"]),
            ("[nn]\nexecution_target = \"tpu\"", &["line 2", "no value `tpu`", "cpu, gpu"]),
            ("[nn]\ngather = 5", &["nn.gather is 5, but must be 0 to 1 second"]),
            (
                "[[variables_provider]]\ntype = \"stattic\"",
                &["`stattic`", "did you mean `static`?"],
            ),
            ("[nn]\ncpu = \"x86-64-v9\"", &["line 2", "x86-64-v9"]),
            ("[nn", &["line 1"]),
        ] {
            let error = format!("{:#}", load(text).unwrap_err());
            for word in words.iter().chain(&["runtime.toml"]) {
                assert!(error.contains(word), "{word:?} is not in {error:?}");
            }
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
