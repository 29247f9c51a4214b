//! TLS: certificates and keys in PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, ensure};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The protocols that clients may choose from.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The two files.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, and those that lead to one that clients trust.
    pub certificate: PathBuf,
    /// The key of the first.
    pub key: PathBuf,
}

/// Reads the files.
///
/// # Errors
///
/// A sentence that names the file.
pub fn acceptor(files: &TlsFiles) -> anyhow::Result<TlsAcceptor> {
    let certificates = certificates(&files.certificate)
        .with_context(|| in_file("certificate", &files.certificate))?;
    let key =
        PrivateKeyDer::from_pem_file(&files.key).with_context(|| in_file("key", &files.key))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .with_context(|| {
            let (certificate, key) = (files.certificate.display(), files.key.display());
            format!("the TLS certificate {certificate} and the key {key} can't be used")
        })?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>()?;
    ensure!(!certificates.is_empty(), "there is none in it");
    Ok(certificates)
}

fn in_file(what: &str, path: &Path) -> String {
    format!("can't read the TLS {what} {}", path.display())
}
