//! Finding OpenVINO's library, which is loaded only when a model needs it.
//!
//! The Python package `openvino` brings it as `openvino/libs/libopenvino_c.so.<version>`, Linux packages
//! and archives as `libopenvino_c.so`.

use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, bail};
use libloading::Library;

/// The name of the library for C; packages append versions.
const NAME: &str = "libopenvino_c.so";

/// Says where it is, where the settings don't: the file, or a folder that has it.
const VARIABLE: &str = "SPINFER_OPENVINO_LIBRARY";

/// The oldest version that the bindings take: element types had other numbers before.
const OLDEST: &str = "2025.1";

/// What is called of the library. The bindings end the process when they miss one.
const SYMBOLS: [&str; 8] = [
    "ov_get_openvino_version",
    "ov_core_create",
    "ov_core_set_property",
    "ov_core_read_model",
    "ov_core_compile_model",
    "ov_compiled_model_create_infer_request",
    "ov_infer_request_infer",
    "ov_get_last_err_msg",
];

/// Loads the library: from the place in the settings, or from where it usually is. Gives its version.
pub fn load(setting: Option<&Path>) -> anyhow::Result<String> {
    let path = match setting {
        Some(place) => {
            in_place(place).with_context(|| format!("there is no {NAME} at {}", place.display()))?
        }
        None => find()?,
    };
    check(&path)?;
    openvino_sys::library::load_from(path.clone()).map_err(anyhow::Error::msg).with_context(
        || format!("{} can't be used: OpenVINO must be {OLDEST} or later", path.display()),
    )?;
    Ok(openvino::version().build_number)
}

/// Sees whether it can be loaded and is what it is named.
fn check(path: &Path) -> anyhow::Result<()> {
    // SAFETY: the user names this library for being loaded; its initialisers are OpenVINO's.
    let library = unsafe { Library::new(path) }
        .with_context(|| format!("can't load OpenVINO's library {}", path.display()))?;
    for symbol in SYMBOLS {
        // SAFETY: it is only looked up, and never called by this type.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(symbol.as_bytes()) };
        if found.is_err() {
            bail!("{} is no OpenVINO library of this kind: it has no {symbol}", path.display());
        }
    }
    // It stays loaded: what it has started can't be undone.
    std::mem::forget(library);
    Ok(())
}

fn find() -> anyhow::Result<PathBuf> {
    if let Some(place) = variable(VARIABLE) {
        return in_place(&place)
            .with_context(|| format!("{VARIABLE}: there is no {NAME} at {}", place.display()));
    }
    let places = python_places();
    openvino_sys::library::find()
        .or_else(|| places.iter().find_map(|place| in_place(place)))
        .context(
            "OpenVINO's library isn't there: install it (`pip install openvino`), and say where it is with \
             `library` in the table [nn.openvino] of the runtime configuration, unless it is in a usual place",
        )
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Where Python's packages are: of the virtual environment, the user, the system.
fn python_places() -> Vec<PathBuf> {
    let roots = [
        variable("VIRTUAL_ENV").map(|venv| venv.join("lib")),
        variable("HOME").map(|home| home.join(".local/lib")),
        Some("/usr/local/lib".into()),
        Some("/usr/lib".into()),
    ];
    let pythons = roots.into_iter().flatten().flat_map(|root| {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| {
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python3"))
            })
            .collect::<Vec<_>>()
    });
    pythons
        .flat_map(|python| ["site-packages", "dist-packages"].map(|kind| python.join(kind)))
        .collect()
}

/// The library at a path: the file itself, or in a folder, or in one with Python's packages.
fn in_place(place: &Path) -> Option<PathBuf> {
    if place.is_file() {
        return Some(place.to_owned());
    }
    ["", "openvino/libs", "runtime/lib/intel64", "runtime/lib/aarch64", "runtime/lib/arm64"]
        .into_iter()
        .find_map(|below| in_folder(&place.join(below)))
}

/// The library in a folder; the newest of several.
fn in_folder(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    entries
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
            name.strip_prefix(NAME).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_under_the_names_that_packages_give_it() {
        let folder = tempfile::tempdir().unwrap();
        let libs = folder.path().join("openvino/libs");
        fs::create_dir_all(&libs).unwrap();
        fs::write(libs.join("libopenvino.so.2641"), "").unwrap();
        assert_eq!(in_place(folder.path()), None);
        for name in ["libopenvino_c.so.2620", "libopenvino_c.so.2641"] {
            fs::write(libs.join(name), "").unwrap();
        }
        let expected = Some(libs.join("libopenvino_c.so.2641"));
        assert_eq!(in_place(folder.path()), expected);
        assert_eq!(in_place(&libs), expected);
        assert_eq!(in_place(expected.as_deref().unwrap()), expected);
    }

    #[test]
    fn what_is_no_library_is_a_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let error = format!("{:#}", load(Some(folder.path())).unwrap_err());
        assert!(error.contains("there is no libopenvino_c.so at"), "{error}");
        let file = folder.path().join(NAME);
        fs::write(&file, "no library").unwrap();
        let error = format!("{:#}", load(Some(&file)).unwrap_err());
        assert!(error.contains("can't load OpenVINO's library"), "{error}");
    }

    #[test]
    fn another_library_is_a_sentence() {
        // The C library is there wherever this runs.
        let c = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib/aarch64-linux-gnu/libc.so.6",
            "/lib64/libc.so.6",
        ];
        let Some(c) = c.iter().map(Path::new).find(|path| path.exists()) else { return };
        let error = format!("{:#}", load(Some(c)).unwrap_err());
        assert!(error.contains("no OpenVINO library") && error.contains("ov_"), "{error}");
    }
}
