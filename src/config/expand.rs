//! `${NAME}` and `${NAME:-default}` in the strings of the file.
//!
//! Only parsed values are looked at, never the raw text, so that no variable can add keys to the file.

use std::borrow::Cow;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::document::KeyPath;

/// Looks up a variable of the environment.
pub(super) type Env<'e> = &'e dyn Fn(&str) -> Option<String>;

/// Expands every string below `table`; returns what could not be, and why.
pub(super) fn expand(table: &mut DeTable<'_>, env: Env<'_>) -> Vec<(KeyPath, String)> {
    let mut walk = Walk { env, failed: Vec::new() };
    walk.table(table, &KeyPath::root());
    walk.failed
}

struct Walk<'e> {
    env: Env<'e>,
    failed: Vec<(KeyPath, String)>,
}

impl Walk<'_> {
    fn table(&mut self, table: &mut DeTable<'_>, path: &KeyPath) {
        for (key, value) in table.iter_mut() {
            self.value(value, path.key(key.get_ref().as_ref()));
        }
    }

    fn value(&mut self, value: &mut Spanned<DeValue<'_>>, path: KeyPath) {
        match value.get_mut() {
            DeValue::Table(table) => self.table(table, &path),
            DeValue::Array(list) => {
                for (index, element) in list.iter_mut().enumerate() {
                    self.value(element, path.index(index));
                }
            }
            DeValue::String(text) if text.contains("${") => match expand_text(text, self.env) {
                Ok(expanded) => *text = Cow::Owned(expanded),
                Err(fault) => self.failed.push((path.clone(), fault.explain(&path))),
            },
            _ => {}
        }
    }
}

/// Why a text cannot be expanded.
#[derive(Debug, PartialEq, Eq)]
enum ExpandError {
    Unset(String),
    Malformed(String),
}

impl ExpandError {
    fn explain(&self, path: &KeyPath) -> String {
        let (key, section) = (path.last_key(), path.section());
        match self {
            Self::Unset(name) => format!(
                "environment variable `{name}` is not set, but `{key}`{section} needs it; \
                 set it, or write a default: `${{{name}:-…}}`"
            ),
            Self::Malformed(near) => format!(
                "`{key}`{section}: `{near}` is neither `${{NAME}}` nor `${{NAME:-default}}`; \
                 for a literal `${{` write `$${{`"
            ),
        }
    }
}

/// As the shell does it: `:-` also replaces a variable that is set to nothing. `$${` stands for `${`.
fn expand_text(text: &str, env: Env<'_>) -> Result<String, ExpandError> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let (before, reference) = rest.split_at(start);
        if let Some(kept) = before.strip_suffix('$') {
            out.push_str(kept);
            out.push_str("${");
            rest = &reference[2..];
            continue;
        }
        out.push_str(before);
        let malformed = || ExpandError::Malformed(shorten(reference));
        let (inside, after) = reference[2..].split_once('}').ok_or_else(malformed)?;
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        if !is_variable(name) {
            return Err(malformed());
        }
        match (env(name), default) {
            (Some(value), None) => out.push_str(&value),
            (Some(value), Some(_)) if !value.is_empty() => out.push_str(&value),
            (_, Some(default)) => out.push_str(default),
            (None, None) => return Err(ExpandError::Unset(name.to_owned())),
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Whether the text can name a variable: letters, digits and `_`, not beginning with a digit.
pub(super) fn is_variable(name: &str) -> bool {
    let legal = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(legal)
}

fn shorten(text: &str) -> String {
    let end = text.find('}').map_or(text.len(), |end| end + 1);
    text[..end].chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(text: &str) -> Result<String, ExpandError> {
        expand_text(text, &|name| match name {
            "TOKEN" => Some("s3cret".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${TOKEN}".to_owned()),
            _ => None,
        })
    }

    #[test]
    fn variables_are_replaced_with_defaults_as_in_a_shell() {
        let cases = [
            ("Bearer ${TOKEN}", "Bearer s3cret"),
            ("${TOKEN}${TOKEN}", "s3crets3cret"),
            ("${ABSENT:-http://x:1}", "http://x:1"),
            ("${EMPTY:-x}", "x"),
            ("${EMPTY}", ""),
            ("${ABSENT:-}", ""),
            ("$TOKEN $ {TOKEN} 5$", "$TOKEN $ {TOKEN} 5$"),
        ];
        for (text, right) in cases {
            assert_eq!(expanded(text).as_deref(), Ok(right), "{text}");
        }
    }

    #[test]
    fn a_doubled_dollar_is_a_literal_one() {
        assert_eq!(expanded("$${TOKEN}").as_deref(), Ok("${TOKEN}"));
        assert_eq!(expanded("a$${x} ${TOKEN}").as_deref(), Ok("a${x} s3cret"));
    }

    #[test]
    fn values_are_not_expanded_again() {
        assert_eq!(expanded("${NESTED}").as_deref(), Ok("${TOKEN}"));
    }

    #[test]
    fn malformed_references_are_refused() {
        for text in ["${", "${}", "${TOKEN", "${1A}", "${a b}", "${env:TOKEN}"] {
            assert!(matches!(expanded(text), Err(ExpandError::Malformed(_))), "{text}");
        }
        assert_eq!(expanded("${ABSENT}"), Err(ExpandError::Unset("ABSENT".to_owned())));
    }
}
