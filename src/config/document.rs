//! The file as a tree that remembers where each key stands.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Place;

/// One step from a value to one inside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Into a table.
    Key(String),
    /// Into a list.
    Index(usize),
}

/// Where a value stands in the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyPath(Vec<Step>);

impl KeyPath {
    /// The whole file.
    pub(super) fn root() -> Self {
        Self::default()
    }
    /// A value of the table here.
    pub(super) fn key(&self, key: impl Into<String>) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.into()));
        Self(steps)
    }
    /// An element of the list here.
    pub(super) fn index(&self, index: usize) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        Self(steps)
    }
    /// Whether this is `other` or inside it.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }
    /// Name of the key that this is, or that it is a list element of.
    pub(super) fn last_key(&self) -> &str {
        let keys = self.0.iter().rev().find_map(|step| match step {
            Step::Key(key) => Some(key.as_str()),
            Step::Index(_) => None,
        });
        keys.unwrap_or_default()
    }
    /// The table that [`Self::last_key`] stands in.
    fn holder(&self) -> Self {
        let last = self.0.iter().rposition(|step| matches!(step, Step::Key(_)));
        Self(self.0[..last.unwrap_or(0)].to_vec())
    }
    /// `in [server]`, or nothing for keys that stand outside all tables.
    pub(super) fn section(&self) -> String {
        match self.holder() {
            table if table.0.is_empty() => String::new(),
            table => format!(" in {}", table.header()),
        }
    }
    /// The path as the header of a table.
    pub(super) fn header(&self) -> String {
        match self.0.last() {
            None => "the file".to_owned(),
            Some(Step::Index(_)) => format!("[[{self}]]"),
            Some(Step::Key(_)) => format!("[{self}]"),
        }
    }
}

/// Keys with dots between, as TOML writes them; places in lists are left out.
impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.0.iter().filter_map(|step| match step {
            Step::Key(key) => Some(key),
            Step::Index(_) => None,
        });
        for (index, key) in keys.enumerate() {
            let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
            let dot = if index > 0 { "." } else { "" };
            if !key.is_empty() && key.chars().all(bare) {
                write!(f, "{dot}{key}")?;
            } else {
                write!(f, "{dot}{key:?}")?;
            }
        }
        Ok(())
    }
}

/// A parsed file. Values that turned out to be wrong are dropped, so that the rest can still be judged.
pub(super) struct Document<'t> {
    text: &'t str,
    root: Spanned<DeTable<'t>>,
    dropped: BTreeSet<KeyPath>,
}

impl<'t> Document<'t> {
    /// Reads the text; otherwise everything that is no TOML, with its place.
    pub(super) fn parse(text: &'t str) -> Result<Self, Vec<(Option<Place>, String)>> {
        let (root, errors) = DeTable::parse_recoverable(text);
        if errors.is_empty() {
            return Ok(Self { text, root, dropped: BTreeSet::new() });
        }
        let mut found: Vec<_> = errors
            .iter()
            .map(|error| {
                let place = error.span().map(|span| place_of(text, span.start));
                let near = error.span().and_then(|span| text.get(span)).unwrap_or_default().trim();
                let message = error.message();
                let quote = !near.is_empty() && !near.contains('\n') && near.len() <= 40;
                let near = if quote { format!(" near `{near}`") } else { String::new() };
                (place, format!("not valid TOML{near}: {message}"))
            })
            .collect();
        // What follows on the same line is mostly an echo of the first.
        found.sort();
        found.dedup_by_key(|(place, _)| place.map(|place| place.line));
        Err(found)
    }

    /// The tables of the file.
    pub(super) fn root(&self) -> &DeTable<'t> {
        self.root.get_ref()
    }

    /// The same, to change values in place.
    pub(super) fn root_mut(&mut self) -> &mut DeTable<'t> {
        self.root.get_mut()
    }

    /// Leaves a value out of everything that follows.
    pub(super) fn drop_value(&mut self, path: KeyPath) {
        self.dropped.insert(path);
    }

    /// Whether this very value was dropped.
    pub(super) fn is_dropped(&self, path: &KeyPath) -> bool {
        self.dropped.contains(path)
    }

    /// Whether this value or anything in it was dropped.
    pub(super) fn is_damaged(&self, path: &KeyPath) -> bool {
        self.dropped.iter().any(|dropped| dropped.is_within(path))
    }

    /// Whether the key is written in the file, right or wrong.
    pub(super) fn has(&self, path: &KeyPath) -> bool {
        self.find(path).is_some_and(|found| found.exact)
    }

    /// Indices in the file of the list elements that were not dropped.
    pub(super) fn kept(&self, list: &KeyPath) -> Vec<usize> {
        let length = match self.find(list) {
            Some(Found { exact: true, value: Some(DeValue::Array(list)), .. }) => list.len(),
            _ => 0,
        };
        (0..length).filter(|index| !self.is_dropped(&list.index(*index))).collect()
    }

    /// Where the key stands, or the nearest thing that holds it.
    pub(super) fn place_of_key(&self, path: &KeyPath) -> Option<Place> {
        self.find(path).map(|found| place_of(self.text, found.key.start))
    }

    /// Where the value stands, or the nearest thing that holds it.
    pub(super) fn place_of_value(&self, path: &KeyPath) -> Option<Place> {
        self.find(path).map(|found| place_of(self.text, found.span.start))
    }

    /// Walks as far along the path as there is something; `None` when not even its first step is there.
    fn find(&self, path: &KeyPath) -> Option<Found<'_, 't>> {
        let mut found: Option<Found<'_, 't>> = None;
        for step in &path.0 {
            let next = match (step, &found) {
                (Step::Key(key), None) => keyed(self.root(), key),
                (Step::Key(key), Some(Found { value: Some(DeValue::Table(table)), .. })) => {
                    keyed(table, key)
                }
                (Step::Index(index), Some(Found { value: Some(DeValue::Array(list)), .. })) => {
                    list.get(*index).map(|value| Found {
                        key: value.span(),
                        span: value.span(),
                        value: Some(value.get_ref()),
                        exact: true,
                    })
                }
                _ => None,
            };
            match next {
                Some(next) => found = Some(next),
                None => return found.map(|found| Found { exact: false, ..found }),
            }
        }
        found
    }
}

/// What a path leads to.
struct Found<'d, 't> {
    key: Range<usize>,
    span: Range<usize>,
    value: Option<&'d DeValue<'t>>,
    /// False when it is only the nearest thing that holds what was looked for.
    exact: bool,
}

fn keyed<'d, 't>(table: &'d DeTable<'t>, key: &str) -> Option<Found<'d, 't>> {
    let (name, value) = table.get_key_value(key)?;
    Some(Found { key: name.span(), span: value.span(), value: Some(value.get_ref()), exact: true })
}

fn place_of(text: &str, offset: usize) -> Place {
    let before = text.get(..offset.min(text.len())).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    Place {
        line: 1 + before.matches('\n').count(),
        column: 1 + before[line_start..].chars().count(),
    }
}
