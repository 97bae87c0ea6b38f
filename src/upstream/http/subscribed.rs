//! One `subscriptions/listen` over HTTP: asking for it, and what comes (MCP digest §14.1).

use std::pin::pin;
use std::sync::Arc;

use http::{Method, StatusCode};
use tokio::time::Instant;

use super::channel::Channel;
use super::endpoint::{Outgoing, Via};
use super::judge::{Dialect, Judged, judge};
use super::link::error_code;
use super::reply::{Media, Reply};
use super::standard::headers_of;
use super::timer::Timer;
use crate::jsonrpc::{Answer, Kind, Message};
use crate::mcp::ProtocolVersion;
use crate::upstream::CallError;
use crate::upstream::link::{MAX_DEPTH, NoticeKind};
use crate::upstream::subscription::{Offers, Uris, Wanted, honoured, request};
use crate::wire::{SseDecoder, SseEvent};

/// Why there is no stream.
pub(super) enum Unheard {
    /// The upstream refuses to be listened to.
    Refused(CallError),
    /// It was not reached, or did not agree in time.
    Failed(CallError),
}

/// Sends `subscriptions/listen` and waits for the acknowledgement.
pub(super) async fn subscribe<'a>(
    channel: &'a Arc<Channel>,
    offers: Offers,
    want: &Wanted,
) -> Result<(Stream<'a>, Uris), Unheard> {
    let context = &channel.context;
    let limit = context.config.timeout;
    let sleep = pin!(Timer::sleep(limit, limit));
    let mut timer = Timer::new(sleep, limit, limit);
    let call = context.own_call(request(offers, &want.uris), limit);
    let (id, headers) = (channel.mint(), headers_of(&call));
    let body = || call.text(id, ProtocolVersion::NEWEST_MODERN);
    let out =
        Outgoing { method: Method::POST, headers: &channel.post, extra: &headers, body: &body };
    let sent = channel.endpoint.send(&out, Via::Own, &mut timer, &mut false).await;
    let reply = sent.map_err(Unheard::Failed)?;
    let streams = reply.status() == StatusCode::OK
        && reply.media() == Media::EventStream
        && reply.check_encoding().is_ok();
    if !streams {
        let error = reply.refusal();
        return Err(match reply.status().as_u16() {
            401 | 403 | 408 | 425 | 429 | 500.. => Unheard::Failed(error),
            200..=299 => Unheard::Refused(context.protocol("it opens no stream to listen to")),
            _ => Unheard::Refused(error),
        });
    }
    let mut stream = Stream {
        channel,
        reply,
        decoder: SseDecoder::new(context.config.max_message),
        id,
        offers,
        asked: Arc::clone(&want.uris),
        untold: None,
        began: Instant::now(),
        heard: false,
        retry: None,
    };
    match timer.within(stream.next()).await {
        Ok(Said::Acknowledged(message)) => Ok((stream, honoured(&message))),
        Ok(Said::Refused(error)) => Err(Unheard::Refused(error)),
        Ok(Said::Ended) => Err(Unheard::Failed(context.closed(true, "its stream ended"))),
        Err(late) => Err(Unheard::Failed(channel.endpoint.late(late))),
    }
}

/// What a stream has to say to this end.
pub(super) enum Said {
    /// `notifications/subscriptions/acknowledged`
    Acknowledged(Message),
    /// The upstream ended it with an error.
    Refused(CallError),
    /// It ended.
    Ended,
}

/// One `subscriptions/listen`. Dropping it closes its connection, which ends it.
pub(super) struct Stream<'a> {
    channel: &'a Arc<Channel>,
    reply: Reply<'a>,
    decoder: SseDecoder,
    id: u64,
    offers: Offers,
    /// The resources that it asked for.
    pub(super) asked: Uris,
    /// A notice that waits for room.
    untold: Option<NoticeKind>,
    pub(super) began: Instant,
    /// Whether it brought anything but the acknowledgement.
    pub(super) heard: bool,
    pub(super) retry: Option<u64>,
}

impl Stream<'_> {
    /// Passes on what it tells, until there is something for this end. Cancel safe.
    pub(super) async fn next(&mut self) -> Said {
        loop {
            if self.untold.is_some() {
                let inlet = &self.channel.context.inlet;
                let Ok(room) = inlet.notices.reserve().await else { return Said::Ended };
                if let Some(kind) = self.untold.take() {
                    room.send(inlet.notice(kind));
                }
            }
            match self.decoder.next_event() {
                Some(Ok(event)) => {
                    if let Some(said) = self.take(event) {
                        return said;
                    }
                }
                Some(Err(_)) => {
                    self.channel.context.metrics.stray.inc();
                    return Said::Ended;
                }
                None => match self.reply.next().await {
                    Ok(Some(data)) => self.decoder.push(data),
                    Ok(None) | Err(_) => return Said::Ended,
                },
            }
        }
    }

    fn take(&mut self, event: SseEvent) -> Option<Said> {
        if event.retry.is_some() {
            self.retry = event.retry;
        }
        if event.data.is_empty() || event.event.is_some() {
            return None;
        }
        let stray = &self.channel.context.metrics.stray;
        let Ok(message) = Message::parse_answer(event.data, MAX_DEPTH) else {
            stray.inc();
            return None;
        };
        match message.kind() {
            Kind::Response => return self.answered(message),
            Kind::Notification
                if message.method() == "notifications/subscriptions/acknowledged" =>
            {
                return Some(Said::Acknowledged(message));
            }
            Kind::Notification => {
                self.untold = NoticeKind::of(&message).filter(|kind| self.covers(kind));
                if self.untold.is_some() {
                    self.heard = true;
                } else {
                    stray.inc();
                }
            }
            Kind::Request => stray.inc(),
        }
        None
    }

    fn answered(&self, message: Message) -> Option<Said> {
        match judge(message, self.id, Dialect::Mcp) {
            Ok(Judged::Answer(answer) | Judged::Mended(answer)) => {
                if answer.answer() == Answer::Result {
                    return Some(Said::Ended);
                }
                let code = error_code(&answer).unwrap_or_default();
                let what = format!("it refused to be listened to with error {code}");
                Some(Said::Refused(self.channel.context.protocol(what)))
            }
            Ok(Judged::Foreign) | Err(_) => {
                self.channel.context.metrics.stray.inc();
                None
            }
        }
    }

    /// Whether that was asked for.
    fn covers(&self, kind: &NoticeKind) -> bool {
        match kind {
            NoticeKind::ListChanged(list) => self.offers.lists().any(|known| known == *list),
            // It may be below one that was asked for.
            NoticeKind::ResourceUpdated(_) => !self.asked.is_empty(),
            NoticeKind::Opened | NoticeKind::Lost | NoticeKind::Log(_) => false,
        }
    }
}
