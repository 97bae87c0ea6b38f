//! TLS towards clients.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;

use super::live::Recipe;
use super::{TlsError, pem, provider};

/// HTTP/1.1 as it is agreed on.
pub const HTTP1: &[u8] = b"http/1.1";
/// HTTP/2 as it is agreed on.
pub const HTTP2: &[u8] = b"h2";

/// What the TLS of listeners is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRecipe {
    /// The certificate, and what leads from it to its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of clients; with it, only clients with a certificate of theirs are served.
    pub client_ca: Option<PathBuf>,
}

impl Recipe for ServerRecipe {
    type Made = ServerConfig;

    fn files(&self) -> Vec<(&'static str, &Path)> {
        let mut files = vec![("cert", &*self.cert), ("key", &*self.key)];
        files.extend(self.client_ca.as_deref().map(|path| ("client_ca", path)));
        files
    }

    fn make(&self, texts: &[Vec<u8>]) -> Result<ServerConfig, TlsError> {
        let [cert, key, rest @ ..] = texts else {
            return Err(TlsError::new("cert", "is not read"));
        };
        let chain = pem::certificates("cert", &self.cert, cert)?;
        let own_key = pem::private_key("key", &self.key, key)?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new("cert", error.to_string()))?;
        let builder = match (&self.client_ca, rest.first()) {
            (Some(path), Some(text)) => {
                let roots = Arc::new(pem::authorities("client_ca", path, text)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                let verifier = verifier.build().map_err(|error| {
                    TlsError::of_file("client_ca", path, format!("cannot be used: {error}"))
                })?;
                builder.with_client_cert_verifier(verifier)
            }
            _ => builder.with_no_client_auth(),
        };
        let mut config = builder
            .with_single_cert(chain, own_key)
            .map_err(|error| pem::unfit(&self.cert, &self.key, &error))?;
        config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        Ok(config)
    }
}
