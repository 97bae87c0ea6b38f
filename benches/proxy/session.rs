//! What a client says on one connection: the opening of an MCP session, then calls.

use std::net::SocketAddr;

use crate::Result;
use crate::client::{Client, header};
use crate::scenario::{CLIENT_INFO, Call, Carrier, Client as Said, LEGACY, spread};

/// Ids have ten digits, so that a request keeps its length from one id to the next.
pub(crate) const FIRST_ID: u64 = 1_000_000_000;

/// A connection, with an MCP session where its calls need one.
pub(crate) struct Session {
    /// The connection.
    pub(crate) client: Client,
    address: SocketAddr,
    path: String,
    id: Option<String>,
}

impl Session {
    /// Connects, and opens a session if asked to.
    pub(crate) async fn open(address: SocketAddr, call: &Call) -> Result<Self> {
        let client = Client::connect(address).await?;
        let mut session = Self { client, address, path: call.path.clone(), id: None };
        if call.client == Said::Legacy {
            session.initialize().await?;
        }
        Ok(session)
    }

    /// Opens an MCP session on this connection; an earlier one is left as it is.
    pub(crate) async fn initialize(&mut self) -> Result<()> {
        self.id = None;
        let params = format!(
            r#"{{"protocolVersion":"{LEGACY}","capabilities":{{}},"clientInfo":{CLIENT_INFO}}}"#
        );
        let request = self.request("POST", "", &message("initialize", &params, Some(1)));
        let answer = self.client.send(&request).await?;
        let id = header(answer.head, "mcp-session-id").map(str::to_owned);
        if answer.status != 200 || id.is_none() {
            return Err(format!("initialize was answered with {}", answer.status).into());
        }
        self.id = id;
        let text = message("notifications/initialized", "{}", None);
        let request = self.request("POST", "", &text);
        match self.client.send(&request).await?.status {
            202 => Ok(()),
            status => Err(format!("initialized was answered with {status}").into()),
        }
    }

    /// Ends the MCP session, if there is one.
    pub(crate) async fn close(mut self) -> Result<()> {
        if self.id.is_some() {
            let request = self.request("DELETE", "", "");
            self.client.send(&request).await?;
        }
        Ok(())
    }

    /// The call as bytes, with [`FIRST_ID`] for each id, and where the digits of the ids begin.
    pub(crate) fn template(&self, call: &Call) -> (Vec<u8>, Vec<usize>) {
        let request = self.request("POST", &call.headers, &text(call));
        let ids = ids(&request);
        (request, ids)
    }

    /// The request for the stream of the session that belongs to no call.
    pub(crate) fn listen(&self) -> Vec<u8> {
        let Self { address, path, .. } = self;
        let session = self.named();
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n{session}\r\n"
        );
        request.into_bytes()
    }

    /// The lines of the header that name the session.
    fn named(&self) -> String {
        match &self.id {
            Some(id) => {
                format!("Mcp-Session-Id: {id}\r\nMCP-Protocol-Version: {LEGACY}\r\n")
            }
            None => String::new(),
        }
    }

    fn request(&self, method: &str, headers: &str, body: &str) -> Vec<u8> {
        let Self { address, path, .. } = self;
        let session = self.named();
        let length = body.len();
        format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{session}{headers}\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

/// The text of a call.
pub(crate) fn text(call: &Call) -> String {
    let Carrier::Batch(size) = call.carrier else {
        return message(call.method, &call.params, Some(FIRST_ID));
    };
    let element = |index| message(&spread(call.method, index), &call.params, Some(FIRST_ID));
    let elements: Vec<String> = (0..size).map(element).collect();
    format!("[{}]", elements.join(","))
}

/// Where the digits of the ids begin in a text of [`text`].
pub(crate) fn ids(text: &[u8]) -> Vec<usize> {
    let key = format!(r#""id":{FIRST_ID}"#);
    let digits = key.len() - FIRST_ID.to_string().len();
    memchr::memmem::find_iter(text, key.as_bytes()).map(|at| at + digits).collect()
}

/// A message in the order of members that the common SDKs write.
fn message(method: &str, params: &str, id: Option<u64>) -> String {
    let id = id.map(|id| format!(",\"id\":{id}")).unwrap_or_default();
    format!(r#"{{"method":"{method}","params":{params},"jsonrpc":"2.0"{id}}}"#)
}
