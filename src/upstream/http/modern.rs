//! An upstream of 2026-07-28 over Streamable HTTP: every request for itself (MCP digest §7.4).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use http::{Method, StatusCode};
use tokio::sync::watch;

use super::channel::Channel;
use super::discover::{Discovered, discover};
use super::endpoint::{Endpoint, Outgoing, Via};
use super::judge::{Dialect, judge_text};
use super::link::{Failed, Unopened, error_code, is_about_the_session, is_of_this_hop, taken};
use super::reply::Reply;
use super::standard::{headers_of, headers_of_notification};
use super::timer::Timer;
use crate::jsonrpc::{Answer, Message};
use crate::mcp::{Eras, ProtocolVersion, method_spec};
use crate::upstream::CallError;
use crate::upstream::call::OutCall;
use crate::upstream::link::{Hello, LinkContext};
use crate::upstream::subscription::{Heard, Offers, Watched};

/// What is spoken.
const VERSION: ProtocolVersion = ProtocolVersion::NEWEST_MODERN;
/// `HeaderMismatch`
const HEADER_MISMATCH: i64 = -32020;
/// `UnsupportedProtocolVersion`
const UNSUPPORTED_VERSION: i64 = -32022;
/// How servers with sessions refuse what does not fit into one.
const LEGACY_REFUSAL: i64 = -32000;

/// An upstream that keeps nothing between two requests. One link serves everybody.
#[derive(Debug)]
pub(in crate::upstream) struct ModernLink {
    pub(super) channel: Arc<Channel>,
    /// What it said of itself last.
    known: ArcSwap<Known>,
    open: AtomicBool,
    /// Resources whose updates are wanted. They are so of the next link too.
    pub(super) watched: Arc<Watched>,
    /// What the upstream agreed to tell of them.
    pub(super) heard: watch::Sender<Heard>,
}

#[derive(Debug)]
struct Known {
    hello: Arc<Hello>,
    offers: Offers,
}

impl From<Discovered> for Known {
    fn from(discovered: Discovered) -> Self {
        Self { hello: Arc::new(discovered.hello), offers: discovered.offers }
    }
}

impl ModernLink {
    /// Asks the upstream what it can do.
    ///
    /// # Errors
    /// [`Unopened::Refused`] when it does not speak like this.
    pub(in crate::upstream) async fn open(
        context: LinkContext,
        endpoint: Arc<Endpoint>,
        watched: Arc<Watched>,
    ) -> Result<Arc<Self>, Unopened> {
        endpoint.forget_redirects();
        let channel = Channel::new(context, endpoint, None, Some(VERSION));
        let known = discover(&channel).await?.into();
        let link = Arc::new(Self {
            channel,
            known: ArcSwap::from_pointee(known),
            open: AtomicBool::new(true),
            watched,
            heard: watch::Sender::default(),
        });
        link.listen();
        Ok(link)
    }

    /// One request. Dropping the future, or a timeout, closes the connection, which cancels the request.
    pub(in crate::upstream) async fn call(&self, call: &OutCall) -> Result<Message, Failed> {
        let sleep = pin!(Timer::sleep(call.timeout, call.max_timeout));
        let mut timer = Timer::new(sleep, call.timeout, call.max_timeout);
        let channel = &self.channel;
        let (id, headers) = (channel.mint(), headers_of(call));
        let body = || call.text(id, VERSION);
        let out =
            Outgoing { method: Method::POST, headers: &channel.post, extra: &headers, body: &body };
        let reply = channel.endpoint.send(&out, Via::Pool, &mut timer, &mut false).await?;
        let answer = if reply.status().is_success() {
            taken(channel, call, id, reply, &mut timer).await?
        } else {
            // Boxed: the future of a call stays small where it is answered in one piece.
            Box::pin(refused(channel, id, reply, &mut timer)).await?
        };
        if answer.answer() == Answer::Error {
            self.check_hop(&answer)?;
        }
        Ok(answer)
    }

    /// Errors that are about this hop are nobody else's (MCP digest §6.4).
    fn check_hop(&self, answer: &Message) -> Result<(), Failed> {
        let endpoint = &self.channel.endpoint;
        match error_code(answer) {
            Some(HEADER_MISMATCH) => {
                Err(CallError::HeaderMismatch { upstream: endpoint.name.clone() }.into())
            }
            Some(UNSUPPORTED_VERSION) => {
                Err(Failed::EraLost(endpoint.protocol("it refuses a revision that it offers")))
            }
            _ => Ok(()),
        }
    }

    /// One notification. What only sessions know is not sent.
    pub(in crate::upstream) async fn notify(&self, message: &Message) -> Result<(), CallError> {
        let known = method_spec(message.method());
        let of_a_stream = message.method() == "notifications/cancelled";
        if of_a_stream || known.is_some_and(|spec| spec.eras == Eras::Legacy) {
            return Ok(());
        }
        let text = message.text().clone().into();
        let headers = headers_of_notification(message);
        self.channel.deliver(&text, &headers, self.channel.context.config.timeout).await
    }

    /// What the upstream said to `server/discover` last.
    pub(in crate::upstream) fn hello(&self) -> Arc<Hello> {
        Arc::clone(&self.known.load().hello)
    }

    /// What it offers to tell unasked.
    pub(super) fn offers(&self) -> Offers {
        self.known.load().offers
    }

    /// It said something new of itself.
    pub(super) fn learn(&self, discovered: Discovered) {
        self.known.store(Arc::new(discovered.into()));
    }

    /// Whether somebody waits for what it tells unasked.
    pub(in crate::upstream) fn is_watched(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Whether it can be used.
    pub(in crate::upstream) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Uses it no more. Calls that still wait for an answer go on.
    pub(in crate::upstream) fn close(&self) {
        self.open.store(false, Ordering::Release);
        self.channel.context.stop.cancel();
    }
}

/// Any status but 2xx. An error that answers the request is its answer; a refusal as servers with sessions have it
/// means that the upstream is another one by now.
async fn refused(
    channel: &Arc<Channel>,
    id: u64,
    reply: Reply<'_>,
    timer: &mut Timer<'_>,
) -> Result<Message, Failed> {
    let (status, error) = (reply.status(), reply.refusal());
    let waits = matches!(error, CallError::Status { retry_after: Some(_), .. });
    let text = reply.read_refusal(timer).await;
    let answer = text.and_then(|text| channel.settle(judge_text(text, id, Dialect::Mcp)).ok());
    let answer = answer.filter(|answer| answer.answer() == Answer::Error);
    match answer {
        _ if waits || is_of_this_hop(status) => Err(Failed::Call(error)),
        Some(answer) if !is_legacy(status, &answer) => Ok(answer),
        Some(_) => Err(Failed::EraLost(error)),
        None if matches!(status.as_u16(), 400 | 404 | 405) => Err(Failed::EraLost(error)),
        None => Err(Failed::Call(error)),
    }
}

/// Whether only a server with sessions answers like that.
fn is_legacy(status: StatusCode, answer: &Message) -> bool {
    match status {
        StatusCode::BAD_REQUEST => {
            error_code(answer) == Some(LEGACY_REFUSAL) || is_about_the_session(answer)
        }
        StatusCode::NOT_FOUND => is_about_the_session(answer),
        _ => false,
    }
}
