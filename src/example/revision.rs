//! The MCP revisions this server speaks. They order by age, which is all the server needs to know
//! what a client of some revision understands.

use clap::ValueEnum;

/// A revision of MCP, oldest first.
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
    /// No `initialize` and no sessions: every request carries everything.
    #[value(name = "2026-07-28")]
    V2026_07_28,
}

impl Revision {
    /// What HTTP assumes of a client that sends no version header (MCP 2025-11-25, transports).
    pub(super) const ASSUMED: Self = Self::V2025_03_26;
    /// The newest one that opens with `initialize`.
    pub(super) const NEWEST_LEGACY: Self = Self::V2025_11_25;
    /// The one that does not.
    pub(super) const MODERN: Self = Self::V2026_07_28;

    /// The name on the wire.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::V2024_11_05 => "2024-11-05",
            Self::V2025_03_26 => "2025-03-26",
            Self::V2025_06_18 => "2025-06-18",
            Self::V2025_11_25 => "2025-11-25",
            Self::V2026_07_28 => "2026-07-28",
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

/// The revisions that a server offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    /// All.
    All,
    /// Those that open with `initialize`, up to this one.
    UpTo(Revision),
    /// Only those that do not.
    Modern,
}

impl Offered {
    /// What the command line asks for: one of the old revisions stands for all up to it.
    pub(super) fn by(wish: Option<Revision>) -> Self {
        match wish {
            None => Self::All,
            Some(Revision::MODERN) => Self::Modern,
            Some(legacy) => Self::UpTo(legacy),
        }
    }

    /// The newest that opens with `initialize`, if any does.
    pub(super) fn legacy(self) -> Option<Revision> {
        match self {
            Self::All => Some(Revision::NEWEST_LEGACY),
            Self::UpTo(newest) => Some(newest),
            Self::Modern => None,
        }
    }

    /// Whether requests may carry everything themselves.
    pub(super) fn modern(self) -> bool {
        !matches!(self, Self::UpTo(_))
    }

    /// All of them by name, newest first.
    pub(super) fn names(self) -> Vec<&'static str> {
        let all = Revision::value_variants().iter().rev();
        let offered = |one: &Revision| match *one {
            Revision::MODERN => self.modern(),
            one => self.legacy().is_some_and(|newest| one <= newest),
        };
        all.copied().filter(offered).map(Revision::as_str).collect()
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

    #[test]
    fn one_option_chooses_all_revisions_the_old_ones_or_the_new_one() {
        let old = ["2025-06-18", "2025-03-26", "2024-11-05"];
        assert_eq!(Offered::by(Some(Revision::V2025_06_18)).names(), old);
        assert_eq!(Offered::by(Some(Revision::MODERN)).names(), ["2026-07-28"]);
        let all = Offered::by(None);
        assert_eq!(all.names()[..3], ["2026-07-28", "2025-11-25", "2025-06-18"]);
        assert_eq!(all.legacy(), Some(Revision::V2025_11_25));
    }
}
