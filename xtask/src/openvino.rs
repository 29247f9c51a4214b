//! OpenVINO beside llama.cpp: its library and tools from PyPI, and the default model for it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::models::{self, Place};
use crate::process;
use crate::project::Project;
use crate::python::{Package, Venv};
use crate::report;

/// The library, what converts weights for it, and what reads them.
const PACKAGES: [Package; 3] = [
    Package { name: "openvino", version: "2026.4.1" },
    Package { name: "openvino-genai", version: "2026.4.1.0" },
    Package { name: "gguf", version: "0.19.0" },
];

/// By which the host finds the library.
pub const LIBRARY: &str = "SPINFER_OPENVINO_LIBRARY";

/// The default model, converted.
pub fn model_id() -> String {
    format!("{}-openvino", models::DEFAULT.id)
}

/// Brings the library and the tools.
pub fn ensure_library(project: &Project) -> Result<()> {
    let venv = Venv::of_openvino(project);
    if PACKAGES.iter().all(|package| venv.has(package)) {
        return Ok(());
    }
    let wanted: Vec<String> = PACKAGES.iter().map(Package::requirement).collect();
    report::step("fetching OpenVINO from PyPI (some 150 MB)", || venv.install("OpenVINO", &wanted))
}

/// Where the library is, once it has been brought.
pub fn library(project: &Project) -> Option<PathBuf> {
    let packages = Venv::of_openvino(project).site_packages().ok()?;
    Some(packages.join("openvino/libs")).filter(|folder| folder.is_dir())
}

/// Converts the default model, if it isn't there. The host must be built.
pub fn ensure_model(project: &Project, place: Place) -> Result<PathBuf> {
    let folder = place.folder(project).join(model_id());
    if folder.join("openvino_model.xml").is_file() {
        return Ok(folder);
    }
    let weights = models::ensure(project, &models::DEFAULT, place)?;
    report::step("converting the default model for OpenVINO", || {
        let mut pull = Command::new(project.host());
        pull.arg("pull").arg(&weights).arg("--openvino").arg("--id").arg(model_id());
        pull.arg("--python").arg(Venv::of_openvino(project).python());
        pull.arg("--models").arg(place.folder(project));
        process::run(&mut pull)
    })?;
    if !folder.join("openvino_model.xml").is_file() {
        bail!("the model was converted, but is not in {}", folder.display());
    }
    Ok(folder)
}

/// The application with the converted model beside the default one, if it is there: a file beside `spin.toml`.
pub fn application(project: &Project) -> Result<Option<PathBuf>> {
    if !Place::Served.folder(project).join(model_id()).join("openvino_model.xml").is_file() {
        return Ok(None);
    }
    let manifest = project.root.join("spin.toml");
    let text =
        fs::read_to_string(&manifest).with_context(|| format!("reading {}", manifest.display()))?;
    let path = project.root.join("spin.openvino.toml");
    let both = with_both_models(&text)?;
    // A file that is written anew looks like a change of the sources.
    if !fs::read_to_string(&path).is_ok_and(|there| there == both) {
        fs::write(&path, both).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(Some(path))
}

fn with_both_models(manifest: &str) -> Result<String> {
    let one = format!("ai_models = [\"{}\"]", models::DEFAULT.id);
    if !manifest.contains(&one) {
        bail!("spin.toml lists other models than the default one; list {} there", model_id());
    }
    let both = format!("ai_models = [\"{}\", \"{}\"]", models::DEFAULT.id, model_id());
    Ok(manifest.replacen(&one, &both, 1))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_application_of_this_repository_can_have_both_models() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../spin.toml");
        let text = with_both_models(&fs::read_to_string(manifest).unwrap()).unwrap();
        assert!(text.contains("[\"smollm2-135m-instruct\", \"smollm2-135m-instruct-openvino\"]"));
        assert!(with_both_models("ai_models = []").is_err());
    }
}
