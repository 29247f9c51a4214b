//! The programs that a build needs: the Wasm target, and what compiles llama.cpp (a C++ compiler, make or ninja,
//! cmake, libclang for its bindings).
//!
//! What is there is used. Of what is missing, cmake, ninja and libclang come from PyPI into a virtual environment of
//! the project's own, without root; a C++ compiler can't, so it is installed with apt-get as root, or asked for.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, anyhow, bail};

use crate::process;
use crate::project::{Project, WASM_TARGET};
use crate::python::{Package, Venv};
use crate::report;

const CMAKE: Package = Package { name: "cmake", version: "4.4.5" };
const LIBCLANG: Package = Package { name: "libclang", version: "18.1.1" };
const NINJA: Package = Package { name: "ninja", version: "1.13.2" };

/// Variables that cargo is given so that build scripts find the tools. Empty where everything is where it usually is,
/// so that plain cargo commands see the same environment: build scripts run again whenever one of these changes.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct BuildEnv(Vec<(&'static str, OsString)>);

impl BuildEnv {
    fn set(&mut self, name: &'static str, value: impl Into<OsString>) {
        self.0.push((name, value.into()));
    }

    pub fn apply(&self, command: &mut Command) {
        command.envs(self.0.iter().map(|(name, value)| (name, value)));
    }

    /// What of it, and of this process's own variables, is for llama.cpp's build, as arguments of CMake. They are
    /// the same whether a shell has its variables already or not.
    pub fn cmake_args(&self) -> Vec<String> {
        let ours = self.0.iter().map(|(name, value)| (OsString::from(name), value.clone()));
        let variables: BTreeMap<OsString, OsString> = env::vars_os().chain(ours).collect();
        variables
            .iter()
            .map(|(name, value)| {
                format!("-D{}={}", name.to_string_lossy(), value.to_string_lossy())
            })
            .filter(|arg| arg.starts_with("-DGGML_"))
            .collect()
    }

    /// The same for a shell, or `None` if there is nothing to set.
    pub fn exports(&self) -> Option<String> {
        let mut text = String::new();
        for (name, value) in &self.0 {
            let value = value.to_string_lossy().replace('\'', r"'\''");
            writeln!(text, "export {name}='{value}'").expect("writing to a string");
        }
        (!text.is_empty()).then_some(text)
    }
}

/// Sees to it that Rust can compile for the component's target.
pub fn wasm_target(project: &Project) -> Result<()> {
    let libraries = rust_libraries(project)?;
    if holds_std(&libraries) {
        return Ok(());
    }
    if find_program("rustup").is_none() {
        bail!(
            "Rust's standard library for {WASM_TARGET} is missing and there is no rustup to add it: install Rust with \
             rustup, or add that target to your Rust installation in its own way"
        );
    }
    report::step(&format!("adding the Rust target {WASM_TARGET}"), || {
        process::run(
            Command::new("rustup").args(["target", "add", WASM_TARGET]).current_dir(&project.root),
        )
        .map_err(process::not_to_be_had(format!("the Rust target {WASM_TARGET}")))
    })?;
    if !holds_std(&libraries) {
        bail!(
            "rustup says that it has {WASM_TARGET}, but the rustc in use looks for its standard library in {}, and \
             there is none",
            libraries.display()
        );
    }
    Ok(())
}

/// Where the rustc in use has the standard library of the component's target, if it has it.
fn rust_libraries(project: &Project) -> Result<PathBuf> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let folder = process::output(
        Command::new(rustc)
            .args(["--print", "target-libdir", "--target", WASM_TARGET])
            .current_dir(&project.root),
    )?;
    Ok(folder.trim().into())
}

fn holds_std(folder: &Path) -> bool {
    has_file(folder, |name| name.starts_with("libstd-") && name.ends_with(".rlib"))
}

