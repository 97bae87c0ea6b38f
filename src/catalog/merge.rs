//! Merging the lists of one kind.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use globset::GlobSet;

use super::names::Naming;
use super::page::{Item, Listing};
use super::template::TemplateMatcher;
use crate::jsonrpc::Span;
use crate::mcp::{Era, ListKind, ParamHeader};

/// Most items in one page of a merged list: many clients never ask for a second one.
pub const PAGE_ITEMS: usize = 500;

/// What the operator says about the tools of one upstream, by its own names.
#[derive(Clone, Debug, Default)]
pub struct Upkeep {
    /// Only these; `None`: all.
    pub allow: Option<GlobSet>,
    /// Not these.
    pub deny: Option<GlobSet>,
    /// Own name to the name before any prefix.
    pub rename: HashMap<String, String>,
}

impl Upkeep {
    /// Whether a tool of that (own) name is offered.
    pub fn offers(&self, name: &str) -> bool {
        self.allow.as_ref().is_none_or(|allow| allow.is_match(name))
            && !self.deny.as_ref().is_some_and(|deny| deny.is_match(name))
    }
}

/// One upstream's part of a merge.
#[derive(Clone, Debug)]
pub struct Source<'a> {
    /// Its name.
    pub upstream: &'a str,
    /// Rules for its tools; not applied to other kinds.
    pub upkeep: &'a Upkeep,
    /// Its items; `None` while nothing is known.
    pub listing: Option<&'a Listing>,
}

/// Where a public name leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Index of the upstream in the sources of the merge.
    pub upstream: usize,
    /// The upstream's own name, decoded.
    pub own: Arc<str>,
    /// The own name as JSON text, when it differs from the public one.
    pub rewrite: Option<Bytes>,
    /// Running number of the item in the merged list.
    pub index: usize,
    /// Whether legacy clients were shown another `outputSchema`.
    pub wrapped: bool,
    /// Arguments of a tool that modern requests repeat as headers.
    pub params: Option<Arc<[ParamHeader]>>,
}

/// Two items under one public name or URI; the first one given stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clash {
    /// The public name.
    pub name: String,
    /// The upstream whose item is offered.
    pub kept: String,
    /// The upstream whose item is left out.
    pub dropped: String,
}

/// One merged list.
#[derive(Debug, Default)]
pub struct Merged {
    /// `{"tools":[…]` of each page: the closing brace is left off, since a cursor may stand before it.
    pub pages: Vec<Bytes>,
    /// The same for legacy clients, where they are shown something else.
    pub legacy_pages: Option<Vec<Bytes>>,
    /// Number of items.
    pub count: usize,
    /// Bytes of all items.
    pub bytes: usize,
    /// What was left out.
    pub clashes: Vec<Clash>,
    owners: HashMap<String, Origin>,
    templates: Vec<(TemplateMatcher, usize)>,
    /// Whose tools show their results on which page.
    pages_of_tools: HashMap<Arc<str>, usize>,
}

impl Merged {
    /// The owner of an exact name, URI or template.
    pub fn owner(&self, name: &str) -> Option<&Origin> {
        self.owners.get(name)
    }

    /// The upstream whose template fits the URI; the longest literal beginning wins, then the order.
    pub fn template_owner(&self, uri: &str) -> Option<usize> {
        self.templates
            .iter()
            .find(|(matcher, _)| matcher.matches(uri))
            .map(|(_, upstream)| *upstream)
    }

    /// The upstream that has a tool which shows its results on the page with that URI; the first one in order.
    pub fn page_owner(&self, uri: &str) -> Option<usize> {
        self.pages_of_tools.get(uri).copied()
    }

    /// Every owner with its public name.
    pub fn owners(&self) -> impl Iterator<Item = (&str, &Origin)> {
        self.owners.iter().map(|(name, origin)| (name.as_str(), origin))
    }
}

/// Pages that are being written.
struct Pages {
    kind: ListKind,
    count: usize,
    page: BytesMut,
    done: Vec<Bytes>,
}

impl Pages {
    fn new(kind: ListKind) -> Self {
        let mut pages = Self { kind, count: 0, page: BytesMut::new(), done: Vec::new() };
        pages.begin();
        pages
    }

    fn begin(&mut self) {
        self.page.put_slice(format!("{{\"{}\":[", self.kind.member()).as_bytes());
    }

