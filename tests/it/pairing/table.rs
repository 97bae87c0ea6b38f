//! The matrix as Markdown, and `docs/pairings.md`, which holds it.

use std::fmt::Write as _;

use super::behaviour::{ALONE, Behaviour};
use super::{Pair, Transport};
use crate::fake::scene::REVISIONS;
use crate::gateway::repository;

const FILE: &str = "docs/pairings.md";

const HEAD: &str = "# Every client with every upstream

What a client of each revision gets from an upstream of each revision. Each cell is a test (`tests/it/pairing`), which also
prints this page: `UPDATE_DOCS=1 cargo test --test it pairings`. Columns are revisions of clients, rows those of upstreams. An
upstream over HTTP may answer each request with JSON alone; then it has no way to say anything before the answer. `–`: the
revision of the upstream does not have it.
";

impl Transport {
    const ALL: [Self; 3] = [Self::Json, Self::Sse, Self::Stdio];

    fn name(self) -> &'static str {
        match self {
            Self::Json => "HTTP, JSON",
            Self::Sse => "HTTP, streams",
            Self::Stdio => "stdio",
        }
    }
}

impl Behaviour {
    /// The title and a sentence about it.
    fn title(self) -> (&'static str, &'static str) {
        match self {
            Self::Lists => (
                "Lists with pages",
                "Tools, prompts, resources and templates. An upstream may give them in pages, empty ones, too.",
            ),
            Self::Call => (
                "A call",
                "With an argument that 2026-07-28 repeats as a header. The upstream is told what this client declared.",
            ),
            Self::Progress => {
                ("Progress", "With the client's own token. Texts came with 2025-03-26.")
            }
            Self::Cancel => (
                "Cancelled by the client",
                "What the client does → what the upstream gets. There is no answer, and the tool stops.",
            ),
            Self::ToolError => (
                "An error of a tool",
                "A result that the model is to see, not an error of JSON-RPC.",
            ),
            Self::Structured => ("Structured content", "Since 2025-06-18."),
            Self::Array => (
                "Structured content that is no object",
                "Since 2026-07-28. For older clients value and schema are wrapped: `{\"result\": …}`.",
            ),
            Self::Media => (
                "Blocks of content",
                "Audio came with 2025-03-26, links to resources with 2025-06-18.",
            ),
            Self::Sampling => (
                "Sampling",
                "A tool asks the client's model. An upstream that answers with JSON alone can only ask on its GET stream, which \
                 tells nobody whose question it is.",
            ),
            Self::Accept => ("Elicitation, accepted", "A tool asks the user. Since 2025-06-18."),
            Self::Decline => ("Elicitation, declined", ""),
            Self::Dismiss => ("Elicitation, cancelled by the user", ""),
            Self::Url => (
                "Elicitation by URL",
                "Since 2025-11-25. Ids of elicitations are gone with 2026-07-28.",
            ),
            Self::Roots => ("Roots", ""),
            Self::Twice => {
                ("Two questions in one call", "One after the other; the tool runs once.")
            }
            Self::AskFirst => {
                ("A prompt and a resource that ask", "Sampling again; not only tools ask.")
            }
            Self::Logs => (
                "Log messages",
                "From level `warning` on: by `logging/setLevel`, or as the request says; without that a client of 2026-07-28 \
                 gets none.",
            ),
            Self::ListChanged => {
                ("A list changes", "The change is announced once the new list is served.")
            }
            Self::Updated => (
                "A resource is subscribed to and changes",
                "`resources/subscribe`, or the filter of `subscriptions/listen`.",
            ),
            Self::Read => ("Reading a resource", "And one that is not there."),
            Self::Prompt => {
                ("A prompt and completion", "The context of a completion came with 2025-06-18.")
            }
            Self::Demands => (
                "A capability that the client lacks",
                "A tool of 2026-07-28 refuses to work without it (-32021).",
            ),
            Self::Restart => (
                "The upstream restarts in the middle of a call",
                "The call may have run, so it is not sent again. The next one finds the new process or session.",
            ),
        }
    }
}

/// The words of one upstream, by client.
fn row(behaviour: Behaviour, upstream: &'static str, transport: Transport) -> Vec<String> {
    let pairs = REVISIONS.iter().map(|client| Pair { client, upstream, transport });
    pairs.map(|pair: Pair| pair.expect(behaviour).word).collect()
}

/// Rows of one table: what they stand for, and the words.
type Rows = Vec<(String, Vec<String>)>;

/// The rows of one transport; neighbours that are equal are one.
fn rows(behaviour: Behaviour, transport: Transport) -> Rows {
    let mut rows: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for upstream in REVISIONS {
        let words = row(behaviour, upstream, transport);
        match rows.last_mut().filter(|last| last.2 == words) {
            Some(last) => last.1 = upstream,
            None => rows.push((upstream, upstream, words)),
        }
    }
    let name = |from: &str, to: &str| match (from, to) {
        _ if from == to => from.to_owned(),
        ("2024-11-05", "2026-07-28") => "any".to_owned(),
        _ => format!("{from} to {to}"),
    };
    rows.into_iter().map(|(from, to, words)| (name(from, to), words)).collect()
}

fn section(behaviour: Behaviour) -> String {
    let (title, text) = behaviour.title();
    let mut out = format!("\n## {title}\n\n");
    if !text.is_empty() {
        let _ = writeln!(out, "{text}\n");
    }
    let mut groups: Vec<(Vec<&str>, Rows)> = Vec::new();
    for transport in Transport::ALL {
        let rows = rows(behaviour, transport);
        match groups.iter_mut().find(|(_, known)| *known == rows) {
            Some((names, _)) => names.push(transport.name()),
            None => groups.push((vec![transport.name()], rows)),
        }
    }
    let _ = writeln!(out, "| upstream | transport | {} |", REVISIONS.join(" | "));
    let _ = writeln!(out, "|---|---|{}", "---|".repeat(REVISIONS.len()));
    for (names, rows) in groups {
        let names =
            if names.len() == Transport::ALL.len() { "any".into() } else { names.join("; ") };
        for (upstream, words) in rows {
            let _ = writeln!(out, "| {upstream} | {names} | {} |", words.join(" | "));
        }
    }
    out
}

fn page() -> String {
    let all = ALONE.into_iter().chain([Behaviour::Restart]);
    all.fold(HEAD.to_owned(), |page, behaviour| page + &section(behaviour))
}

#[test]
fn the_page_about_pairings_says_what_the_matrix_expects() {
    let (file, page) = (repository(FILE), page());
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("the folder can be made");
        std::fs::write(&file, &page).expect("the page can be written");
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == page, "{FILE} is not what it would be with UPDATE_DOCS=1");
}
