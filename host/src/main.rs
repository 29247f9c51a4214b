//! The command line of `spinfer`, and of `trigger-http-nn`: the same program, as `spin up` starts it.

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Command as ClapCommand, CommandFactory, Parser, Subcommand};
use spinfer_host::app::TRIGGER;
use spinfer_host::cache::is_digest;
use spinfer_host::doctor::Report;
use spinfer_host::http::tls::TlsFiles;
use spinfer_host::load::Preparations;
use spinfer_host::models::pull::{self, Wanted};
use spinfer_host::models::{listing, trial};
use spinfer_host::stock;
use spinfer_host::up::{self, Options, Origin};
use tracing_subscriber::EnvFilter;

/// Serves OpenAI-compatible text completions from a Spin component over wasi-nn.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the application in spin.toml
    Up(UpArgs),
    /// Prepares components and models as `up` would, and keeps the result in the cache, for a server that can only
    /// read it; takes the same options
    Prewarm(UpArgs),
    /// Says what is missing on this machine to run the application; takes the same options as `up`
    Doctor(UpArgs),
    /// Brings a model to models/<id>/
    ///
    /// What has come is kept when it is interrupted, and the same command goes on from there. A token for the hub
    /// is read from HF_TOKEN, another hub's address from HF_ENDPOINT.
    Pull {
        /// ORGANISATION/NAME on the hub, a URL, a file, a folder with a model for OpenVINO, or smollm2-135m-instruct
        from: String,
        /// Its id here; by default from its name
        #[arg(long)]
        id: Option<String>,
        /// Which file of the hub's repository, where it has several
        #[arg(long)]
        file: Option<String>,
        /// Which branch, tag or commit of it; main by default
        #[arg(long)]
        revision: Option<String>,
        /// What the SHA-256 of the weights must be, in hex
        #[arg(long, value_name = "HEX", value_parser = digest)]
        sha256: Option<String>,
        /// Convert the weights for OpenVINO, exactly (only some kinds can be)
        #[arg(long)]
        openvino: bool,
        /// The Python that converts them, with the packages openvino-genai and gguf
        #[arg(long, default_value = "python3", value_name = "PROGRAM")]
        python: PathBuf,
        /// The folder of models
        #[arg(long, default_value = "models", value_name = "FOLDER")]
        models: PathBuf,
    },
    /// Lists the models in a folder, and what each can do
    Models {
        /// The folder
        #[arg(default_value = "models", value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Lays out the component and a model for OpenVINO for another host, and prints the `wasmtime serve` for it
    Export {
        /// Its id
        id: String,
        /// The folder in which it is laid out
        #[arg(long, value_name = "FOLDER")]
        to: PathBuf,
        /// The component
        #[arg(
            long,
            default_value = "target/wasm32-wasip2/release/spinfer.wasm",
            value_name = "FILE"
        )]
        component: PathBuf,
        /// The folder of models
        #[arg(long, default_value = "models", value_name = "FOLDER")]
        models: PathBuf,
    },
    /// Loads weights and decodes one token, to see whether they can be used
    #[command(name = trial::SUBCOMMAND, hide = true)]
    TryWeights {
        weights: PathBuf,
        #[arg(long)]
        ignore_pre_tokenizer: bool,
    },
}

/// What `spin up` keeps for itself where it starts this program.
#[derive(Args)]
struct UpArgs {
    /// The application: a spin.toml, or the folder it is in
    #[arg(
        short = 'f',
        long = "from",
        alias = "from-file",
        default_value = "spin.toml",
        value_name = "FILE"
    )]
    from: PathBuf,
    /// A variable for the environment of all components; may be repeated
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    environment: Vec<(String, String)>,
    /// Give components the folders of `files` as they are, instead of copies
    #[arg(long)]
    direct_mounts: bool,
    /// Where compiled components and derived tokenizers are kept
    #[arg(long, env = "SPINFER_CACHE_DIR", value_name = "FOLDER")]
    cache_dir: Option<PathBuf>,
    #[command(flatten)]
    serve: ServeArgs,
}

