//! The server of `rmcp`, of both eras: `echo` gives back what it got, `ask` wants to know the client's name.

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ElicitRequest,
    ElicitRequestParams, ErrorData, InputRequest, InputRequests, InputRequiredResult,
    ListToolsResult, PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig,
    Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ServerHandler, ServiceExt};
use serde_json::{Value, json};

use crate::Failure;

#[derive(Clone)]
struct Polite;

fn question() -> ElicitRequestParams {
    let schema =
        json!({"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]});
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: "Your name?".into(),
        requested_schema: serde_json::from_value(schema).expect("it is a schema"),
    }
}

fn text(text: String) -> CallToolResponse {
    CallToolResult::success(vec![ContentBlock::text(text)]).into()
}

impl Polite {
    /// The name, or the result that asks for it.
    async fn ask(
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let declared = context.client_capabilities().and_then(|declared| declared.elicitation);
        if declared.is_none() {
            return Ok(text("hello stranger".into()));
        }
        let modern = context.protocol_version() == Some(ProtocolVersion::V_2026_07_28);
        let answer = match request.input_responses.as_ref().and_then(|all| all.get("who")) {
            Some(answer) => json!(answer),
            None if modern => {
                let mut questions = InputRequests::new();
                let question = InputRequest::Elicitation(ElicitRequest::new(question()));
                questions.insert("who".into(), question);
                return Ok(
                    InputRequiredResult::new(Some(questions), Some("st.ate/+=".into())).into()
                );
            }
            None => {
                let answer = context.peer.create_elicitation(question()).await;
                json!(answer.map_err(|error| ErrorData::internal_error(error.to_string(), None))?)
            }
        };
        if modern && request.request_state.as_deref() != Some("st.ate/+=") {
            return Err(ErrorData::invalid_params("the state is another", None));
        }
        let name = answer["content"]["name"].as_str();
        Ok(text(format!("hello {}", name.unwrap_or("stranger"))))
    }
}

impl ServerHandler for Polite {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = ["echo", "ask"].map(|name| {
            let Value::Object(schema) = json!({"type": "object"}) else { unreachable!() };
            Tool::new(name, "of rmcp", schema)
        });
        Ok(ListToolsResult::with_all_items(tools.into()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match request.name.as_ref() {
            "echo" => {
                let message = request.arguments.as_ref().and_then(|all| all["message"].as_str());
                Ok(text(message.unwrap_or_default().to_owned()))
            }
            "ask" => Self::ask(request, context).await,
            other => Err(ErrorData::invalid_params(format!("no tool {other}"), None)),
        }
    }
}

/// Serves standard input and output until they end.
pub async fn stdio() -> Result<(), Failure> {
    let server = Polite.serve(rmcp::transport::stdio()).await?;
    server.waiting().await?;
    Ok(())
}

/// Serves HTTP on a port of its own, and prints where.
pub async fn http() -> Result<(), Failure> {
    let service: StreamableHttpService<Polite, LocalSessionManager> = StreamableHttpService::new(
        || Ok(Polite),
        Default::default(),
        StreamableHttpServerConfig::default(),
    );
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("http://{}/mcp", listener.local_addr()?);
    axum::serve(listener, axum::Router::new().nest_service("/mcp", service)).await?;
    Ok(())
}
