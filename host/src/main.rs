//! The command line of `spinfer`.

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use spinfer_host::models::trial;
use spinfer_host::up::{self, Options};
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
    /// Loads weights and decodes one token, to see whether they can be used
    #[command(name = trial::SUBCOMMAND, hide = true)]
    TryWeights {
        weights: PathBuf,
        #[arg(long)]
        ignore_pre_tokenizer: bool,
    },
}

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
    /// The address to serve on
    #[arg(
        long,
        env = "SPIN_HTTP_LISTEN_ADDR",
        default_value = "127.0.0.1:3000",
        value_name = "ADDRESS"
    )]
    listen: SocketAddr,
    /// How models are run: a TOML file with a table [nn]
    #[arg(long, env = "RUNTIME_CONFIG_FILE", value_name = "FILE")]
    runtime_config_file: Option<PathBuf>,
    /// A value for one of the application's variables; may be repeated
    #[arg(long = "variable", value_name = "NAME=VALUE", value_parser = pair)]
    variables: Vec<(String, String)>,
    /// A variable for the environment of all components; may be repeated
    #[arg(short = 'e', long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    environment: Vec<(String, String)>,
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

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::TryWeights { weights, ignore_pre_tokenizer } => {
            trial::child(&weights, ignore_pre_tokenizer)
        }
        Command::Up(args) => run_up(args),
    }
}

fn run_up(args: UpArgs) -> ExitCode {
    let default = if args.quiet { "error" } else { "info,llama=warn" };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    let options = Options {
        from: args.from,
        listen: args.listen,
        runtime_config_file: args.runtime_config_file,
        variables: args.variables,
        environment: args.environment,
        snapshot: !args.no_snapshot,
    };
    let done = serve(options);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let done = runtime.block_on(up::run(options));
    // A model that is still being loaded must not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}
