//! Who showed a link to a resource (MCP digest §19.3): kept with the session, or with the principal where there is none.

use bytes::Bytes;
use dashmap::DashMap;

use super::call::Context;
use crate::jsonrpc::{Message, RawObject, raw_elements};
use crate::mcp::Era;
use crate::session::Links;

/// Most principals whose links are remembered.
const MAX_HOLDERS: usize = 1_024;
/// Largest result that is searched for links.
const MAX_SEARCHED: usize = 1 << 20;

/// The links of principals without a session, by route and principal.
#[derive(Debug, Default)]
pub(super) struct Holders(DashMap<String, Links>);

/// Remembers the links that an answer shows.
pub(super) fn remember(cx: &Context, answer: &Message, upstream: usize) {
    let text = answer.text();
    let shows = |name: &[u8]| memchr::memmem::find(text, name).is_some();
    if text.len() > MAX_SEARCHED || !(shows(b"\"uri\"") || shows(b"\"resourceUri\"")) {
        return;
    }
    for uri in answer.result().map(shown).unwrap_or_default() {
        saw(cx, &uri, upstream);
    }
}

/// The upstream that showed this client a link to the URI.
pub(super) fn owner(cx: &Context, uri: &str) -> Option<usize> {
    match cx.session.era() {
        Era::Legacy => cx.session.link_owner(uri),
        Era::Modern => cx.pipeline.holders.0.get(&holder(cx))?.owner(uri),
    }
}

fn saw(cx: &Context, uri: &str, upstream: usize) {
    if cx.session.era() == Era::Legacy {
        return cx.session.saw_link(uri, upstream);
    }
    let holders = &cx.pipeline.holders.0;
    let holder = holder(cx);
    if holders.len() >= MAX_HOLDERS && !holders.contains_key(&holder) {
        // Rare: whoever still needs a link asks for it again.
        holders.clear();
    }
    holders.entry(holder).or_default().saw(uri, upstream);
}

fn holder(cx: &Context) -> String {
    format!("{} {}", cx.route.name, cx.holder())
}

/// The URI of the page that `_meta` of a tool or of its result names (extension `io.modelcontextprotocol/ui`).
pub(super) fn ui_page(object: &RawObject) -> Option<String> {
    let ui = RawObject::parse(object.get("_meta")?)?.remove("ui")?;
    RawObject::parse(&ui)?.get_str("resourceUri")
}

/// The URIs of links and of embedded resources in the content of a result, and of the page that it is shown on.
fn shown(result: Bytes) -> Vec<String> {
    let Some(result) = RawObject::parse(&result) else { return Vec::new() };
    let page = ui_page(&result);
    let elements = |name| result.get(name).and_then(raw_elements);
    let blocks = match (elements("content"), elements("messages")) {
        (Some(content), _) => content,
        (None, Some(messages)) => {
            let content = |message| RawObject::parse(message)?.remove("content");
            messages.iter().filter_map(content).collect()
        }
        (None, None) => Vec::new(),
    };
    blocks.iter().filter_map(uri_of).chain(page).collect()
}

fn uri_of(block: &Bytes) -> Option<String> {
    let block = RawObject::parse(block)?;
    match block.get_str("type")?.as_str() {
        "resource_link" => block.get_str("uri"),
        "resource" => RawObject::parse(block.get("resource")?)?.get_str("uri"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_in_tool_results_and_prompts() {
        let result = |text: &'static str| shown(Bytes::from_static(text.as_bytes()));
        let tool = r#"{"content":[{"type":"text","text":"uri"},{"type":"resource_link","uri":"a:1"},
            {"type":"resource","resource":{"uri":"b:\u0032"}},{"type":"resource_link"},7]}"#;
        assert_eq!(result(tool), ["a:1", "b:2"]);
        let prompt =
            r#"{"messages":[{"role":"user","content":{"type":"resource_link","uri":"c:3"}}]}"#;
        assert_eq!(result(prompt), ["c:3"]);
        assert!(result(r#"{"contents":[{"uri":"d:4"}]}"#).is_empty());
        let page = r#"{"content":[],"_meta":{"ui":{"resourceUri":"ui:\/\/5"}}}"#;
        assert_eq!(result(page), ["ui://5"]);
    }
}
