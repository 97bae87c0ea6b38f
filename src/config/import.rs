//! The `mcpServers` JSON of the common clients, turned into our own file.
//!
//! Claude Desktop and Cursor write `mcpServers: { NAME: { command, args, env } }`, with `url` and `headers`
//! for remote servers; VS Code writes `servers`, in settings below `mcp`. What comes out is the text of a
//! TOML file, which is then read like any other: there is one way into a [`super::Config`].

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::expand::is_variable;
use super::validate::is_own_header;
use super::{Checked, ConfigError, Problem, Problems, UpstreamName, jsonc, parse};

/// Keys that say nothing a gateway could do: what clients show, or ask their users.
const SILENT: &[&str] = &[
    "type",
    "name",
    "title",
    "description",
    "icon",
    "gallery",
    "version",
    "alwaysAllow",
    "autoApprove",
    "trust",
    "dev",
];

/// The text of a configuration, and what did not fit into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The file.
    pub toml: String,
    /// What was left out or changed, and why.
    pub warnings: Vec<String>,
}

/// Why there is nothing to import.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no JSON.
    #[error("{file}:{}:{}: not valid JSON", source.line(), source.column())]
    Json {
        /// The file.
        file: String,
        /// What and where.
        source: serde_json::Error,
    },
    /// The file is JSON, but not of any known shape.
    #[error("{file}: holds neither `mcpServers` nor `servers` with a table of servers in it")]
    NoServers {
        /// The file.
        file: String,
    },
    /// What came out of it cannot be run.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// Reads a client's file and turns it into ours.
pub fn import(path: &Path) -> Result<Imported, ImportError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ImportError::Read { path: path.to_owned(), source })?;
    import_text(&text, &path.display().to_string())
}

/// Reads a client's file as if it had been imported first: one route `/mcp` with all of its servers.
pub fn load_mcp_servers(
    path: &Path,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Checked, ImportError> {
    let imported = import(path)?;
    let file = path.display().to_string();
    let mut checked = parse(&imported.toml, &file, env).map_err(|error| match error {
        ConfigError::Invalid(problems) => ConfigError::Invalid(without_places(&problems)),
        other => other,
    })?;
    let told = imported.warnings.into_iter().map(|message| Problem {
        file: file.as_str().into(),
        place: None,
        message,
    });
    let warnings = without_places(&checked.warnings);
    checked.warnings = Problems::sorted(told.chain(warnings.iter().cloned()).collect());
    Ok(checked)
}

/// Lines of the text in between mean nothing to whoever wrote the JSON.
fn without_places(problems: &Problems) -> Problems {
    Problems::sorted(
        problems.iter().map(|problem| Problem { place: None, ..problem.clone() }).collect(),
    )
}

fn import_text(text: &str, file: &str) -> Result<Imported, ImportError> {
    let text = text.trim_start_matches('\u{feff}');
    let root: Value = serde_json::from_str(&jsonc::strip(text))
        .map_err(|source| ImportError::Json { file: file.to_owned(), source })?;
    let servers =
        servers_of(&root).ok_or_else(|| ImportError::NoServers { file: file.to_owned() })?;
    let mut import = Import::default();
    for (name, server) in servers {
        import.server(name, server);
    }
    Ok(import.finish(file))
}

fn servers_of(root: &Value) -> Option<&Map<String, Value>> {
    let places = ["/mcpServers", "/servers", "/mcp/servers", "/mcp/mcpServers"];
    places.iter().find_map(|place| root.pointer(place)?.as_object())
}

/// An import in the making.
#[derive(Default)]
struct Import {
    names: Vec<String>,
    tables: String,
    warnings: Vec<String>,
}

impl Import {
    fn server(&mut self, name: &str, server: &Value) {
        let Some(server) = server.as_object() else {
            return self.leave_out(name, "it is no table");
        };
        let off = server.get("disabled") == Some(&Value::Bool(true))
            || server.get("enabled") == Some(&Value::Bool(false));
        if off {
            return self.leave_out(name, "it is disabled");
        }
        let mut table = Table { server: name, lines: String::new(), warnings: Vec::new() };
        if let Err(reason) = table.fill(server) {
            return self.leave_out(name, &reason);
        }
        self.warnings.append(&mut table.warnings);
        let legal = self.legal_name(name);
        let body = table.lines.replace("\u{0}NAME", &legal);
        let _ = write!(self.tables, "\n[upstreams.{legal}]\n{body}");
        self.names.push(legal);
    }

    fn leave_out(&mut self, name: &str, reason: &str) {
        self.warnings.push(format!("server `{}` is left out: {reason}", one_line(name)));
    }

    /// A name for an upstream that is like this one, legal, and not taken. The same file gives the same names.
    fn legal_name(&mut self, name: &str) -> String {
        let mut base = String::new();
        for c in name.chars() {
            let c = if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
            // A doubled `_` would look like the end of a prefix.
            if !(matches!(c, '_' | '-') && base.ends_with(['_', '-'])) {
                base.push(c);
            }
        }
        base = base.trim_matches(['_', '-']).chars().take(32).collect();
        if base.is_empty() {
            base = "server".to_owned();
        }
        let free = |candidate: &String| !self.names.contains(candidate);
        let numbered = (2..).map(|number| {
            let suffix = format!("-{number}");
            let kept: String = base.chars().take(32 - suffix.len()).collect();
            kept + &suffix
        });
        let mut candidates = std::iter::once(base.clone()).chain(numbered);
        let legal = candidates.find(free).unwrap_or(base);
        debug_assert!(UpstreamName::new(&legal).is_ok());
        if legal != name {
            let name = one_line(name);
            self.warnings.push(format!("server `{name}` is called `{legal}` here"));
        }
        legal
    }

    fn finish(self, file: &str) -> Imported {
        let mut toml = format!(
            "# Made from {}.\n\
             # Every key there is: config.example.toml, or `trunkline schema`.\n",
            one_line(file)
        );
        for warning in &self.warnings {
            let _ = writeln!(toml, "# Note: {warning}.");
        }
        toml.push_str("\n[server]\nlisten = \"127.0.0.1:8808\"\n");
        toml.push_str(&self.tables);
        if !self.names.is_empty() {
            let names: Vec<_> = self.names.iter().map(|name| quoted(name)).collect();
            toml.push_str("\n# One endpoint for all of them.\n[[routes]]\npath = \"/mcp\"\n");
            let _ = writeln!(toml, "upstreams = [{}]", names.join(", "));
        }
        Imported { toml, warnings: self.warnings }
    }
}

/// One server on its way to a table.
struct Table<'s> {
    server: &'s str,
    lines: String,
    warnings: Vec<String>,
}

