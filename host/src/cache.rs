//! The folder in which derived things are kept between starts.
//!
//! Some of them are native code that is mapped and run, so nobody else may write there: the folder
//! and what is in it belong to the user, are no symbolic links, and are open to the user alone.
//! Files are written aside and renamed, so a reader never sees half of one, and native code is
//! checked against its digest before it is used.
//!
//! Where the folder can't be written, as on a read-only root, what is there already is used, and what isn't is
//! kept for this process alone.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail, ensure};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

/// How many entries of a folder of the cache stay however long they are not used.
const KEPT: usize = 16;

/// How long an entry stays at least after its last use.
const KEPT_AT_LEAST: Duration = Duration::from_secs(24 * 60 * 60);

/// A folder of derived files.
#[derive(Debug, Clone)]
pub struct Cache {
    /// Where new ones are written.
    root: PathBuf,
    /// Where there may be some that can only be read.
    prepared: Option<PathBuf>,
    /// Whether `root` is gone with the last of these.
    temporary: Option<Arc<TempDir>>,
}

/// Where temporary files can be in memory.
const IN_MEMORY: &str = "/dev/shm";

impl Cache {
    /// Where the cache is unless told otherwise: `SPINFER_CACHE_DIR`, else `spinfer` in the user's
    /// cache folder.
    pub fn default_root() -> anyhow::Result<PathBuf> {
        let from_env = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        if let Some(dir) = from_env("SPINFER_CACHE_DIR") {
            return Ok(dir.into());
        }
        if let Some(dir) = from_env("XDG_CACHE_HOME") {
            return Ok(PathBuf::from(dir).join("spinfer"));
        }
        match from_env("HOME") {
            Some(home) => Ok(PathBuf::from(home).join(".cache/spinfer")),
            None => bail!("there is no home folder to keep the cache in; set SPINFER_CACHE_DIR"),
        }
    }

    /// Opens the cache at `root`, making it if it isn't there.
    pub fn open(root: PathBuf) -> anyhow::Result<Self> {
        Self::make(&root).with_context(|| format!("can't write the cache {}", root.display()))?;
        private_dir(&root)?;
        Ok(Self { root, prepared: None, temporary: None })
    }

    /// Opens the cache at `root`. One that can't be written is read, and what is missing there goes to a
    /// temporary folder.
    pub fn open_or_read(root: PathBuf) -> anyhow::Result<Self> {
        match Self::make(&root) {
            Ok(()) => Self::open(root),
            Err(error) => Self::open_beside(root, &error),
        }
    }

    /// Makes the folder, and sees whether it can be written.
    fn make(root: &Path) -> io::Result<()> {
        if let Some(parent) = root.parent() {
            fs::create_dir_all(parent)?;
        }
        match fs::DirBuilder::new().mode(0o700).create(root) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        match fs::symlink_metadata(root)?.is_dir() {
            true => tempfile::tempfile_in(root).map(drop),
            // `own_dir` has better words for it.
            false => Ok(()),
        }
    }

    fn open_beside(root: PathBuf, why: &io::Error) -> anyhow::Result<Self> {
        let prepared = match root.symlink_metadata() {
            Ok(_) => {
                // It is only read, so others may read it, too.
                ensure!(
                    own_dir(&root)?.permissions().mode() & 0o022 == 0,
                    "others may write the cache {}, which is run as native code",
                    root.display()
                );
                Some(root.clone())
            }
            Err(_) => None,
        };
        let name = || {
            let mut name = tempfile::Builder::new();
            name.prefix("spinfer-cache-");
            name
        };
        let temporary = name().tempdir().or_else(|_| name().tempdir_in(IN_MEMORY));
        let temporary = temporary.with_context(|| {
            format!(
                "the cache {} can't be written ({why}), nor can any folder for temporary files; give one with \
                 --cache-dir",
                root.display()
            )
        })?;
        tracing::warn!(
            cache = %root.display(),
            instead = %temporary.path().display(),
            "the cache can't be written ({why}): what is not in it yet is prepared anew at each start"
        );
        Ok(Self {
            root: temporary.path().to_owned(),
            prepared,
            temporary: Some(Arc::new(temporary)),
        })
    }

    /// Where it is written.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Whether what is written is there at the next start, too.
    pub fn is_kept(&self) -> bool {
        self.temporary.is_none()
    }

