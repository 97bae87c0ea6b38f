//! Media types that a client sends and takes.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE};

/// What clients of the protocol send.
const USUAL: &str = "application/json, text/event-stream";

/// Which answers a client takes (RFC 9110 §12.5.1). No `Accept` takes anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepts {
    /// `application/json`
    pub(super) json: bool,
    /// `text/event-stream`
    pub(super) events: bool,
}

impl Accepts {
    /// Reads the `Accept` headers.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut all = headers.get_all(ACCEPT).iter();
        if let (Some(only), None) = (all.next(), all.next())
            && only == USUAL
        {
            return Self { json: true, events: true };
        }
        let mut any = false;
        let (mut json, mut events) = (None, None);
        for header in headers.get_all(ACCEPT) {
            let Ok(text) = header.to_str() else { continue };
            for range in text.split(',').filter(|range| !range.trim().is_empty()) {
                any = true;
                let (media, quality) = parse_range(range);
                consider(&mut json, specificity(media, "application/json"), quality);
                consider(&mut events, specificity(media, "text/event-stream"), quality);
            }
        }
        if !any {
            return Self { json: true, events: true };
        }
        let taken = |best: Option<(u8, f32)>| best.is_some_and(|(_, quality)| quality > 0.0);
        Self { json: taken(json), events: taken(events) }
    }
}

/// The most specific range decides, whatever its quality.
fn consider(best: &mut Option<(u8, f32)>, specificity: Option<u8>, quality: f32) {
    let Some(specificity) = specificity else { return };
    match best {
        Some((known, known_quality)) if *known == specificity => {
            *known_quality = known_quality.max(quality);
        }
        Some((known, _)) if *known > specificity => {}
        _ => *best = Some((specificity, quality)),
    }
}

fn specificity(range: &str, media: &str) -> Option<u8> {
    if range == "*/*" || range == "*" {
        return Some(0);
    }
    if range.eq_ignore_ascii_case(media) {
        return Some(2);
    }
    let kind = range.strip_suffix("/*")?;
    media.split_once('/').is_some_and(|(own, _)| own.eq_ignore_ascii_case(kind)).then_some(1)
}

fn parse_range(range: &str) -> (&str, f32) {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let quality = parts
        .filter_map(|part| part.split_once('='))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("q"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(1.0);
    (media, quality)
}

/// Whether a body is declared as JSON (JSONRPC rows 48 and 49). Other charsets than UTF-8 are not.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(text)) = headers.get(CONTENT_TYPE).map(|header| header.to_str()) else {
        return false;
    };
    let mut parts = text.split(';').map(str::trim);
    let media = parts.next().unwrap_or_default();
    let json = ["application/json", "application/json-rpc", "application/jsonrequest"];
    json.iter().any(|known| media.eq_ignore_ascii_case(known))
        && parts.filter_map(|part| part.split_once('=')).all(|(name, value)| {
            let value = value.trim().trim_matches('"');
            !name.trim().eq_ignore_ascii_case("charset")
                || ["utf-8", "utf8"].iter().any(|known| value.eq_ignore_ascii_case(known))
        })
}

/// Whether a body has no declared type, or the one that browsers send without asking.
pub(super) fn is_undeclared(headers: &HeaderMap) -> bool {
    match headers.get(CONTENT_TYPE).map(|header| header.to_str()) {
        None => true,
        Some(Ok(text)) => {
            text.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("text/plain")
        }
        Some(Err(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn accepts(text: &'static str) -> (bool, bool) {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(text));
        let accepts = Accepts::of(&headers);
        (accepts.json, accepts.events)
    }

    #[test]
    fn wildcards_and_qualities_count_by_the_rules_of_http() {
        assert_eq!(accepts("*/*"), (true, true));
        assert_eq!(accepts("application/*, text/event-stream"), (true, true));
        assert_eq!(accepts("application/json"), (true, false));
        assert_eq!(accepts("text/event-stream;q=0.5, application/json;q=0"), (false, true));
        assert_eq!(accepts("*/*, application/json;q=0"), (false, true));
        assert_eq!(accepts("Application/JSON ; Q=0.1"), (true, false));
        assert_eq!(accepts("image/png"), (false, false));
        assert_eq!(accepts(""), (true, true));
        assert_eq!(Accepts::of(&HeaderMap::new()), Accepts { json: true, events: true });
    }

    #[test]
    fn json_is_told_by_its_type_whatever_its_spelling() {
        let typed = |text: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(text));
            is_json(&headers)
        };
        for text in [
            "application/json",
            "application/json;  charset=utf-8",
            "Application/JSON;charset=\"UTF-8\"",
            "application/json-rpc",
            "application/jsonrequest; v=1",
        ] {
            assert!(typed(text), "{text}");
        }
        for text in ["text/plain", "application/json; charset=latin1", "application/jsonx", ""] {
            assert!(!typed(text), "{text}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
