//! Event streams that stay open, many at once: read to the end of what comes, nothing kept but whether the change was told.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use memchr::memmem;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::Result;

/// What tells of the change.
const CHANGED: &[u8] = b"notifications/tools/list_changed";
/// Longest head and first event.
const BEGINNING: usize = 4096;

/// Open streams. Needs a `LocalSet`.
#[derive(Default)]
pub(crate) struct Streams(Rc<Shared>);

#[derive(Default)]
struct Shared {
    told: Cell<usize>,
    more: Notify,
    problem: RefCell<Option<String>>,
}

impl Streams {
    /// Connects, sends the request and waits until the beginning of the stream holds `first`.
    pub(crate) async fn open(
        &mut self,
        address: SocketAddr,
        request: &[u8],
        first: &[u8],
    ) -> Result<()> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request).await?;
        let mut beginning = Vec::new();
        while memmem::find(&beginning, first).is_none() {
            stream.readable().await?;
            let ended = drain(&stream, &mut beginning)?;
            if ended || beginning.len() > BEGINNING {
                let text = String::from_utf8_lossy(&beginning);
                return Err(format!("a stream began otherwise: {text}").into());
            }
        }
        if !beginning.starts_with(b"HTTP/1.1 200 ") {
            return Err(format!("no stream: {}", String::from_utf8_lossy(&beginning)).into());
        }
        let shared = Rc::clone(&self.0);
        tokio::task::spawn_local(async move {
            if let Err(problem) = read(stream, &shared).await {
                shared.problem.borrow_mut().get_or_insert(problem.to_string());
                shared.more.notify_one();
            }
        });
        Ok(())
    }

    /// How many have told of the change.
    pub(crate) fn count(&self) -> usize {
        self.0.told.get()
    }

    /// Returns when so many have told of the change, or one has ended.
    pub(crate) async fn told(&self, all: usize) {
        while self.count() < all && self.0.problem.borrow().is_none() {
            self.0.more.notified().await;
        }
    }

    /// Fails when one has ended.
    pub(crate) fn check(&self) -> Result<()> {
        match &*self.0.problem.borrow() {
            Some(problem) => Err(format!("a stream: {problem}").into()),
            None => Ok(()),
        }
    }
}

/// Reads one stream as long as the run lasts.
async fn read(stream: TcpStream, shared: &Shared) -> Result<()> {
    let mut received = Vec::new();
    let mut told = false;
    loop {
        stream.readable().await?;
        if drain(&stream, &mut received)? {
            return Err("it has ended".into());
        }
        if !told && memmem::find(&received, CHANGED).is_some() {
            told = true;
            shared.told.set(shared.told.get() + 1);
            shared.more.notify_one();
        }
        // The name may have come in two pieces.
        received.drain(..received.len().saturating_sub(CHANGED.len()));
    }
}

/// Takes what is there; `true` at the end of the stream.
fn drain(stream: &TcpStream, received: &mut Vec<u8>) -> Result<bool> {
    let mut buffer = [0; 2048];
    loop {
        match stream.try_read(&mut buffer) {
            Ok(0) => return Ok(true),
            Ok(read) => received.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}