    /// Where an entry of a folder of the cache is or, if it isn't, where it is to be written.
    pub fn entry(&self, folder: &str, name: &str) -> anyhow::Result<PathBuf> {
        let prepared = self.prepared.as_ref().map(|root| root.join(folder).join(name));
        let usable =
            |path: &PathBuf| path.exists() && (!digest_path(path).exists() || self.is_intact(path));
        match prepared.filter(usable) {
            Some(path) => Ok(path),
            None => Ok(self.dir(folder)?.join(name)),
        }
    }

    /// A folder in the cache, made if it isn't there.
    pub fn dir(&self, name: &str) -> anyhow::Result<PathBuf> {
        let dir = self.root.join(name);
        private_dir(&dir)?;
        Ok(dir)
    }

    /// Writes a file of the cache aside and renames it.
    pub fn write(&self, path: &Path, content: &[u8]) -> anyhow::Result<()> {
        let dir = path.parent().unwrap_or(&self.root);
        let write = || -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(dir)?;
            file.write_all(content)?;
            file.as_file().sync_data()?;
            file.persist(path).map_err(|error| error.error)?;
            Ok(())
        };
        write().with_context(|| format!("can't write {}", path.display()))
    }

    /// Writes a file and, beside it, its digest.
    pub fn write_with_digest(&self, path: &Path, content: &[u8]) -> anyhow::Result<()> {
        self.write(path, content)?;
        self.write(&digest_path(path), digest(content).as_bytes())
    }

    /// Removes what has not been used for long from a folder of the cache, if there is much in it.
    /// What is used should be touched ([`Self::touch`]).
    pub fn prune(&self, dir: &Path) -> anyhow::Result<()> {
        let mut entries: Vec<_> = fs::read_dir(dir)?
            .filter_map(|entry| {
                let entry = entry.ok()?;
                Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
            })
            .collect();
        entries.sort();
        let surplus = entries.len().saturating_sub(KEPT);
        for (modified, path) in entries.into_iter().take(surplus) {
            if modified.elapsed().unwrap_or_default() < KEPT_AT_LEAST {
                break;
            }
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            if let Err(error) = removed {
                tracing::warn!(%error, path = %path.display(), "can't remove an old file of the cache");
            }
        }
        Ok(())
    }

    /// Marks a file (and its digest) or a folder as used now, for [`Self::prune`].
    pub fn touch(&self, path: &Path) {
        for path in [path, &digest_path(path)] {
            let touched = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
            if let Err(error) = touched {
                tracing::debug!(%error, path = %path.display(), "can't touch");
            }
        }
    }

    /// Whether a file written by [`Self::write_with_digest`] is there as it was written.
    pub fn is_intact(&self, path: &Path) -> bool {
        let intact = || -> io::Result<bool> {
            let expected = fs::read_to_string(digest_path(path))?;
            let metadata = fs::symlink_metadata(path)?;
            Ok(metadata.is_file()
                && metadata.uid() == rustix::process::geteuid().as_raw()
                && metadata.permissions().mode() & 0o022 == 0
                && digest_of_file(path)? == expected)
        };
        intact().unwrap_or(false)
    }
}

/// Makes a folder that only its user can read and write, or sees to it that one that is there is so.
fn private_dir(dir: &Path) -> anyhow::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return Err(error).with_context(|| format!("can't make the folder {}", dir.display()));
        }
        _ => {}
    }
    if own_dir(dir)?.permissions().mode() & 0o777 != 0o700 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
            .with_context(|| format!("others may use the cache {}", dir.display()))?;
    }
    Ok(())
}

/// What the file system says of a folder, which must belong to the user and be no link.
fn own_dir(dir: &Path) -> anyhow::Result<fs::Metadata> {
    let metadata = fs::symlink_metadata(dir)?;
    ensure!(metadata.is_dir(), "the cache {} is not a folder", dir.display());
    ensure!(
        metadata.uid() == rustix::process::geteuid().as_raw(),
        "the cache {} belongs to another user",
        dir.display()
    );
    Ok(metadata)
}

fn digest_path(path: &Path) -> PathBuf {
    path.with_added_extension("sha256")
}

/// The SHA-256 of some bytes, in hex.
pub fn digest(content: &[u8]) -> String {
    hex(Sha256::digest(content).as_slice())
}

