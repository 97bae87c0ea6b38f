//! Requests that no upstream should get: counted by the stub, asked for by the run.

use std::net::SocketAddr;
use std::sync::Mutex;

use crate::Result;
use crate::client::Client;

/// Where the stub tells what it noticed.
pub(super) const PATH: &str = "/faults";

/// How many there were, and the first one.
static SEEN: Mutex<(u64, Option<String>)> = Mutex::new((0, None));

/// Counts one.
pub(super) fn note(server: &str, what: &str, body: &[u8]) {
    let mut seen = SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    seen.0 += 1;
    seen.1.get_or_insert_with(|| {
        let body = String::from_utf8_lossy(&body[..body.len().min(600)]);
        format!("{server}: {what}: {body}")
    });
}

/// All there were, as text; nothing when there were none.
pub(super) fn told() -> String {
    let seen = SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match &*seen {
        (_, None) => String::new(),
        (count, Some(first)) => format!("{count} wrong requests, the first one to {first}"),
    }
}

/// Fails when the stub of this address got a request that it should not have got.
pub(crate) async fn check(stub: SocketAddr) -> Result<()> {
    let mut client = Client::connect(stub).await?;
    let request = format!("GET {PATH} HTTP/1.1\r\nHost: {stub}\r\n\r\n");
    let answer = client.send(request.as_bytes()).await?;
    match (answer.status, answer.body) {
        (200, []) => Ok(()),
        (200, told) => Err(format!("the stub got {}", String::from_utf8_lossy(told)).into()),
        (status, _) => Err(format!("the stub answered {PATH} with {status}").into()),
    }
}