impl Table<'_> {
    fn fill(&mut self, server: &Map<String, Value>) -> Result<(), String> {
        let url_key =
            ["url", "serverUrl", "httpUrl"].into_iter().find(|key| server.contains_key(*key));
        let used: &[&str] = match url_key {
            None => {
                self.child(server)?;
                &["command", "args", "env", "cwd"]
            }
            Some(key) => {
                self.remote(&server[key], server)?;
                &["url", "serverUrl", "httpUrl", "headers"]
            }
        };
        let known: BTreeSet<_> =
            used.iter().chain(SILENT).chain(&["disabled", "enabled"]).collect();
        for key in server.keys().filter(|key| !known.contains(&key.as_str())) {
            self.warn(&format!("`{}` is not imported", one_line(key)));
        }
        Ok(())
    }

    fn child(&mut self, server: &Map<String, Value>) -> Result<(), String> {
        let mut words = Vec::new();
        match server.get("command") {
            None => return Err("it has neither `command` nor `url`".to_owned()),
            Some(Value::Array(list)) => words.extend(list),
            Some(command) => words.push(command),
        }
        if let Some(args) = server.get("args") {
            words.extend(args.as_array().ok_or("its `args` are no list")?);
        }
        let mut command = Vec::new();
        for word in words {
            let word = text_of(word).ok_or("its command line holds something that is no text")?;
            command.push(self.value(&word));
        }
        if command.is_empty() {
            return Err("its `command` is empty".to_owned());
        }
        let _ = writeln!(self.lines, "command = [{}]", command.join(", "));
        if let Some(cwd) = server.get("cwd").and_then(Value::as_str) {
            let cwd = self.value(cwd);
            let _ = writeln!(self.lines, "cwd = {cwd}");
        }
        self.entries("env", server.get("env"))
    }

    fn remote(&mut self, url: &Value, server: &Map<String, Value>) -> Result<(), String> {
        let url = url.as_str().ok_or("its `url` is no text")?;
        if server.get("type").is_some_and(|kind| kind == "sse") {
            self.warn("`sse` is an older transport; it is dialled as Streamable HTTP");
        }
        let url = self.value(url);
        let _ = writeln!(self.lines, "url = {url}");
        self.entries("headers", server.get("headers"))
    }

    /// A table of texts below the upstream's own.
    fn entries(&mut self, key: &str, entries: Option<&Value>) -> Result<(), String> {
        let entries = match entries {
            None | Some(Value::Null) => return Ok(()),
            Some(entries) => entries.as_object().ok_or(format!("its `{key}` is no table"))?,
        };
        if entries.is_empty() {
            return Ok(());
        }
        let _ = writeln!(self.lines, "[upstreams.\u{0}NAME.{key}]");
        for (name, value) in entries {
            if key == "headers" && is_own_header(name) {
                self.warn(&format!("header `{}` is set by the gateway itself", one_line(name)));
                continue;
            }
            match text_of(value) {
                Some(text) => {
                    let text = self.value(&text);
                    let _ = writeln!(self.lines, "{} = {text}", quoted_key(name));
                }
                None => self.warn(&format!("`{}` of its `{key}` is no text", one_line(name))),
            }
        }
        Ok(())
    }

    /// A text as a TOML string, with the client's variables turned into ours.
    fn value(&mut self, text: &str) -> String {
        let mut out = String::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            out.push_str(&rest[..start]);
            let reference = &rest[start + 2..];
            let Some((inside, after)) = reference.split_once('}') else {
                out.push_str("$${");
                rest = reference;
                continue;
            };
            out.push_str(&self.variable(inside));
            rest = after;
        }
        out.push_str(rest);
        quoted(&out)
    }

    fn variable(&mut self, inside: &str) -> String {
        if let Some(name) = inside.strip_prefix("env:").filter(|name| is_variable(name)) {
            return format!("${{{name}}}");
        }
        if let Some(input) = inside.strip_prefix("input:") {
            let name = variable_name(input);
            self.warn(&format!(
                "the client asks its user for `{}`; here it is the environment variable `{name}`",
                one_line(input)
            ));
            return format!("${{{name}:-}}");
        }
        match inside {
            "userHome" => return "${HOME}".to_owned(),
            "/" | "pathSeparator" => return std::path::MAIN_SEPARATOR.to_string(),
            "workspaceFolder" => {
                self.warn("`${workspaceFolder}` is the folder that the gateway is started in");
                return "${PWD:-.}".to_owned();
            }
            _ => {}
        }
        let name = inside.split_once(":-").map_or(inside, |(name, _)| name);
        if is_variable(name) {
            return format!("${{{inside}}}");
        }
        self.warn(&format!("`${{{}}}` means nothing here and stays as it is", one_line(inside)));
        format!("$${{{inside}}}")
    }

    fn warn(&mut self, what: &str) {
        self.warnings.push(format!("server `{}`: {what}", one_line(self.server)));
    }
}

