//! What only the whole file can tell: references, clashes, values that make no sense together.

mod route;
mod server;
mod subscription;
mod tls;
mod upstream;

use std::time::Duration;

pub(super) use upstream::is_own_header;

use super::Config;
use super::document::{Document, KeyPath};
use super::load::Files;

/// A place in the file, and what is wrong there.
pub(super) type Finding = (KeyPath, String);

/// Everything that was found.
#[derive(Default)]
pub(super) struct Findings {
    /// What keeps the file from being run.
    pub(super) errors: Vec<Finding>,
    /// What is allowed but probably not meant.
    pub(super) warnings: Vec<Finding>,
}

/// Judges the configuration; `document` is the file it was read from.
pub(super) fn validate(config: &Config, document: &Document<'_>, files: Files) -> Findings {
    let mut checks = Checks { config, document, files, found: Findings::default() };
    checks.server();
    checks.rest();
    for name in config.upstreams.keys() {
        checks.upstream(name);
    }
    checks.upstream_names();
    checks.routes();
    checks.found
}

/// The checks so far.
struct Checks<'c> {
    config: &'c Config,
    document: &'c Document<'c>,
    files: Files,
    found: Findings,
}

impl Checks<'_> {
    fn error(&mut self, at: KeyPath, message: impl Into<String>) {
        self.found.errors.push((at, message.into()));
    }

    fn warn(&mut self, at: KeyPath, message: impl Into<String>) {
        self.found.warnings.push((at, message.into()));
    }

    /// An error about the value of one key, which is named in front.
    fn wrong(&mut self, at: KeyPath, message: &str) {
        let text = format!("`{}`{} {message}", at.last_key(), at.section());
        self.error(at, text);
    }

    fn positive(&mut self, table: &KeyPath, key: &str, number: usize) {
        if number == 0 {
            self.wrong(table.key(key), "must be at least 1");
        }
    }

    fn lasting(&mut self, table: &KeyPath, key: &str, duration: Duration) {
        if duration.is_zero() {
            self.wrong(table.key(key), "must be longer than nothing");
        }
    }

    fn pattern(&mut self, at: KeyPath, pattern: &str) {
        if pattern.is_empty() {
            self.wrong(at, "holds an empty pattern, which matches nothing; remove it");
        } else if let Err(cause) = globset::Glob::new(pattern) {
            let message =
                format!("holds a bad pattern: {cause}; `*`, `?`, `[…]` and `{{…}}` are special");
            self.wrong(at, &message);
        }
    }
}
