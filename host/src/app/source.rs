//! Where the Wasm of a component is.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use crate::cache::{self, Cache, is_digest};

/// The folder of the cache for what came by URLs.
const FETCHED: &str = "sources";

/// How long a server may take to be connected, and to answer. The whole body may take ten times as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The most bytes that a component may have which comes by a URL.
const MOST_BYTES: u64 = 512 << 20;

/// Where it is, and what its SHA-256 must be, in hex.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file.
    File { path: PathBuf, sha256: Option<String> },
    /// A URL that is asked once; later the file is in the cache.
    Url { url: String, sha256: String },
}

impl Source {
    /// A file that may have any content.
    pub fn of_file(path: PathBuf) -> Self {
        Self::File { path, sha256: None }
    }

    /// The file with it, once its content has been checked.
    ///
    /// # Errors
    ///
    /// When it isn't there, can't be brought, or has another SHA-256.
    pub fn file(&self, cache: &Cache) -> anyhow::Result<PathBuf> {
        match self {
            Self::File { path, sha256 } => {
                ensure!(path.is_file(), "there is no file {} (is it built?)", path.display());
                if let Some(expected) = sha256 {
                    ensure_digest(&cache::digest_of_file(path)?, expected, self)?;
                }
                Ok(path.clone())
            }
            Self::Url { url, sha256 } => {
                let file = cache.entry(FETCHED, &format!("{sha256}.wasm"))?;
                if !is_there(&file, sha256) {
                    tracing::info!(url, "bringing a component");
                    let wasm = bring(url).with_context(|| format!("can't bring {url}"))?;
                    ensure_digest(&cache::digest(&wasm), sha256, self)?;
                    cache.write(&file, &wasm)?;
                    cache.prune(&cache.dir(FETCHED)?)?;
                }
                Ok(file)
            }
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, .. } => path.display().fmt(f),
            Self::Url { url, .. } => f.write_str(url),
        }
    }
}

fn ensure_digest(found: &str, expected: &str, source: &Source) -> anyhow::Result<()> {
    ensure!(found == expected, "the SHA-256 of {source} is {found}, but must be {expected}");
    Ok(())
}

fn is_there(file: &Path, sha256: &str) -> bool {
    cache::digest_of_file(file).is_ok_and(|found| found == sha256)
}

fn bring(url: &str) -> anyhow::Result<Vec<u8>> {
    let mut wasm = Vec::new();
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_connect(Some(PATIENCE))
        .timeout_recv_response(Some(PATIENCE))
        .timeout_recv_body(Some(10 * PATIENCE))
        .build()
        .into();
    agent.get(url).call()?.into_body().into_reader().take(MOST_BYTES + 1).read_to_end(&mut wasm)?;
    if wasm.len() as u64 > MOST_BYTES {
        bail!("it is larger than {} MiB", MOST_BYTES >> 20);
    }
    Ok(wasm)
}

/// Refuses a digest that is none. Gives its hex digits.
pub(super) fn sha256(digest: &str) -> anyhow::Result<String> {
    digest
        .strip_prefix("sha256:")
        .filter(|hex| is_digest(hex))
        .map(str::to_ascii_lowercase)
        .with_context(|| format!("the digest {digest:?} is not sha256: and 64 hex digits"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;

    /// A server that answers one request with that.
    fn answering(body: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/app.wasm", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let head = format!(
                "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(&[head.as_bytes(), body].concat());
        });
        url
    }

    #[test]
    fn what_comes_by_a_url_is_checked_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path().join("cache")).unwrap();
        let right = Source::Url { url: answering(b"wasm"), sha256: cache::digest(b"wasm") };
        let file = right.file(&cache).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"wasm");
        // The server has gone: what was brought is used, and what isn't intact is brought anew.
        assert_eq!(right.file(&cache).unwrap(), file);
        std::fs::write(&file, b"other").unwrap();
        let error = format!("{:#}", right.file(&cache).unwrap_err());
        assert!(error.contains("can't bring http://127.0.0.1:"), "{error}");

        let wrong = Source::Url { url: answering(b"wasm"), sha256: cache::digest(b"masw") };
        let error = wrong.file(&cache).unwrap_err().to_string();
        assert!(error.contains("SHA-256") && error.contains(&cache::digest(b"wasm")), "{error}");
    }

    #[test]
    fn files_are_checked_where_a_digest_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path().join("cache")).unwrap();
        let path = folder.path().join("app.wasm");
        assert!(Source::of_file(path.clone()).file(&cache).is_err());
        std::fs::write(&path, b"wasm").unwrap();
        assert_eq!(Source::of_file(path.clone()).file(&cache).unwrap(), path);
        let of = |content: &[u8]| {
            let sha256 = Some(cache::digest(content));
            Source::File { path: path.clone(), sha256 }.file(&cache)
        };
        assert_eq!(of(b"wasm").unwrap(), path);
        assert!(of(b"masw").unwrap_err().to_string().contains("app.wasm is"));
    }
}
