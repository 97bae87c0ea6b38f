//! Certificates and keys in PEM.

use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;

/// The certificates of a file, at least one.
pub(super) fn certificates(
    key: &'static str,
    path: &Path,
    text: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, Error> = CertificateDer::pem_slice_iter(text).collect();
    let certificates =
        read.map_err(|error| TlsError::of_file(key, path, format!("is damaged PEM: {error}")))?;
    if certificates.is_empty() {
        let what = "holds no certificate; it must be PEM, with `-----BEGIN CERTIFICATE-----`";
        return Err(TlsError::of_file(key, path, what));
    }
    Ok(certificates)
}

/// The first private key of a file.
pub(super) fn private_key(
    key: &'static str,
    path: &Path,
    text: &[u8],
) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| {
        let encrypted = text.windows(9).any(|word| word == b"ENCRYPTED");
        let what = match error {
            _ if encrypted => "is encrypted; give the key without a passphrase".to_owned(),
            Error::NoItemsFound => {
                "holds no private key; it must be PEM, with `-----BEGIN PRIVATE KEY-----`"
                    .to_owned()
            }
            other => format!("is damaged PEM: {other}"),
        };
        TlsError::of_file(key, path, what)
    })
}

/// The certificate authorities of a file, at least one.
pub(super) fn authorities(
    key: &'static str,
    path: &Path,
    text: &[u8],
) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(key, path, text)? {
        roots.add(certificate).map_err(|error| {
            TlsError::of_file(key, path, format!("holds no usable authority: {error}"))
        })?;
    }
    Ok(roots)
}

/// How rustls tells that certificate and key do not fit, or that either cannot be used.
pub(super) fn unfit(cert: &Path, key: &Path, error: &rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            let cert = cert.display();
            TlsError::of_file("key", key, format!("is not the key of the certificate in {cert}"))
        }
        rustls::Error::InvalidCertificate(_) => {
            TlsError::of_file("cert", cert, format!("cannot be used: {error}"))
        }
        _ => TlsError::of_file("key", key, format!("cannot be used: {error}")),
    }
}
