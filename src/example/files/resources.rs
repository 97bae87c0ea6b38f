//! Resources of the files.

use super::super::resources::{Bytes, Contents, Resource, Template};
use super::Files;
use super::path::{from_uri, to_uri};
use super::tree::mime;

impl Files {
    /// Templates of this kind.
    pub(in super::super) const TEMPLATES: &'static [Template] = &[Template {
        uri: "file:///{path}",
        name: "file",
        title: "A file by its path",
        description: "Text, or base64 where a file is not text",
        mime: None,
    }];

    /// All files.
    pub(in super::super) fn resources(&self) -> Vec<Resource> {
        let tree = self.tree.lock();
        let files = tree.below("").map(|(path, bytes)| Resource {
            uri: to_uri(path),
            name: path.to_owned(),
            title: path.rsplit('/').next().unwrap_or(path).to_owned(),
            mime: mime(path).into(),
            size: bytes.len(),
        });
        files.collect()
    }

    /// A file by URI.
    pub(in super::super) fn read(&self, uri: &str) -> Option<Contents> {
        let path = from_uri(uri)?;
        let tree = self.tree.lock();
        let bytes = Bytes::of(tree.file(&path)?);
        Some(Contents { uri: uri.to_owned(), mime: mime(&path).into(), bytes })
    }
}
