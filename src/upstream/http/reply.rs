//! The answer to one HTTP request: what its head says, and reading its body.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::response::Parts;
use http::{HeaderValue, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;

use super::body::{Unread, next_data, read_all};
use super::conn::{KEEP_FOR, Lease};
use super::endpoint::Endpoint;
use super::timer::Timer;
use crate::budget::Held;
use crate::upstream::CallError;

/// How much of an uninteresting body is read so that the connection can be used again.
const UNINTERESTING: usize = 64 << 10;
/// The largest error that is read from a refusing status.
const LARGEST_REFUSAL: usize = 1 << 20;
/// How long an uninteresting body may take.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest `Retry-After` that is believed.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// What kind of body it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Media {
    /// One JSON text.
    Json,
    /// Events.
    EventStream,
    /// None was named.
    Unnamed,
    /// Something else, by name, bounded.
    Other(String),
}

/// An answer whose body was not read yet. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct Reply<'a> {
    endpoint: &'a Endpoint,
    head: Parts,
    body: Incoming,
    lease: Lease,
}

impl<'a> Reply<'a> {
    pub(super) fn new(endpoint: &'a Endpoint, response: Response<Incoming>, lease: Lease) -> Self {
        let (head, body) = response.into_parts();
        Self { endpoint, head, body, lease }
    }

    pub(super) fn status(&self) -> StatusCode {
        self.head.status
    }

    pub(super) fn header(&self, name: &HeaderName) -> Option<&HeaderValue> {
        self.head.headers.get(name)
    }

    /// What kind of body it is, by media type; case and parameters do not count.
    pub(super) fn media(&self) -> Media {
        let Some(value) = self.header(&CONTENT_TYPE) else { return Media::Unnamed };
        if value.as_bytes() == b"application/json" {
            return Media::Json;
        }
        let text = String::from_utf8_lossy(value.as_bytes());
        let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match essence.as_str() {
            "application/json"
            | "application/json-rpc"
            | "application/jsonrequest"
            | "text/json" => Media::Json,
            "text/event-stream" => Media::EventStream,
            "" => Media::Unnamed,
            other => Media::Other(other.chars().take(64).filter(|c| !c.is_control()).collect()),
        }
    }

    /// An encoding that was not asked for and cannot be read.
    pub(super) fn check_encoding(&self) -> Result<(), CallError> {
        let Some(value) = self.header(&CONTENT_ENCODING) else { return Ok(()) };
        let name = String::from_utf8_lossy(value.as_bytes()).trim().to_ascii_lowercase();
        if name.is_empty() || name == "identity" {
            return Ok(());
        }
        let name: String = name.chars().take(32).filter(|c| !c.is_control()).collect();
        Err(self.endpoint.protocol(format!("its body has the content encoding {name}")))
    }

    /// `Retry-After`, capped; none when it cannot be read.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        parse_retry_after(self.header(&RETRY_AFTER)?.to_str().ok()?, jiff::Timestamp::now())
    }

    /// [`CallError::Status`] with what the head says.
    pub(super) fn refusal(&self) -> CallError {
        self.endpoint.status(self.status(), self.retry_after())
    }

    /// Reads the whole body, at most `max_message`, and gives the connection back.
    pub(super) async fn read(mut self, timer: &mut Timer<'_>) -> Result<Bytes, CallError> {
        let limit = self.endpoint.config.max_message;
        let budget = &self.endpoint.budget;
        let read = timer.within(read_all(&mut self.body, limit, budget)).await;
        let text = read
            .map_err(|late| self.endpoint.late(late))?
            .map_err(|unread| self.unread(&unread))?;
        self.came(text.len());
        self.release();
        Ok(text)
    }

    /// Reads the body of a refusing status, which may hold an error; `None` when it cannot be one or is not
    /// readable. The status stands either way.
    pub(super) async fn read_refusal(mut self, timer: &mut Timer<'_>) -> Option<Bytes> {
        let no_json = match self.media() {
            Media::Json | Media::Unnamed => false,
            Media::EventStream => true,
            Media::Other(name) => name == "text/html",
        };
        if no_json || self.check_encoding().is_err() {
            self.finish(timer).await;
            return None;
        }
        let limit = self.endpoint.config.max_message.min(LARGEST_REFUSAL);
        let budget = &self.endpoint.budget;
        let text = timer.within(read_all(&mut self.body, limit, budget)).await.ok()?.ok()?;
        self.came(text.len());
        self.release();
        Some(text)
    }

    /// Reads the whole body, or its beginning when it is larger than `most`.
    pub(super) async fn read_some(
        self,
        most: usize,
        timer: &mut Timer<'_>,
    ) -> Result<Read<'a>, CallError> {
        let announced = self.body.size_hint().exact();
        if announced.is_some_and(|length| length <= most as u64) {
            return self.read(timer).await.map(Read::Whole);
        }
        let held = self.endpoint.budget.admit(0);
        let mut begun = Begun { reply: self, pieces: Vec::new(), read: 0, held };
        if announced.is_some_and(|length| length > begun.limit() as u64) {
            return Err(begun.reply.unread(&Unread::TooLarge));
        }
        while begun.read <= most {
            if !begun.more(timer).await? {
                return Ok(Read::Whole(begun.whole()));
            }
        }
        Ok(Read::Begun(Box::new(begun)))
    }

    /// The body, the connection it comes on, and how long that may be kept afterwards.
    pub(super) fn into_parts(self) -> (Incoming, Lease, Duration) {
        let keep_for = keep_for(self.header(&KEEP_ALIVE));
        (self.body, self.lease, keep_for)
    }

    /// The next bytes of the body; `None` at its end. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Unread> {
        let data = next_data(&mut self.body).await?;
        self.came(data.as_ref().map_or(0, Bytes::len));
        Ok(data)
    }

    /// So many bytes of the body were read.
    fn came(&self, bytes: usize) {
        self.endpoint.metrics.bytes_in.inc_by(bytes as u64);
    }

    /// How an unreadable body is told.
    pub(super) fn unread(&self, unread: &Unread) -> CallError {
        self.endpoint.unread(unread)
    }

    /// The body does not matter: it is read to its end if that is near, so that the connection can be used again.
    pub(super) async fn finish(mut self, timer: &mut Timer<'_>) {
        if !self.body.is_end_stream() {
            let budget = &self.endpoint.budget;
            let reading = read_all(&mut self.body, UNINTERESTING, budget);
            let reading = tokio::time::timeout(PATIENCE, reading);
            let Ok(Ok(Ok(rest))) = timer.within(reading).await else { return };
            self.came(rest.len());
        }
        self.release();
    }

    /// The answer is there, and the body will end soon.
    pub(super) fn release_early(self) {
        let keep_for = keep_for(self.header(&KEEP_ALIVE));
        self.lease.release(Some(self.body), keep_for);
    }

    /// The body was read to its end.
    fn release(self) {
        let keep_for = keep_for(self.header(&KEEP_ALIVE));
        self.lease.release(None, keep_for);
    }
}

