//! States that clients carry from one round of a call to the next (MCP 2026-07-28, `requestState`).
//! They can be read, but neither made nor changed, and serve only the call they were made for.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use tokio::time::{Duration, Instant};

/// How long a state is good for; people are asked, too.
const LIFETIME: Duration = Duration::from_secs(600);

/// Makes and checks states with a key of its own.
pub(super) struct Sealer {
    /// Absent if the system has no randomness to give; nothing can be sealed then.
    key: Option<[u8; 32]>,
    started: Instant,
}

impl Sealer {
    /// A sealer whose states no other one takes.
    pub(super) fn new() -> Self {
        let mut key = [0; 32];
        let key = getrandom::fill(&mut key).is_ok().then_some(key);
        Self { key, started: Instant::now() }
    }

    /// Seals a value for the call that `purpose` describes.
    pub(super) fn seal(&self, purpose: &str, value: &str) -> Option<String> {
        let value = format!("{}.{value}", self.started.elapsed().as_secs());
        let tag = self.mac(purpose, &value)?.finalize().into_bytes();
        let [value, tag] = [value.as_bytes(), &tag[..]].map(|bytes| URL_SAFE_NO_PAD.encode(bytes));
        Some(format!("{value}.{tag}"))
    }

    /// The value of a state that was sealed here, for this purpose, and not too long ago.
    pub(super) fn open(&self, purpose: &str, state: &str) -> Option<String> {
        let (value, tag) = state.split_once('.')?;
        let value = String::from_utf8(URL_SAFE_NO_PAD.decode(value).ok()?).ok()?;
        let tag = URL_SAFE_NO_PAD.decode(tag).ok()?;
        self.mac(purpose, &value)?.verify_slice(&tag).ok()?;
        let (since, value) = value.split_once('.')?;
        let age = self.started.elapsed().as_secs().checked_sub(since.parse().ok()?)?;
        (age <= LIFETIME.as_secs()).then(|| value.to_owned())
    }

    /// Each part with its length, so that none can lend bytes to the other.
    fn mac(&self, purpose: &str, value: &str) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key.as_ref()?).ok()?;
        for part in [purpose, value] {
            mac.update(&part.len().to_be_bytes());
            mac.update(part.as_bytes());
        }
        Some(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_state_is_good_for_its_own_call_until_it_is_too_old() {
        let sealer = Sealer::new();
        let state = sealer.seal("tea", "a.b").unwrap();
        assert_eq!(sealer.open("tea", &state).as_deref(), Some("a.b"));
        assert_eq!(sealer.open("coffee", &state), None);
        assert_eq!(Sealer::new().open("tea", &state), None);
        tokio::time::advance(LIFETIME + Duration::from_secs(2)).await;
        assert_eq!(sealer.open("tea", &state), None);
    }

    #[tokio::test]
    async fn no_byte_of_a_state_can_be_changed() {
        let sealer = Sealer::new();
        let state = sealer.seal("tea", "value").unwrap();
        for at in 0..state.len() {
            let mut bytes = state.clone().into_bytes();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(sealer.open("tea", &String::from_utf8(bytes).unwrap()), None, "{at}");
        }
        for text in ["", ".", "x", &state[..state.len() - 1], &format!("{state}A")] {
            assert_eq!(sealer.open("tea", text), None);
        }
    }
}
