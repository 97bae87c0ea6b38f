//! Cursors of merged lists: a place in one version of a list, sealed so that clients can neither read nor
//! make them, and valid in the session they were given to.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::mcp::ListKind;

/// Bytes of the authentication tag that are kept.
const TAG: usize = 16;

/// Seals and opens the cursors of one list in one session.
#[derive(Debug)]
pub(super) struct Seal {
    mac: Hmac<Sha256>,
}

impl Seal {
    /// Bound to the session and the kind of list.
    pub(super) fn new(secret: &[u8], session: &str, kind: ListKind) -> Self {
        let mut mac = Hmac::new_from_slice(secret)
            .unwrap_or_else(|_| unreachable!("an HMAC key may have any length"));
        for part in [b"cursor", session.as_bytes(), kind.as_str().as_bytes()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        Self { mac }
    }

    /// A cursor for page `page` of version `version`.
    pub(super) fn close(&self, version: u64, page: usize) -> String {
        let mut bytes = Vec::with_capacity(16 + TAG);
        bytes.extend(version.to_be_bytes());
        bytes.extend((page as u64).to_be_bytes());
        let tag = self.mac.clone().chain_update(&bytes).finalize().into_bytes();
        bytes.extend(&tag[..TAG]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Version and page; `None` for anything that was not sealed here.
    pub(super) fn open(&self, cursor: &str) -> Option<(u64, usize)> {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (place, tag) = bytes.split_at_checked(16)?;
        if tag.len() != TAG {
            return None;
        }
        self.mac.clone().chain_update(place).verify_truncated_left(tag).ok()?;
        let (version, page) = place.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_be_bytes).ok();
        Some((number(version)?, usize::try_from(number(page)?).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_opens_only_where_it_was_given() {
        let seal = Seal::new(b"secret", "s1", ListKind::Tools);
        let cursor = seal.close(7, 2);
        assert_eq!(seal.open(&cursor), Some((7, 2)));
        assert_eq!(Seal::new(b"secret", "s2", ListKind::Tools).open(&cursor), None);
        assert_eq!(Seal::new(b"secret", "s1", ListKind::Prompts).open(&cursor), None);
        assert_eq!(Seal::new(b"other", "s1", ListKind::Tools).open(&cursor), None);
    }

    #[test]
    fn a_changed_cursor_does_not_open() {
        let seal = Seal::new(b"secret", "s1", ListKind::Tools);
        let cursor = seal.close(7, 2);
        for (at, byte) in cursor.char_indices() {
            let mut forged = cursor.clone();
            forged.replace_range(at..=at, if byte == 'A' { "B" } else { "A" });
            assert_eq!(seal.open(&forged), None, "{at}");
        }
        for garbage in ["", "garbage", "AAAA", &cursor[1..]] {
            assert_eq!(seal.open(garbage), None);
        }
    }
}