/// How far a body was read.
#[derive(Debug)]
pub(super) enum Read<'a> {
    /// To its end.
    Whole(Bytes),
    /// Beyond what is read at once.
    Begun(Box<Begun<'a>>),
}

/// A body that is read piece by piece.
#[derive(Debug)]
pub(super) struct Begun<'a> {
    reply: Reply<'a>,
    pieces: Vec<Bytes>,
    read: usize,
    held: Held,
}

impl<'a> Begun<'a> {
    fn limit(&self) -> usize {
        self.reply.endpoint.config.max_message
    }

    /// What was read so far.
    pub(super) fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// Reads on; whether there was more.
    pub(super) async fn more(&mut self, timer: &mut Timer<'_>) -> Result<bool, CallError> {
        let endpoint = self.reply.endpoint;
        let data = timer.within(self.reply.next()).await.map_err(|late| endpoint.late(late))?;
        let Some(data) = data.map_err(|unread| endpoint.unread(&unread))? else { return Ok(false) };
        if self.read + data.len() > self.limit() {
            return Err(endpoint.unread(&Unread::TooLarge));
        }
        self.held.grow(data.len()).map_err(|full| endpoint.unread(&Unread::Full(full)))?;
        self.read += data.len();
        self.pieces.push(data);
        Ok(true)
    }

    /// All of it was read: the text; the connection is given back.
    pub(super) fn whole(self) -> Bytes {
        self.reply.release();
        let text = match <[Bytes; 1]>::try_from(self.pieces) {
            Ok([only]) => only,
            Err(pieces) => pieces.concat().into(),
        };
        self.held.keep(text)
    }

    /// The rest of the body, how much was read, and the room that is held for it.
    pub(super) fn into_parts(self) -> (Reply<'a>, usize, Held) {
        (self.reply, self.read, self.held)
    }
}

/// How long the upstream keeps the connection, as far as it says so: a second less, so that no request meets its
/// end.
fn keep_for(keep_alive: Option<&HeaderValue>) -> Duration {
    let Some(text) = keep_alive.and_then(|value| value.to_str().ok()) else { return KEEP_FOR };
    let seconds = text
        .split(',')
        .filter_map(|part| part.trim().strip_prefix("timeout="))
        .find_map(|seconds| seconds.parse::<u64>().ok());
    seconds.map_or(KEEP_FOR, |seconds| {
        Duration::from_secs(seconds).saturating_sub(Duration::from_secs(1)).min(KEEP_FOR)
    })
}

/// Seconds or an HTTP date (RFC 9110 §10.2.3), capped.
pub(in crate::upstream) fn parse_retry_after(text: &str, now: jiff::Timestamp) -> Option<Duration> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = text.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(LONGEST_RETRY_AFTER));
    }
    let date = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
    let wait = Duration::try_from(date.duration_since(now)).unwrap_or_default();
    Some(wait.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date_and_garbage_is_ignored() {
        let now: jiff::Timestamp = "1994-11-06T08:49:07Z".parse().expect("a time stamp");
        let parse = |text| parse_retry_after(text, now).map(|wait| wait.as_secs());
        assert_eq!(parse("3"), Some(3));
        assert_eq!(parse(" 0 "), Some(0));
        assert_eq!(parse("99999999"), Some(3600));
        assert_eq!(parse("99999999999999999999999999"), Some(3600));
        assert_eq!(parse("Sun, 06 Nov 1994 08:49:37 GMT"), Some(30));
        assert_eq!(parse("Sun, 06 Nov 1994 07:49:37 GMT"), Some(0));
        assert_eq!(parse("Mon, 06 Nov 2034 08:49:37 GMT"), Some(3600));
        for garbage in ["-1", "", "soon", "3.5", "Sun, 99 Foo 1994"] {
            assert_eq!(parse(garbage), None, "{garbage}");
        }
    }

    #[test]
    fn a_connection_is_kept_a_second_less_than_the_upstream_says() {
        let keep = |text: &'static str| keep_for(Some(&HeaderValue::from_static(text))).as_secs();
        assert_eq!(keep("timeout=5"), 4);
        assert_eq!(keep("max=100, timeout=30"), 29);
        assert_eq!(keep("timeout=600"), 60);
        assert_eq!(keep("timeout=0"), 0);
        assert_eq!(keep("nonsense"), 60);
        assert_eq!(keep_for(None).as_secs(), 60);
    }
}
