//! Definitions of tools, as clients of each era get them (MCP digest §20.4, §20.5).

use std::ops::Range;

use bytes::Bytes;

use super::place::{Edits, Object, Walk, decoded, edit, quoted};
use crate::jsonrpc::Chunks;

/// A tool definition as its upstream listed it, as clients get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// For modern clients.
    pub text: Bytes,
    /// For legacy clients, when they get another text.
    pub legacy: Option<Bytes>,
    /// Whether `outputSchema` is wrapped for legacy clients; so must be what the tool returns.
    pub wrapped: bool,
}

/// What clients get to see of a tool: `execution` goes, since tasks of 2025-11-25 are not offered; an `outputSchema`
/// that a legacy client could not take because its root is not of type `object` is wrapped for it.
pub fn tool(text: &Bytes) -> Shown {
    let Some(object) = Object::at(text, 0) else {
        return Shown { text: text.clone(), legacy: None, wrapped: false };
    };
    let mut edits = Edits::new();
    object.change(|name| name == "execution", Vec::new(), &mut edits);
    let shown = spliced(text, &edits);
    let wrapped = object.find("outputSchema").and_then(|range| {
        let wrapped = wrapped(&text.slice(range.clone()))?;
        edits.push(edit(range, wrapped));
        Some(spliced(text, &edits))
    });
    Shown { text: shown, wrapped: wrapped.is_some(), legacy: wrapped }
}

fn spliced(text: &Bytes, edits: &Edits) -> Bytes {
    if edits.is_empty() { text.clone() } else { Chunks::splice(text, edits).into_bytes() }
}

/// The schema of `{"result":v}` for the schema of `v`; `None` for one that legacy clients can take, and for what is no
/// schema.
fn wrapped(schema: &Bytes) -> Option<Bytes> {
    let mut edits = Edits::new();
    let mut dialect = None;
    match schema.first()? {
        b'{' => {
            let object = Object::at(schema, 0)?;
            if object.string("type").as_deref() == Some("object") {
                return None;
            }
            let mut references = References { text: schema, edits: Edits::new() };
            references.schema(&mut Walk::new(schema, 0), 0)?;
            edits = references.edits;
            dialect = object.value("$schema");
            object.change(|name| name == "$schema", Vec::new(), &mut edits);
        }
        b't' | b'f' => {}
        _ => return None,
    }
    let mut text = Vec::with_capacity(schema.len() + 128);
    text.push(b'{');
    if let Some(dialect) = dialect {
        text.extend_from_slice(b"\"$schema\":");
        text.extend_from_slice(&dialect);
        text.push(b',');
    }
    text.extend_from_slice(br#""type":"object","properties":{"result":"#);
    text.extend_from_slice(&Chunks::splice(schema, &edits).into_bytes());
    text.extend_from_slice(br#"},"required":["result"]}"#);
    Some(text.into())
}

/// Schemas deeper than this are not looked into; limits on the depth of messages are lower.
const DEEPEST: usize = 512;

/// Collects the edits of references within a document whose root moves to `#/properties/result`.
struct References<'a> {
    text: &'a Bytes,
    edits: Edits,
}

impl References<'_> {
    /// A schema, or an array of schemas.
    fn schema(&mut self, walk: &mut Walk<'_>, depth: usize) -> Option<()> {
        match walk.peek()? {
            b'{' if depth < DEEPEST => self.keywords(walk, depth),
            b'[' if depth < DEEPEST => {
                walk.take(b'[');
                if walk.take(b']') {
                    return Some(());
                }
                loop {
                    self.schema(walk, depth + 1)?;
                    if !walk.take(b',') {
                        return walk.take(b']').then_some(());
                    }
                }
            }
            _ => walk.skip().map(drop),
        }
    }

    /// An object whose names are keywords.
    fn keywords(&mut self, walk: &mut Walk<'_>, depth: usize) -> Option<()> {
        let before = self.edits.len();
        let mut is_resource = false;
        members(walk, |walk, name| {
            let string = walk.peek()? == b'"';
            match &*decoded(&self.text[name]) {
                "const" | "enum" | "default" | "examples" => walk.skip().map(drop),
                "$ref" | "$dynamicRef" if string => {
                    let range = walk.string()?;
                    self.reference(range);
                    Some(())
                }
                "$id" if string => {
                    let id = walk.string()?;
                    // `#name` was how drafts up to 7 named a place.
                    is_resource |= !decoded(&self.text[id]).starts_with('#');
                    Some(())
                }
                "properties" | "patternProperties" | "$defs" | "definitions"
                | "dependentSchemas" | "dependencies" => self.named(walk, depth + 1),
                _ => self.schema(walk, depth + 1),
            }
        })?;
        if is_resource {
            // References within count from its own root, which stays where it is.
            self.edits.truncate(before);
        }
        Some(())
    }

    /// An object whose names are free and whose values are schemas.
    fn named(&mut self, walk: &mut Walk<'_>, depth: usize) -> Option<()> {
        if walk.peek()? != b'{' {
            return walk.skip().map(drop);
        }
        members(walk, |walk, _| self.schema(walk, depth))
    }

    fn reference(&mut self, range: Range<usize>) {
        let target = decoded(&self.text[range.clone()]);
        let moved = match target.strip_prefix('#') {
            Some("") => "#/properties/result".to_owned(),
            Some(pointer) if pointer.starts_with('/') => format!("#/properties/result{pointer}"),
            None if target.is_empty() => "#/properties/result".to_owned(),
            // Another document, or a name, which stays the same.
            _ => return,
        };
        drop(target);
        self.edits.push(edit(range, quoted(&moved)));
    }
}

/// Walks over an object; `member` steps over each value.
fn members(
    walk: &mut Walk<'_>,
    mut member: impl FnMut(&mut Walk<'_>, Range<usize>) -> Option<()>,
) -> Option<()> {
    walk.take(b'{');
    if walk.take(b'}') {
        return Some(());
    }
    loop {
        let name = walk.name()?;
        member(walk, name)?;
        if !walk.take(b',') {
            return walk.take(b'}').then_some(());
        }
    }
}
