//! Ids that tie log lines, calls and traces together.

use std::cell::Cell;
use std::fmt::{self, Write};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

/// A trace (W3C Trace Context): 16 bytes, not all zero. Prints as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

impl TraceId {
    /// A new one at random. Not a secret.
    pub fn mint() -> Self {
        // The lowest bit keeps it from being zero.
        Self((u128::from(random()) << 64 | u128::from(random()) | 1).to_be_bytes())
    }

    /// The trace of a `traceparent` value, or a new one when there is none that can be used.
    pub fn of(traceparent: Option<&str>) -> Self {
        traceparent.and_then(TraceParent::parse).map_or_else(Self::mint, |parent| parent.trace_id)
    }

    /// The digits it prints as.
    pub fn hex(self) -> [u8; 32] {
        hex(u128::from_be_bytes(self.0))
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// A `traceparent` value, from the HTTP header or from `_meta` of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace_id: TraceId,
    /// The caller's span, not all zero.
    pub parent_id: [u8; 8],
    /// Whether the caller records the trace.
    pub sampled: bool,
}

impl TraceParent {
    /// Parses as W3C Trace Context §3.2 says: version 00 exactly, later versions by their beginning, lower case
    /// only, no zero ids. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        let dashes = text.len() >= 55 && [2, 35, 52].iter().all(|at| text[*at] == b'-');
        if !dashes {
            return None;
        }
        let [version] = unhex(&text[..2])?;
        let ends = match version {
            0 => text.len() == 55,
            0xff => false,
            _ => text.get(55).is_none_or(|next| *next == b'-'),
        };
        let trace_id: [u8; 16] = unhex(&text[3..35])?;
        let parent_id: [u8; 8] = unhex(&text[36..52])?;
        let [flags] = unhex(&text[53..55])?;
        let real = trace_id != [0; 16] && parent_id != [0; 8];
        (ends && real).then_some(Self {
            trace_id: TraceId(trace_id),
            parent_id,
            sampled: flags & 1 == 1,
        })
    }
}

/// The lowest `N` hexadecimal digits of a number.
pub(super) fn hex<const N: usize>(value: u128) -> [u8; N] {
    std::array::from_fn(|at| {
        let shift = 4 * (N - 1 - at);
        b"0123456789abcdef"[(value >> shift & 0xf) as usize]
    })
}

/// Reads lower-case hexadecimal digits, two a byte.
fn unhex<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

/// The gateway's own id of an exchange: a random prefix of the process and a counter, such as `5c1f09aa-1a`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId(u64);

impl RequestId {
    /// The next one.
    pub fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl RequestId {
    /// The bytes it prints as: the process, a dash, and the counter.
    pub(super) fn printed(self) -> SmallVec<[u8; 32]> {
        static PROCESS: LazyLock<u64> = LazyLock::new(seed);
        let mut text = SmallVec::new();
        text.extend_from_slice(&hex::<8>((*PROCESS).into()));
        text.push(b'-');
        let digits = hex::<16>(self.0.into());
        let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
        text.extend_from_slice(&digits[zeros.min(15)..]);
        text
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.printed().iter().try_for_each(|b| f.write_char(char::from(*b)))
    }
}

/// SplitMix64 for each thread, begun with the system's randomness: fast and even, not for secrets.
fn random() -> u64 {
    thread_local! {
        static STATE: Cell<u64> = Cell::new(seed());
    }
    STATE.with(|state| {
        state.set(state.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mut z = state.get();
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Randomness of the system; should it fail, the time and the address space layout do for ids that are no secrets.
fn seed() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(std::time::SystemTime::now())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const SAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_standard_is_read() {
        let parent = TraceParent::parse(SAMPLE).unwrap();
        assert_eq!(parent.trace_id.to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(parent.parent_id, [0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7]);
        assert!(parent.sampled);
        assert!(!TraceParent::parse(&SAMPLE.replace("-01", "-fe")).unwrap().sampled);
        assert_eq!(TraceId::of(Some(SAMPLE)), parent.trace_id);
    }

    #[test]
    fn a_later_version_is_read_by_its_beginning() {
        let later = SAMPLE.replacen("00", "cc", 1);
        assert!(TraceParent::parse(&later).is_some());
        assert!(TraceParent::parse(&format!("{later}-what-comes")).is_some());
        assert!(TraceParent::parse(&format!("{later}x")).is_none());
    }

    #[test]
    fn everything_else_is_refused() {
        for bad in [
            String::new(),
            SAMPLE[..54].to_owned(),
            format!("{SAMPLE}-x"),
            format!(" {SAMPLE}"),
            SAMPLE.to_uppercase(),
            SAMPLE.replacen("00", "ff", 1),
            SAMPLE.replace('-', "_"),
            SAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            SAMPLE.replace("00f067aa0ba902b7", &"0".repeat(16)),
            SAMPLE.replace("4bf9", "4bg9"),
            SAMPLE.replace("4bf9", "4bé"),
        ] {
            assert_eq!(TraceParent::parse(&bad), None, "{bad}");
        }
    }

    #[test]
    fn minted_ids_are_distinct_and_well_formed() {
        let minted: HashSet<String> = (0..10_000).map(|_| TraceId::mint().to_string()).collect();
        assert_eq!(minted.len(), 10_000);
        for id in minted.iter().take(100) {
            let parent = format!("00-{id}-00f067aa0ba902b7-00");
            assert_eq!(TraceId::of(Some(&parent)).to_string(), *id);
        }
        assert_ne!(RequestId::next().to_string(), RequestId::next().to_string());
    }

    proptest! {
        #[test]
        fn any_text_is_refused_or_read_without_a_panic(text in ".{0,80}") {
            let _ = TraceParent::parse(&text);
        }
    }
}
