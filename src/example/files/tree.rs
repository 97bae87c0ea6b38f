//! The files themselves. Folders are there as long as a file is in them.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::super::resources::LOGO_PNG;

/// Files there may be.
const MAX_FILES: usize = 1000;
/// Bytes of one file, at most.
const MAX_FILE_BYTES: usize = 256 * 1024;

/// Why a file cannot be written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TreeError {
    #[error("there is room for {MAX_FILES} files, delete some first")]
    Full,
    #[error("a file may have {MAX_FILE_BYTES} bytes")]
    TooLong,
    #[error("there is a folder or file in the way")]
    InTheWay,
}

/// Files by path.
pub(super) struct Tree {
    files: BTreeMap<String, Vec<u8>>,
}

const SEED: &[(&str, &str)] = &[
    (
        "README.md",
        "# Tidewatch\n\nPredicts tides for small harbours.\n\nSee docs/guide.md to begin.\n",
    ),
    ("LICENSE", "Do with it what you like.\n"),
    ("Makefile", "all:\n\tcc -o tidewatch src/main.c src/tide.c -lm\n"),
    (
        "docs/guide.md",
        "# Guide\n\n1. Build with `make`.\n2. Run `./tidewatch data/harbours.csv`.\n",
    ),
    ("docs/faq.md", "# Questions\n\n**Why is it late?** Wind is not part of the model.\n"),
    ("docs/meeting notes.md", "# 3 May\n\n- Ask the harbour master for last year's readings.\n"),
    ("docs/design/model.md", "# Model\n\nSum of harmonic constituents: M2, S2, N2, K1, O1.\n"),
    ("docs/design/units.md", "# Units\n\nMetres above chart datum; times are UTC.\n"),
    ("src/main.c", "#include \"tide.h\"\n\nint main(void) {\n    return tide_report();\n}\n"),
    (
        "src/tide.c",
        "#include <math.h>\n#include \"tide.h\"\n\ndouble tide_at(double t) {\n    return 1.2 * cos(0.506 * t);\n}\n\nint tide_report(void) {\n    return tide_at(0) > 0 ? 0 : 1;\n}\n",
    ),
    ("src/tide.h", "double tide_at(double t);\nint tide_report(void);\n"),
    (
        "data/harbours.csv",
        "name,lat,lon\nEastpoint,54.1,7.9\nGullhaven,53.8,8.2\nMarsh End,53.9,8.6\n",
    ),
    ("data/constituents.json", "{\"M2\": 1.2, \"S2\": 0.35, \"N2\": 0.2, \"K1\": 0.08}\n"),
    ("data/readings/2024.csv", "time,metres\n2024-01-01T00:00Z,1.31\n2024-01-01T06:00Z,-0.92\n"),
    ("data/readings/2025.csv", "time,metres\n2025-01-01T00:00Z,1.18\n2025-01-01T06:00Z,-1.01\n"),
    ("tests/smoke.sh", "#!/bin/sh\nset -e\nmake\n./tidewatch data/harbours.csv\n"),
];

impl Tree {
    /// The files of the start: always the same.
    pub(super) fn seeded() -> Self {
        let text = SEED.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec()));
        let logo = STANDARD.decode(LOGO_PNG).unwrap_or_default();
        let files = text.chain([("images/logo.png".to_owned(), logo)]).collect();
        Self { files }
    }

    /// The bytes of a file.
    pub(super) fn file(&self, path: &str) -> Option<&[u8]> {
        self.files.get(path).map(Vec::as_slice)
    }

    /// Whether there is a folder at this path; the root always is.
    pub(super) fn is_folder(&self, path: &str) -> bool {
        path.is_empty() || self.below(path).next().is_some()
    }

    /// All files, or those below a folder, in order of their paths.
    pub(super) fn below(&self, folder: &str) -> impl Iterator<Item = (&str, &[u8])> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let from_here = self.files.range(prefix.clone()..);
        from_here
            .take_while(move |(path, _)| path.starts_with(&prefix))
            .map(|(path, bytes)| (path.as_str(), bytes.as_slice()))
    }

    /// Names in a folder; those of folders end in a slash.
    pub(super) fn names(&self, folder: &str) -> BTreeSet<String> {
        let skip = if folder.is_empty() { 0 } else { folder.len() + 1 };
        let names = self.below(folder).map(|(path, _)| match path[skip..].split_once('/') {
            Some((name, _)) => format!("{name}/"),
            None => path[skip..].to_owned(),
        });
        names.collect()
    }

    /// Writes a file; `true` if it was not there before.
    pub(super) fn write(&mut self, path: &str, bytes: &[u8]) -> Result<bool, TreeError> {
        if bytes.len() > MAX_FILE_BYTES {
            return Err(TreeError::TooLong);
        }
        let parent_is_file =
            path.match_indices('/').any(|(at, _)| self.file(&path[..at]).is_some());
        if self.is_folder(path) || parent_is_file {
            return Err(TreeError::InTheWay);
        }
        let is_new = self.file(path).is_none();
        if is_new && self.files.len() >= MAX_FILES {
            return Err(TreeError::Full);
        }
        self.files.insert(path.to_owned(), bytes.to_vec());
        Ok(is_new)
    }

    /// Removes a file; `false` if there was none.
    pub(super) fn remove(&mut self, path: &str) -> bool {
        self.files.remove(path).is_some()
    }
}

/// The media type by a file's name.
pub(super) fn mime(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("md") => "text/markdown",
        Some("csv") => "text/csv",
        Some("json") => "application/json",
        Some("png") => "image/png",
        Some("c" | "h") => "text/x-c",
        _ => "text/plain",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_hold_what_is_below_them() {
        let tree = Tree::seeded();
        assert!(tree.is_folder("") && tree.is_folder("docs") && tree.is_folder("data/readings"));
        assert!(!tree.is_folder("doc") && !tree.is_folder("README.md"));
        let names: Vec<_> = tree.names("data").into_iter().collect();
        assert_eq!(names, ["constituents.json", "harbours.csv", "readings/"]);
        assert!(tree.names("").contains("docs/"));
    }

    #[test]
    fn a_file_cannot_stand_where_a_folder_is_nor_the_other_way_round() {
        let mut tree = Tree::seeded();
        assert_eq!(tree.write("docs", b"x"), Err(TreeError::InTheWay));
        assert_eq!(tree.write("README.md/x", b"x"), Err(TreeError::InTheWay));
        assert_eq!(tree.write("", b"x"), Err(TreeError::InTheWay));
        assert_eq!(tree.write("new/file", b"x"), Ok(true));
        assert_eq!(tree.write("new/file", b"y"), Ok(false));
        assert_eq!(tree.file("new/file"), Some(&b"y"[..]));
        assert!(tree.remove("new/file") && !tree.is_folder("new"));
    }

    #[test]
    fn the_tree_is_bounded() {
        let mut tree = Tree::seeded();
        assert_eq!(tree.write("big", &vec![0; MAX_FILE_BYTES + 1]), Err(TreeError::TooLong));
        let mut n = 0;
        while tree.write(&format!("many/{n}"), b"").is_ok() {
            n += 1;
        }
        assert_eq!(tree.below("").count(), MAX_FILES);
        assert_eq!(tree.write("many/0", b"again"), Ok(false));
    }
}
