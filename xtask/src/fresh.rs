//! Whether anything has changed since the last build, without asking cargo, which takes most of a second to say no.
//!
//! A record is kept of what the builds were made from (name, size and time of every file of the repository, the
//! variables and configuration that compilers look at, the toolchain) and of what they made. While all of that is as it
//! was, there is nothing to build. Anything more that changes costs no more than asking cargo.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::project::Project;

/// Folders in the root that no build reads.
const NOT_SOURCES: [&str; 5] = [".git", ".spin", ".spinfer", "models", "target"];

/// How the names of variables begin that cargo or a build script looks at.
const VARIABLES: [&str; 21] = [
    "AR",
    "BINDGEN_",
    "CARGO",
    "CC",
    "CFLAGS",
    "CMAKE",
    "CPATH",
    "CUDA",
    "CXX",
    "GGML_",
    "HOST_",
    "LIBCLANG",
    "LLAMA_",
    "LLVM_",
    "RUSTC",
    "RUSTDOC",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
    "SPINFER_FEATURES",
    "TARGET_",
    "VULKAN",
];

/// What a build is made from, at one moment.
pub struct Sources<'a> {
    project: &'a Project,
    digest: String,
}

impl<'a> Sources<'a> {
    pub fn look(project: &'a Project) -> Result<Self> {
        let mut hash = Sha256::new();
        let mut add = |text: &str| {
            hash.update(text.as_bytes());
            hash.update([0]);
        };
        for file in files(project)? {
            add(&fingerprint(&file));
        }
        for file in configuration(&project.root) {
            add(&fingerprint(&file));
        }
        let mut variables: Vec<(String, String)> = env::vars_os()
            .map(|(name, value)| {
                let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
                (text(name), text(value))
            })
            .filter(|(name, _)| is_looked_at(name))
            .collect();
        variables.sort();
        for (name, value) in variables {
            add(&name);
            add(&value);
        }
        let digest = hash.finalize();
        Ok(Self { project, digest: digest.iter().map(|byte| format!("{byte:02x}")).collect() })
    }

    /// Whether these are the sources of the last finished build, and its output is untouched.
    pub fn are_built(&self) -> bool {
        fs::read_to_string(self.record()).is_ok_and(|record| record == self.text())
    }

    /// To be called when the builds from these sources have succeeded.
    pub fn set_built(&self) -> Result<()> {
        let record = self.record();
        fs::write(&record, self.text()).with_context(|| format!("writing {}", record.display()))
    }

    fn text(&self) -> String {
        let outputs = [self.project.host(), self.project.component()];
        let outputs = outputs.map(|file| fingerprint(&file));
        format!("{}\n{}\n", self.digest, outputs.join("\n"))
    }

    fn record(&self) -> PathBuf {
        self.project.tools().join("built")
    }
}

fn is_looked_at(variable: &str) -> bool {
    // What `cargo run` says about this program, which differs from how it was started, changes no build.
    let about_us = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
    VARIABLES.iter().any(|start| variable.starts_with(start))
        && !about_us.iter().any(|start| variable.starts_with(start))
}

/// The files of the repository, sorted.
fn files(project: &Project) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![project.root.clone()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            // Gone since it was listed.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                return Err(error).with_context(|| format!("listing {}", folder.display()));
            }
        };
        for entry in entries {
            let entry = entry.with_context(|| format!("listing {}", folder.display()))?;
            let skipped =
                folder == project.root && NOT_SOURCES.iter().any(|name| entry.file_name() == *name);
            if skipped || entry.path() == project.target {
                continue;
            }
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The cargo that is used, and the configuration that it reads outside of the repository.
fn configuration(root: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        root.ancestors().skip(1).map(|folder| folder.join(".cargo")).collect();
    folders.extend(env::var_os("CARGO_HOME").map(PathBuf::from));
    folders.extend(env::home_dir().map(|home| home.join(".cargo")));
    let mut files: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| ["config.toml", "config"].map(|name| folder.join(name)))
        .collect();
    files.extend(env::var_os("CARGO").map(PathBuf::from));
    files
}

/// A file's name, and how to see that it hasn't changed.
fn fingerprint(file: &Path) -> String {
    match fs::metadata(file) {
        Ok(metadata) => format!(
            "{} {} bytes, changed {}.{:09}, inode {}",
            file.display(),
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ino()
        ),
        Err(_) => format!("{} is not there", file.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(file: &Path, content: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    fn project(root: &Path) -> Project {
        let project = Project {
            root: root.to_owned(),
            target: root.join("out"),
            has_integration_tests: false,
        };
        write(&root.join("src/lib.rs"), "code");
        write(&project.host(), "host");
        write(&project.component(), "component");
        fs::create_dir_all(project.tools()).unwrap();
        Sources::look(&project).unwrap().set_built().unwrap();
        project
    }

    fn is_built(project: &Project) -> bool {
        Sources::look(project).unwrap().are_built()
    }

    #[test]
    fn nothing_changed_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let project = project(folder.path());
        assert!(is_built(&project));
        write(&folder.path().join("models/mine/model.gguf"), "weights");
        write(&folder.path().join("out/release/deps/other"), "output");
        assert!(is_built(&project));
    }

    #[test]
    fn a_changed_a_new_and_a_lost_source_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let project = project(folder.path());
        write(&folder.path().join("src/new.rs"), "");
        assert!(!is_built(&project));
        fs::remove_file(folder.path().join("src/new.rs")).unwrap();
        assert!(is_built(&project));
        write(&folder.path().join("src/lib.rs"), "other code");
        assert!(!is_built(&project));
        fs::remove_file(folder.path().join("src/lib.rs")).unwrap();
        assert!(!is_built(&project));
    }

    #[test]
    fn a_changed_or_lost_output_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let project = project(folder.path());
        write(&project.host(), "another host");
        assert!(!is_built(&project));
        Sources::look(&project).unwrap().set_built().unwrap();
        assert!(is_built(&project));
        fs::remove_file(project.component()).unwrap();
        assert!(!is_built(&project));
    }

    #[test]
    fn compiler_settings_count_and_other_variables_do_not() {
        for name in ["RUSTFLAGS", "CXXFLAGS", "CMAKE_GENERATOR", "CARGO_PROFILE_RELEASE_LTO"] {
            assert!(is_looked_at(name), "{name}");
        }
        for name in ["TERM", "PWD", "RUST_LOG", "CARGO_PKG_NAME", "CARGO_MANIFEST_DIR"] {
            assert!(!is_looked_at(name), "{name}");
        }
    }
}
