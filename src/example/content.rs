//! What the server offers: one of three sets of tools, prompts and resources.

use serde_json::{Map, Value};

use super::Kind;
use super::call::Call;
use super::completion::Reference;
use super::files::Files;
use super::notes::Notes;
use super::prompts::Prompt;
use super::resources::{Contents, Resource, Template};
use super::suite::Suite;
use super::tasks::Job;
use super::tools::{Arguments, Tool, ToolError, ToolResult};

/// One of the sets.
pub(super) enum Content {
    Notes(Notes),
    Files(Files),
    Suite(Suite),
}

impl Content {
    /// The set as it is at the start.
    pub(super) fn new(kind: Kind) -> Self {
        match kind {
            Kind::Notes => Self::Notes(Notes::seeded()),
            Kind::Files => Self::Files(Files::seeded()),
            Kind::Suite => Self::Suite(Suite::default()),
        }
    }

    /// `serverInfo.name`.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Notes(_) => "trunkline-example-notes",
            Self::Files(_) => "trunkline-example-files",
            Self::Suite(_) => "trunkline-example-suite",
        }
    }

    /// `serverInfo.title`.
    pub(super) fn title(&self) -> &'static str {
        match self {
            Self::Notes(_) => "Example notes",
            Self::Files(_) => "Example files",
            Self::Suite(_) => "Example for the conformance suite",
        }
    }

    /// How a model is to use the server.
    pub(super) fn instructions(&self) -> &'static str {
        match self {
            Self::Notes(_) => {
                "Keeps short notes in memory. Find notes with note_list, read one with note_get \
                 or as the resource notes://ID, write with note_add. The other tools show what \
                 an MCP server can do. Everything is forgotten when the server ends."
            }
            Self::Files(_) => {
                "A small tree of files in memory. Start with list_directory of \"\", search with \
                 search_files. Paths are relative, with / between their parts. Everything is \
                 forgotten when the server ends."
            }
            Self::Suite(_) => {
                "Offers what the scenarios of the MCP conformance suite ask of a server, and is of \
                 no other use."
            }
        }
    }

    /// All tools, in the order in which they are listed.
    pub(super) fn tools(&self) -> Vec<Tool> {
        match self {
            Self::Notes(notes) => notes.tools(),
            Self::Files(_) => Files::tools(),
            Self::Suite(suite) => suite.tools(),
        }
    }

    /// Runs a tool.
    pub(super) async fn call(
        &self,
        call: &Call,
        name: &str,
        arguments: Arguments<'_>,
    ) -> Result<ToolResult, ToolError> {
        match self {
            Self::Notes(notes) => notes.call(call, name, arguments).await,
            Self::Files(files) => files.call(call, name, arguments).await,
            Self::Suite(suite) => suite.call(call, name, arguments).await,
        }
    }

    /// All prompts, in the order in which they are listed.
    pub(super) fn prompts(&self) -> Vec<Prompt> {
        match self {
            Self::Notes(notes) => notes.prompts(),
            Self::Files(_) => Files::prompts(),
            Self::Suite(suite) => suite.prompts(),
        }
    }

    /// How a tool becomes a task, if it is a long job.
    pub(super) fn job(&self, name: &str) -> Option<Job> {
        match self {
            Self::Notes(_) => Notes::job(name),
            Self::Files(_) => None,
            Self::Suite(_) => Suite::job(name),
        }
    }

    /// Whether any tool is a long job.
    pub(super) fn has_jobs(&self) -> bool {
        !matches!(self, Self::Files(_))
    }

    /// The messages of a prompt whose arguments have been checked.
    pub(super) async fn prompt(
        &self,
        call: &Call,
        name: &str,
        arguments: &Map<String, Value>,
    ) -> Result<Vec<Value>, ToolError> {
        match self {
            Self::Notes(notes) => Ok(notes.prompt(name, arguments)?),
            Self::Files(files) => Ok(files.prompt(arguments)?),
            Self::Suite(_) => Suite::prompt(call, name, arguments).await,
        }
    }

    /// All resources, in the order in which they are listed.
    pub(super) fn resources(&self) -> Vec<Resource> {
        match self {
            Self::Notes(notes) => notes.resources(),
            Self::Files(files) => files.resources(),
            Self::Suite(_) => Suite::resources(),
        }
    }

    /// All templates.
    pub(super) fn templates(&self) -> &'static [Template] {
        match self {
            Self::Notes(_) => Notes::TEMPLATES,
            Self::Files(_) => Files::TEMPLATES,
            Self::Suite(_) => Suite::TEMPLATES,
        }
    }

    /// A resource by URI, if there is one.
    pub(super) fn read(&self, uri: &str) -> Option<Contents> {
        match self {
            Self::Notes(notes) => notes.read(uri),
            Self::Files(files) => files.read(uri),
            Self::Suite(_) => Suite::read(uri),
        }
    }

    /// All values that an argument or a template's variable may take.
    pub(super) fn candidates(&self, reference: &Reference<'_>, argument: &str) -> Vec<String> {
        match self {
            Self::Notes(notes) => notes.candidates(reference, argument),
            Self::Files(files) => files.candidates(reference, argument),
            Self::Suite(_) => Suite::candidates(reference),
        }
    }
}
