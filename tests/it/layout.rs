//! The arrows between rooms: who may name whom. One crate holds all rooms, so nothing but this test keeps a pure core
//! from reaching for a socket.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A room, and what it may use.
struct Room {
    name: &'static str,
    uses: Uses,
    pure: bool,
}

/// What a room may use besides itself.
enum Uses {
    Only(&'static [&'static str]),
    /// Rooms up to this level, and these.
    Up(u8, &'static [&'static str]),
    All,
}

/// Rooms by level; the level is the index. What a room may use says [`ROOMS`]: in general everything below, and none
/// of its own level.
const LEVELS: [&[&str]; 9] = [
    &["jsonrpc", "wire"],
    &["mcp", "fault", "net"],
    &["config"],
    &["telemetry"],
    &["store", "shutdown", "budget"],
    &["router", "catalog", "exchange", "policy", "session", "upstream"],
    &["pipeline"],
    &["downstream", "admin", "client", "example"],
    &["app", "main", "lib"],
];

/// Pure: no tokio, no clock, no randomness, no logging.
#[rustfmt::skip]
const ROOMS: &[Room] = &[
    Room { name: "jsonrpc",    uses: Uses::Only(&[]),                 pure: true },
    // For `Chunks`, the text of a message as slices: it is what encoders take.
    Room { name: "wire",       uses: Uses::Only(&["jsonrpc"]),        pure: true },
    Room { name: "mcp",        uses: Uses::Only(&["jsonrpc"]),        pure: true },
    Room { name: "fault",      uses: Uses::Only(&["jsonrpc", "mcp"]), pure: true },
    Room { name: "net",        uses: Uses::Only(&[]),                 pure: false },
    Room { name: "config",     uses: Uses::Up(1, &[]),                pure: false },
    // `mcp` for the closed sets that labels come from: methods, eras, kinds of lists; `net` for who is at the other end.
    Room { name: "telemetry",  uses: Uses::Only(&["mcp", "fault", "config", "net"]), pure: false },
    Room { name: "store",      uses: Uses::Up(3, &[]),                pure: false },
    Room { name: "shutdown",   uses: Uses::Up(3, &[]),                pure: false },
    Room { name: "budget",     uses: Uses::Only(&[]),                 pure: true },
    Room { name: "router",     uses: Uses::Up(2, &[]),                pure: true },
    Room { name: "catalog",    uses: Uses::Up(2, &[]),                pure: true },
    Room { name: "exchange",   uses: Uses::Up(2, &[]),                pure: true },
    Room { name: "policy",     uses: Uses::Up(4, &[]),                pure: false },
    Room { name: "session",    uses: Uses::Up(4, &[]),                pure: false },
    Room { name: "upstream",   uses: Uses::Up(4, &[]),                pure: false },
    Room { name: "pipeline",   uses: Uses::Up(5, &[]),                pure: false },
    Room { name: "downstream", uses: Uses::Up(4, &["pipeline"]),      pure: false },
    Room { name: "admin",      uses: Uses::Up(4, &["pipeline"]),      pure: false },
    Room { name: "client",     uses: Uses::Up(4, &[]),                pure: false },
    Room { name: "example",    uses: Uses::Up(4, &[]),                pure: false },
    Room { name: "app",        uses: Uses::All,                       pure: false },
    Room { name: "main",       uses: Uses::All,                       pure: false },
    Room { name: "lib",        uses: Uses::All,                       pure: false },
];

/// Beginnings of paths that a pure room does not name.
#[rustfmt::skip]
const IMPURE: &[&str] = &[
    "tokio::", "tracing::", "hyper::", "getrandom::", "rand::", "std::fs", "std::env", "std::net::Tcp", "std::thread",
    "std::process", "Instant::now", "SystemTime::now", "Timestamp::now",
];

fn level(room: &str) -> Option<usize> {
    LEVELS.iter().position(|rooms| rooms.contains(&room))
}

impl Room {
    fn may_use(&self, other: &str) -> bool {
        let listed = |names: &[&str]| names.contains(&other);
        other == self.name
            || match &self.uses {
                Uses::Only(names) => listed(names),
                Uses::Up(most, names) => {
                    listed(names) || level(other).is_some_and(|level| level <= usize::from(*most))
                }
                Uses::All => true,
            }
    }
}

