//! Paths of the tree, and their form as `file:///` URIs.

/// Bytes of a path, at most.
const MAX_PATH_BYTES: usize = 512;

/// Why a path is none.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PathError {
    #[error("the path leads out of the tree")]
    Outside,
    #[error("a path may have {MAX_PATH_BYTES} bytes and no control characters")]
    Malformed,
}

/// Brings a path into its one form: no leading, trailing or double slash, no `.`. The root is "".
pub(super) fn normalize(path: &str) -> Result<String, PathError> {
    if path.len() > MAX_PATH_BYTES || path.contains(char::is_control) {
        return Err(PathError::Malformed);
    }
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.pop().is_none() => return Err(PathError::Outside),
            ".." => {}
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

/// The URI of a file.
pub(super) fn to_uri(path: &str) -> String {
    let mut uri = String::from("file:///");
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                uri.push(char::from(byte));
            }
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

/// The path of a URI, if it is the URI of a path.
pub(super) fn from_uri(uri: &str) -> Option<String> {
    let mut bytes = uri.strip_prefix("file:///")?.bytes();
    let mut path = Vec::new();
    while let Some(byte) = bytes.next() {
        path.push(match byte {
            b'%' => hex(bytes.next()?)? * 16 + hex(bytes.next()?)?,
            byte => byte,
        });
    }
    let path = String::from_utf8(path).ok()?;
    normalize(&path).ok().filter(|normal| *normal == path)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_has_one_path() {
        assert_eq!(normalize("/docs//./a.md/").unwrap(), "docs/a.md");
        assert_eq!(normalize("docs/../src/x").unwrap(), "src/x");
        assert_eq!(normalize("").unwrap(), "");
        assert_eq!(normalize("../etc"), Err(PathError::Outside));
        assert_eq!(normalize("a\nb"), Err(PathError::Malformed));
    }

    #[test]
    fn uris_come_back_as_the_paths_they_were_made_of() {
        for path in ["README.md", "docs/meeting notes.md", "ü/%41", "a+b=c"] {
            assert_eq!(from_uri(&to_uri(path)).as_deref(), Some(path));
        }
        assert_eq!(to_uri("a b"), "file:///a%20b");
        for uri in ["file:///../x", "file:///a%", "file:///a%zz", "file:///%ff", "http:///a"] {
            assert_eq!(from_uri(uri), None, "{uri}");
        }
    }
}
