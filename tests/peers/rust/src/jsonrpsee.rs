//! The server and the clients of `jsonrpsee`, over HTTP and WebSocket.

use jsonrpsee_core::client::{BatchResponse, ClientT, Error};
use jsonrpsee_core::params::{ArrayParams, BatchRequestBuilder, ObjectParams};
use jsonrpsee_http_client::HttpClientBuilder;
use jsonrpsee_server::types::ErrorObjectOwned;
use jsonrpsee_server::{RpcModule, Server};
use jsonrpsee_ws_client::WsClientBuilder;
use serde_json::{Value, json};

use crate::Failure;

/// Serves both transports on a port of its own, and prints the URL of one: `echo` gives back its params, `add` the sum of two,
/// `fail` is an error.
pub async fn serve(scheme: &str) -> Result<(), Failure> {
    let mut module = RpcModule::new(());
    module.register_method("echo", |params, (), _| params.parse::<Value>())?;
    module
        .register_method("add", |params, (), _| params.parse::<[i64; 2]>().map(|[a, b]| a + b))?;
    module.register_method("fail", |_, (), _| {
        Err::<(), _>(ErrorObjectOwned::owned(-32000, "no", None::<()>))
    })?;
    let server = Server::builder().build("127.0.0.1:0").await?;
    println!("{scheme}://{}/", server.local_addr()?);
    server.start(module).stopped().await;
    Ok(())
}

/// Calls endpoints and prints what each said.
pub async fn call(urls: &[&str]) -> Result<(), Failure> {
    let mut said = Vec::new();
    for url in urls {
        said.push(if url.starts_with("ws") {
            ask(&WsClientBuilder::default().build(url).await?).await?
        } else {
            ask(&HttpClientBuilder::default().build(url)?).await?
        });
    }
    println!("{}", Value::from(said));
    Ok(())
}

async fn ask(client: &impl ClientT) -> Result<Value, Failure> {
    let mut named = ObjectParams::new();
    named.insert("text", "süß 🚂")?;
    let of = |numbers: [i64; 2]| -> Result<ArrayParams, serde_json::Error> {
        let mut params = ArrayParams::new();
        for number in numbers {
            params.insert(number)?;
        }
        Ok(params)
    };
    client.notification("add", of([7, 7])?).await?;
    let echo: Value = client.request("echo", named).await?;
    let add: i64 = client.request("add", of([1, 2])?).await?;
    let fail: Result<Value, Error> = client.request("fail", ArrayParams::new()).await;
    let Err(Error::Call(fail)) = fail else { return Err("it did not fail".into()) };
    let mut batch = BatchRequestBuilder::new();
    batch.insert("add", of([3, 4])?)?;
    batch.insert("fail", ArrayParams::new())?;
    let batch: BatchResponse<'_, i64> = client.batch_request(batch).await?;
    let outcomes: Vec<_> = batch
        .iter()
        .map(|outcome| outcome.as_ref().map_or_else(|error| i64::from(error.code()), |sum| *sum))
        .collect();
    let batch = json!([outcomes[0], outcomes[1], outcomes.len()]);
    Ok(json!({"echo": echo, "add": add, "fail": fail.code(), "batch": batch}))
}
