//! Holds `config.example.toml` to its promises: it loads, it shows every key, and its defaults are the real ones.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::{Config, RouteConfig, UpstreamConfig, parse, schema};

const FILE: &str = include_str!("../../config.example.toml");

/// How a key stands in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shown {
    Active,
    Default,
    Example,
}

/// The key that a line shows, and how.
fn key_of(line: &str) -> Option<(&str, Shown)> {
    let (text, commented) = match line.strip_prefix("# ") {
        Some(text) => (text, true),
        None => (line, false),
    };
    let (key, _) = text.split_once(" = ")?;
    let bare = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    if key.is_empty() || !key.chars().all(bare) {
        return None;
    }
    let shown = match (commented, line.ends_with("# example")) {
        (false, _) => Shown::Active,
        (true, false) => Shown::Default,
        (true, true) => Shown::Example,
    };
    Some((key, shown))
}

/// `upstreams.notes.tools` becomes `upstreams.*.tools`.
fn section_of(header: &str) -> String {
    let mut steps: Vec<_> = header.trim_matches(['[', ']']).split('.').collect();
    if let ["upstreams", name, ..] = steps.as_mut_slice() {
        *name = "*";
    }
    steps.join(".")
}

/// Each key that the file shows: section, key, how.
fn shown() -> Vec<(String, &'static str, Shown)> {
    let mut section = String::new();
    let mut keys = Vec::new();
    for line in FILE.lines() {
        if line.starts_with('[') {
            section = section_of(line);
        } else if let Some((key, shown)) = key_of(line) {
            keys.push((section.clone(), key, shown));
        }
    }
    keys
}

/// Every key of the schema with its section.
fn keys_of_schema() -> BTreeSet<(String, String)> {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let sections = [
        ("server", "ServerConfig"),
        ("admin", "AdminConfig"),
        ("upstreams.*", "UpstreamConfig"),
        ("upstreams.*.tools", "ToolsConfig"),
        ("upstreams.*.tls", "UpstreamTls"),
        ("routes", "RouteConfig"),
        ("telemetry", "TelemetryConfig"),
        ("store", "StoreConfig"),
    ];
    let tables = schema["properties"].as_object().unwrap().keys().map(String::as_str);
    let listed: BTreeSet<_> =
        sections.iter().filter_map(|(name, _)| name.split('.').next()).collect();
    assert_eq!(
        tables.collect::<BTreeSet<_>>(),
        listed,
        "the sections of this test are not those of the file"
    );
    let keys = sections.into_iter().flat_map(|(section, definition)| {
        let keys = schema["$defs"][definition]["properties"].as_object().unwrap();
        keys.keys().map(move |key| (section.to_owned(), key.clone())).collect::<Vec<_>>()
    });
    // Tables of their own in the file.
    keys.filter(|(section, key)| section != "upstreams.*" || !["tools", "tls"].contains(&&**key))
        .collect()
}

/// The file with the commented lines of these kinds taken in.
fn taken_in(kinds: &[Shown]) -> Config {
    let take = |line: &'static str| match key_of(line) {
        Some((_, shown)) if shown != Shown::Active && kinds.contains(&shown) => &line[2..],
        _ => line,
    };
    let text: Vec<_> = FILE.lines().map(take).collect();
    let env = |name: &str| Some(format!("value-of-{name}-for-tests"));
    parse(&text.join("\n"), "config.example.toml", &env)
        .unwrap_or_else(|error| panic!("{error}"))
        .config
}

#[test]
fn it_loads_as_it_is_without_a_warning() {
    let checked =
        parse(FILE, "config.example.toml", &|_| None).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(checked.warnings.to_string(), "");
    assert_eq!(checked.config.routes.len(), 2);
}

#[test]
fn it_shows_every_key_and_no_other() {
    let shown: BTreeSet<_> =
        shown().into_iter().map(|(section, key, _)| (section, key.to_owned())).collect();
    assert_eq!(shown, keys_of_schema());
}

#[test]
fn what_is_commented_out_is_the_default() {
    let given = serde_json::to_value(taken_in(&[Shown::Default])).unwrap();
    let route: RouteConfig = serde_json::from_value(json!({ "path": "/" })).unwrap();
    let upstream = serde_json::to_value(UpstreamConfig::default()).unwrap();
    let mut defaults = BTreeMap::from([
        ("upstreams.*".to_owned(), upstream.clone()),
        ("upstreams.*.tools".to_owned(), upstream["tools"].clone()),
        ("upstreams.*.tls".to_owned(), upstream["tls"].clone()),
        ("routes".to_owned(), serde_json::to_value(route).unwrap()),
    ]);
    let whole = serde_json::to_value(Config::default()).unwrap();
    for section in ["server", "admin", "telemetry", "store"] {
        defaults.insert(section.to_owned(), whole[section].clone());
    }
    let mut section = String::new();
    let mut table = Value::Null;
    let mut route = 0;
    for line in FILE.lines() {
        if line.starts_with("[[") {
            section = section_of(line);
            table = given["routes"][route].clone();
            route += 1;
        } else if line.starts_with('[') {
            section = section_of(line);
            let pointer = format!("/{}", line.trim_matches(['[', ']']).replace('.', "/"));
            table = given.pointer(&pointer).cloned().unwrap();
        } else if let Some((key, Shown::Default)) = key_of(line) {
            assert_eq!(table[key], defaults[&section][key], "{key} in [{section}]");
        }
    }
}

#[test]
fn its_examples_are_valid() {
    let config = taken_in(&[Shown::Default, Shown::Example]);
    assert_eq!(config.upstreams["notes"].env["TOKEN"].expose(), "value-of-NOTES_TOKEN-for-tests");
    assert!(config.store.secret.is_some());
}

#[test]
fn examples_have_no_default() {
    let upstream = serde_json::to_value(UpstreamConfig::default()).unwrap();
    let whole = serde_json::to_value(Config::default()).unwrap();
    for (section, key, _) in shown().into_iter().filter(|(.., shown)| *shown == Shown::Example) {
        let default = match section.as_str() {
            "upstreams.*" => &upstream[key],
            "upstreams.*.tools" => &upstream["tools"][key],
            "upstreams.*.tls" => &upstream["tls"][key],
            other => &whole[other][key],
        };
        assert!(default.is_null() || default == &json!({}), "{key} in [{section}] is {default}");
    }
}
