//! One page of an upstream's list, taken apart without losing a byte.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::jsonrpc::Span;
use crate::mcp::{ListKind, ParamHeader};

/// One item of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The decoded name, URI or template.
    pub key: String,
    /// The whole item, JSON text: as its upstream wrote it, until [`Item::shown`] says otherwise.
    pub text: Bytes,
    /// Where the value of the key stands in `text`.
    pub key_span: Span,
    /// What legacy clients are shown instead: the text, and where the value of the key stands in it.
    pub legacy: Option<(Bytes, Span)>,
    /// Whether `legacy` has another `outputSchema`, so that results must be changed alike.
    pub wrapped: bool,
    /// Arguments of a tool that modern requests repeat as headers.
    pub params: Option<Arc<[ParamHeader]>>,
    /// The URI of the page that a tool shows its results on, if it names one.
    pub page: Option<Arc<str>>,
}

impl Item {
    /// Reads the text of an item; `None` without a usable key.
    pub fn parse(kind: ListKind, text: &Bytes) -> Option<Self> {
        let (key, key_span) = key_of(kind, std::str::from_utf8(text).ok()?)?;
        let text = text.clone();
        Some(Self { key, text, key_span, legacy: None, wrapped: false, params: None, page: None })
    }

    /// The same item with other texts for clients.
    #[must_use]
    pub fn shown(mut self, kind: ListKind, text: Bytes, legacy: Option<Bytes>) -> Self {
        let spanned = |text: Bytes| {
            let span = std::str::from_utf8(&text).ok().and_then(|text| key_of(kind, text))?.1;
            Some((text, span))
        };
        if let Some((text, span)) = spanned(text) {
            (self.text, self.key_span) = (text, span);
        }
        self.legacy = legacy.and_then(spanned);
        self
    }
}

/// For how long and for whom a list may be kept (MCP digest §15.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// How long it is fresh.
    pub ttl: Duration,
    /// Whether it is the same for everybody.
    pub public: bool,
}

impl Hints {
    /// Stale at once and nobody else's.
    pub const NONE: Self = Self { ttl: Duration::ZERO, public: false };

    /// Reads `ttlMs` and `cacheScope` of a result. What is missing or makes no sense counts as none.
    pub fn parse(result: &[u8]) -> Self {
        #[derive(Deserialize)]
        struct Hinted<'a> {
            #[serde(rename = "ttlMs")]
            ttl: Option<serde_json::Number>,
            #[serde(borrow, rename = "cacheScope")]
            scope: Option<Cow<'a, str>>,
        }
        let Ok(Hinted { ttl, scope }) = serde_json::from_slice(result) else { return Self::NONE };
        Self {
            ttl: Duration::from_millis(ttl.and_then(|ttl| ttl.as_u64()).unwrap_or(0)).min(LONGEST),
            public: scope.as_deref() == Some("public"),
        }
    }

    /// What holds for both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { ttl: self.ttl.min(other.ttl), public: self.public && other.public }
    }
}

/// The longest time that a list is taken to be fresh.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

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
        match Item::parse(kind, &result.slice_ref(raw.get().as_bytes())) {
            Some(item) => items.push(item),
            None => *skipped += 1,
        }
    }
    Ok((items, page.next.map(Cow::into_owned)))
}

/// The decoded key of an item, and where its value stands.
fn key_of(kind: ListKind, text: &str) -> Option<(String, Span)> {
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
    Some((serde_json::from_str::<String>(key.get()).ok()?, key_span))
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
    fn an_item_that_is_shown_otherwise_keeps_its_key() {
        let item = Item::parse(ListKind::Tools, &Bytes::from_static(br#"{"name":"a","x":1}"#));
        let other = Bytes::from_static(br#"{"y":1,"name":"a"}"#);
        let item = item.unwrap().shown(ListKind::Tools, other.clone(), Some(other.clone()));
        assert_eq!((&item.text, &item.legacy), (&other, &Some((other.clone(), item.key_span))));
        assert_eq!(&other[item.key_span.range()], b"\"a\"");
    }

    #[test]
    fn hints_that_make_no_sense_are_none() {
        let second = Hints { ttl: Duration::from_secs(1), public: true };
        for (text, hints) in [
            (r#"{"ttlMs":1000,"cacheScope":"public"}"#, second),
            (r#"{"ttlMs":1000}"#, Hints { public: false, ..second }),
            (r#"{"ttlMs":-5,"cacheScope":"all"}"#, Hints::NONE),
            (r#"{"ttlMs":"x"}"#, Hints::NONE),
            (r#"{}"#, Hints::NONE),
            (r#"{"ttlMs":1e300,"cacheScope":"private"}"#, Hints::NONE),
        ] {
            assert_eq!(Hints::parse(text.as_bytes()), hints, "{text}");
        }
        assert_eq!(second.and(Hints::NONE), Hints::NONE);
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
