//! The table as Markdown, and `docs/jsonrpc.md`, which holds it.

use std::fmt::Write as _;

use super::{Error, MESSAGES, Nothing, Result, TEXTS, Want};
use crate::gateway::repository;

const FILE: &str = "docs/jsonrpc.md";

const HEAD: &str = "# JSON-RPC 2.0, case by case

What a plain route answers to messages at the edges of the specification. Each row is sent over HTTP and over WebSocket, alone and
inside a batch, by a test (`tests/it/jsonrpc_rows.rs`), which also prints this page:
`UPDATE_DOCS=1 cargo test --test it jsonrpc_rows`. The upstream of these rows answers `echo` with the params that it got.

## Messages
";

const TEXTS_HEAD: &str = "
## Texts that hold no message

One error with the id `null`; over HTTP with status 400. A WebSocket stays open, unless what is declared as text is not UTF-8: that
closes it with 1007.
";

impl Want {
    fn words(self) -> String {
        match self {
            Result(id, result) => format!("id `{id}`, result {}", code(result)),
            Error(id, number) => format!("id `{id}`, error {number}"),
            Nothing => "nothing".to_owned(),
        }
    }
}

/// A text in a cell of a table: long ones are cut, and what would end the cell or the line is spelt out.
fn code(text: &str) -> String {
    let text: String = text.escape_debug().collect::<String>().replace("\\\"", "\"");
    let text = text.replace("\\\\", "\\").replace("\\'", "'").replace('|', "\\|");
    match text.char_indices().nth(100) {
        Some((end, _)) => format!("`{}…`", &text[..end]),
        None if text.trim().is_empty() => format!("`\"{text}\"`"),
        None => format!("`{text}`"),
    }
}

fn page() -> String {
    let mut page = format!("{HEAD}\n| message | answer |\n|---|---|\n");
    for (_, message, want) in MESSAGES {
        let _ = writeln!(page, "| {} | {} |", code(message), want.words());
    }
    let _ = write!(page, "{TEXTS_HEAD}\n| text | error |\n|---|---|\n");
    for (_, text, number) in TEXTS {
        let _ = writeln!(page, "| {} | {number} |", code(&String::from_utf8_lossy(text)));
    }
    page
}

#[test]
fn the_page_about_jsonrpc_says_what_the_table_expects() {
    let (file, page) = (repository(FILE), page());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&file, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page, "{FILE} is not what it would be with UPDATE_DOCS=1");
}