/// Runs the http-nn triggers of an application that `spin up` has prepared.
#[derive(Parser)]
#[command(name = "trigger-http-nn", version)]
struct TriggerCli {
    /// What Spin has made of the application
    #[arg(long, env = "SPIN_LOCKED_URL", value_name = "URL", hide = true)]
    locked_url: String,
    #[arg(long, env = "SPINFER_CACHE_DIR", value_name = "FOLDER", hide = true)]
    cache_dir: Option<PathBuf>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Args)]
struct ServeArgs {
    /// The address to serve on
    #[arg(
        long,
        env = "SPIN_HTTP_LISTEN_ADDR",
        default_value = "127.0.0.1:3000",
        value_name = "ADDRESS"
    )]
    listen: SocketAddr,
    /// Serve on the next free port where that of the address is in use
    #[arg(long)]
    find_free_port: bool,
    /// Serve by TLS, with the certificates in this PEM file
    #[arg(long, env = "SPIN_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The key of the first certificate, in a PEM file
    #[arg(long, env = "SPIN_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// How models are run: a TOML file with a table [nn]
    #[arg(long, env = "RUNTIME_CONFIG_FILE", value_name = "FILE")]
    runtime_config_file: Option<PathBuf>,
    /// A value for one of the application's variables; may be repeated
    #[arg(long = "variable", value_name = "NAME=VALUE", value_parser = pair)]
    variables: Vec<(String, String)>,
    /// Let components write into the copies of their files, which are gone at the end
    #[arg(long)]
    allow_transient_write: bool,
    /// Load tokenizers in every instance instead of a snapshot, to measure what the snapshot saves
    #[arg(long, hide = true)]
    no_snapshot: bool,
    /// Log errors only (RUST_LOG has the details)
    #[arg(short, long)]
    quiet: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("must be NAME=VALUE".to_owned()),
    }
}

fn digest(text: &str) -> Result<String, String> {
    match is_digest(text) {
        true => Ok(text.to_owned()),
        false => Err("must be 64 hex digits".to_owned()),
    }
}

impl UpArgs {
    fn options(self) -> Options {
        let mut options = self.serve.options(Origin::Manifest(self.from), self.cache_dir);
        options.environment = self.environment;
        options.preparations.direct_mounts = self.direct_mounts;
        options
    }
}

impl ServeArgs {
    fn options(self, origin: Origin, cache: Option<PathBuf>) -> Options {
        Options {
            origin,
            listen: self.listen,
            find_free_port: self.find_free_port,
            tls: self
                .tls_cert
                .zip(self.tls_key)
                .map(|(certificate, key)| TlsFiles { certificate, key }),
            runtime_config_file: self.runtime_config_file,
            variables: self.variables,
            environment: Vec::new(),
            cache: cache.filter(|path| path != Path::new("")),
            preparations: Preparations {
                snapshot: !self.no_snapshot,
                direct_mounts: false,
                writes: self.allow_transient_write,
            },
        }
    }
}

fn main() -> ExitCode {
    if is_trigger() {
        return trigger();
    }
    match parse::<Cli>().command {
        Command::TryWeights { weights, ignore_pre_tokenizer } => {
            trial::child(&weights, ignore_pre_tokenizer)
        }
        Command::Pull { from, id, file, revision, sha256, openvino, python, models } => {
            log(false);
            let convert = openvino.then_some(python);
            let wanted = Wanted { from, id, file, revision, sha256, convert };
            ended(pull::pull(&wanted, &models).map(|id| {
                say(&format!(
                    "{id} is in {}; list it in spin.toml: ai_models = [\"{id}\"]\n",
                    models.display()
                ));
            }))
        }
        Command::Models { folder } => ended(listing::list(&folder).map(|text| say(&text))),
        Command::Export { id, to, component, models } => {
            let exported = stock::export(&component, &models, &id, &to);
            ended(exported.map(|command| say(&format!("{command}\n"))))
        }
        Command::Doctor(args) => match up::examine(&args.options()) {
            Ok(Report { text, can_serve }) => {
                say(&text);
                ExitCode::from(u8::from(!can_serve))
            }
            Err(error) => ended(Err(error)),
        },
        Command::Prewarm(args) => {
            log(args.serve.quiet);
            let options = args.options();
            ended(with_runtime(|| up::prewarm(options)).map(|text| say(&text)))
        }
        Command::Up(args) => {
            let quiet = args.serve.quiet;
            run(args.options(), quiet)
        }
    }
}

