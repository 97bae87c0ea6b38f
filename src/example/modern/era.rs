//! Of which era a message is (MCP digest §4.4): by its body first, then by its header.

use super::super::message::{Incoming, Piece};
use super::super::revision::{Offered, Revision};
use super::claims;

/// Who has to answer a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Era {
    /// A session of 2024-11-05 to 2025-11-25.
    Legacy,
    /// 2026-07-28, even if only to say what is wrong.
    Modern,
}

/// Whether a request names its revision in its body.
fn claims(incoming: &Incoming) -> bool {
    match incoming {
        Incoming::Request(request) => claims::revision(&request.params).is_some(),
        Incoming::Notification { params, .. } => claims::revision(params).is_some(),
        Incoming::Response { .. } | Incoming::Invalid { .. } => false,
    }
}

/// Whether a version header names a revision of this era.
pub(in super::super) fn is_modern(header: Option<&str>) -> bool {
    header.is_some_and(|name| name.trim() == Revision::MODERN.as_str())
}

impl Era {
    /// The era of what came in one piece; `header` is the version header of HTTP.
    pub(in super::super) fn of(offered: Offered, header: Option<&str>, piece: &Piece) -> Self {
        if !offered.modern() {
            return Self::Legacy;
        }
        let says_so = match piece {
            Piece::One(Incoming::Request(request))
                if request.method == "initialize" && offered.legacy().is_some() =>
            {
                claims::revision(&request.params).is_some()
            }
            Piece::One(one) => claims(one) || is_modern(header),
            Piece::Many(many) => many.iter().any(claims) || is_modern(header),
        };
        if says_so || offered.legacy().is_none() { Self::Modern } else { Self::Legacy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: &str = r#"{"jsonrpc":"2.0","id":1,"method":"M","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01"}}}"#;
    const OLD: &str = r#"{"jsonrpc":"2.0","id":1,"method":"M"}"#;

    fn era(offered: Offered, header: Option<&str>, text: &str) -> Era {
        Era::of(offered, header, &Piece::read(text.as_bytes()).unwrap())
    }

    #[test]
    fn the_body_decides_and_then_the_header() {
        let header = Some("2026-07-28");
        let initialize = OLD.replace('M', "initialize");
        let response = r#"{"jsonrpc":"2.0","id":1,"result":{}}"#;
        let rows = [
            (None, NEW.to_owned(), Era::Modern),
            (Some("2025-06-18"), NEW.to_owned(), Era::Modern),
            (None, NEW.replace('M', "initialize"), Era::Modern),
            (None, format!("[{OLD},{NEW}]"), Era::Modern),
            (None, OLD.to_owned(), Era::Legacy),
            (Some("2025-06-18"), OLD.to_owned(), Era::Legacy),
            (Some("2031-01-01"), OLD.to_owned(), Era::Legacy),
            (header, OLD.to_owned(), Era::Modern),
            (header, initialize.clone(), Era::Legacy),
            (header, response.to_owned(), Era::Modern),
            (None, response.to_owned(), Era::Legacy),
            (None, format!("[{OLD}]"), Era::Legacy),
        ];
        for (header, text, expected) in rows {
            assert_eq!(era(Offered::All, header, &text), expected, "{header:?} {text}");
            assert_eq!(era(Offered::Modern, header, &text), Era::Modern);
            let old = Offered::UpTo(Revision::V2025_11_25);
            assert_eq!(era(old, header, &text), Era::Legacy);
        }
    }
}
