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

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &'static str) -> (String, Option<String>) {
        let given = Bytes::from_static(text.as_bytes());
        let shown = tool(&given);
        let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        assert_eq!(shown.wrapped, shown.legacy.is_some());
        (text(&shown.text), shown.legacy.as_ref().map(text))
    }

    #[test]
    fn a_tool_that_everyone_can_take_is_shown_as_it_is() {
        for text in [
            r#" { "name" : "t" , "inputSchema":{"type":"object","maximum":1.10},"x":1e400 } "#,
            r##"{"name":"t","outputSchema":{"$ref":"#/$defs/a","type":"object"}}"##,
            r#"{"name":"t","outputSchema":null}"#,
            r#"{"name":"t","outputSchema":[{"type":"array"}]}"#,
            "[]",
        ] {
            assert_eq!(shown(text), (text.to_owned(), None));
        }
        let text = Bytes::from_static(b"{\"name\":\"t\"}");
        assert_eq!(tool(&text).text.as_ptr(), text.as_ptr());
    }

    #[test]
    fn how_a_tool_runs_as_a_task_is_not_shown() {
        let text = r#"{"name":"t","execution":{"taskSupport":"required"},"x":{"execution":1}}"#;
        let expected = r#"{"name":"t","x":{"execution":1}}"#;
        assert_eq!(shown(text), (expected.to_owned(), None));
        let (modern, legacy) = shown(r#"{"execution":{},"outputSchema":{"type":"array"}}"#);
        assert_eq!(modern, r#"{"outputSchema":{"type":"array"}}"#);
        let wrapped = r#"{"outputSchema":{"type":"object","properties":{"result":{"type":"array"}},"required":["result"]}}"#;
        assert_eq!(legacy.as_deref(), Some(wrapped));
    }

    #[test]
    fn an_output_schema_whose_root_is_no_object_is_wrapped_for_legacy_clients() {
        for schema in
            ["true", "false", "{}", r#"{"type":["object"]}"#, r#"{"anyOf":[{"maximum":1.10}]}"#]
        {
            let text = format!(r#"{{"name":"t","outputSchema": {schema} ,"x":1}}"#);
            let legacy = tool(&text.clone().into()).legacy.expect("another text");
            let wrapped = format!(
                r#"{{"type":"object","properties":{{"result":{schema}}},"required":["result"]}}"#
            );
            assert_eq!(legacy, text.replace(&format!(" {schema} "), &format!(" {wrapped} ")));
        }
    }

    fn wrapped_text(schema: &'static str) -> String {
        let text = wrapped(&Bytes::from_static(schema.as_bytes())).expect("it is wrapped");
        String::from_utf8(text.to_vec()).expect("UTF-8")
    }

    #[test]
    fn references_follow_the_root_where_they_are_references() {
        let text = wrapped_text(
            r##"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"array","items":{"$ref":"#\/$defs/a~1b"},"not":{"$dynamicRef":"#"},"$defs":{"a/b":{"$ref":"#name"},"$ref":{"$ref":""},"const":{"$ref":"#/items"}},"default":{"$ref":"#/x"},"enum":[{"$ref":"#"}],"examples":[{"$ref":"#"}],"const":{"$ref":"#"}}"##,
        );
        assert_eq!(
            text,
            r##"{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","properties":{"result":{"type":"array","items":{"$ref":"#/properties/result/$defs/a~1b"},"not":{"$dynamicRef":"#/properties/result"},"$defs":{"a/b":{"$ref":"#name"},"$ref":{"$ref":"#/properties/result"},"const":{"$ref":"#/properties/result/items"}},"default":{"$ref":"#/x"},"enum":[{"$ref":"#"}],"examples":[{"$ref":"#"}],"const":{"$ref":"#"}}},"required":["result"]}"##
        );
    }

    #[test]
    fn references_within_a_resource_of_its_own_stay() {
        let inner = r##"{"anyOf":[{"$ref":"#/x"}],"$id":"https://a/b"}"##;
        assert!(wrapped_text(inner).contains(inner));
        let text = wrapped_text(r##"{"items":{"$ref":"#/x","$id":"own"},"not":{"$ref":"#/y"}}"##);
        assert!(text.contains(r##"{"$ref":"#/x","$id":"own"}"##), "{text}");
        assert!(text.contains(r##"{"$ref":"#/properties/result/y"}"##), "{text}");
        // Once a name of a place was spelled so; and a property may be called so.
        for other in
            [r##"{"$id":"#place","$ref":"#/x"}"##, r##"{"properties":{"$id":{"$ref":"#/x"}}}"##]
        {
            assert!(wrapped_text(other).contains(r##""#/properties/result/x""##), "{other}");
        }
    }

    #[test]
    fn a_very_deep_schema_does_no_harm() {
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let text = Bytes::from(format!(r#"{{"outputSchema":{{"allOf":{deep}}}}}"#));
        assert!(tool(&text).wrapped);
    }
}
