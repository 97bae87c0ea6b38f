//! One page of an upstream's list, taken apart without losing a byte.

use std::borrow::Cow;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::jsonrpc::Span;
use crate::mcp::ListKind;

/// One item of a list as its upstream wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The decoded name, URI or template.
    pub key: String,
    /// The whole item, JSON text.
    pub text: Bytes,
    /// Where the value of the key stands in `text`.
    pub key_span: Span,
}

/// All items of one kind of one upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// In the upstream's order, each key once.
    pub items: Vec<Item>,
}

/// Why a page cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// The result is no object, or its list is missing or no array.
    #[error("the result holds no array `{member}`")]
    Shape {
        /// The member that should be there.
        member: &'static str,
    },
}

#[derive(Deserialize)]
struct Page<'a> {
    #[serde(
        borrow,
        alias = "tools",
        alias = "prompts",
        alias = "resources",
        alias = "resourceTemplates"
    )]
    items: Vec<&'a RawValue>,
    #[serde(borrow, default, rename = "nextCursor")]
    next: Option<Cow<'a, str>>,
}

/// Takes the result of a list request apart: the items, and the cursor of the next page.
///
/// Items without a usable key are left out; `skipped` counts them. An empty string is a cursor.
pub fn parse_page(
    kind: ListKind,
    result: &Bytes,
    skipped: &mut usize,
) -> Result<(Vec<Item>, Option<String>), PageError> {
    let shape = PageError::Shape { member: kind.member() };
    let page: Page = serde_json::from_slice(result).map_err(|_| shape)?;
    let mut items = Vec::with_capacity(page.items.len());
    for raw in page.items {
        match item(kind, result, raw) {
            Some(item) => items.push(item),
            None => *skipped += 1,
        }
    }
    Ok((items, page.next.map(Cow::into_owned)))
}

fn item(kind: ListKind, result: &Bytes, raw: &RawValue) -> Option<Item> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        name: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Located<'a> {
        #[serde(borrow)]
        uri: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Templated<'a> {
        #[serde(borrow, rename = "uriTemplate")]
        template: &'a RawValue,
    }
    let text = raw.get();
    if !text.starts_with('{') {
        return None;
    }
    let key = match kind {
        ListKind::Tools | ListKind::Prompts => serde_json::from_str::<Named>(text).ok()?.name,
        ListKind::Resources => serde_json::from_str::<Located>(text).ok()?.uri,
        ListKind::Templates => serde_json::from_str::<Templated>(text).ok()?.template,
    };
    let start = key.get().as_ptr() as usize - text.as_ptr() as usize;
    let key_span = Span {
        start: u32::try_from(start).ok()?,
        end: u32::try_from(start + key.get().len()).ok()?,
    };
    Some(Item {
        key: serde_json::from_str::<String>(key.get()).ok()?,
        text: result.slice_ref(text.as_bytes()),
        key_span,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_keep_their_bytes_and_the_place_of_their_name() {
        let result = Bytes::from_static(
            br#"{"tools":[ {"x":1.0, "name" : "a\u0062", "z":[]} ,{"name":"c"}],"nextCursor":""}"#,
        );
        let mut skipped = 0;
        let (items, next) = parse_page(ListKind::Tools, &result, &mut skipped).unwrap();
        assert_eq!(next.as_deref(), Some(""));
        assert_eq!(skipped, 0);
        assert_eq!(items[0].key, "ab");
        assert_eq!(&items[0].text[..], br#"{"x":1.0, "name" : "a\u0062", "z":[]}"#);
        let span = items[0].key_span.start as usize..items[0].key_span.end as usize;
        assert_eq!(&items[0].text[span], br#""a\u0062""#);
        assert_eq!(items[1].key, "c");
    }

    #[test]
    fn items_without_a_name_are_counted_and_left_out() {
        let result =
            Bytes::from_static(br#"{"prompts":[{"title":"x"},5,{"name":7},{"name":"ok"}]}"#);
        let mut skipped = 0;
        let (items, next) = parse_page(ListKind::Prompts, &result, &mut skipped).unwrap();
        assert_eq!((items.len(), skipped, next), (1, 3, None));
    }

    #[test]
    fn a_result_without_the_list_is_an_error() {
        let mut skipped = 0;
        for text in [&b"[]"[..], b"{}", br#"{"resources":{}}"#, b"null"] {
            let result = Bytes::from_static(text);
            assert!(parse_page(ListKind::Resources, &result, &mut skipped).is_err());
        }
    }
}
