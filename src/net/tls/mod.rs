//! TLS with rustls and aws-lc-rs, on both sides.
//!
//! What TLS is set up from is a [`Recipe`]: which files, and what they make. [`Live`] holds what was made last; its files
//! are looked at again and again, and a change that makes sense takes the place of what was. Connections keep what they
//! began with.

mod client;
mod live;
mod pem;
mod server;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;

pub use client::{ClientRecipe, describe, in_error, refusal};
pub use live::{Live, Recipe};
pub use server::{HTTP1, HTTP2, ServerRecipe};

/// Why TLS cannot be set up.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct TlsError {
    /// The key of the configuration that names what is wrong: `cert`, `key`, `ca`, `client_ca`, `server_name`.
    pub key: &'static str,
    /// What is wrong, and what to do.
    pub what: String,
}

impl TlsError {
    fn new(key: &'static str, what: impl Into<String>) -> Self {
        Self { key, what: what.into() }
    }

    fn of_file(key: &'static str, path: &Path, what: impl std::fmt::Display) -> Self {
        Self::new(key, format!("{}: {what}", path.display()))
    }
}

/// The one provider of cryptography; never the process's default, which others may set.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    Arc::clone(PROVIDER.get_or_init(make))
}
