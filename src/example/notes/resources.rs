//! Resources of the notes.

use super::super::resources::{Bytes, Contents, LOGO_PNG, Resource, Template};
use super::{Notes, grown_name};

const GUIDE_URI: &str = "example://guide";
const LOGO_URI: &str = "example://logo.png";
const GUIDE: &str = "# Example notes\n\nEvery note is a resource: notes://1, notes://2 and so on. \
                     Subscribe to notes://1 and call `grow` to see it change.\n";

impl Notes {
    /// Templates of this kind.
    pub(in super::super) const TEMPLATES: &'static [Template] = &[Template {
        uri: "notes://{id}",
        name: "note",
        title: "A note by its number",
        description: "The text of one note, also of one that was added just now",
        mime: Some("text/plain"),
    }];

    /// The guide, the logo, what has grown, and all notes.
    pub(in super::super) fn resources(&self) -> Vec<Resource> {
        let guide = entry(GUIDE_URI, "guide", "How to use the notes", "text/markdown", GUIDE.len());
        let logo = entry(LOGO_URI, "logo.png", "A blue square", "image/png", 74);
        let grown = (1..=self.grown()).map(|n| {
            let (uri, name) = (grown_uri(n), grown_name(n));
            entry(&uri, &name, "Grown while the server ran", "text/plain", grown_text(n).len())
        });
        let store = self.store.lock();
        let notes = store.iter().map(|(id, note)| {
            let (uri, name) = (note_uri(id), format!("note-{id}"));
            entry(&uri, &name, &note.title, "text/plain", note.text.len())
        });
        [guide, logo].into_iter().chain(grown).chain(notes).collect()
    }

    /// A resource by URI.
    pub(in super::super) fn read(&self, uri: &str) -> Option<Contents> {
        match uri {
            GUIDE_URI => Some(Contents::text(uri, "text/markdown", GUIDE)),
            LOGO_URI => Some(Contents {
                uri: uri.to_owned(),
                mime: "image/png".into(),
                bytes: Bytes::Blob(LOGO_PNG.to_owned()),
            }),
            _ => self.read_note(uri).or_else(|| self.read_grown(uri)),
        }
    }

    fn read_note(&self, uri: &str) -> Option<Contents> {
        let id = note_id(uri.strip_prefix("notes://")?)?;
        let store = self.store.lock();
        Some(Contents::text(uri, "text/plain", store.note(id)?.text.as_str()))
    }

    fn read_grown(&self, uri: &str) -> Option<Contents> {
        let number = uri.strip_prefix("example://grown/")?.parse().ok()?;
        let is_there = (1..=self.grown()).contains(&number) && uri == grown_uri(number);
        is_there.then(|| Contents::text(uri, "text/plain", grown_text(number)))
    }
}

fn entry(uri: &str, name: &str, title: &str, mime: &'static str, size: usize) -> Resource {
    let (uri, name, title) = (uri.to_owned(), name.to_owned(), title.to_owned());
    Resource { uri, name, title, mime: mime.into(), size }
}

/// The URI of a note.
pub(super) fn note_uri(id: u64) -> String {
    format!("notes://{id}")
}

/// A note's number, if it is spelled as [`note_uri`] does.
pub(super) fn note_id(text: &str) -> Option<u64> {
    text.parse().ok().filter(|id: &u64| id.to_string() == text)
}

fn grown_uri(number: usize) -> String {
    format!("example://grown/{number}")
}

fn grown_text(number: usize) -> String {
    format!("Grown as number {number}.")
}