/// Reads the command line. One that can't be understood ends the program with exit code 1, as every
/// error at the start does.
fn parse<C: Parser>() -> C {
    C::try_parse().unwrap_or_else(|error| {
        // Whoever closed the stream does not want to know.
        let _ = error.print();
        std::process::exit(error.use_stderr().into())
    })
}

/// Whether Spin has started this program, by the name that it knows.
fn is_trigger() -> bool {
    let name = std::env::args_os().next().map(PathBuf::from);
    name.as_deref()
        .and_then(Path::file_stem)
        .is_some_and(|name| name == &*format!("trigger-{TRIGGER}"))
}

fn trigger() -> ExitCode {
    // Two questions that Spin asks before it starts a trigger.
    for argument in std::env::args_os().skip(1) {
        match argument.to_str() {
            Some("--help-args-only") => {
                say(&help(TriggerCli::command()));
                return ExitCode::SUCCESS;
            }
            Some("--launch-metadata-only") => {
                eprintln!("{}", launch_metadata(&TriggerCli::command()));
                return ExitCode::SUCCESS;
            }
            _ => {}
        }
    }
    let TriggerCli { locked_url, cache_dir, serve } = parse();
    let quiet = serve.quiet;
    run(serve.options(Origin::Locked(locked_url), cache_dir), quiet)
}

/// The options alone, which Spin shows below its own.
fn help(command: ClapCommand) -> String {
    command.help_template("{options}\n").render_help().to_string()
}

/// The flags that Spin may pass on where an application has triggers of several types.
fn launch_metadata(command: &ClapCommand) -> serde_json::Value {
    let flags = command.get_arguments().filter(|argument| !argument.is_hide_set());
    let flags = flags.map(|argument| {
        serde_json::json!({
            "long": argument.get_long().map(|long| format!("--{long}")),
            "short": argument.get_short().map(|short| format!("-{short}")),
        })
    });
    serde_json::json!({ "all_flags": flags.collect::<Vec<_>>() })
}

fn run(options: Options, quiet: bool) -> ExitCode {
    log(quiet);
    ended(with_runtime(|| up::run(options)))
}

/// Libraries that would log requests with all their headers, and with those the keys in them.
const SHOWS_HEADERS: [&str; 2] = ["ureq", "ureq_proto"];

/// From now on, what happens is written to stderr.
fn log(quiet: bool) {
    let default = if quiet { "error" } else { "info,llama=warn" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let filter = SHOWS_HEADERS.iter().fold(filter, |filter, library| {
        filter.add_directive(format!("{library}=info").parse().expect("a directive"))
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}

/// Writes to stdout. Whoever closed it does not want to know.
fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn ended(done: anyhow::Result<()>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Parsers of other libraries show the place in lines of its own.
            let sentence = format!("{error:#}");
            let words: Vec<_> = sentence.split_whitespace().collect();
            eprintln!("Error: {}", words.join(" "));
            ExitCode::FAILURE
        }
    }
}

fn with_runtime<T, F: Future<Output = anyhow::Result<T>>>(
    work: impl FnOnce() -> F,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(work());
    // A model that is still being loaded must not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_well_formed() {
        Cli::command().debug_assert();
        TriggerCli::command().debug_assert();
    }

    #[test]
    fn spin_is_told_which_flags_there_are() {
        let metadata = launch_metadata(&TriggerCli::command());
        let flags = metadata["all_flags"].as_array().unwrap();
        let has = |long, short| flags.contains(&serde_json::json!({"long": long, "short": short}));
        assert!(has(Some("--listen"), None) && has(Some("--quiet"), Some("-q")));
        assert!(!has(Some("--locked-url"), None) && !has(Some("--no-snapshot"), None));
        let help = help(TriggerCli::command());
        assert!(help.contains("--tls-cert <FILE>") && !help.contains("Usage"), "{help}");
    }
}
