//! One careful request before the load: the answer is parsed and compared with the direct one, and
//! its text becomes what every further answer must hold.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::Result;
use crate::scenario::{Call, Carrier, Check, Client};
use crate::session::{self, FIRST_ID, Session};
use crate::socket::{SWITCHED, Socket};

/// How long a target may take until its answers are right; a catalog is filled in the background.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an answer must hold.
pub(crate) struct Expected {
    /// HTTP status.
    pub(crate) status: u16,
    /// Text of the result or error, byte for byte.
    pub(crate) text: Vec<u8>,
    /// What must be equal on every target.
    pub(crate) essence: Value,
}

#[derive(Deserialize)]
struct Message<'a> {
    id: u64,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Asks until the answer is the one that was given directly.
pub(crate) async fn expect(
    address: SocketAddr,
    call: &Call,
    direct: Option<&Expected>,
) -> Result<Expected> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let problem = match ask(address, call).await {
            Ok(found) if direct.is_none_or(|direct| direct.essence == found.essence) => {
                return Ok(found);
            }
            Ok(found) => {
                let text = String::from_utf8_lossy(&found.text[..found.text.len().min(300)]);
                format!("another answer than the direct one: {text}")
            }
            Err(error) => error.to_string(),
        };
        if Instant::now() > deadline {
            return Err(problem.into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn ask(address: SocketAddr, call: &Call) -> Result<Expected> {
    let mut session = Session::open(address, call).await?;
    let (status, body) = if let Carrier::WebSocket(_) = call.carrier {
        let mut socket = Socket::open(address, &call.path).await?;
        socket.send(session::text(call)).await?;
        (SWITCHED, socket.next().await?)
    } else {
        let (request, _) = session.template(call);
        let answer = session.client.send(&request).await?;
        (answer.status, std::str::from_utf8(answer.body)?.to_owned())
    };
    let text = body.lines().filter_map(|line| line.strip_prefix("data:")).next_back();
    let text = text.unwrap_or(&body);
    // All elements of a batch have the same answer.
    let text = match call.carrier {
        Carrier::Batch(size) => first(text, size)?,
        Carrier::Post | Carrier::WebSocket(_) => text,
    };
    let message: Message<'_> = serde_json::from_str(text).map_err(|error| {
        format!("status {status}, {error}: {}", text.get(..text.len().min(300)).unwrap_or(""))
    })?;
    if message.id != FIRST_ID {
        return Err(format!("id {} instead of {FIRST_ID}", message.id).into());
    }
    let raw = match (call.check, message.result, message.error) {
        (Check::Error, None, Some(error)) => error,
        (Check::Result | Check::Content(_) | Check::Tools, Some(result), None) => result,
        _ => return Err(format!("unexpected kind of answer: {text:.300}").into()),
    };
    let text = raw.get().as_bytes().to_vec();
    let essence = essence(call.check, serde_json::from_slice(&text)?)?;
    session.close().await?;
    Ok(Expected { status, text, essence })
}

/// The first element of the answer to a batch, which must be of that size.
fn first(text: &str, size: usize) -> Result<&str> {
    let elements: Vec<&RawValue> = serde_json::from_str(text)?;
    match elements.first() {
        Some(element) if elements.len() == size => Ok(element.get()),
        _ => Err(format!("{} answers to a batch of {size}: {text:.300}", elements.len()).into()),
    }
}

fn essence(check: Check, mut answer: Value) -> Result<Value> {
    Ok(match check {
        Check::Result => answer,
        Check::Content(client) => {
            let modern = matches!(client, Client::Modern(_));
            let kind = answer.get("resultType").and_then(Value::as_str);
            if kind != modern.then_some("complete") {
                return Err(format!("a result of another revision: {answer:.300}").into());
            }
            answer["content"].take()
        }
        Check::Error => answer["code"].take(),
        Check::Tools => {
            let mut tools = answer["tools"].take();
            if let Some(tools) = tools.as_array_mut() {
                tools.sort_by_key(|tool| tool["name"].to_string());
            }
            tools
        }
    })
}
