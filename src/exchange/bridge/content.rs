//! Contents of results for clients of older revisions (MCP digest §20.5).

use std::ops::Range;

use bytes::Bytes;
use memchr::memmem;

use super::place::{Array, Edits, Object, decoded, edit, push_member, quoted, same};
use crate::mcp::ProtocolVersion;

/// What a client's revision lacks and the upstream's has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lacks {
    /// Blocks of type `audio`.
    audio: bool,
    /// Blocks of type `resource_link`, and `structuredContent`.
    links: bool,
}

impl Lacks {
    /// What `to` lacks of what `from` has.
    pub(super) fn of(to: ProtocolVersion, from: ProtocolVersion) -> Self {
        Self {
            audio: to < ProtocolVersion::V2025_03_26 && from >= ProtocolVersion::V2025_03_26,
            links: to < ProtocolVersion::V2025_06_18 && from >= ProtocolVersion::V2025_06_18,
        }
    }

    /// Whether it lacks anything.
    pub(super) fn anything(self) -> bool {
        self.audio || self.links
    }
}

/// Whether a result may hold something that the client lacks: a cheap look before it is taken apart.
pub(super) fn is_suspicious(result: &[u8], lacks: Lacks, wrapped: bool) -> bool {
    let holds = |needle: &[u8]| memmem::find(result, needle).is_some();
    (lacks.audio && holds(b"\"audio\""))
        || (lacks.links && holds(b"\"resource_link\""))
        || ((lacks.links || wrapped) && holds(b"\"structuredContent\""))
}

/// Which `structuredContent` is wrapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wrap {
    /// Any: the client knows the schema so.
    pub(super) always: bool,
    /// What is no object: no legacy revision has that.
    pub(super) non_objects: bool,
}

/// The result of a tool. Members that it lacks are put to `new`.
pub(super) fn tool_result(
    text: &Bytes,
    result: &Object<'_>,
    lacks: Lacks,
    wrap: Wrap,
    new: &mut Vec<u8>,
    edits: &mut Edits,
) {
    let structured = result.find("structuredContent");
    let looked_at = lacks.anything() || structured.is_some();
    let content = if looked_at { result.array("content") } else { None };
    if let Some(content) = &content {
        for (index, block) in content.elements.iter().enumerate() {
            project(text, block, index, lacks, edits);
        }
    }
    let Some(structured) = structured else {
        if wrap.non_objects && result.find("content").is_none() {
            push_member(new, "content", b"[]");
        }
        return;
    };
    let wraps = wrap.always || (wrap.non_objects && text[structured.start] != b'{');
    if wraps {
        edits.push(edit(structured.start..structured.start, &br#"{"result":"#[..]));
        edits.push(edit(structured.end..structured.end, &b"}"[..]));
    }
    if !wraps && !lacks.links {
        return;
    }
    let value = &text[structured];
    match &content {
        Some(content) if !holds(text, content, value) => content.append(&text_block(value), edits),
        None if result.find("content").is_none() => {
            push_member(new, "content", &[b"[", &text_block(value)[..], b"]"].concat());
        }
        _ => {}
    }
}

/// The messages of a prompt.
pub(super) fn prompt(text: &Bytes, result: &Object<'_>, lacks: Lacks, edits: &mut Edits) {
    if !lacks.anything() {
        return;
    }
    let Some(messages) = result.array("messages") else { return };
    for (index, message) in messages.elements.iter().enumerate() {
        let block = Object::at(text, message.start).and_then(|message| message.find("content"));
        if let Some(block) = block {
            project(text, &block, index, lacks, edits);
        }
    }
}

/// A text block that holds a value as JSON.
fn text_block(value: &[u8]) -> Vec<u8> {
    let mut block = br#"{"type":"text","text":"#.to_vec();
    block.extend_from_slice(&quoted(&String::from_utf8_lossy(value)));
    block.push(b'}');
    block
}

/// Whether one of the text blocks holds the value.
fn holds(text: &Bytes, content: &Array, value: &[u8]) -> bool {
    content.elements.iter().any(|block| {
        let block = Object::at(text, block.start);
        let told = block.and_then(|block| block.find("text"));
        // A text that is no string tells nothing.
        let told = told.filter(|told| text[told.clone()].first() == Some(&b'"'));
        told.is_some_and(|told| same(decoded(&text[told]).as_bytes(), value))
    })
}

/// One block.
fn project(text: &Bytes, block: &Range<usize>, index: usize, lacks: Lacks, edits: &mut Edits) {
    if !lacks.anything() {
        return;
    }
    let Some(block) = Object::at(text, block.start) else { return };
    match block.string("type").as_deref() {
        Some("audio") if lacks.audio => audio(&block, index, edits),
        Some("resource_link") if lacks.links => link(&block, edits),
        _ => {}
    }
}

/// An `audio` block becomes an embedded resource.
fn audio(block: &Object<'_>, index: usize, edits: &mut Edits) {
    let (Some(kind), Some(data)) = (block.find("type"), block.value("data")) else { return };
    edits.push(edit(kind, &b"\"resource\""[..]));
    let mut resource = Vec::with_capacity(data.len() + 64);
    push_member(&mut resource, "uri", &quoted(&format!("trunkline:audio/{index}")));
    if let Some(mime) = block.value("mimeType") {
        push_member(&mut resource, "mimeType", &mime);
    }
    push_member(&mut resource, "blob", &data);
    let mut new = Vec::with_capacity(resource.len() + 16);
    push_member(&mut new, "resource", &[b"{", &resource[..], b"}"].concat());
    let gone = |name: &str| matches!(name, "data" | "mimeType" | "resource");
    block.change(gone, new, edits);
}

/// A `resource_link` block becomes a text that names title and URI.
fn link(block: &Object<'_>, edits: &mut Edits) {
    let (Some(kind), Some(uri)) = (block.find("type"), block.string("uri")) else { return };
    edits.push(edit(kind, &b"\"text\""[..]));
    let mut told = match block.string("title").or_else(|| block.string("name")) {
        Some(title) if !title.is_empty() => format!("{title}: {uri}"),
        _ => uri,
    };
    if let Some(description) = block.string("description").filter(|text| !text.is_empty()) {
        told.push('\n');
        told.push_str(&description);
    }
    let mut new = Vec::new();
    push_member(&mut new, "text", &quoted(&told));
    let gone = |name: &str| {
        matches!(
            name,
            "uri" | "name" | "title" | "description" | "mimeType" | "size" | "icons" | "text"
        )
    };
    block.change(gone, new, edits);
}
