//! TLS towards upstreams.

use std::error::Error as StdError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};

use super::live::Recipe;
use super::{TlsError, pem, provider};

/// What the TLS of connections to one upstream is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientRecipe {
    /// Authorities that are trusted in place of those of the system.
    pub ca: Option<PathBuf>,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Whether anything that the upstream shows is believed.
    pub insecure: bool,
    /// The protocols that are offered, the best first.
    pub alpn: Vec<Vec<u8>>,
}

impl Recipe for ClientRecipe {
    type Made = ClientConfig;

    fn files(&self) -> Vec<(&'static str, &Path)> {
        let mut files = Vec::new();
        if let Some((cert, key)) = &self.identity {
            files.extend([("cert", cert.as_path()), ("key", key.as_path())]);
        }
        files.extend(self.ca.as_deref().map(|path| ("ca", path)));
        files
    }

    fn make(&self, texts: &[Vec<u8>]) -> Result<ClientConfig, TlsError> {
        let (own, authorities) = texts.split_at(self.identity.as_ref().map_or(0, |_| 2));
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::new("ca", error.to_string()))?;
        let builder = match (&self.ca, authorities) {
            (_, _) if self.insecure => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(Believing(provider()))),
            (Some(path), [text, ..]) => {
                builder.with_root_certificates(pem::authorities("ca", path, text)?)
            }
            _ => builder.with_root_certificates(system_roots()?),
        };
        let mut config = match (&self.identity, own) {
            (Some((cert, key)), [cert_text, key_text]) => builder
                .with_client_auth_cert(
                    pem::certificates("cert", cert, cert_text)?,
                    pem::private_key("key", key, key_text)?,
                )
                .map_err(|error| pem::unfit(cert, key, &error))?,
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols.clone_from(&self.alpn);
        Ok(config)
    }
}

/// The authorities that the system trusts, read once.
fn system_roots() -> Result<Arc<RootCertStore>, TlsError> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let roots = ROOTS.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "some certificate authorities of the system cannot be read");
        }
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found.certs);
        Arc::new(roots)
    });
    if roots.is_empty() {
        let what = "the system has no certificate authorities; install them (the package \
                    ca-certificates), or name a file of them with `ca`";
        return Err(TlsError::new("ca", what));
    }
    Ok(Arc::clone(roots))
}

/// Believes every certificate, but still sees that the other side holds its key.
#[derive(Debug)]
struct Believing(Arc<CryptoProvider>);

impl ServerCertVerifier for Believing {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// What went wrong with TLS, and what to do, for the log; without address.
pub fn describe(error: &Error) -> String {
    use CertificateError as Bad;
    match error {
        Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "its certificate has expired".to_owned()
        }
        Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "its certificate is not valid yet; do the clocks agree?".to_owned()
        }
        // Of an authority of the same name, but with another key.
        Error::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature) => {
            "its certificate is of an authority that is not trusted here; name that with `ca` in its \
             `tls`"
                .to_owned()
        }
        Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "its certificate is for another name; set `server_name` in its `tls`".to_owned()
        }
        Error::InvalidCertificate(Bad::Other(other)) if other.to_string().contains("CaUsed") => {
            "its certificate is that of an authority itself; use one that the authority signed"
                .to_owned()
        }
        Error::InvalidCertificate(other) => format!("its certificate is not accepted: {other}"),
        Error::AlertReceived(AlertDescription::CertificateRequired) => {
            "it wants a client certificate; set `cert` and `key` in its `tls`".to_owned()
        }
        Error::AlertReceived(AlertDescription::NoApplicationProtocol) => {
            "it speaks no version of HTTP that it is offered; see `http2`".to_owned()
        }
        Error::AlertReceived(alert) if OF_OUR_CERTIFICATE.contains(alert) => {
            format!("it refuses the client certificate in its `tls` ({alert:?})")
        }
        Error::InvalidMessage(_) => "it does not speak TLS there".to_owned(),
        other => format!("TLS failed: {other}"),
    }
}

/// What an upstream has against our certificate, or that we showed none. With TLS 1.3 it says so once a request was sent,
/// which it did not read.
pub fn refusal(error: &Error) -> Option<String> {
    match error {
        Error::AlertReceived(alert) if OF_OUR_CERTIFICATE.contains(alert) => Some(describe(error)),
        _ => None,
    }
}

const OF_OUR_CERTIFICATE: [AlertDescription; 8] = [
    AlertDescription::CertificateRequired,
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
];

/// The error of TLS that is at the bottom of another one.
pub fn in_error<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<Error>() {
            return Some(found);
        }
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}