/// Texts, and what can be written as one.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// `api-key` becomes `API_KEY`.
fn variable_name(input: &str) -> String {
    let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    let name: String = input.chars().map(upper).collect();
    if is_variable(&name) { name } else { format!("INPUT_{name}") }
}

/// A text that may stand in a comment.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

fn quoted_key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(bare) { key.to_owned() } else { quoted(key) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn env(name: &str) -> Option<String> {
        matches!(name, "TOKEN" | "HOME").then(|| format!("<{name}>"))
    }

    fn imported(json: &str) -> Imported {
        import_text(json, "c.json").unwrap_or_else(|error| panic!("{error}"))
    }

    /// What is read back from what was written.
    fn config(imported: &Imported) -> Config {
        let read = parse(&imported.toml, "c.toml", &env);
        read.unwrap_or_else(|error| panic!("{error}\n{}", imported.toml)).config
    }

    #[test]
    fn a_file_of_claude_desktop_becomes_one_route() {
        let imported = imported(
            r#"{ "mcpServers": {
                "fs": { "command": "npx", "args": ["-y", "server", "C:\\my \"docs\"", 5] },
                "git": { "command": "uvx", "args": [], "env": { "GITHUB_TOKEN": "a$b", "N": 1 }, "cwd": "/srv" }
            } }"#,
        );
        assert_eq!(imported.warnings, [""; 0]);
        let config = config(&imported);
        let fs = &config.upstreams["fs"];
        assert_eq!(fs.command.as_deref().unwrap(), ["npx", "-y", "server", "C:\\my \"docs\"", "5"]);
        let git = &config.upstreams["git"];
        assert_eq!((git.env["GITHUB_TOKEN"].expose(), git.env["N"].expose()), ("a$b", "1"));
        assert_eq!(git.cwd.as_deref(), Some(Path::new("/srv")));
        assert_eq!(config.routes.len(), 1);
        assert_eq!(config.routes[0].path.as_str(), "/mcp");
        let names: Vec<_> = config.routes[0].upstreams.iter().map(UpstreamName::as_str).collect();
        assert_eq!(names, ["fs", "git"]);
    }

    #[test]
    fn remote_servers_of_cursor_keep_url_and_headers() {
        let imported = imported(
            r#"{ "mcpServers": {
                "a": { "url": "http://localhost:3000/mcp", "headers": { "Authorization": "Bearer ${env:TOKEN}", "X-Home": "${userHome}${/}x", "Accept": "x" } },
                "b": { "url": 5 },
                "c": { "command": "x", "disabled": true },
                "d": { "command": "x", "enabled": false },
                "e": {}, "f": 5
            } }"#,
        );
        let config = config(&imported);
        assert_eq!(config.upstreams.len(), 1);
        let a = &config.upstreams["a"];
        assert_eq!(a.url.as_ref().unwrap().as_str(), "http://localhost:3000/mcp");
        assert_eq!(a.headers["Authorization"].expose(), "Bearer <TOKEN>");
        assert_eq!(a.headers["X-Home"].expose(), "<HOME>/x");
        assert_eq!(
            imported.warnings,
            [
                "server `a`: header `Accept` is set by the gateway itself",
                "server `b` is left out: its `url` is no text",
                "server `c` is left out: it is disabled",
                "server `d` is left out: it is disabled",
                "server `e` is left out: it has neither `command` nor `url`",
                "server `f` is left out: it is no table",
            ]
        );
    }

    #[test]
    fn files_of_vs_code_may_hold_comments_inputs_and_be_nested() {
        let servers = r#"{
            // the inputs
            "inputs": [{ "id": "api-key", "type": "promptString" }],
            "servers": {
                "my server": {
                    "type": "stdio", "command": "x", "args": ["${workspaceFolder}/a", "${unknown:x}", "${TOKEN:-y}"],
                    "env": { "KEY": "${input:api-key}", "T": "${env:TOKEN}" }, "envFile": ".env",
                },
                "old": { "type": "sse", "url": "http://127.0.0.1:1/sse" }, /* last */
            },
        }"#;
        let flat = imported(servers);
        assert_eq!(imported(&format!("{{ \"mcp\": {servers} }}")), flat);
        let config = config(&flat);
        let server = &config.upstreams["my-server"];
        assert_eq!(server.command.as_deref().unwrap(), ["x", "./a", "${unknown:x}", "<TOKEN>"]);
        assert_eq!((server.env["KEY"].expose(), server.env["T"].expose()), ("", "<TOKEN>"));
        for told in [
            "`API_KEY`",
            "`${unknown:x}` means nothing",
            "`envFile` is not imported",
            "is called `my-server`",
            "`sse` is an older",
        ] {
            assert!(
                flat.warnings.iter().any(|text| text.contains(told)),
                "{told}: {:#?}",
                flat.warnings
            );
        }
    }

    #[test]
    fn names_become_legal_stable_and_unique() {
        let long = "l".repeat(40);
        let json = format!(
            r#"{{ "mcpServers": {{ "a b": {{ "command": "1" }}, "a/b": {{ "command": "2" }}, "a__b": {{ "command": "3" }},
                "_": {{ "command": "4" }}, "{long}": {{ "command": "5" }}, "{long}2": {{ "command": "6" }}, "ü\n": {{ "command": "7" }} }} }}"#
        );
        let read = imported(&json);
        assert_eq!(imported(&json), read);
        let config = config(&read);
        let names: Vec<_> = config.routes[0].upstreams.iter().map(UpstreamName::as_str).collect();
        let short = &long[..32];
        let numbered = format!("{}-2", &long[..30]);
        assert_eq!(names, ["a-b", "a-b-2", "a_b", "server", short, &numbered, "server-2"]);
        assert_eq!(read.warnings.len(), 7);
    }

    #[test]
    fn what_cannot_be_imported_is_refused_with_its_place() {
        let error = import_text("{\n  \"mcpServers\": [\n", "c.json").unwrap_err();
        assert_eq!(error.to_string(), "c.json:3:0: not valid JSON");
        let error = import_text("{ \"mcpServers\": [] }", "c.json").unwrap_err();
        assert!(error.to_string().contains("neither `mcpServers` nor `servers`"));
    }

    #[test]
    fn running_a_clients_file_tells_what_was_left_out_and_names_no_lines() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.json");
        let json = r#"{ "mcpServers": { "a": { "command": "x" }, "b": { "url": 5 } } }"#;
        std::fs::write(&file, json).unwrap();
        let checked = load_mcp_servers(&file, &env).unwrap();
        assert_eq!(checked.config.upstreams.len(), 1);
        let told = checked.warnings.to_string();
        assert!(told.contains("c.json: server `b` is left out"), "{told}");
        std::fs::write(&file, json.replace("\"x\"", "\"${NOPE}\"")).unwrap();
        let error = load_mcp_servers(&file, &env).unwrap_err().to_string();
        assert!(error.contains("c.json: environment variable `NOPE` is not set"), "{error}");
    }
}