    fn end(&mut self) {
        self.page.put_u8(b']');
        self.done.push(self.page.split().freeze());
    }

    /// One item, under another key if it is renamed.
    fn put(&mut self, text: &[u8], key: Span, renamed: Option<&str>) {
        if self.count > 0 && self.count.is_multiple_of(PAGE_ITEMS) {
            self.end();
            self.begin();
        } else if self.count > 0 {
            self.page.put_u8(b',');
        }
        match renamed {
            Some(name) => {
                self.page.put_slice(&text[..key.start as usize]);
                self.page.put_slice(serde_json::Value::from(name).to_string().as_bytes());
                self.page.put_slice(&text[key.end as usize..]);
            }
            None => self.page.put_slice(text),
        }
        self.count += 1;
    }

    fn finish(mut self) -> Vec<Bytes> {
        self.end();
        self.done
    }
}

/// An item on its way into the merged list.
struct Candidate<'a> {
    source: usize,
    item: &'a Item,
    public: String,
}

/// Merges the lists of one kind. URIs and templates are never renamed.
pub fn merge(kind: ListKind, naming: Naming, sources: &[Source<'_>]) -> Merged {
    let candidates = candidates(kind, naming, sources);
    let winners = settle(kind, naming, sources, &candidates);
    let mut merged = Merged::default();
    let mut pages = Pages::new(kind);
    let differs = candidates.iter().any(|candidate| candidate.item.legacy.is_some());
    let mut legacy = differs.then(|| Pages::new(kind));
    for (position, candidate) in candidates.iter().enumerate() {
        let winner = winners[candidate.public.as_str()];
        if winner.0 != position {
            let clash = Clash {
                name: candidate.public.clone(),
                kept: sources[winner.1].upstream.to_owned(),
                dropped: sources[candidate.source].upstream.to_owned(),
            };
            merged.clashes.push(clash);
            continue;
        }
        let Candidate { item, public, .. } = candidate;
        let renamed = (*public != item.key).then_some(public.as_str());
        pages.put(&item.text, item.key_span, renamed);
        if let Some(legacy) = &mut legacy {
            let (text, span) =
                item.legacy.as_ref().unwrap_or(&(item.text.clone(), item.key_span)).clone();
            legacy.put(&text, span, renamed);
        }
        merged.admit(kind, candidate);
    }
    merged.pages = pages.finish();
    merged.legacy_pages = legacy.map(Pages::finish);
    merged.templates.sort_by_key(|(matcher, _)| std::cmp::Reverse(matcher.weight()));
    merged
}

impl Merged {
    /// The pages that clients of an era are shown.
    pub fn pages_for(&self, era: Era) -> &[Bytes] {
        match (&self.legacy_pages, era) {
            (Some(pages), Era::Legacy) => pages,
            _ => &self.pages,
        }
    }

    fn admit(&mut self, kind: ListKind, candidate: &Candidate<'_>) {
        let Candidate { source, item, public } = candidate;
        let renamed = *public != item.key;
        if kind == ListKind::Templates
            && let Some(matcher) = TemplateMatcher::new(&item.key)
        {
            self.templates.push((matcher, *source));
        }
        let own = || {
            let Span { start, end } = item.key_span;
            item.text.slice(start as usize..end as usize)
        };
        let origin = Origin {
            upstream: *source,
            own: item.key.as_str().into(),
            rewrite: renamed.then(own),
            index: self.count,
            wrapped: item.wrapped,
            params: item.params.clone(),
        };
        self.owners.insert(public.clone(), origin);
        if let Some(page) = &item.page {
            self.pages_of_tools.entry(Arc::clone(page)).or_insert(*source);
        }
        self.count += 1;
        self.bytes += item.text.len();
    }
}

fn candidates<'a>(kind: ListKind, naming: Naming, sources: &[Source<'a>]) -> Vec<Candidate<'a>> {
    let named = matches!(kind, ListKind::Tools | ListKind::Prompts);
    let mut candidates = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let items = source.listing.map_or(&[][..], |listing| &listing.items);
        for item in items {
            if kind == ListKind::Tools && !source.upkeep.offers(&item.key) {
                continue;
            }
            let public = if named {
                let shown = match kind {
                    ListKind::Tools => source.upkeep.rename.get(&item.key).unwrap_or(&item.key),
                    _ => &item.key,
                };
                naming.public(source.upstream, shown)
            } else {
                item.key.clone()
            };
            candidates.push(Candidate { source: index, item, public });
        }
    }
    candidates
}

