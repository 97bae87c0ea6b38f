//! The notes themselves.

use std::collections::BTreeMap;

/// Notes there may be.
const MAX_NOTES: usize = 10_000;
/// Bytes that one note's title and text may have.
pub(super) const MAX_NOTE_BYTES: usize = 64 * 1024;
/// Notes there are at the start.
pub(super) const SEEDED: u64 = 120;

/// One note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) title: String,
    pub(super) text: String,
}

/// Why a note cannot be added.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum StoreError {
    #[error("there is room for {MAX_NOTES} notes, delete some first")]
    Full,
    #[error("a note may have {MAX_NOTE_BYTES} bytes")]
    TooLong,
}

/// Notes by number; numbers are never used twice.
pub(super) struct Store {
    notes: BTreeMap<u64, Note>,
    last: u64,
}

const THINGS: [&str; 10] = [
    "harbour",
    "greenhouse",
    "workshop",
    "library",
    "bakery",
    "orchard",
    "station",
    "kitchen",
    "observatory",
    "ferry",
];
const ERRANDS: [&str; 12] = [
    "opening hours",
    "spare keys",
    "paint colours",
    "delivery dates",
    "broken lamp",
    "guest list",
    "water meter",
    "shopping list",
    "repair quotes",
    "photo captions",
    "winter plans",
    "phone numbers",
];

impl Store {
    /// The notes of the start: always the same.
    pub(super) fn seeded() -> Self {
        let notes = (1..=SEEDED).map(|id| (id, Self::seed(id))).collect();
        Self { notes, last: SEEDED }
    }

    fn seed(id: u64) -> Note {
        let index = id as usize - 1;
        let (thing, errand) = (THINGS[index % 10], ERRANDS[index / 10]);
        let title = format!("{thing}: {errand}");
        let text = format!(
            "Note {id} is about the {errand} of the {thing}. Ask again in {} days.",
            1 + index % 30
        );
        Note { title, text }
    }

    /// Adds a note and gives its number.
    pub(super) fn add(&mut self, title: &str, text: &str) -> Result<u64, StoreError> {
        if title.len() + text.len() > MAX_NOTE_BYTES {
            return Err(StoreError::TooLong);
        }
        if self.notes.len() >= MAX_NOTES {
            return Err(StoreError::Full);
        }
        self.last += 1;
        self.notes.insert(self.last, Note { title: title.to_owned(), text: text.to_owned() });
        Ok(self.last)
    }

    /// A note by number.
    pub(super) fn note(&self, id: u64) -> Option<&Note> {
        self.notes.get(&id)
    }

    /// Replaces a note's text, if the note is there.
    pub(super) fn rewrite(&mut self, id: u64, text: String) {
        if let Some(note) = self.notes.get_mut(&id) {
            note.text = text;
        }
    }

    /// Removes a note.
    pub(super) fn remove(&mut self, id: u64) -> Option<Note> {
        self.notes.remove(&id)
    }

    /// All notes by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Note)> {
        self.notes.iter().map(|(id, note)| (*id, note))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_deleted_notes_do_not_come_back() {
        let mut store = Store::seeded();
        assert_eq!(store.iter().count(), 120);
        assert_eq!(store.add("a", "b"), Ok(121));
        assert!(store.remove(121).is_some());
        assert_eq!(store.remove(121), None);
        assert_eq!(store.add("a", "b"), Ok(122));
    }

    #[test]
    fn the_store_is_bounded() {
        let mut store = Store::seeded();
        let long = "x".repeat(MAX_NOTE_BYTES);
        assert_eq!(store.add("a", &long), Err(StoreError::TooLong));
        while store.add("a", "b").is_ok() {}
        assert_eq!(store.iter().count(), MAX_NOTES);
        assert_eq!(store.add("a", "b"), Err(StoreError::Full));
    }
}
