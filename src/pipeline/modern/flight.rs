//! A call of a modern client to a legacy upstream: it can outlive the request that began it (MCP digest §20.2).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{FutureExt, select_all};
use tokio::time::{Sleep, sleep};

use super::parked::Place;
use crate::exchange::bridge::{self, InputRequest};
use crate::exchange::{Action, Event, Exchange};
use crate::jsonrpc::{Chunks, Edit, Member, Message};
use crate::mcp::ClientCaps;
use crate::pipeline::call::{Context, Ended, cut_off, due};
use crate::pipeline::collect::{refused, unaskable};
use crate::pipeline::{Backend, Outlet};
use crate::upstream::{Answered, Ask, AskReply, CallError, CallEvent, EventQueue, OutCall};

/// How long is waited for further questions once one was asked: they belong into one result.
const GATHER: Duration = Duration::from_millis(50);
/// Most questions of one call that are open at once.
const MAX_ASKS: usize = 16;

type Call = Pin<Box<dyn Future<Output = Result<Answered, CallError>> + Send>>;

/// A call with what it has asked and nobody has answered.
pub(super) struct Flight {
    pub(super) backend: Arc<Backend>,
    call: Call,
    incoming: EventQueue,
    /// No event can come any more.
    dry: bool,
    pub(super) asks: Vec<Open>,
    /// How it ended, while nobody waited for it.
    ended: Option<Result<Answered, CallError>>,
    /// What the client of this call can be asked.
    caps: ClientCaps,
    /// Keys are used once.
    keys: u32,
    pub(super) round: u32,
    /// Bytes of what is called.
    size: usize,
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Flight").field("round", &self.round).finish_non_exhaustive()
    }
}

/// A question that is open.
pub(super) struct Open {
    pub(super) request: InputRequest,
    ask: Ask,
}

/// What came of driving a call.
pub(super) enum Turn {
    /// It has ended.
    Ended(Result<Answered, Ended>),
    /// It asks.
    Asks(Box<Flight>),
}

impl Flight {
    pub(super) fn new(
        cx: &Context,
        backend: &Arc<Backend>,
        out: OutCall,
        incoming: EventQueue,
    ) -> Box<Self> {
        let (upstream, key) = (Arc::clone(&backend.upstream), cx.link(backend));
        let size = out.message.text().len();
        Box::new(Self {
            backend: Arc::clone(backend),
            call: Box::pin(async move { upstream.call(&key, out).await }),
            incoming,
            dry: false,
            asks: Vec::new(),
            ended: None,
            caps: cx.session.caps(),
            keys: 0,
            round: 0,
            size,
        })
    }

    /// Drives the call for a request of its client until it ends or asks. Dropping the future cancels the call.
    ///
    /// `token`: what progress is told under, when it is not that of the request that began the call.
    pub(super) async fn drive(
        mut self: Box<Self>,
        cx: &Context,
        outlet: &Outlet,
        token: Token,
    ) -> Turn {
        if let Some(ended) = self.ended.take() {
            return Turn::Ended(finished(ended));
        }
        let tell = Tell { outlet, token };
        let mut exchange = Exchange::new(cx.log_floor());
        let mut gather: Option<Pin<Box<Sleep>>> =
            (!self.asks.is_empty()).then(|| Box::pin(sleep(GATHER)));
        loop {
            let asking = !self.asks.is_empty();
            if !asking {
                gather = None;
            }
            tokio::select! {
                biased;
                () = cx.pipeline.cut_off() => {
                    let name = self.backend.upstream.name().as_str();
                    return Turn::Ended(Err(Ended::Fault(cut_off(Some(name)))));
                }
                event = self.incoming.recv(), if !self.dry => {
                    match event {
                        None => self.dry = true,
                        Some(CallEvent::Ask(ask)) => {
                            if self.take(ask) && gather.is_none() {
                                gather = Some(Box::pin(sleep(GATHER)));
                            }
                        }
                        Some(event) => tell.take(&mut exchange, event).await,
                    }
                }
                place = withdrawn(&mut self.asks), if asking => {
                    self.asks.swap_remove(place);
                }
                answer = &mut self.call => {
                    while let Ok(event) = self.incoming.try_recv() {
                        tell.take(&mut exchange, event).await;
                    }
                    return Turn::Ended(finished(answer));
                }
                () = due(&mut gather) => return Turn::Asks(self),
            }
        }
    }

    /// Bytes that it holds, about.
    pub(super) fn size(&self) -> usize {
        self.size + self.asks.iter().map(|open| open.ask.message.text().len()).sum::<usize>()
    }

