//! Digests of large files, remembered by the files' size and times.
//!
//! Hashing gigabytes at each start would make starting slow. A file whose path, size, times and inode
//! are what they were has the digest that it had.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::cache::{self, Cache};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Stamp {
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    inode: u64,
    sha256: String,
}

impl Stamp {
    fn fits(&self, metadata: &fs::Metadata) -> bool {
        self.size == metadata.size()
            && self.modified == (metadata.mtime(), metadata.mtime_nsec())
            && self.changed == (metadata.ctime(), metadata.ctime_nsec())
            && self.inode == metadata.ino()
    }
}

/// The file in which they are remembered.
const FILE: &str = "stamps.json";

/// The remembered digests, by path.
pub struct Stamps {
    cache: Cache,
    path: PathBuf,
    stamps: BTreeMap<PathBuf, Stamp>,
}

impl Stamps {
    /// Reads what was remembered. A damaged file is as none.
    pub fn open(cache: &Cache) -> anyhow::Result<Self> {
        let path = cache.dir("models")?.join(FILE);
        let stamps = fs::read(cache.entry("models", FILE)?)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        Ok(Self { cache: cache.clone(), path, stamps })
    }

    /// The SHA-256 of a file, in hex.
    pub fn digest(&mut self, file: &Path) -> anyhow::Result<String> {
        let context = || format!("can't read {}", file.display());
        let key = file.canonicalize().with_context(context)?;
        let metadata = fs::metadata(&key).with_context(context)?;
        if let Some(stamp) = self.stamps.get(&key).filter(|stamp| stamp.fits(&metadata)) {
            return Ok(stamp.sha256.clone());
        }
        let sha256 = cache::digest_of_file(&key).with_context(context)?;
        let stamp = Stamp {
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
            sha256: sha256.clone(),
        };
        self.stamps.insert(key, stamp);
        self.cache.write(&self.path, &serde_json::to_vec(&self.stamps)?)?;
        Ok(sha256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_has_a_new_digest() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path().join("cache")).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "one").unwrap();
        let mut stamps = Stamps::open(&cache).unwrap();
        assert_eq!(stamps.digest(&file).unwrap(), cache::digest(b"one"));
        fs::write(&file, "two").unwrap();
        let mut stamps = Stamps::open(&cache).unwrap();
        assert_eq!(stamps.digest(&file).unwrap(), cache::digest(b"two"));
    }

    #[test]
    fn an_unchanged_file_is_not_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(dir.path().join("cache")).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "one").unwrap();
        Stamps::open(&cache).unwrap().digest(&file).unwrap();
        let mut stamps = Stamps::open(&cache).unwrap();
        stamps.stamps.values_mut().for_each(|stamp| stamp.sha256 = "remembered".into());
        assert_eq!(stamps.digest(&file).unwrap(), "remembered");
    }
}