/// Which candidate keeps a public name: position and source.
///
/// Prefixed names depend only on upstream and tool name, so the upstream with the smaller name wins,
/// whatever the order; own names and URIs go to the first upstream of the route.
fn settle<'a>(
    kind: ListKind,
    naming: Naming,
    sources: &[Source<'_>],
    candidates: &'a [Candidate<'_>],
) -> HashMap<&'a str, (usize, usize)> {
    let by_name = naming == Naming::Prefixed && matches!(kind, ListKind::Tools | ListKind::Prompts);
    let mut winners: HashMap<&str, (usize, usize)> = HashMap::with_capacity(candidates.len());
    for (position, candidate) in candidates.iter().enumerate() {
        let this = (position, candidate.source);
        winners
            .entry(candidate.public.as_str())
            .and_modify(|holder| {
                let smaller = sources[this.1].upstream < sources[holder.1].upstream;
                if by_name && smaller {
                    *holder = this;
                }
            })
            .or_insert(this);
    }
    winners
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::catalog::parse_page;

    fn listing(kind: ListKind, keys: &[&str]) -> Listing {
        let items: Vec<String> = keys
            .iter()
            .map(|key| format!("{{\"a\":1.50,{:?}:{key:?},\"z\":null}}", kind.key()))
            .collect();
        let page = format!("{{{:?}:[{}]}}", kind.member(), items.join(","));
        let mut skipped = 0;
        let (items, _) = parse_page(kind, &Bytes::from(page), &mut skipped).unwrap();
        Listing { items }
    }

    fn whole(merged: &Merged) -> Vec<serde_json::Value> {
        let mut all = Vec::new();
        for page in &merged.pages {
            let text = [&page[..], b"}"].concat();
            let value: serde_json::Value = serde_json::from_slice(&text).unwrap();
            let list = value.as_object().unwrap().values().next().unwrap();
            all.extend(list.as_array().unwrap().iter().cloned());
        }
        all
    }

    fn names(merged: &Merged) -> Vec<String> {
        whole(merged).iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn items_are_concatenated_in_order_and_keep_their_bytes() {
        let a = listing(ListKind::Tools, &["x", "y"]);
        let b = listing(ListKind::Tools, &["x"]);
        let upkeep = Upkeep::default();
        let source = |upstream, listing| Source { upstream, upkeep: &upkeep, listing };
        let sources = [source("a", Some(&a)), source("down", None), source("b", Some(&b))];
        let merged = merge(ListKind::Tools, Naming::Prefixed, &sources);
        assert_eq!(names(&merged), ["a__x", "a__y", "b__x"]);
        let page = std::str::from_utf8(&merged.pages[0]).unwrap();
        assert!(page.contains(r#"{"a":1.50,"name":"b__x","z":null}"#), "{page}");
        let origin = merged.owner("b__x").unwrap();
        assert_eq!((origin.upstream, &*origin.own), (2, "x"));
        assert_eq!(origin.rewrite.as_deref(), Some(&b"\"x\""[..]));
        assert!(merged.owner("x").is_none());
    }

    #[test]
    fn the_loser_of_a_clash_is_the_same_whatever_the_order() {
        let one = listing(ListKind::Tools, &["b__c"]);
        let two = listing(ListKind::Tools, &["c"]);
        let upkeep = Upkeep::default();
        let a = Source { upstream: "a", upkeep: &upkeep, listing: Some(&one) };
        let ab = Source { upstream: "a__b", upkeep: &upkeep, listing: Some(&two) };
        let first = merge(ListKind::Tools, Naming::Prefixed, &[a.clone(), ab.clone()]);
        let second = merge(ListKind::Tools, Naming::Prefixed, &[ab, a]);
        assert_eq!(names(&first), ["a__b__c"]);
        assert_eq!(names(&second), ["a__b__c"]);
        assert_eq!(&*first.owner("a__b__c").unwrap().own, "b__c");
        assert_eq!(&*second.owner("a__b__c").unwrap().own, "b__c");
        assert_eq!(first.clashes, second.clashes);
        assert_eq!(first.clashes[0].dropped, "a__b");
    }

    #[test]
    fn plain_names_and_uris_go_to_the_first_upstream() {
        let one = listing(ListKind::Resources, &["file:///a.txt"]);
        let two = listing(ListKind::Resources, &["file:///a.txt", "ui://w"]);
        let upkeep = Upkeep::default();
        let z = Source { upstream: "z", upkeep: &upkeep, listing: Some(&one) };
        let a = Source { upstream: "a", upkeep: &upkeep, listing: Some(&two) };
        let merged = merge(ListKind::Resources, Naming::Prefixed, &[z, a]);
        assert_eq!(merged.owner("file:///a.txt").unwrap().upstream, 0);
        assert_eq!(merged.owner("ui://w").unwrap().upstream, 1);
        assert_eq!(merged.count, 2);
    }

    #[test]
    fn denied_tools_are_not_offered_and_renamed_ones_lead_back() {
        let tools = listing(ListKind::Tools, &["q", "delete_all", "keep"]);
        let mut deny = globset::GlobSetBuilder::new();
        deny.add(globset::Glob::new("delete_*").unwrap());
        let upkeep = Upkeep {
            allow: None,
            deny: Some(deny.build().unwrap()),
            rename: HashMap::from([("q".to_owned(), "query".to_owned())]),
        };
        let source = Source { upstream: "s", upkeep: &upkeep, listing: Some(&tools) };
        let merged = merge(ListKind::Tools, Naming::Own, &[source]);
        assert_eq!(names(&merged), ["query", "keep"]);
        assert_eq!(&*merged.owner("query").unwrap().own, "q");
        assert!(merged.owner("q").is_none() && merged.owner("delete_all").is_none());
        assert_eq!(merged.owner("keep").unwrap().rewrite, None);
    }

    #[test]
    fn long_lists_are_cut_into_pages_without_losing_an_item() {
        let keys: Vec<String> = (0..1_001).map(|n| format!("t{n}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let tools = listing(ListKind::Tools, &keys);
        let upkeep = Upkeep::default();
        let source = Source { upstream: "s", upkeep: &upkeep, listing: Some(&tools) };
        let merged = merge(ListKind::Tools, Naming::Own, &[source]);
        assert_eq!(merged.pages.len(), 3);
        assert_eq!(names(&merged), keys);
        let empty = merge(ListKind::Tools, Naming::Own, &[]);
        assert_eq!(empty.pages, [Bytes::from_static(b"{\"tools\":[]")]);
    }

    #[test]
    fn templates_find_the_owner_by_the_longest_beginning() {
        let wide = listing(ListKind::Templates, &["file:///{+path}"]);
        let narrow = listing(ListKind::Templates, &["file:///docs/{name}"]);
        let upkeep = Upkeep::default();
        let a = Source { upstream: "a", upkeep: &upkeep, listing: Some(&wide) };
        let b = Source { upstream: "b", upkeep: &upkeep, listing: Some(&narrow) };
        let merged = merge(ListKind::Templates, Naming::Prefixed, &[a, b]);
        assert_eq!(merged.template_owner("file:///docs/x"), Some(1));
        assert_eq!(merged.template_owner("file:///src/x"), Some(0));
        assert_eq!(merged.template_owner("http://x"), None);
    }

    proptest! {
        #[test]
        fn every_public_name_leads_to_the_item_it_was_made_from(
            first in proptest::collection::btree_set("[a-z_]{1,80}", 0..20),
            second in proptest::collection::btree_set("[a-z_]{1,80}", 0..20),
        ) {
            let keys: Vec<&str> = first.iter().map(String::as_str).collect();
            let one = listing(ListKind::Tools, &keys);
            let keys: Vec<&str> = second.iter().map(String::as_str).collect();
            let two = listing(ListKind::Tools, &keys);
            let upkeep = Upkeep::default();
            let sources = [
                Source { upstream: "a", upkeep: &upkeep, listing: Some(&one) },
                Source { upstream: "a_", upkeep: &upkeep, listing: Some(&two) },
            ];
            let merged = merge(ListKind::Tools, Naming::Prefixed, &sources);
            prop_assert_eq!(merged.count + merged.clashes.len(), first.len() + second.len());
            for (name, origin) in merged.owners() {
                let upstream = sources[origin.upstream].upstream;
                prop_assert_eq!(name, Naming::Prefixed.public(upstream, &origin.own));
                prop_assert!(name.chars().count() <= 64);
            }
        }
    }
}