/// Sees to it that llama.cpp can be compiled, and says with which variables.
pub fn native(project: &Project) -> Result<BuildEnv> {
    let mut build_env = BuildEnv::default();
    compiler(&mut build_env)?;
    vectors(&mut build_env);

    let venv = Venv::of_tools(project);
    let cmake_missing = !has_cmake();
    let make_missing = env::var_os("CMAKE_GENERATOR").is_none() && find_program("make").is_none();
    let ninja = find_program("ninja");
    let libclang = system_libclang();
    let wanted = [
        cmake_missing.then_some(CMAKE),
        (make_missing && ninja.is_none()).then_some(NINJA),
        libclang.is_none().then_some(LIBCLANG),
    ];
    let wanted: Vec<Package> = wanted.into_iter().flatten().collect();
    install_missing(project, &venv, &wanted)?;

    if cmake_missing {
        build_env.set("CMAKE", venv.program("cmake")?);
    }
    if make_missing {
        build_env.set("CMAKE_GENERATOR", "Ninja");
        build_env.set("CMAKE_MAKE_PROGRAM", ninja.map_or_else(|| venv.program("ninja"), Ok)?);
    }
    let libclang = match libclang {
        Some(folder) => folder,
        None => {
            let folder = venv.site_packages()?.join("clang/native");
            build_env.set("LIBCLANG_PATH", &folder);
            folder
        }
    };
    // A libclang that comes without clang's own headers (stdbool.h and the like) can use the compiler's.
    if env::var_os("BINDGEN_EXTRA_CLANG_ARGS").is_none()
        && !has_builtin_headers(&libclang)
        && let Some(folder) = compiler_headers()
    {
        build_env.set("BINDGEN_EXTRA_CLANG_ARGS", format!("-I{}", folder.display()));
    }
    Ok(build_env)
}

/// Build scripts look for `c++` alone, so another compiler has to be named to them.
fn compiler(build_env: &mut BuildEnv) -> Result<()> {
    if env::var_os("CXX").is_some() || find_program("c++").is_some() {
        return Ok(());
    }
    let other = || ["g++", "clang++"].into_iter().find_map(find_program);
    let compiler = match other() {
        Some(compiler) => compiler,
        None => {
            apt_install("compiling llama.cpp", "a C++ compiler", &["g++", "make"])?;
            other().ok_or_else(|| anyhow!("g++ was installed, but is not in PATH"))?
        }
    };
    build_env.set("CXX", compiler);
    Ok(())
}