/// What is wrong with the files of `src`, given by their paths below it.
fn violations(files: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in files {
        let name = room_of(path);
        let Some(room) = ROOMS.iter().find(|room| room.name == name) else {
            found.push(format!("{}: the room `{name}` is in no table", path.display()));
            continue;
        };
        let code = code_of(text);
        for used in rooms_used(&code, depth(path)) {
            // A macro or a re-export at the root of the crate would be named without a room.
            if level(&used).is_some() && !room.may_use(&used) {
                found.push(format!("{}: `{name}` may not use `{used}`", path.display()));
            }
        }
        if room.pure && !is_test_file(path) {
            // By convention the tests of a file stand at its end.
            let own = code.split("#[cfg(test)]").next().unwrap_or_default();
            for word in IMPURE.iter().filter(|word| mentions(own, word)) {
                found.push(format!("{}: `{name}` is pure and uses `{word}`", path.display()));
            }
        }
    }
    found
}

/// `src/upstream/http.rs` and `src/upstream.rs` belong to `upstream`.
fn room_of(path: &Path) -> String {
    let first = path.components().next().map(|part| part.as_os_str().to_string_lossy());
    first.unwrap_or_default().trim_end_matches(".rs").to_owned()
}

/// How many `super` lead from the file's module to the root of the crate.
fn depth(path: &Path) -> usize {
    let parts = path.components().count();
    let at_root = path.ends_with("lib.rs") || path.ends_with("main.rs");
    if path.ends_with("mod.rs") || (parts == 1 && at_root) { parts - 1 } else { parts }
}

fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| {
        matches!(
            part.as_os_str().to_string_lossy().as_ref(),
            "tests.rs" | "tests" | "properties.rs"
        )
    })
}

/// First segments of all paths that begin at the root of the crate: by `crate::`, `trunkline::`, or enough `super::`.
fn rooms_used(code: &str, depth: usize) -> Vec<String> {
    let mut used = Vec::new();
    let mut roots = vec!["crate::".to_owned(), "trunkline::".to_owned()];
    if depth > 0 {
        roots.push("super::".repeat(depth));
    }
    for root in roots {
        for (at, _) in code.match_indices(&root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | '$' | ':')) {
                continue;
            }
            first_segments(&code[at + root.len()..], &mut used);
        }
    }
    used.sort();
    used.dedup();
    used
}

/// The first segment of a path, or of each path in `{…}`.
fn first_segments(rest: &str, used: &mut Vec<String>) {
    let rest = rest.trim_start_matches("super::").trim_start();
    let Some(group) = rest.strip_prefix('{') else {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        used.push(rest[..end].to_owned());
        return;
    };
    let mut nested = 0;
    let mut start = 0;
    for (at, c) in group.char_indices() {
        match c {
            '{' => nested += 1,
            '}' if nested > 0 => nested -= 1,
            ',' | '}' if nested == 0 => {
                first_segments(group[start..at].trim_start(), used);
                start = at + 1;
                if c == '}' {
                    return;
                }
            }
            _ => {}
        }
    }
}

/// Whether a path in `code` begins with `word`, or goes through it.
fn mentions(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

/// The text without comments and without what stands in quotes.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => comment_end(rest),
            '"' => string_end(rest),
            'r' if !code.ends_with(|c: char| c.is_alphanumeric() || c == '_')
                || code.ends_with('b') =>
            {
                raw_string_end(rest)
            }
            '\'' => char_end(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.push(' ');
            rest = &rest[skipped..];
        }
    }
    code
}

