//! Kind `files`: a small tree of files in memory.

mod path;
mod prompts;
mod resources;
mod tools;
mod tree;

use parking_lot::Mutex;

use tree::Tree;

/// The files.
pub(super) struct Files {
    tree: Mutex<Tree>,
}

impl Files {
    /// The files of the start.
    pub(super) fn seeded() -> Self {
        Self { tree: Mutex::new(Tree::seeded()) }
    }
}
