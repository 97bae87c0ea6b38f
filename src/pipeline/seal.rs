//! What the gateway gives to clients to be handed back later: sealed, so that they can neither read it nor make it, and
//! bound to who may use it and for what.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{Key, XChaCha20Poly1305, XNonce};
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// How every sealed text begins: version of the form.
const MARK: &str = "tl1.";
/// Bytes of the nonce; so many that it can be random.
const NONCE: usize = 24;

/// Seals and opens texts of one purpose.
pub(super) struct Seal {
    cipher: XChaCha20Poly1305,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seal").finish_non_exhaustive()
    }
}

/// There are no random numbers to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no random numbers to be had")]
pub(super) struct NoRandomness;

impl Seal {
    /// With a key of its own for each purpose.
    pub(super) fn new(secret: &[u8], purpose: &str) -> Self {
        let mac = <Hmac<Sha256> as Mac>::new_from_slice(secret)
            .unwrap_or_else(|_| unreachable!("an HMAC key may have any length"));
        let key = mac.chain_update(b"seal\0").chain_update(purpose.as_bytes()).finalize();
        let key: [u8; 32] = key.into_bytes().into();
        Self { cipher: XChaCha20Poly1305::new(&Key::from(key)) }
    }

    /// Seals `text` for whoever can name `bound` again.
    pub(super) fn close(&self, text: &[u8], bound: &[&[u8]]) -> Result<String, NoRandomness> {
        let mut nonce = [0_u8; NONCE];
        getrandom::fill(&mut nonce).map_err(|_| NoRandomness)?;
        let payload = Payload { msg: text, aad: &joined(bound) };
        let sealed =
            self.cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| NoRandomness)?;
        let mut bytes = nonce.to_vec();
        bytes.extend(sealed);
        let mut sealed = MARK.to_owned();
        URL_SAFE_NO_PAD.encode_string(bytes, &mut sealed);
        Ok(sealed)
    }

    /// The text again; `None` for anything that was not sealed here for `bound`.
    pub(super) fn open(&self, sealed: &str, bound: &[&[u8]]) -> Option<Vec<u8>> {
        let bytes = URL_SAFE_NO_PAD.decode(sealed.strip_prefix(MARK)?).ok()?;
        let (nonce, text) = bytes.split_first_chunk::<NONCE>()?;
        let payload = Payload { msg: text, aad: &joined(bound) };
        self.cipher.decrypt(&XNonce::from(*nonce), payload).ok()
    }
}

/// The parts, each with its length before it: no two lists of parts give the same bytes.
fn joined(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend((part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_only_for_the_same_purpose_and_binding() {
        let seal = Seal::new(b"secret", "state");
        let sealed = seal.close(b"text", &[b"a", b"bc"]).expect("randomness");
        assert_eq!(seal.open(&sealed, &[b"a", b"bc"]).as_deref(), Some(&b"text"[..]));
        assert_eq!(seal.open(&sealed, &[b"ab", b"c"]), None);
        assert_eq!(Seal::new(b"secret", "task").open(&sealed, &[b"a", b"bc"]), None);
        assert_eq!(Seal::new(b"other", "state").open(&sealed, &[b"a", b"bc"]), None);
        assert_ne!(seal.close(b"text", &[b"a", b"bc"]).expect("randomness"), sealed);
        let header_safe = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        assert!(sealed.bytes().all(header_safe));
    }

    #[test]
    fn a_changed_text_does_not_open() {
        let seal = Seal::new(b"secret", "state");
        let sealed = seal.close(b"text", &[]).expect("randomness");
        for (at, byte) in sealed.char_indices() {
            let mut forged = sealed.clone();
            forged.replace_range(at..=at, if byte == 'A' { "B" } else { "A" });
            assert_eq!(seal.open(&forged, &[]), None, "{at}");
        }
        for garbage in ["", MARK, "tl1.AAAA", &sealed[1..], &sealed[..sealed.len() - 1]] {
            assert_eq!(seal.open(garbage, &[]), None);
        }
    }
}
