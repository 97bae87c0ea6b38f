//! Tools of the files.

use serde_json::{Value, json};

use super::super::call::Call;
use super::super::echo;
use super::super::resources::Bytes;
use super::super::service::Change;
use super::super::tools::{Arguments, Effect, Tool, ToolError, ToolResult, object};
use super::Files;
use super::path::{normalize, to_uri};
use super::tree::mime;

/// Lines that one search gives, at most.
const MAX_HITS: usize = 100;

impl Files {
    /// Runs a tool.
    pub(in super::super) async fn call(
        &self,
        call: &Call,
        name: &str,
        arguments: Arguments<'_>,
    ) -> Result<ToolResult, ToolError> {
        match name {
            "list_directory" => self.list(arguments),
            "read_file" => self.read_file(arguments),
            "write_file" => self.write(call, arguments).await,
            "delete_file" => self.delete(call, arguments).await,
            "search_files" => self.search(arguments),
            "file_info" => self.info(arguments),
            "echo" => echo::run(arguments),
            _ => Err(ToolError::Unknown),
        }
    }

    fn list(&self, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
        let folder = path(arguments.text_or("path", "")?)?;
        let tree = self.tree.lock();
        if !tree.is_folder(&folder) {
            return Err(ToolError::Failed(format!("there is no folder {folder}")));
        }
        let names: Vec<String> = tree.names(&folder).into_iter().collect();
        Ok(ToolResult::text(names.join("\n")))
    }

    fn read_file(&self, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
        let path = path(arguments.text("path")?)?;
        let tree = self.tree.lock();
        let bytes = tree.file(&path).ok_or_else(|| no_file(&path))?;
        Ok(match Bytes::of(bytes) {
            Bytes::Text(text) => ToolResult::text(text),
            Bytes::Blob(data) if mime(&path).starts_with("image/") => {
                let block = json!({"type": "image", "data": data, "mimeType": mime(&path)});
                ToolResult::blocks(vec![block])
            }
            Bytes::Blob(_) => ToolResult::error(format!("{path} is not text")),
        })
    }

    async fn write(&self, call: &Call, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
        let path = path(arguments.text("path")?)?;
        let text = arguments.text("text")?;
        let written = self.tree.lock().write(&path, text.as_bytes());
        let is_new = written.map_err(|why| ToolError::Failed(format!("{path}: {why}")))?;
        let change = match is_new {
            true => Change::Resources,
            false => Change::Updated(to_uri(&path)),
        };
        call.announce(&[change]).await?;
        Ok(ToolResult::text(format!("wrote {} bytes to {path}", text.len())))
    }

    async fn delete(&self, call: &Call, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
        let path = path(arguments.text("path")?)?;
        let removed = self.tree.lock().remove(&path);
        if !removed {
            return Err(no_file(&path));
        }
        call.announce(&[Change::Resources, Change::Updated(to_uri(&path))]).await?;
        Ok(ToolResult::text(format!("deleted {path}")))
    }

    fn search(&self, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
        let wanted = arguments.text("text")?;
        let folder = path(arguments.text_or("path", "")?)?;
        let tree = self.tree.lock();
        let hits = tree.below(&folder).filter_map(|(path, bytes)| {
            let text = std::str::from_utf8(bytes).ok()?;
            let lines = text.lines().enumerate().filter(|(_, line)| line.contains(wanted));
            Some(lines.map(move |(n, line)| format!("{path}:{}: {line}", n + 1)))
        });
        let hits: Vec<String> = hits.flatten().take(MAX_HITS).collect();
        Ok(ToolResult::text(if hits.is_empty() { "found nothing".into() } else { hits.join("\n") }))
    }

    fn info(&self, arguments: Arguments<'_>) -> Result<ToolResult, ToolError> {
        let path = path(arguments.text("path")?)?;
        let tree = self.tree.lock();
        let info = match tree.file(&path) {
            Some(bytes) => {
                json!({"path": path, "kind": "file", "bytes": bytes.len(), "mimeType": mime(&path)})
            }
            None if tree.is_folder(&path) => {
                let bytes: usize = tree.below(&path).map(|(_, bytes)| bytes.len()).sum();
                json!({"path": path, "kind": "folder", "bytes": bytes})
            }
            None => return Err(no_file(&path)),
        };
        Ok(ToolResult::structured(info))
    }

    /// All tools of this kind.
    pub(in super::super) fn tools() -> Vec<Tool> {
        let path = json!({"type": "string", "description": "Path, such as docs/guide.md"});
        let folder = json!({"type": "string", "description": "Path of a folder", "default": ""});
        let only_path = object(json!({"path": path}), &["path"]);
        let text = |description: &str| json!({"type": "string", "description": description});
        vec![
            Tool::new(
                "list_directory",
                "List a folder",
                Effect::Reads,
                "Lists the names in a folder; those of folders end in a slash",
                object(json!({"path": folder}), &[]),
            ),
            Tool::new(
                "read_file",
                "Read a file",
                Effect::Reads,
                "Gives the text of a file, or the image if it is one",
                only_path.clone(),
            ),
            Tool::new(
                "write_file",
                "Write a file",
                Effect::Destroys,
                "Writes a text to a file, in place of what was there",
                object(json!({"path": path, "text": text("All of it")}), &["path", "text"]),
            ),
            Tool::new(
                "delete_file",
                "Delete a file",
                Effect::Destroys,
                "Deletes a file for good",
                only_path.clone(),
            ),
            Tool::new(
                "search_files",
                "Search in files",
                Effect::Reads,
                "Finds lines that contain a text",
                object(json!({"text": text("What to find"), "path": folder}), &["text"]),
            ),
            Tool::new(
                "file_info",
                "Describe a file",
                Effect::Reads,
                "Gives kind, size and type of a file or folder; the result is structured",
                only_path,
            )
            .with_output(info_schema()),
            echo::tool(),
        ]
    }
}

fn path(text: &str) -> Result<String, ToolError> {
    normalize(text).map_err(|why| ToolError::Arguments(why.to_string()))
}

fn no_file(path: &str) -> ToolError {
    ToolError::Failed(format!("there is no file {path}"))
}

fn info_schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "kind": {"type": "string", "enum": ["file", "folder"]},
            "bytes": {"type": "integer", "minimum": 0},
            "mimeType": {"type": "string"},
        },
        "required": ["path", "kind", "bytes"],
    })
}