/// The SHA-256 of a file, in hex.
pub fn digest_of_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut sha = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(sha.finalize().as_slice())),
            count => sha.update(&buffer[..count]),
        }
    }
}

/// Whether a text is a SHA-256 in hex.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn cache() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path().join("cache")).unwrap();
        (dir, cache)
    }

    #[test]
    fn the_folder_is_open_to_its_user_alone() {
        let (dir, cache) = cache();
        fs::set_permissions(dir.path().join("cache"), fs::Permissions::from_mode(0o777)).unwrap();
        let sub = cache.dir("components").unwrap();
        assert_eq!(fs::metadata(&sub).unwrap().permissions().mode() & 0o777, 0o700);
        Cache::open(dir.path().join("cache")).unwrap();
        let mode = fs::metadata(dir.path().join("cache")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn what_was_prepared_is_used_and_what_was_not_is_kept_aside() {
        let (dir, cache) = cache();
        let there = cache.entry("a", "code").unwrap();
        cache.write_with_digest(&there, b"code").unwrap();
        let damaged = cache.entry("a", "damaged").unwrap();
        cache.write_with_digest(&damaged, b"code").unwrap();
        fs::write(&damaged, b"evil").unwrap();
        assert!(cache.is_kept());
        // As on a read-only root, which a user who may everything can't make here.
        let read_only = io::Error::from(ErrorKind::ReadOnlyFilesystem);
        let beside = Cache::open_beside(dir.path().join("cache"), &read_only).unwrap();
        assert!(!beside.is_kept());
        assert_eq!(beside.entry("a", "code").unwrap(), there);
        let aside = beside.entry("a", "other").unwrap();
        assert!(aside.starts_with(beside.root()) && !aside.starts_with(dir.path()));
        beside.write_with_digest(&aside, b"other").unwrap();
        assert!(beside.is_intact(&aside));
        assert!(beside.entry("a", "damaged").unwrap().starts_with(beside.root()));
        let root = beside.root().to_owned();
        drop(beside);
        assert!(!root.exists() && there.exists());
        let opened_to = |mode| {
            let root = dir.path().join("cache");
            fs::set_permissions(&root, fs::Permissions::from_mode(mode)).unwrap();
            Cache::open_beside(root, &read_only).and_then(|cache| cache.entry("a", "code"))
        };
        assert_eq!(opened_to(0o755).unwrap(), there, "others may read it");
        assert!(opened_to(0o775).unwrap_err().to_string().contains("others may write"));
    }

    #[test]
    fn what_is_old_and_unused_is_pruned() {
        let (_dir, cache) = cache();
        let folder = cache.dir("a").unwrap();
        let old = SystemTime::now() - 2 * KEPT_AT_LEAST;
        for index in 0..KEPT + 3 {
            let path = folder.join(format!("{index:02}"));
            cache.write(&path, b"x").unwrap();
            if index < 4 {
                File::open(&path).unwrap().set_modified(old).unwrap();
            }
        }
        cache.touch(&folder.join("00"));
        cache.prune(&folder).unwrap();
        let left = |index: usize| folder.join(format!("{index:02}")).exists();
        assert!(left(0) && !left(1) && !left(2) && !left(3) && left(4));
    }

    #[test]
    fn a_symbolic_link_is_no_cache() {
        let (dir, _) = cache();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink(elsewhere.path(), dir.path().join("link")).unwrap();
        let error = Cache::open(dir.path().join("link")).unwrap_err();
        assert!(error.to_string().contains("not a folder"), "{error}");
    }

    #[test]
    fn what_was_changed_linked_or_opened_to_others_is_not_intact() {
        let (_dir, cache) = cache();
        let path = cache.dir("a").unwrap().join("code");
        assert!(!cache.is_intact(&path));
        cache.write_with_digest(&path, b"code").unwrap();
        assert!(cache.is_intact(&path));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(!cache.is_intact(&path));
        cache.write_with_digest(&path, b"code").unwrap();
        fs::write(&path, b"evil").unwrap();
        assert!(!cache.is_intact(&path));
        cache.write_with_digest(&path, b"code").unwrap();
        let moved = path.with_file_name("moved");
        fs::rename(&path, &moved).unwrap();
        symlink(&moved, &path).unwrap();
        assert!(!cache.is_intact(&path));
    }
}
