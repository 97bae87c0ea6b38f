//! What resources are: entries of lists, templates, contents.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::revision::Revision;

/// A small blue square, as base64 of a PNG.
pub(super) const LOGO_PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR42mPQyt+AFTEMLQkAAihSQSlLlRoAAAAASUVORK5CYII=";
/// Two milliseconds of a tone, as base64 of a WAV.
pub(super) const TONE_WAV: &str =
    "UklGRjQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YRAAAACA2v/agCYAJoDa/9qAJgAm";

/// An entry of the list of resources.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub(super) uri: String,
    pub(super) name: String,
    pub(super) title: String,
    pub(super) mime: Cow<'static, str>,
    /// Bytes, before any encoding.
    pub(super) size: usize,
}

impl Resource {
    /// The entry as a client of this revision understands it.
    pub(super) fn to_value(&self, revision: Revision) -> Value {
        let mut resource = json!({"uri": self.uri, "name": self.name});
        if revision >= Revision::V2025_06_18 {
            resource["title"] = json!(self.title);
        } else {
            resource["description"] = json!(self.title);
        }
        resource["mimeType"] = json!(self.mime);
        resource["size"] = json!(self.size);
        resource
    }
}

/// A template of URIs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Template {
    pub(super) uri: &'static str,
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) mime: Option<&'static str>,
}

impl Template {
    /// The entry as a client of this revision understands it.
    pub(super) fn to_value(self, revision: Revision) -> Value {
        let mut template = json!({"uriTemplate": self.uri, "name": self.name});
        if revision >= Revision::V2025_06_18 {
            template["title"] = json!(self.title);
        }
        template["description"] = json!(self.description);
        if let Some(mime) = self.mime {
            template["mimeType"] = json!(mime);
        }
        template
    }
}

/// What reading a resource gives.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    pub(super) uri: String,
    pub(super) mime: Cow<'static, str>,
    pub(super) bytes: Bytes,
}

/// Text, or anything else.
#[derive(Clone, Debug)]
pub(super) enum Bytes {
    Text(String),
    /// Base64.
    Blob(String),
}

impl Bytes {
    /// Text where the bytes are UTF-8.
    pub(super) fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Blob(STANDARD.encode(bytes)),
        }
    }
}

impl Contents {
    /// Text contents.
    pub(super) fn text(uri: &str, mime: &'static str, text: impl Into<String>) -> Self {
        Self { uri: uri.to_owned(), mime: mime.into(), bytes: Bytes::Text(text.into()) }
    }

    /// The member of `contents`, which is also what an embedded resource holds.
    pub(super) fn to_value(&self) -> Value {
        let mut contents = json!({"uri": self.uri, "mimeType": self.mime});
        match &self.bytes {
            Bytes::Text(text) => contents["text"] = json!(text),
            Bytes::Blob(blob) => contents["blob"] = json!(blob),
        }
        contents
    }
}
