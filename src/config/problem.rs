//! What is wrong with a configuration, said so that it can be mended: where, what, why, and the remedy.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::Config;

/// A configuration that passed every check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// What is to be run.
    pub config: Config,
    /// What is allowed but probably not meant, in the order of the file.
    pub warnings: Problems,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file can be read, but not be run. One line for each problem.
    #[error("{0}")]
    Invalid(Problems),
}

/// Problems of one file, sorted by line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

impl Problems {
    /// Sorts them by place, those without one last, and drops repeats.
    pub(super) fn sorted(mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| (problem.place.is_none(), problem.place));
        problems.dedup();
        Self(problems)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

/// One thing that is wrong, or odd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Name of the file.
    pub file: Arc<str>,
    /// Where in the file, unless it is about something that is not there.
    pub place: Option<Place>,
    /// What, why, and what to do.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some(Place { line, column }) => write!(f, "{}:{line}:{column}: ", self.file)?,
            None => write!(f, "{}: ", self.file)?,
        }
        f.write_str(&self.message)
    }
}

/// A place in a text; both count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// The known word that was probably meant.
pub(super) fn nearest<'k>(
    wrong: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<&'k str> {
    let wrong = wrong.to_ascii_lowercase();
    let reach = 1 + wrong.chars().count() / 4;
    known
        .into_iter()
        .filter_map(|word| {
            let distance = strsim::osa_distance(&wrong, &word.to_ascii_lowercase());
            let inside = wrong.len() >= 4 && (word.contains(&wrong) || wrong.contains(word));
            (distance <= reach || inside).then_some((distance, word))
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// `; did you mean …` or the choice there is.
pub(super) fn hint<'k>(
    wrong: &str,
    known: impl Iterator<Item = &'k str> + Clone,
    what: &str,
) -> String {
    if let Some(word) = nearest(wrong, known.clone()) {
        return format!("; did you mean `{word}`?");
    }
    let list: Vec<_> = known.map(|word| format!("`{word}`")).collect();
    if list.is_empty() {
        return format!("; there are no {what}");
    }
    format!("; {what}: {}", list.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_near_enough_to_be_meant() {
        let known = ["listen", "max_body", "max_batch", "max_concurrency"];
        assert_eq!(nearest("max_bodyy", known), Some("max_body"));
        assert_eq!(nearest("lisetn", known), Some("listen"));
        assert_eq!(nearest("Listen", known), Some("listen"));
        assert_eq!(nearest("concurrency", known), Some("max_concurrency"));
        assert_eq!(nearest("tls", known), None);
    }
}
