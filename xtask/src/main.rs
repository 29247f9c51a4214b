//! Developer chores: `cargo xtask up`, `test`, `setup`, `model`. This file is the command line and the order of the
//! steps; each step lives in its own module and leaves at once when there is nothing to do.
//!
//! Everything that is fetched comes by package name from the ordinary clients (rustup, cargo, pip, apt-get), and is
//! kept under `target/tools`, except the default model, which is the user's and lies in `models/`.

mod builds;
mod checks;
mod fresh;
mod llama_server;
mod models;
mod node;
mod openvino;
mod plugin;
mod process;
mod project;
mod python;
mod report;
mod serve;
mod suite;
mod tools;
mod wasmtime;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use models::Place;
use project::Project;

#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Chores of the Spinfer repository: set up, run, test",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Set up what is missing, build, and serve on http://127.0.0.1:3000
    ///
    /// On a fresh machine this brings the Wasm target, the native build tools and the default model (98 MB), and
    /// compiles everything, llama.cpp included: some 10 to 20 minutes on two cores. When nothing has changed, it
    /// serves within a second. Ctrl-C stops it.
    Up {
        /// Passed on to `spinfer up`, for example `--listen 127.0.0.1:3001`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        args: Vec<String>,
    },

    /// Run every check and test: format, lints, unit tests, the running system, documentation
    ///
    /// Sets up and builds like `up`, then brings what only the tests need: a second model (253 MB) and a Python
    /// environment with real clients (1 GB); where there is Node, one with its client too. A stage that fails doesn't
    /// stop the others. Closes with the time of each stage and the sum of all tests.
    Test {
        /// Also run the tests marked #[ignore]: the slow ones
        #[arg(long)]
        all: bool,

        /// Run only the tests whose name contains this, without format and lints
        #[arg(last = true, value_name = "FILTER")]
        filter: Option<String>,
    },

    /// Measure, and print the figures side by side
    ///
    /// Sets up and builds like `up`. What is printed belongs to this machine, and to it alone while nothing else
    /// runs on it. For `llama_server` this builds the program of that name, too, from its PyPI package: some 10
    /// minutes more on two cores, once.
    Bench {
        /// What to measure
        #[arg(value_name = "NAME", value_enum, default_value = "llama_server")]
        name: suite::Bench,

        /// Passed on to the benchmark, for example `--rounds 3`; `-- --help` lists what it takes
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        args: Vec<String>,
    },

    /// Bring what the build and the server need, without building: Wasm target, native tools, default model
    Setup,

    /// Bring OpenVINO, and convert the default model for it; `up` serves both from then on
    Openvino,

    /// Pack the host as a plugin, for `spin plugins install --file target/plugin/trigger-http-nn.json`
    Plugin,

    /// Fetch a model into models/, where `up` serves it
    Model {
        #[arg(value_name = "ID", default_value = models::DEFAULT.id, value_parser = models::by_id)]
        model: &'static models::Model,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse().chore) {
        Ok(code) => code,
        Err(error) => {
            report::failure(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<ExitCode> {
    let project = Project::find()?;
    match chore {
        Chore::Up { args } => {
            checks::listen_address_is_free(&args)?;
            checks::disk_has_room(&project, checks::Work::Serve)?;
            build_what_changed(&project)?;
            serve::until_stopped(&project, &args)
        }
        Chore::Test { all, filter } => {
            checks::disk_has_room(&project, checks::Work::Test)?;
            suite::run(&project, all, filter.as_deref())
        }
        Chore::Bench { name, args } => {
            checks::disk_has_room(&project, checks::Work::Test)?;
            suite::bench(&project, name, &args)?;
            Ok(ExitCode::SUCCESS)
        }
        Chore::Setup => {
            let tools = set_up(&project)?;
            report::say("set up; `cargo xtask up` builds and serves");
            if let Some(exports) = tools.exports() {
                report::say(
                    "plain cargo commands in your shell need, to find the tools of target/tools:",
                );
                eprint!("{exports}");
            }
            Ok(ExitCode::SUCCESS)
        }
        Chore::Plugin => {
            checks::disk_has_room(&project, checks::Work::Serve)?;
            build_what_changed(&project)?;
            let manifest = plugin::pack(&project)?;
            report::say("packed; with it, `spin up` runs the application:");
            eprintln!("spin plugins install --yes --file {}", project.show(&manifest));
            Ok(ExitCode::SUCCESS)
        }
        Chore::Openvino => {
            checks::disk_has_room(&project, checks::Work::Serve)?;
            build_what_changed(&project)?;
            let _alone = project.lock()?;
            openvino::ensure_library(&project)?;
            let folder = openvino::ensure_model(&project, Place::Served)?;
            report::say(&format!(
                "{} is at {}; `cargo xtask up` serves it too",
                openvino::model_id(),
                project.show(&folder)
            ));
            Ok(ExitCode::SUCCESS)
        }
        Chore::Model { model } => {
            let _alone = project.lock()?;
            let file = models::ensure(&project, model, Place::Served)?;
            report::say(&format!("{} is at {}", model.id, file.display()));
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Set-up and both builds, or the look that says that nothing is to be done.
fn build_what_changed(project: &Project) -> Result<()> {
    let sources = fresh::Sources::look(project)?;
    if sources.are_built() {
        let _alone = project.lock()?;
        models::ensure(project, &models::DEFAULT, Place::Served)?;
        return Ok(());
    }
    let tools = set_up(project)?;
    report::step("building the component", || builds::component(project, &tools))?;
    report::step("building the host", || builds::host(project, &tools))?;
    sources.set_built()
}

/// What `up`, `test` and `setup` share: everything but the builds.
fn set_up(project: &Project) -> Result<tools::BuildEnv> {
    let _alone = project.lock()?;
    tools::wasm_target(project)?;
    let tools = tools::native(project)?;
    models::ensure(project, &models::DEFAULT, Place::Served)?;
    Ok(tools)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn up_args(line: &[&str]) -> Vec<String> {
        match Cli::try_parse_from(line).unwrap().chore {
            Chore::Up { args } => args,
            _ => panic!("not up"),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn up_passes_its_arguments_on_with_or_without_dashes() {
        assert_eq!(up_args(&["xtask", "up"]), [] as [&str; 0]);
        assert_eq!(
            up_args(&["xtask", "up", "--listen", "[::1]:1", "--quiet"]),
            ["--listen", "[::1]:1", "--quiet"]
        );
        assert_eq!(up_args(&["xtask", "up", "--", "--listen", "[::1]:1"]), ["--listen", "[::1]:1"]);
    }

    #[test]
    fn bench_passes_its_arguments_on() {
        let args = |line: &[&str]| match Cli::try_parse_from(line).unwrap().chore {
            Chore::Bench { args, .. } => args,
            _ => panic!("not bench"),
        };
        assert_eq!(args(&["xtask", "bench"]), [] as [&str; 0]);
        let line = ["xtask", "bench", "llama_server", "--rounds", "3"];
        assert_eq!(args(&line), ["--rounds", "3"]);
        assert_eq!(args(&["xtask", "bench", "engine", "--", "--help"]), ["--help"]);
    }

    #[test]
    fn an_unknown_model_is_refused_with_the_known_ones() {
        let error = Cli::try_parse_from(["xtask", "model", "gpt-5"]).err().unwrap().to_string();
        assert!(error.contains("smollm2-135m-instruct"), "{error}");
    }
}
