//! A large answer to a plain call, forwarded while it comes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::body::{Unread, next_data};
use super::conn::Lease;
use super::endpoint::Endpoint;
use super::reply::{Begun, Reply};
use crate::jsonrpc::{Flaw, Message, Relay};
use crate::upstream::CallError;

/// Longest piece that is given out, so that a slow client takes pieces steadily.
const PIECE: usize = 16 << 10;
/// Longest duration that is counted; more means none.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// What a plain call came to.
#[derive(Debug)]
pub enum PlainAnswer {
    /// A notification: nothing.
    None,
    /// The answer. Its id is ours.
    Whole(Message),
    /// An answer that is still coming; its id is the client's already.
    Large(Box<LargeAnswer>),
}

impl From<Option<Message>> for PlainAnswer {
    fn from(answer: Option<Message>) -> Self {
        answer.map_or(Self::None, Self::Whole)
    }
}

/// An answer that is still coming, known to be the result of its request. Dropping it before its end closes the
/// connection to the upstream.
#[derive(Debug)]
pub struct LargeAnswer {
    endpoint: Arc<Endpoint>,
    body: Option<(Incoming, Lease, Duration)>,
    relay: Option<Relay>,
    /// What may go out; `begun` counts it as long as it was read before it could.
    ready: VecDeque<Bytes>,
    begun: Option<crate::budget::Held>,
    read: usize,
    silence: Duration,
    hard: Instant,
    max: Duration,
}

impl LargeAnswer {
    /// `silence`: between two pieces at most; `max`: until the end at most.
    pub(super) fn new(
        endpoint: &Arc<Endpoint>,
        begun: Begun<'_>,
        mut relay: Relay,
        silence: Duration,
        max: Duration,
    ) -> Self {
        let (reply, read, held) = begun.into_parts();
        let max = max.min(FOREVER);
        Self {
            endpoint: Arc::clone(endpoint),
            body: Some(Reply::into_parts(reply)),
            ready: relay.take().into(),
            relay: Some(relay),
            begun: Some(held),
            read,
            silence: silence.min(FOREVER),
            hard: Instant::now() + max,
            max,
        }
    }

    /// The next piece; `None`: the answer is whole.
    ///
    /// # Errors
    /// It cannot be completed: what went out so far must never be taken as whole.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        loop {
            if !self.ready.is_empty() && Instant::now() >= self.hard {
                // However slowly the client takes it: it ends, and with it what it holds.
                return Err(self.late(self.max));
            }
            if let Some(first) = self.ready.front_mut() {
                let piece = first.split_to(first.len().min(PIECE));
                if first.is_empty() {
                    self.ready.pop_front();
                }
                return Ok(Some(piece));
            }
            self.begun = None;
            let Some((body, ..)) = &mut self.body else { return Ok(None) };
            let soft = Instant::now() + self.silence;
            let data = timeout_at(soft.min(self.hard), next_data(body)).await;
            let after = if soft < self.hard { self.silence } else { self.max };
            match data.map_err(|_| self.late(after))?.map_err(|unread| self.unread(&unread))? {
                Some(data) => self.take(&data)?,
                None => self.finish()?,
            }
        }
    }

    fn take(&mut self, data: &Bytes) -> Result<(), CallError> {
        self.read += data.len();
        self.endpoint.metrics.bytes_in.inc_by(data.len() as u64);
        if self.read > self.endpoint.config.max_message {
            return Err(self.unread(&Unread::TooLarge));
        }
        let Some(relay) = &mut self.relay else { return Ok(()) };
        let flawed = relay.push(data);
        self.ready.extend(relay.take());
        flawed.map_err(|flaw| self.flawed(flaw))
    }

    /// The body has ended: the last brace may follow, if all was right.
    fn finish(&mut self) -> Result<(), CallError> {
        let Some(relay) = self.relay.take() else { return Ok(()) };
        let last = relay.finish().map_err(|flaw| self.flawed(flaw))?;
        self.ready.push_back(last);
        if let Some((_, lease, keep_for)) = self.body.take() {
            lease.release(None, keep_for);
        }
        Ok(())
    }

    fn late(&self, after: Duration) -> CallError {
        CallError::Timeout { upstream: self.endpoint.name.clone(), after }
    }

    fn unread(&self, unread: &Unread) -> CallError {
        self.endpoint.unread(unread)
    }

    fn flawed(&self, flaw: Flaw) -> CallError {
        self.endpoint.metrics.stray.inc();
        self.endpoint.protocol(flaw.to_string())
    }
}
