//! Clients and servers of other people's Rust SDKs. Each prints one JSON object, or the URL that it serves.
//!
//! Usage: `trunkline-peers rmcp-client URL initialize|auto CALLS`, CALLS a JSON array of `[tool, arguments]`;
//! `trunkline-peers rmcp-server stdio|http`; `trunkline-peers jsonrpsee-server http|ws`; `trunkline-peers jsonrpsee-client URL…`.

mod jsonrpsee;
mod rmcp_client;
mod rmcp_server;

type Failure = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["rmcp-client", url, lifecycle, calls] => rmcp_client::run(url, lifecycle, calls).await,
        ["rmcp-server", "stdio"] => rmcp_server::stdio().await,
        ["rmcp-server", "http"] => rmcp_server::http().await,
        ["jsonrpsee-server", scheme] => jsonrpsee::serve(scheme).await,
        ["jsonrpsee-client", ref urls @ ..] => jsonrpsee::call(urls).await,
        _ => Err("see the top of main.rs for the usage".into()),
    }
}
