//! The MCP revisions this server speaks. They order by age, which is all the server needs to know
//! what a client of some revision understands.

use clap::ValueEnum;

/// A revision of MCP that opens with `initialize`, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Revision {
    /// The first public one.
    #[value(name = "2024-11-05")]
    V2024_11_05,
    /// Streamable HTTP, batches, tool annotations, audio.
    #[value(name = "2025-03-26")]
    V2025_03_26,
    /// Structured results, elicitation, resource links, titles; no batches.
    #[value(name = "2025-06-18")]
    V2025_06_18,
    /// Richer elicitation and sampling, input errors as tool results.
    #[value(name = "2025-11-25")]
    V2025_11_25,
}

impl Revision {
    /// What HTTP assumes of a client that sends no version header (MCP 2025-11-25, transports).
    pub(super) const ASSUMED: Self = Self::V2025_03_26;

    /// The name on the wire.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
        }
    }

    /// The revision of that name, if it is `newest` or older.
    pub(super) fn parse(name: &str, newest: Self) -> Option<Self> {
        Self::value_variants().iter().copied().find(|one| one.as_str() == name && *one <= newest)
    }

    /// Answers a client's wish: the same revision if offered, else the newest offered.
    pub(super) fn negotiate(wish: &str, newest: Self) -> Self {
        Self::parse(wish, newest).unwrap_or(newest)
    }

    /// Whether an array of messages is allowed. 2025-06-18 took batches out; 2024-11-05 never
    /// mentions them, and is treated like its successor.
    pub(super) fn has_batches(self) -> bool {
        self <= Self::V2025_03_26
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_revision_is_granted_and_an_unknown_one_becomes_the_newest_offered() {
        let newest = Revision::V2025_06_18;
        assert_eq!(Revision::negotiate("2025-03-26", newest), Revision::V2025_03_26);
        assert_eq!(Revision::negotiate("2025-11-25", newest), newest);
        assert_eq!(Revision::negotiate("2026-07-28", Revision::V2025_11_25), Revision::V2025_11_25);
    }

    #[test]
    fn names_on_the_command_line_are_the_names_on_the_wire() {
        for one in Revision::value_variants() {
            assert_eq!(one.to_possible_value().unwrap().get_name(), one.as_str());
        }
    }
}
