//! A conservative matcher for URI templates (RFC 6570): enough to find the owner of a URI.

/// Longest template that is read.
const MAX_TEMPLATE: usize = 2 << 10;
/// Longest URI that is matched.
const MAX_URI: usize = 8 << 10;

/// One template: literal parts with holes between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateMatcher {
    /// Literal before the first hole.
    head: String,
    /// Each hole and the literal behind it.
    holes: Vec<(Hole, String)>,
}

/// What one expression may stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hole {
    /// `{var}`: anything but `/`, `?` and `#`.
    Segment,
    /// `{+var}`, `{#var}`, `{/var}`, `{?var}` …: anything.
    Anything,
}

impl TemplateMatcher {
    /// Reads a template; `None` when its braces do not match, or it is too long.
    pub fn new(template: &str) -> Option<Self> {
        if template.len() > MAX_TEMPLATE {
            return None;
        }
        let mut rest = template;
        let mut literals = Vec::new();
        let mut kinds = Vec::new();
        while let Some(open) = rest.find('{') {
            let close = open + rest[open..].find('}')?;
            literals.push(rest[..open].to_owned());
            let simple = rest[open + 1..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
            let exploded = rest[open..close].contains('*');
            kinds.push(if simple && !exploded { Hole::Segment } else { Hole::Anything });
            rest = &rest[close + 1..];
        }
        if rest.contains('}') {
            return None;
        }
        literals.push(rest.to_owned());
        let mut literals = literals.into_iter();
        let head = literals.next()?;
        Some(Self { head, holes: kinds.into_iter().zip(literals).collect() })
    }

    /// How many bytes of literal stand before the first hole: the longest one wins.
    pub fn weight(&self) -> usize {
        self.head.len()
    }

    /// Whether the URI can come from the template. What it costs is bounded by the longest template and URI.
    pub fn matches(&self, uri: &str) -> bool {
        if uri.len() > MAX_URI {
            return false;
        }
        let Some(rest) = uri.strip_prefix(self.head.as_str()) else { return false };
        // The set of places in `rest` that the parts so far can have reached.
        let mut places = vec![false; rest.len() + 1];
        places[0] = true;
        for (hole, literal) in &self.holes {
            places = advance(rest, &places, *hole, literal);
        }
        places[rest.len()]
    }
}

/// Where one hole and its literal can end, from each place of `from`.
fn advance(rest: &str, from: &[bool], hole: Hole, literal: &str) -> Vec<bool> {
    let mut to = vec![false; rest.len() + 1];
    let mut open = false;
    for (place, byte) in rest.bytes().map(Some).chain([None]).enumerate() {
        open |= from[place];
        if open && rest.as_bytes()[place..].starts_with(literal.as_bytes()) {
            to[place + literal.len()] = true;
        }
        if hole == Hole::Segment && matches!(byte, Some(b'/' | b'?' | b'#')) {
            open = false;
        }
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(template: &str, uri: &str) -> bool {
        TemplateMatcher::new(template).is_some_and(|matcher| matcher.matches(uri))
    }

    #[test]
    fn simple_expressions_stay_within_a_segment() {
        assert!(matches("test://template/{id}/data", "test://template/7/data"));
        assert!(matches("test://template/{id}/data", "test://template//data"));
        assert!(!matches("test://template/{id}/data", "test://template/7/8/data"));
        assert!(!matches("test://template/{id}/data", "test://template/7/data/x"));
        assert!(matches("notes://{id}", "notes://a%2Fb"));
        assert!(!matches("notes://{id}", "files://a"));
    }

    #[test]
    fn reserved_expansion_crosses_segments() {
        assert!(matches("file:///{+path}", "file:///a/b/c"));
        assert!(matches("x://{a}/{b}{?q*}", "x://1/2?q=3&r=4"));
        assert!(matches("file:///{path*}", "file:///a/b"));
    }

    #[test]
    fn broken_templates_match_nothing() {
        assert!(TemplateMatcher::new("x://{a").is_none());
        assert!(TemplateMatcher::new("x://a}").is_none());
    }

    #[test]
    fn a_hostile_template_does_not_blow_up() {
        let template = "x://".to_owned() + &"{+a}-".repeat(200);
        let uri = "x://".to_owned() + &"-".repeat(400) + "!";
        assert!(!matches(&template, &uri));
        assert!(TemplateMatcher::new(&"{+a}".repeat(MAX_TEMPLATE)).is_none());
        assert!(!matches("x://{+a}", &("x://".to_owned() + &"-".repeat(MAX_URI))));
    }
}