fn comment_end(text: &str) -> usize {
    let mut nested = 0;
    let mut at = 0;
    while at < text.len() {
        let here = &text.as_bytes()[at..];
        if here.starts_with(b"/*") {
            nested += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            nested -= 1;
            at += 2;
            if nested == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (at, b) in text.bytes().enumerate().skip(1) {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The end of `r"…"` or `r#"…"#`; 0 when it is none.
fn raw_string_end(text: &str) -> usize {
    let hashes = text[1..].bytes().take_while(|b| *b == b'#').count();
    let open = 1 + hashes;
    if !text[open..].starts_with('"') {
        return 0;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    text[open + 1..].find(&close).map_or(text.len(), |at| open + 1 + at + close.len())
}

/// The end of a character; 0 when it is a lifetime.
fn char_end(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => {
            // What is escaped may be a quote itself.
            text[3..].find('\'').map_or(0, |at| 3 + at + 1)
        }
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

/// Every source file below `folder`, by its path below `src`.
fn read(folder: &Path, src: &Path, files: &mut BTreeMap<PathBuf, String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(&path, src, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let below = path.strip_prefix(src).unwrap().to_owned();
            files.insert(below, fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn rooms_use_only_the_rooms_that_they_may() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = BTreeMap::new();
    read(&src, &src, &mut files);
    assert!(files.len() > 20, "the sources are not where they were: {}", src.display());
    let found = violations(&files);
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

fn found(path: &str, text: &str) -> Vec<String> {
    violations(&BTreeMap::from([(PathBuf::from(path), text.to_owned())]))
}

#[test]
fn a_forbidden_arrow_is_found_however_it_is_written() {
    for (path, text) in [
        ("upstream/http.rs", "use crate::session::Session;"),
        ("upstream/http.rs", "use crate::{config::Config, session};"),
        ("upstream/http.rs", "use crate::{\n    config::{A, B},\n    session::{\n C },\n};"),
        ("upstream/http.rs", "fn f() { let x = crate::session::open(); }"),
        ("upstream/http.rs", "use super::super::session;"),
        ("upstream/mod.rs", "pub(crate) use super::{session, config};"),
        ("upstream/mod.rs", "#[cfg(test)] mod tests { use super::super::session::X; }"),
        ("upstream/http.rs", "const Q: char = '\"'; use crate::session::X; const R: char = '\"';"),
        (
            "upstream/http.rs",
            "fn f<'a>(x: &'a str) { crate::session::f(r#\"\"\"#, '\\'', \"\\\"\") }",
        ),
        ("jsonrpc/scan.rs", "use crate::wire;"),
        ("wire/sse.rs", "use crate::mcp::Era;"),
        ("fault.rs", "use crate::config::RouteName;"),
        ("router/mod.rs", "use crate::telemetry::Metrics;"),
        ("pipeline/mod.rs", "use crate::downstream::http;"),
        ("downstream/http.rs", "use crate::upstream::Upstream;"),
        ("admin/mod.rs", "use trunkline::upstream::Upstream;"),
    ] {
        assert_eq!(found(path, text).len(), 1, "{path}: {text}");
    }
}

#[test]
fn an_unknown_room_is_found() {
    assert_eq!(found("util/mod.rs", "").len(), 1);
}

#[test]
fn an_impure_word_in_a_pure_room_is_found_outside_of_its_tests() {
    assert_eq!(found("catalog/merge.rs", "use tokio::sync::Mutex;").len(), 1);
    assert_eq!(found("exchange/mod.rs", "let now = Instant::now();").len(), 1);
    assert!(found("exchange/mod.rs", "fn f(now: Instant, randomly: u8) {}").is_empty());
    let tested = "fn f() {}\n#[cfg(test)]\nmod tests { use std::fs; }";
    assert!(found("exchange/mod.rs", tested).is_empty());
}

#[test]
fn allowed_arrows_comments_and_quotes_are_let_through() {
    for (path, text) in [
        ("upstream/http.rs", "use crate::{config::UpstreamName, telemetry::UpstreamMetrics};"),
        (
            "upstream/http.rs",
            "/// See [`crate::session`].\nuse super::pool; /* crate::session::X */",
        ),
        (
            "upstream/http.rs",
            "const S: &str = \"crate::session::X\"; const R: &str = r#\"\"crate::session::\"#;",
        ),
        (
            "upstream/http.rs",
            "pub(in crate::upstream) fn f() {} macro_rules! m { () => { $crate::session } }",
        ),
        ("downstream/http.rs", "use crate::pipeline::Reply;"),
        ("app/run.rs", "use crate::{admin, downstream, pipeline, upstream};"),
        ("main.rs", "use trunkline::app;"),
        ("lib.rs", "pub mod session;"),
    ] {
        assert_eq!(found(path, text), Vec::<String>::new(), "{path}: {text}");
    }
}