/// llama.cpp is compiled for AVX2 and its companions unless it is told otherwise: here it is told what this machine's CPU
/// has beyond that, or lacks. Not AMX: GCC 12 leaves out most of the tile configuration that llama.cpp loads, and what
/// it makes of it ends as an illegal instruction.
#[cfg(target_arch = "x86_64")]
fn vectors(build_env: &mut BuildEnv) {
    use std::arch::is_x86_feature_detected as has;
    let avx512 = has!("avx512f")
        && has!("avx512cd")
        && has!("avx512vl")
        && has!("avx512dq")
        && has!("avx512bw");
    let beyond = [
        ("GGML_AVX512", avx512),
        ("GGML_AVX512_VBMI", avx512 && has!("avx512vbmi")),
        ("GGML_AVX512_VNNI", avx512 && has!("avx512vnni")),
        ("GGML_AVX512_BF16", avx512 && has!("avx512bf16")),
        ("GGML_AVX_VNNI", has!("avxvnni")),
    ];
    let taken_for_granted = [
        ("GGML_AVX2", has!("avx2")),
        ("GGML_FMA", has!("fma")),
        ("GGML_F16C", has!("f16c")),
        ("GGML_BMI2", has!("bmi2")),
    ];
    let on = beyond.into_iter().filter(|(_, there)| *there).map(|(name, _)| (name, "ON"));
    let off = taken_for_granted.into_iter().filter(|(_, there)| !there);
    for (name, value) in on.chain(off.map(|(name, _)| (name, "OFF"))) {
        if env::var_os(name).is_none() {
            build_env.set(name, value);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn vectors(_: &mut BuildEnv) {}

fn install_missing(project: &Project, venv: &Venv, wanted: &[Package]) -> Result<()> {
    let missing: Vec<&Package> = wanted.iter().filter(|package| !venv.has(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    let name = format!("installing {} into {}", names.join(", "), project.show(venv.folder()));
    report::step(&name, || {
        let requirements: Vec<String> = missing.iter().map(|p| p.requirement()).collect();
        venv.install(&requirements.join(", "), &requirements)
    })
}

/// Runs it, since a wrapper of that name (a version manager's, say) may have nothing behind it.
fn has_cmake() -> bool {
    env::var_os("CMAKE").is_some()
        || find_program("cmake")
            .is_some_and(|cmake| process::succeeds(Command::new(cmake).arg("--version")))
}

pub fn find_program(name: &str) -> Option<PathBuf> {
    find_in(&env::var_os("PATH")?, name)
}

fn find_in(path: &OsStr, name: &str) -> Option<PathBuf> {
    env::split_paths(path).map(|folder| folder.join(name)).find(|file| is_executable(file))
}

pub fn is_executable(file: &Path) -> bool {
    fs::metadata(file)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// The folder of a libclang that bindgen will find by itself: it looks where `LIBCLANG_PATH` says and nowhere else, or
/// else beside `llvm-config`, in the library path, and in the usual folders.
fn system_libclang() -> Option<PathBuf> {
    if let Some(path) = env::var_os("LIBCLANG_PATH") {
        let path = PathBuf::from(path);
        return Some(if path.is_file() { path.parent()?.to_owned() } else { path });
    }
    let library_paths = ["LD_LIBRARY_PATH", "LIBRARY_PATH"];
    let named = library_paths
        .iter()
        .filter_map(env::var_os)
        .flat_map(|paths| env::split_paths(&paths).collect::<Vec<_>>());
    named.chain(usual_library_folders()).find(|folder| holds_libclang(folder)).or_else(|| {
        let llvm_config = env::var_os("LLVM_CONFIG_PATH").unwrap_or("llvm-config".into());
        let prefix = process::output(Command::new(llvm_config).arg("--prefix")).ok()?;
        ["lib", "lib64"]
            .into_iter()
            .map(|folder| Path::new(prefix.trim()).join(folder))
            .find(|folder| holds_libclang(folder))
    })
}

/// Where libclang is without anybody saying so, the likely folders first.
fn usual_library_folders() -> impl Iterator<Item = PathBuf> {
    const LINUX: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"];
    const MACOS: [&str; 2] =
        ["/Library/Developer/CommandLineTools/usr/lib", "/usr/local/opt/llvm/lib"];
    let bases = LINUX.iter().map(PathBuf::from);
    let below = bases.clone().flat_map(|base| folders_in(&base));
    let further_below = below.clone().flat_map(|folder| folders_in(&folder));
    let macos = MACOS.iter().map(PathBuf::from);
    bases.chain(below).chain(further_below).chain(macos)
}

pub fn folders_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// Whether a file of the folder passes, by its name; links to nowhere don't.
fn has_file(folder: &Path, passes: impl Fn(&str) -> bool) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| passes(&entry.file_name().to_string_lossy()))
        .any(|entry| entry.path().exists())
}

fn holds_libclang(folder: &Path) -> bool {
    has_file(folder, is_libclang)
}

/// `libclang.so`, `libclang.so.1`, `libclang-14.so.1`, `libclang.dylib`; `libclang-cpp` is another library.
fn is_libclang(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("libclang") else {
        return false;
    };
    let library = rest.starts_with(".so") || rest.starts_with(".dylib");
    let versioned = rest.starts_with('-') && rest.contains(".so");
    library || versioned && !rest.starts_with("-cpp")
}

/// Whether clang's own headers lie where this libclang looks for them.
fn has_builtin_headers(libclang: &Path) -> bool {
    let entries = fs::read_dir(libclang).into_iter().flatten().flatten();
    let beside = entries
        .filter(|entry| is_libclang(&entry.file_name().to_string_lossy()))
        .filter_map(|entry| Some(entry.path().canonicalize().ok()?.parent()?.to_owned()))
        .flat_map(|real| ["clang", "../clang", "../lib/clang"].map(|there| real.join(there)));
    // Debian's libclang looks in the folder of its LLVM, wherever the library lies itself.
    let of_debian = libclang
        .starts_with("/usr/lib")
        .then(|| folders_in(Path::new("/usr/lib")))
        .into_iter()
        .flatten()
        .map(|folder| folder.join("lib/clang"));
    beside
        .chain(of_debian)
        .flat_map(|versions| folders_in(&versions))
        .any(|version| version.join("include/stdbool.h").exists())
}

/// The folder of the C++ compiler's own headers, if it is one that has such a folder.
fn compiler_headers() -> Option<PathBuf> {
    let compiler = env::var_os("CC").unwrap_or_else(|| "cc".into());
    let folder = process::output(Command::new(compiler).arg("-print-file-name=include")).ok()?;
    let folder = PathBuf::from(folder.trim());
    folder.join("stdbool.h").exists().then_some(folder)
}

/// Installs Debian packages as root, or says what to install.
pub fn apt_install(purpose: &str, what: &str, packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    if !rustix::process::geteuid().is_root() || find_program("apt-get").is_none() {
        bail!(
            "{purpose} needs {what}, and there is none: install it with your package manager (on Debian and Ubuntu: \
             sudo apt-get install {list}) and run this again"
        );
    }
    report::step(&format!("installing {list} with apt-get"), || {
        let apt = |args: &[&str]| {
            process::run(
                Command::new("apt-get").args(args).env("DEBIAN_FRONTEND", "noninteractive"),
            )
        };
        // A fresh container has no package lists; an old list is no reason to give up.
        let updated = apt(&["update"]);
        let mut install = vec!["install", "--yes", "--no-install-recommends"];
        install.extend(packages);
        apt(&install).and(updated).map_err(process::not_to_be_had(format!("{list} from Debian")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn touch(file: &Path, mode: u32) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_program_is_an_executable_file_of_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        touch(&root.join("a/tool"), 0o644);
        touch(&root.join("b/tool"), 0o755);
        fs::create_dir_all(root.join("a/other")).unwrap();
        let path = env::join_paths([root.join("a"), root.join("b")]).unwrap();
        assert_eq!(find_in(&path, "tool"), Some(root.join("b/tool")));
        assert_eq!(find_in(&path, "other"), None);
        assert_eq!(find_in(&path, "missing"), None);
    }

    #[test]
    fn libclang_is_told_from_its_neighbours() {
        for name in [
            "libclang.so",
            "libclang.so.1",
            "libclang-14.so.1",
            "libclang-14.so.14.0.6",
            "libclang.dylib",
        ] {
            assert!(is_libclang(name), "{name}");
        }
        for name in
            ["libclang-cpp.so.14", "libclang-cpp14.so", "libclangAST.a", "libclang.a", "libcurl.so"]
        {
            assert!(!is_libclang(name), "{name}");
        }
    }

    #[test]
    fn a_libclang_that_links_to_nowhere_is_none() {
        let folder = tempfile::tempdir().unwrap();
        symlink("gone", folder.path().join("libclang.so.1")).unwrap();
        assert!(!holds_libclang(folder.path()));
        touch(&folder.path().join("gone"), 0o644);
        assert!(holds_libclang(folder.path()));
    }

    #[test]
    fn clangs_headers_are_looked_for_where_the_library_really_is() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        touch(&root.join("llvm/lib/libclang.so.1"), 0o644);
        fs::create_dir_all(root.join("multiarch")).unwrap();
        symlink(root.join("llvm/lib/libclang.so.1"), root.join("multiarch/libclang-14.so.1"))
            .unwrap();
        assert!(!has_builtin_headers(&root.join("multiarch")));
        touch(&root.join("llvm/lib/clang/14/include/stdbool.h"), 0o644);
        assert!(has_builtin_headers(&root.join("multiarch")));
    }

    #[test]
    fn a_shell_can_read_the_variables() {
        assert_eq!(BuildEnv::default().exports(), None);
        let mut build_env = BuildEnv::default();
        build_env.set("CMAKE", "/it's/here");
        assert_eq!(build_env.exports().unwrap(), "export CMAKE='/it'\\''s/here'\n");
    }
}