    /// Drives the call while no request waits for it: it may end, ask more, or take a question back. What it holds then is
    /// counted in `place`.
    pub(super) async fn drift(&mut self, place: &mut Place) {
        loop {
            let asking = !self.asks.is_empty();
            tokio::select! {
                event = self.incoming.recv(), if !self.dry => match event {
                    None => self.dry = true,
                    Some(CallEvent::Ask(ask)) => {
                        let size = ask.message.text().len();
                        if !place.has_room(size) {
                            ask.reply(refused(TOO_MANY.0, TOO_MANY.1));
                        } else if self.take(ask) {
                            place.add(size);
                        }
                    }
                    // Nobody sees what belongs to a request that was answered.
                    Some(_) => {}
                },
                place = withdrawn(&mut self.asks), if asking => {
                    self.asks.swap_remove(place);
                }
                answer = &mut self.call, if self.ended.is_none() => {
                    place.add(answer.as_ref().map_or(0, |answer| answer.message.text().len()));
                    self.ended = Some(answer);
                }
                else => std::future::pending().await,
            }
        }
    }

    /// Takes a question up, or refuses it.
    fn take(&mut self, ask: Ask) -> bool {
        let refusal = match unaskable(self.caps, &ask.message) {
            None if self.asks.len() < MAX_ASKS => None,
            None => Some(TOO_MANY),
            refusal => refusal,
        };
        if let Some((code, text)) = refusal {
            ask.reply(refused(code, text));
            return false;
        }
        let key = format!("k{}", self.keys);
        self.keys += 1;
        let request = bridge::asked(key, &ask.message);
        self.asks.push(Open { request, ask });
        true
    }

    /// Answers what was asked under these keys. Others are nobody's.
    pub(super) fn answer(&mut self, responses: &[(String, Bytes)]) {
        for (key, response) in responses {
            let place = self.asks.iter().position(|open| open.request.key == *key);
            if let Some(place) = place {
                let open = self.asks.swap_remove(place);
                open.ask.reply(AskReply::Answer(bridge::reply(response)));
            }
        }
    }

    /// Tells the upstream that nobody will answer: elicitations are cancelled, the rest is refused.
    pub(super) fn give_up(&mut self) {
        for open in self.asks.drain(..) {
            open.ask.reply(match open.request.method.as_str() {
                "elicitation/create" => {
                    let cancel = Bytes::from_static(br#"{"action":"cancel"}"#);
                    AskReply::Answer(bridge::reply(&cancel))
                }
                _ => refused(-32603, "the client did not answer"),
            });
        }
    }

    /// Lets the upstream hear what was replied last.
    pub(super) async fn settle(&mut self) {
        if self.ended.is_none() {
            let _ = tokio::time::timeout(Duration::from_secs(1), &mut self.call).await;
        }
    }
}

/// Why no more is asked.
const TOO_MANY: (i64, &str) = (-32603, "too many questions are open");

fn finished(ended: Result<Answered, CallError>) -> Result<Answered, Ended> {
    ended.map_err(|error| Ended::from(&error))
}

/// The place of a question that its upstream does not want answered any more.
async fn withdrawn(asks: &mut [Open]) -> usize {
    let waits = asks.iter_mut().map(|open| open.ask.withdrawn().boxed());
    let (_, place, _) = select_all(waits).await;
    place
}

/// What precedes the answer, on its way to the client of this round.
struct Tell<'a> {
    outlet: &'a Outlet,
    token: Token,
}

/// Under which token a client is told of progress.
pub(super) enum Token {
    /// That of the request that began the call, as it comes.
    First,
    /// That of a later round, if it gave one.
    Of(Option<Bytes>),
}

impl Tell<'_> {
    async fn take(&self, exchange: &mut Exchange, event: CallEvent) {
        let event = match event {
            CallEvent::Progress(text) => match self.under_token(text) {
                Some(text) => Event::Progress(text),
                None => return,
            },
            CallEvent::Notification(message) => Event::Notified(message),
            CallEvent::Ask(_) | CallEvent::Streaming => return,
        };
        if let Action::Forward(text) = exchange.on(event) {
            self.outlet.send(text).await;
        }
    }

    /// Progress under the token of this round; `None` when it gave none.
    fn under_token(&self, text: Chunks) -> Option<Chunks> {
        let token = match &self.token {
            Token::First => return Some(text),
            Token::Of(token) => token.clone()?,
        };
        let message = Message::parse(text.into_bytes(), u16::MAX).ok()?;
        let edit: Edit = (message.member_span(Member::ProgressToken)?, token);
        Some(message.edited(&[edit]))
    }
}
