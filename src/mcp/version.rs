//! Protocol revisions and eras.

use std::fmt;

/// Whether a peer opens with `initialize` (legacy) or carries everything on each request (modern).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Era {
    /// 2024-11-05 … 2025-11-25.
    Legacy,
    /// 2026-07-28.
    Modern,
}

impl Era {
    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Legacy => Self::Modern,
            Self::Modern => Self::Legacy,
        }
    }

    /// The label value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}

/// A published revision that the gateway knows. Ordered by date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProtocolVersion {
    /// 2024-11-05
    V2024_11_05,
    /// 2025-03-26
    V2025_03_26,
    /// 2025-06-18
    V2025_06_18,
    /// 2025-11-25
    V2025_11_25,
    /// 2026-07-28
    V2026_07_28,
}

impl ProtocolVersion {
    /// Every revision, oldest first.
    pub const ALL: [Self; 5] = [
        Self::V2024_11_05,
        Self::V2025_03_26,
        Self::V2025_06_18,
        Self::V2025_11_25,
        Self::V2026_07_28,
    ];
    /// The newest revision that opens with `initialize`.
    pub const NEWEST_LEGACY: Self = Self::V2025_11_25;
    /// The newest revision that carries everything on each request.
    pub const NEWEST_MODERN: Self = Self::V2026_07_28;

    /// The revision as it stands on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
        }
    }

    /// The revision of that name; `None` when the gateway does not know it.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.as_str() == text)
    }

    /// Its era.
    pub fn era(self) -> Era {
        if self == Self::V2026_07_28 { Era::Modern } else { Era::Legacy }
    }

    /// What `initialize` is answered with (MCP digest §4.1): the same, or our newest legacy one.
    pub fn negotiate(requested: &str) -> Self {
        match Self::parse(requested) {
            Some(version) if version.era() == Era::Legacy => version,
            _ => Self::NEWEST_LEGACY,
        }
    }
}

impl fmt::Display for ProtocolVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn initialize_is_never_answered_with_a_modern_revision() {
        assert_eq!(ProtocolVersion::negotiate("2026-07-28"), ProtocolVersion::V2025_11_25);
        assert_eq!(ProtocolVersion::negotiate("2099-01-01"), ProtocolVersion::V2025_11_25);
        assert_eq!(ProtocolVersion::negotiate("2025-03-26"), ProtocolVersion::V2025_03_26);
    }
}
