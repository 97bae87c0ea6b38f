//! The client of `rmcp`: lists the tools of an endpoint, calls some, and answers what it is asked.

use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult,
    ElicitationAction, ErrorData, ProtocolVersion,
};
use rmcp::service::{ClientLifecycleMode, ClientServiceExt, RequestContext, RoleClient};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, ServiceExt};
use serde_json::{Value, json};

use crate::Failure;

/// Says its name to whoever asks.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<String>>>);

impl ClientHandler for Asked {
    fn get_info(&self) -> ClientConfig {
        let mut config = ClientConfig::default();
        config.capabilities = ClientCapabilities::builder().enable_elicitation().build();
        config
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = request else {
            return Ok(ElicitResult::new(ElicitationAction::Decline));
        };
        self.0.lock().expect("nobody panics with it").push(message);
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"name": "Ada"})))
    }
}

/// Runs the client to its end. `initialize` is what it does when nothing is chosen.
pub async fn run(url: &str, lifecycle: &str, calls: &str) -> Result<(), Failure> {
    let transport = StreamableHttpClientTransport::from_uri(url);
    let asked = Asked::default();
    let client = match lifecycle {
        "initialize" => asked.clone().serve(transport).await?,
        _ => {
            let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
            let lifecycle = ClientLifecycleMode::Auto { preferred_versions, legacy_version: None };
            asked.clone().serve_with_lifecycle(transport, lifecycle).await?
        }
    };
    let revision = client.peer_info().map(|info| info.protocol_version.to_string());
    let tools = client.list_all_tools().await?;
    let mut results = Vec::new();
    for (name, arguments) in serde_json::from_str::<Vec<(String, Value)>>(calls)? {
        let Value::Object(arguments) = arguments else { return Err("no arguments".into()) };
        let params = CallToolRequestParams::new(name).with_arguments(arguments);
        results.push(match client.call_tool(params).await {
            Ok(result) => json!(
                result.content.iter().map(|block| json!(block)["text"].clone()).collect::<Vec<_>>()
            ),
            Err(error) => json!({"error": error.to_string()}),
        });
    }
    client.cancel().await?;
    let tools: Vec<_> = tools.iter().map(|tool| &tool.name).collect();
    println!(
        "{}",
        json!({"revision": revision, "tools": tools, "results": results, "asked": *asked.0.lock().expect("it ended")})
    );
    Ok(())
}
