//! Asking an upstream whether it speaks without sessions (MCP digest §4.5).

use std::pin::pin;
use std::sync::Arc;

use http::{Method, StatusCode};

use super::channel::Channel;
use super::endpoint::{Outgoing, Via};
use super::judge::{Dialect, judge_text};
use super::link::{Failed, Unopened, error_code, taken};
use super::standard::headers_of;
use super::timer::Timer;
use crate::config::Revision;
use crate::jsonrpc::{Answer, Message};
use crate::mcp::ProtocolVersion;
use crate::upstream::CallError;
use crate::upstream::link::Hello;
use crate::upstream::subscription::Offers;

/// `UnsupportedProtocolVersion`
const UNSUPPORTED_VERSION: i64 = -32022;
/// How often the question is put: again when an upstream that refused our revision names it among its own.
const ATTEMPTS: usize = 2;

/// What the upstream said.
#[derive(Debug)]
pub(super) struct Discovered {
    pub(super) hello: Hello,
    pub(super) offers: Offers,
}

/// Sends `server/discover`.
///
/// # Errors
/// [`Unopened::Refused`] when the upstream answered in a way that no server of 2026-07-28 does. That it did not answer, was
/// overloaded or wanted other credentials says nothing of its era.
pub(super) async fn discover(channel: &Arc<Channel>) -> Result<Discovered, Unopened> {
    for _ in 0..ATTEMPTS {
        let answer = ask(channel).await?;
        if answer.answer() == Answer::Result {
            let result = answer.result().unwrap_or_default();
            let hello = Hello::discovered(&result);
            let hello = hello.map_err(|what| Unopened::Refused(channel.endpoint.protocol(what)))?;
            return Ok(Discovered { hello, offers: Offers::parse(&result) });
        }
        let code = error_code(&answer);
        if code != Some(UNSUPPORTED_VERSION) || !names_our_revision(&answer) {
            let code = code.map_or_else(|| "without code".to_owned(), |code| code.to_string());
            let what = format!("server/discover was refused with error {code}");
            return Err(Unopened::Refused(channel.endpoint.protocol(what)));
        }
    }
    Err(Unopened::Failed(channel.endpoint.protocol("it refuses a revision that it offers")))
}

/// One question to its answer, of whichever kind.
async fn ask(channel: &Arc<Channel>) -> Result<Message, Unopened> {
    let context = &channel.context;
    let limit = match context.config.revision {
        Revision::Auto => context.config.probe_timeout.min(context.config.timeout),
        Revision::Pinned(_) => context.config.timeout,
    };
    let call = context.own_call(Message::request("server/discover", None), limit);
    let sleep = pin!(Timer::sleep(limit, limit));
    let mut timer = Timer::new(sleep, limit, limit);
    let (id, headers) = (channel.mint(), headers_of(&call));
    let body = || call.text(id, ProtocolVersion::NEWEST_MODERN);
    let out =
        Outgoing { method: Method::POST, headers: &channel.post, extra: &headers, body: &body };
    let sent = channel.endpoint.send(&out, Via::Pool, &mut timer, &mut false).await;
    let reply = sent.map_err(Unopened::Failed)?;
    let status = reply.status();
    if status.is_success() {
        let answer = taken(channel, &call, id, reply, &mut timer).await;
        return answer.map_err(|failed| match failed.into_error() {
            // It answered, but not as a server of MCP does that knows the question.
            error @ CallError::Protocol { .. } => Unopened::Refused(error),
            error => Unopened::Failed(error),
        });
    }
    let error = reply.refusal();
    if !tells_of_the_era(status) {
        reply.finish(&mut timer).await;
        return Err(Unopened::Failed(error));
    }
    let text = reply.read_refusal(&mut timer).await;
    let answer = text.and_then(|text| channel.settle(judge_text(text, id, Dialect::Mcp)).ok());
    answer.filter(|answer| answer.answer() == Answer::Error).ok_or(Unopened::Refused(error))
}

/// Whether a server that does not know the question may refuse it like that.
pub(super) fn tells_of_the_era(status: StatusCode) -> bool {
    matches!(status.as_u16(), 400 | 404 | 405 | 406 | 415)
}

/// Whether `error.data.supported` names the revision that was asked for.
fn names_our_revision(answer: &Message) -> bool {
    let error = answer.error().unwrap_or_default();
    let error = serde_json::from_slice::<serde_json::Value>(&error).unwrap_or_default();
    let supported = error["data"]["supported"].as_array();
    let ours = ProtocolVersion::NEWEST_MODERN.as_str();
    supported.is_some_and(|supported| supported.iter().any(|name| name == ours))
}

impl From<Failed> for Unopened {
    fn from(failed: Failed) -> Self {
        Self::Failed(failed.into_error())
    }
}
