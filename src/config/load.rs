//! From the file to a checked configuration.

use std::path::Path;
use std::sync::Arc;

use super::decode::{Fault, decode};
use super::document::{Document, KeyPath};
use super::expand::expand;
use super::validate::{Findings, validate};
use super::{Checked, Config, ConfigError, Place, Problem, Problems};

/// Most problems that are reported of one file; more would not be read.
const MOST_PROBLEMS: usize = 100;

/// Reads and checks a file; `env` looks up the variables that its strings name.
pub fn load(path: &Path, env: &dyn Fn(&str) -> Option<String>) -> Result<Checked, ConfigError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    parse_with(&text, &path.display().to_string(), env, Files::Read)
}

/// Checks a text; `file_name` is what its problems are reported under. All problems are found at once, not
/// only the first. Files that it names are not looked at.
pub fn parse(
    text: &str,
    file_name: &str,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<Checked, ConfigError> {
    parse_with(text, file_name, env, Files::Unread)
}

/// Whether certificates and keys are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Files {
    /// They must be there, and fit each other.
    Read,
    /// They may be anything.
    Unread,
}

fn parse_with(
    text: &str,
    file_name: &str,
    env: &dyn Fn(&str) -> Option<String>,
    files: Files,
) -> Result<Checked, ConfigError> {
    let mut report = Report { file: file_name.into(), problems: Vec::new() };
    let mut document = match Document::parse(text) {
        Ok(document) => document,
        Err(errors) => {
            errors.into_iter().for_each(|(place, message)| report.add(place, message));
            return Err(report.refuse());
        }
    };
    for (path, message) in expand(document.root_mut(), env) {
        report.add(document.place_of_value(&path), message);
        document.drop_value(path);
    }
    let config = decode_all(&mut document, &mut report);
    let Some(mut config) = config else { return Err(report.refuse()) };
    if let Some(folder) = Path::new(file_name).parent() {
        config.place_files_in(folder);
    }
    let Findings { errors, warnings } = validate(&config, &document, files);
    for (path, message) in errors {
        report.add(document.place_of_key(&path), message);
    }
    if !report.problems.is_empty() {
        return Err(report.refuse());
    }
    for (path, message) in warnings {
        report.add(document.place_of_key(&path), message);
    }
    Ok(Checked { config, warnings: Problems::sorted(report.problems) })
}

/// Decodes again and again, each time without what was wrong the time before.
fn decode_all(document: &mut Document<'_>, report: &mut Report) -> Option<Config> {
    while report.problems.len() < MOST_PROBLEMS {
        let fault = match decode(document) {
            Ok(config) => return Some(config),
            Err(fault) => fault,
        };
        if fault.at == KeyPath::root() {
            report.add(None, fault.to_string());
            return None;
        }
        if !is_echo(document, &fault) {
            let place = match fault.is_of_key() {
                true => document.place_of_key(&fault.at),
                false => document.place_of_value(&fault.at),
            };
            report.add(place, fault.to_string());
        }
        document.drop_value(fault.at);
    }
    None
}

/// Whether the key is only missing because it was wrong and dropped.
fn is_echo(document: &Document<'_>, fault: &Fault) -> bool {
    match fault.kind {
        super::decode::FaultKind::MissingKey(key) => document.is_dropped(&fault.at.key(key)),
        _ => false,
    }
}

struct Report {
    file: Arc<str>,
    problems: Vec<Problem>,
}

impl Report {
    fn add(&mut self, place: Option<Place>, message: String) {
        self.problems.push(Problem { file: Arc::clone(&self.file), place, message });
    }

    fn refuse(self) -> ConfigError {
        ConfigError::Invalid(Problems::sorted(self.problems))
    }
}
