//! Resources.

use serde_json::json;

use super::super::resources::{Bytes, Contents, LOGO_PNG, Resource, Template};
use super::Suite;

const STATIC_TEXT: &str = "This is the content of the static text resource.";
const WATCHED_TEXT: &str = "Watched resource content";
/// Bytes of the picture.
const PICTURE_BYTES: usize = 74;

impl Suite {
    /// Templates of this kind.
    pub(in super::super) const TEMPLATES: &'static [Template] = &[Template {
        uri: "test://template/{id}/data",
        name: "template-data",
        title: "Data for an id",
        description: "Data for an id",
        mime: Some("application/json"),
    }];

    /// All resources.
    pub(in super::super) fn resources() -> Vec<Resource> {
        let entry = |name: &str, mime: &'static str, size| Resource {
            uri: format!("test://{name}"),
            name: name.to_owned(),
            title: name.to_owned(),
            mime: mime.into(),
            size,
        };
        vec![
            entry("static-text", "text/plain", STATIC_TEXT.len()),
            entry("static-binary", "image/png", PICTURE_BYTES),
            entry("watched-resource", "text/plain", WATCHED_TEXT.len()),
        ]
    }

    /// A resource by URI.
    pub(in super::super) fn read(uri: &str) -> Option<Contents> {
        Some(match uri {
            "test://static-text" => Contents::text(uri, "text/plain", STATIC_TEXT),
            "test://watched-resource" => Contents::text(uri, "text/plain", WATCHED_TEXT),
            "test://static-binary" => Contents {
                uri: uri.to_owned(),
                mime: "image/png".into(),
                bytes: Bytes::Blob(LOGO_PNG.to_owned()),
            },
            _ => {
                let id = uri.strip_prefix("test://template/")?.strip_suffix("/data")?;
                if id.is_empty() || id.contains('/') {
                    return None;
                }
                let data = format!("Data for ID: {id}");
                let data = json!({"id": id, "templateTest": true, "data": data});
                Contents::text(uri, "application/json", data.to_string())
            }
        })
    }
}
