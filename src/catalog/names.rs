//! Public names: how a tool or prompt of one upstream is called among many.

use sha2::{Digest, Sha256};

/// A name as clients see it.
pub type PublicName = String;

/// Longest public name that the gateway makes: model providers refuse longer ones.
const MAX_NAME: usize = 64;

/// Digits of the hash that keeps shortened names apart: 40 bits.
const HASH_DIGITS: usize = 10;

/// How public names are made on a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// The upstream's own name.
    Own,
    /// `<upstream>__<name>`, shortened with a hash when longer than 64 characters.
    Prefixed,
}

impl Naming {
    /// The public name of `name` of `upstream`.
    pub fn public(self, upstream: &str, name: &str) -> PublicName {
        if self == Self::Own {
            return name.to_owned();
        }
        let full = format!("{upstream}__{name}");
        if full.chars().count() <= MAX_NAME {
            return full;
        }
        let kept: String = full.chars().take(MAX_NAME - 1 - HASH_DIGITS).collect();
        let mut digest = hex(&Sha256::digest(format!("{upstream}\0{name}").as_bytes()));
        digest.truncate(HASH_DIGITS);
        format!("{kept}_{digest}")
    }

    /// Whether an upstream can own a prefixed public name. More than one may, since names may hold `__` too.
    pub fn can_own(upstream: &str, public: &str) -> bool {
        public.strip_prefix(upstream).is_some_and(|rest| rest.starts_with("__"))
    }

    /// The heading of one upstream's part in merged instructions.
    pub fn title(self, upstream: &str) -> String {
        match self {
            Self::Own => upstream.to_owned(),
            Self::Prefixed => format!("{upstream} (names begin with `{upstream}__`)"),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_prefixed_only_among_many() {
        assert_eq!(Naming::Own.public("a", "echo"), "echo");
        assert_eq!(Naming::Prefixed.public("a", "echo"), "a__echo");
        assert_eq!(Naming::Prefixed.public("u1", "Wetter_ä"), "u1__Wetter_ä");
    }

    #[test]
    fn long_names_are_shortened_the_same_way_each_time() {
        let long = "x".repeat(70);
        let one = Naming::Prefixed.public("a", &long);
        assert_eq!(one.chars().count(), 64);
        assert_eq!(one, Naming::Prefixed.public("a", &long));
        assert_ne!(one, Naming::Prefixed.public("a", &format!("{long}y")));
        assert!(one.starts_with("a__xxx"));
        let exact = "x".repeat(61);
        assert_eq!(Naming::Prefixed.public("a", &exact), format!("a__{exact}"));
    }
}
