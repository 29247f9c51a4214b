//! The files that a component sees: `files` of the manifest.
//!
//! As in Spin they are copied to a folder of the server's own, which is the component's `/`; a component
//! that may write (`--allow-transient-write`) writes there, and the originals stay as they are. With
//! `--direct-mounts`, and in applications that Spin has prepared, folders are given as they are.

use std::fs;
use std::path::{Component as Part, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use glob::{MatchOptions, Pattern};
use tempfile::TempDir;

/// Where components see what the host derives of their models.
pub const MODELS: &str = "/models";

/// An entry of `files`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Files {
    /// Files and folders below the application's folder, which keep their paths.
    Pattern(String),
    /// A file or folder, and where it goes.
    Placed {
        /// Where it is; relative to the application's folder.
        source: PathBuf,
        /// A path that begins with `/`.
        destination: String,
    },
}

/// A folder that a component sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where it is.
    pub host: PathBuf,
    /// Where the component sees it.
    pub guest: String,
}

/// The folders that a component sees.
#[derive(Debug, Default)]
pub struct Mounts {
    /// They.
    pub folders: Vec<Mount>,
    /// A copy among them, which is gone when this is.
    _copy: Option<TempDir>,
}

/// Copies what the entries stand for below `folder` to a new one, but not what a pattern of `exclude`
/// matches.
pub fn copy(folder: &Path, files: &[Files], exclude: &[String]) -> anyhow::Result<Mounts> {
    let copy = tempfile::Builder::new().prefix("spinfer-files-").tempdir();
    let copy = copy.context("can't make a folder for the copies of the application's files")?;
    let into = copy.path();
    let exclude = exclude
        .iter()
        .map(|pattern| {
            Pattern::new(pattern).with_context(|| format!("exclude_files: the pattern {pattern:?}"))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    for entry in files {
        match entry {
            Files::Pattern(pattern) => copy_matching(folder, pattern, &exclude, into)
                .with_context(|| format!("files: the pattern {pattern:?}"))?,
            Files::Placed { source, destination } => {
                place(&folder.join(source), destination, into)
                    .with_context(|| format!("files: {} at {destination:?}", source.display()))?;
            }
        }
    }
    let root = Mount { host: into.to_owned(), guest: "/".to_owned() };
    Ok(Mounts { folders: vec![root], _copy: Some(copy) })
}

/// The folders of entries that are to be given as they are.
pub fn direct(folder: &Path, files: &[Files]) -> anyhow::Result<Mounts> {
    let mount = |entry: &Files| match entry {
        Files::Pattern(pattern) => bail!(
            "files: the pattern {pattern:?} can't be mounted directly, only folders with a source and a \
             destination"
        ),
        Files::Placed { source, destination } => {
            below(destination)?;
            let host = folder.join(source);
            ensure!(host.is_dir(), "files: {} is no folder", host.display());
            Ok(Mount { host, guest: destination.clone() })
        }
    };
    let folders = files.iter().map(mount).collect::<anyhow::Result<_>>()?;
    Ok(Mounts { folders, _copy: None })
}

const OPTIONS: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

fn copy_matching(
    folder: &Path,
    pattern: &str,
    exclude: &[Pattern],
    into: &Path,
) -> anyhow::Result<()> {
    let parts: Vec<_> = Path::new(pattern).components().collect();
    ensure!(
        parts.iter().all(|part| matches!(part, Part::Normal(_) | Part::CurDir)),
        "must be a path below the application's folder, without .."
    );
    let folder = fs::canonicalize(folder)?;
    // What no wildcard stands for need not be looked through.
    let plain = |part: &&Part<'_>| !part.as_os_str().to_string_lossy().contains(['*', '?', '[']);
    let base: PathBuf = parts.iter().take_while(plain).collect();
    // A folder stands for all that is in it.
    let pattern = match folder.join(pattern).is_dir() {
        true => format!("{}/**/*", pattern.trim_end_matches('/')),
        false => pattern.to_owned(),
    };
    let pattern = Pattern::new(pattern.trim_start_matches("./"))?;
    let mut any = false;
    for file in below_folder(&folder.join(base))? {
        let path = file.strip_prefix(&folder)?;
        if pattern.matches_path_with(path, OPTIONS) {
            any = true;
            if !exclude.iter().any(|pattern| pattern.matches_path_with(path, OPTIONS)) {
                copy_file(&file, &folder, &into.join(path))?;
            }
        }
    }
    ensure!(any, "matches nothing");
    Ok(())
}

fn place(source: &Path, destination: &str, into: &Path) -> anyhow::Result<()> {
    let to = into.join(below(destination)?);
    let source =
        fs::canonicalize(source).with_context(|| format!("can't read {}", source.display()))?;
    if source.is_file() {
        return copy_file(&source, &source, &to);
    }
    fs::create_dir_all(&to)?;
    for file in below_folder(&source)? {
        copy_file(&file, &source, &to.join(file.strip_prefix(&source)?))?;
    }
    Ok(())
}

/// The files below a folder, in order, and links, which are not followed; or the file itself that there is
/// instead, or nothing.
pub fn below_folder(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = Vec::new();
    match fs::symlink_metadata(folder) {
        Ok(metadata) if metadata.is_dir() => folders.push(folder.to_owned()),
        Ok(_) => files.push(folder.to_owned()),
        Err(_) => {}
    }
    while let Some(folder) = folders.pop() {
        let context = || format!("can't read the folder {}", folder.display());
        for entry in fs::read_dir(&folder).with_context(context)? {
            let entry = entry.with_context(context)?;
            match entry.file_type().with_context(context)?.is_dir() {
                true => folders.push(entry.path()),
                false => files.push(entry.path()),
            }
        }
    }
    files.sort();
    Ok(files)
}

/// A path of a component, as one below its `/`.
fn below(destination: &str) -> anyhow::Result<&Path> {
    let path = destination
        .strip_prefix('/')
        .map(Path::new)
        .with_context(|| format!("files: the destination {destination:?} must begin with /"))?;
    ensure!(
        path.components().all(|part| matches!(part, Part::Normal(_) | Part::CurDir)),
        "files: the destination {destination:?} must not have .. in it"
    );
    Ok(path)
}

/// Copies a file, or what a link leads to, if that is a file below `root`.
fn copy_file(file: &Path, root: &Path, to: &Path) -> anyhow::Result<()> {
    let context = || format!("can't copy {}", file.display());
    let real = fs::canonicalize(file).with_context(context)?;
    ensure!(
        real.starts_with(root),
        "{} is a link that leads outside, to {}",
        file.display(),
        real.display()
    );
    ensure!(real.is_file(), "{} is no file (links to folders are not followed)", file.display());
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(context)?;
    }
    fs::copy(&real, to).with_context(context)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for path in ["static/a.txt", "static/sub/b.txt", "static/sub/c.md", "top.txt", ".env"] {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, path.file_name().unwrap().as_encoded_bytes()).unwrap();
        }
        folder
    }

    fn listed(folder: &Path) -> Vec<String> {
        let all = glob::glob(&format!("{}/**/*", folder.display())).unwrap().flatten();
        let files = all.filter(|path| path.is_file());
        files
            .map(|path| path.strip_prefix(folder).unwrap().to_string_lossy().into_owned())
            .collect()
    }

    fn copied(files: &[Files], exclude: &[&str]) -> anyhow::Result<Vec<String>> {
        let exclude: Vec<_> = exclude.iter().map(|pattern| (*pattern).to_owned()).collect();
        let mounts = copy(tree().path(), files, &exclude)?;
        assert_eq!(mounts.folders[0].guest, "/");
        let copy = mounts.folders[0].host.clone();
        let found = listed(&copy);
        drop(mounts);
        assert!(!copy.exists(), "copies are gone when nobody sees them");
        Ok(found)
    }

    fn pattern(text: &str) -> Files {
        Files::Pattern(text.into())
    }

    fn placed(source: &str, destination: &str) -> Files {
        Files::Placed { source: source.into(), destination: destination.into() }
    }

    #[test]
    fn patterns_keep_their_paths() {
        assert_eq!(copied(&[pattern("static/*")], &[]).unwrap(), ["static/a.txt"]);
        assert_eq!(
            copied(&[pattern("static")], &[]).unwrap(),
            ["static/a.txt", "static/sub/b.txt", "static/sub/c.md"]
        );
        assert_eq!(
            copied(&[pattern("**/*.txt")], &["static/sub/*"]).unwrap(),
            ["static/a.txt", "top.txt"]
        );
        assert_eq!(copied(&[pattern("static/**/*")], &["**/*.txt"]).unwrap(), ["static/sub/c.md"]);
    }

    #[test]
    fn files_and_folders_are_placed() {
        assert_eq!(
            copied(&[placed("static/sub", "/x/y"), placed("top.txt", "/z.txt")], &[]).unwrap(),
            ["x/y/b.txt", "x/y/c.md", "z.txt"]
        );
        assert_eq!(copied(&[placed("static/sub", "/")], &[]).unwrap(), ["b.txt", "c.md"]);
    }

    #[test]
    fn nothing_outside_is_copied() {
        for (entry, word) in [
            (pattern("../*"), "without .."),
            (pattern("/etc/*"), "without .."),
            (pattern("nothing/*"), "matches nothing"),
            (pattern("[static"), "pattern"),
            (placed("static", "x"), "must begin with /"),
            (placed("static", "/../x"), ".."),
            (placed("missing", "/x"), "missing"),
        ] {
            let error = format!("{:#}", copied(&[entry], &[]).unwrap_err());
            assert!(error.contains(word), "{error}");
        }
        let from = tree();
        std::os::unix::fs::symlink("a.txt", from.path().join("static/inside")).unwrap();
        let mounts = copy(from.path(), &[placed("static", "/")], &[]).unwrap();
        assert_eq!(fs::read(mounts.folders[0].host.join("inside")).unwrap(), b"a.txt");
        std::os::unix::fs::symlink("/etc/hostname", from.path().join("static/outside")).unwrap();
        let refused = |entry: Files, link: &str| {
            let error = format!("{:#}", copy(from.path(), &[entry], &[]).unwrap_err());
            assert!(error.contains(&format!("{link} is a link that leads outside")), "{error}");
        };
        refused(pattern("static/*"), "static/outside");
        refused(placed("static", "/"), "static/outside");
        fs::remove_file(from.path().join("static/outside")).unwrap();
        std::os::unix::fs::symlink("/etc", from.path().join("static/etc")).unwrap();
        refused(pattern("static/**/*"), "static/etc");
        refused(placed("static", "/"), "static/etc");
    }

    #[test]
    fn only_folders_are_mounted_directly() {
        let from = tree();
        let mounts = direct(from.path(), &[placed("static", "/s")]).unwrap();
        assert_eq!(
            mounts.folders,
            [Mount { host: from.path().join("static"), guest: "/s".into() }]
        );
        for wrong in [pattern("static/*"), placed("top.txt", "/t"), placed("static", "/a/../..")] {
            assert!(direct(from.path(), &[wrong]).is_err());
        }
    }
}
