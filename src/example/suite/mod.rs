//! Kind `suite`: what the scenarios of the official conformance suite ask of a server, under the
//! names and with the texts that they look for. Every tool works in every revision: what an older
//! client is asked on the call's stream, a newer one is asked by the result.

mod asks;
mod jobs;
mod prompts;
mod resources;
mod tools;

use std::sync::atomic::AtomicBool;

use super::call::Call;
use super::tasks::Job;
use super::tools::{Arguments, Tool, ToolError, ToolResult};

/// The one tool and the one prompt that come and go.
#[derive(Default)]
pub(super) struct Suite {
    extra_tool: AtomicBool,
    extra_prompt: AtomicBool,
}

impl Suite {
    /// How a tool becomes a task, if it is a long job.
    pub(super) fn job(name: &str) -> Option<Job> {
        jobs::job(name)
    }

    /// All tools of this kind.
    pub(super) fn tools(&self) -> Vec<Tool> {
        let fixed = tools::tools().into_iter().chain(asks::tools()).chain(jobs::tools());
        fixed.chain(self.dynamic_tool()).collect()
    }

    /// Runs a tool.
    pub(super) async fn call(
        &self,
        call: &Call,
        name: &str,
        arguments: Arguments<'_>,
    ) -> Result<ToolResult, ToolError> {
        if let Some(result) = tools::run(self, call, name, arguments).await {
            return result;
        }
        if let Some(result) = jobs::run(call, name, arguments).await {
            return result;
        }
        asks::run(call, name, arguments).await
    }
}
