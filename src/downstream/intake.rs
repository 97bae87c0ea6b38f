//! Reading a request body within its limits.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::inflate::{Coding, Inflater};
use crate::budget::{Budget, Full};

/// How much of a compressed body is inflated before what has come out is counted.
const PART: usize = 1 << 10;

/// Why there is no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// Larger than the limit.
    TooLarge,
    /// The client paused too long.
    TimedOut,
    /// The client broke it off, or it is framed or compressed wrongly.
    Broken,
    /// The gateway holds too many bytes already.
    Full,
}

impl From<Full> for Unread {
    fn from(_: Full) -> Self {
        Self::Full
    }
}

/// Reads a whole body. One that announces itself as too large is refused without being read. The limit is that of the
/// content, whatever it is compressed to. It counts as long as any of it is there.
pub(super) async fn read(
    body: &mut Incoming,
    coding: Option<Coding>,
    (limit, budget): (usize, &Arc<Budget>),
    pause: Duration,
) -> Result<Bytes, Unread> {
    if let Some(coding) = coding {
        // Seldom, and large.
        return Box::pin(read_inflated(body, coding, (limit, budget), pause)).await;
    }
    let announced = body.size_hint();
    if announced.lower() > limit as u64 {
        return Err(Unread::TooLarge);
    }
    let exact = announced.exact().and_then(|exact| usize::try_from(exact).ok());
    let first = match next(body, pause).await? {
        Some(first) if first.len() > limit => return Err(Unread::TooLarge),
        // The usual case: all of it came at once.
        Some(first) if Some(first.len()) == exact => {
            return Ok(budget.hold(first.len())?.keep(first));
        }
        Some(first) => first,
        None => return Ok(Bytes::new()),
    };
    let mut held = budget.hold(first.len())?;
    let mut whole = BytesMut::with_capacity(exact.unwrap_or(0).max(first.len()));
    whole.extend_from_slice(&first);
    while let Some(more) = next(body, pause).await? {
        if whole.len() + more.len() > limit {
            return Err(Unread::TooLarge);
        }
        held.grow(more.len())?;
        whole.extend_from_slice(&more);
    }
    Ok(held.keep(whole.freeze()))
}

async fn read_inflated(
    body: &mut Incoming,
    coding: Coding,
    (limit, budget): (usize, &Arc<Budget>),
    pause: Duration,
) -> Result<Bytes, Unread> {
    let mut left = Coding::most(limit);
    if body.size_hint().lower() > left as u64 {
        return Err(Unread::TooLarge);
    }
    let mut held = budget.hold(0)?;
    let mut inflater = Inflater::new(coding, limit);
    while let Some(data) = next(body, pause).await? {
        left = left.checked_sub(data.len()).ok_or(Unread::TooLarge)?;
        // Little may become much: what has come out is counted before more goes in.
        for part in data.chunks(PART) {
            inflater.push(part).await?;
            held.grow(inflater.len() - held.bytes())?;
        }
    }
    let text = inflater.end()?;
    held.grow(text.len() - held.bytes())?;
    Ok(held.keep(text))
}

async fn next(body: &mut Incoming, pause: Duration) -> Result<Option<Bytes>, Unread> {
    loop {
        // What is there already needs no timer.
        let frame = match body.frame().now_or_never() {
            Some(frame) => frame,
            None => {
                tokio::time::timeout(pause, body.frame()).await.map_err(|_| Unread::TimedOut)?
            }
        };
        match frame {
            None => return Ok(None),
            Some(Err(_)) => return Err(Unread::Broken),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Most bytes of a refused body that are read so that the client gets to see the answer.
const DRAINED: usize = 16 << 20;

/// Longest time that a refused body is read: a client that drips it keeps nothing waiting, shutdown least of all.
const DRAINING: Duration = Duration::from_secs(4);

/// Reads what is left of a refused body, up to a limit of size and time.
pub(super) async fn drain(mut body: Incoming) {
    let mut left = DRAINED;
    let read = async {
        while let Ok(Some(data)) = next(&mut body, Duration::from_secs(2)).await {
            let Some(rest) = left.checked_sub(data.len()) else { return };
            left = rest;
        }
    };
    let _ = tokio::time::timeout(DRAINING, read).await;
}
