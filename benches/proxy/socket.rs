//! A client over WebSocket, for loads and for idle crowds.

use std::net::SocketAddr;

use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::Result;

/// The status of everything that is said on a WebSocket.
pub(crate) const SWITCHED: u16 = 101;

/// One connection.
pub(crate) struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Connects and asks for a WebSocket on that path.
    pub(crate) async fn open(address: SocketAddr, path: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        // There may be ten thousand of them.
        let small = WebSocketConfig::default().read_buffer_size(4096).write_buffer_size(0);
        let request = format!("ws://{address}{path}");
        let opened = tokio_tungstenite::client_async_with_config(request, stream, Some(small));
        Ok(Self(opened.await?.0))
    }

    /// Sends one message.
    pub(crate) async fn send(&mut self, text: String) -> Result<()> {
        Ok(self.0.send(Message::text(text)).await?)
    }

    /// Adds one message to what is sent next.
    pub(crate) async fn feed(&mut self, text: String) -> Result<()> {
        Ok(self.0.feed(Message::text(text)).await?)
    }

    /// Sends what was added.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        Ok(self.0.flush().await?)
    }

    /// Waits for the next text.
    pub(crate) async fn next(&mut self) -> Result<String> {
        loop {
            let message = self.0.next().await.ok_or("the WebSocket has ended")??;
            if let Message::Text(text) = message {
                return Ok(text.as_str().to_owned());
            }
        }
    }

    /// The next text, if it is there.
    pub(crate) fn try_next(&mut self) -> Result<Option<String>> {
        self.next().now_or_never().transpose()
    }

    /// Says that it ends.
    pub(crate) async fn close(mut self) -> Result<()> {
        Ok(self.0.close(None).await?)
    }
}
