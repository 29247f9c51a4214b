//! Packages of npm, for the one client of the tests that is not in Python. Node itself is not fetched: where there is
//! none, that test is left out.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::process;
use crate::project::Project;
use crate::report;

/// The test that needs Node.
pub const TEST: &str = "openai_node";

/// What npm reads to install.
const LISTS: [&str; 2] = ["package.json", "package-lock.json"];

/// Whether there are npm and a Node that runs the client.
pub fn is_usable() -> bool {
    let new_enough = "process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)";
    process::succeeds(Command::new("node").args(["--eval", new_enough]))
        && process::succeeds(Command::new("npm").arg("--version"))
}

/// The folder of the packages.
pub fn modules(project: &Project) -> PathBuf {
    folder(project).join("node_modules")
}

fn folder(project: &Project) -> PathBuf {
    project.tools().join("node")
}

/// Installs what `tests/clients/package-lock.json` lists, again when that file changes.
pub fn install_clients(project: &Project) -> Result<()> {
    let folder = folder(project);
    let lists = project.root.join("tests/clients");
    let lock = lists.join(LISTS[1]);
    let wanted =
        fs::read_to_string(&lock).with_context(|| format!("reading {}", lock.display()))?;
    let stamp = folder.join("installed.json");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    report::step("installing the clients for Node that the tests use", || {
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        for list in LISTS {
            fs::copy(lists.join(list), folder.join(list))
                .with_context(|| format!("copying {list} to {}", folder.display()))?;
        }
        let install = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
        let what = format!("what {} lists from npm", project.show(&lock));
        process::run(Command::new("npm").args(install).current_dir(&folder))
            .map_err(process::not_to_be_had(what))?;
        fs::write(&stamp, wanted).with_context(|| format!("writing {}", stamp.display()))
    })
}
