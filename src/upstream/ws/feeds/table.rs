//! The table behind [`super::Feeds`]: no connection, no clock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::order::{Ending, FeedLeft, Order, Orders};
use super::{FeedKind, Listener};
use crate::config::UpstreamName;
use crate::jsonrpc::{Answer, Message, ParamsPath, Span, compact};
use crate::upstream::CallError;

/// Most subscriptions over one place.
const MAX_FEEDS: usize = 100_000;
/// Most that wait for their first answer at once.
const MAX_ASKING: usize = 1024;
/// Most notifications that are kept until their id is known, and their bytes.
const MAX_HELD: (usize, usize) = (1024, 1 << 20);

/// The upstream's answer to a subscription.
pub(in crate::upstream::ws) type First = Result<Message, CallError>;

/// What a new listener is told.
#[derive(Debug)]
pub(in crate::upstream::ws) enum Joined {
    /// Others listen already; the answer that they got.
    Open(Message),
    /// The upstream is asked.
    Waits(oneshot::Receiver<First>),
}

/// One listener of one subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream::ws) struct Ticket {
    feed: u64,
    listener: u64,
}

/// There are too many subscriptions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream::ws) struct Full;

/// What is left of a subscription without one of its listeners.
#[derive(Debug)]
pub(in crate::upstream::ws) enum Left {
    /// Others listen, or there is no connection that it is open on.
    Nothing,
    /// It is to be ended at the upstream, which is to be ordered.
    Last(Ending),
}

/// Where a subscription is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// The upstream is being asked. Leads to `Open`, to `Late`, to `Lost`, or to its end.
    Asking,
    /// The upstream is being asked for too long: its answer is waited for only to end what it made. Leads to its end.
    Late,
    /// Under that id. Leads to `Lost`, or to its end.
    Open(Bytes),
    /// There is no connection. Leads to `Asking`, or to its end.
    Lost,
}

#[derive(Debug)]
struct Feed {
    kind: Arc<FeedKind>,
    /// Place of its shape.
    shape: usize,
    /// As its first client wrote it.
    request: Message,
    key: Option<Bytes>,
    phase: Phase,
    /// The last answer; none before the first.
    answer: Option<Message>,
    listeners: Arc<Vec<(u64, Arc<dyn Listener>)>>,
    /// Those of them that wait for the first answer.
    waiting: Vec<(u64, oneshot::Sender<First>)>,
}

/// How notifications are told apart.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    notification: String,
    id: ParamsPath,
}

/// A notification whose id is not known yet.
#[derive(Debug)]
struct Held {
    shape: usize,
    id: Bytes,
    notification: Message,
    span: Span,
}

/// All of it.
#[derive(Debug)]
pub(in crate::upstream::ws) struct Table {
    /// Whose.
    upstream: UpstreamName,
    /// The number given last, to a subscription or a listener.
    last: u64,
    feeds: HashMap<u64, Feed>,
    /// By shape and id.
    open: HashMap<(usize, Bytes), u64>,
    /// Left, and not known to have ended: an upstream may give an id anew as soon as it has.
    ending: HashMap<(usize, Bytes), u64>,
    shared: HashMap<Bytes, u64>,
    shapes: Vec<Shape>,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// How many are in [`Phase::Asking`].
    asking: usize,
    orders: Orders,
    connected: bool,
}

impl Table {
    /// Without subscriptions, and without a connection.
    pub(super) fn new(upstream: UpstreamName) -> Self {
        Self {
            upstream,
            last: 0,
            feeds: HashMap::new(),
            open: HashMap::new(),
            ending: HashMap::new(),
            shared: HashMap::new(),
            shapes: Vec::new(),
            held: VecDeque::new(),
            held_bytes: 0,
            asking: 0,
            orders: Orders::default(),
            connected: false,
        }
    }

    fn protocol(&self, what: &str) -> CallError {
        let (upstream, what) = (self.upstream.clone(), what.to_owned());
        CallError::Protocol { upstream, what, upstream_error: None }
    }

    pub(super) fn subscribe(
        &mut self,
        kind: &Arc<FeedKind>,
        request: &Message,
        listener: Arc<dyn Listener>,
    ) -> Result<(Ticket, Joined), Full> {
        let shape = self.shape(kind);
        let key = kind.share.then(|| key_of(shape, request));
        let known = key.as_ref().and_then(|key| self.shared.get(key)).copied();
        let feed = match known {
            Some(feed) => feed,
            None => self.add(kind, shape, (key, request))?,
        };
        self.last += 1;
        let ticket = Ticket { feed, listener: self.last };
        let feed = self.feeds.get_mut(&feed).expect("it was found, or was added");
        Arc::make_mut(&mut feed.listeners).push((ticket.listener, listener));
        let joined = match (&feed.phase, &feed.answer) {
            (Phase::Open(_), Some(answer)) => Joined::Open(answer.clone()),
            (Phase::Asking | Phase::Late | Phase::Lost | Phase::Open(_), _) => {
                let (first, waits) = oneshot::channel();
                feed.waiting.push((ticket.listener, first));
                Joined::Waits(waits)
            }
        };
        Ok((ticket, joined))
    }

    fn add(
        &mut self,
        kind: &Arc<FeedKind>,
        shape: usize,
        (key, request): (Option<Bytes>, &Message),
    ) -> Result<u64, Full> {
        if self.feeds.len() + self.ending.len() >= MAX_FEEDS || self.asking >= MAX_ASKING {
            return Err(Full);
        }
        self.last += 1;
        let number = self.last;
        if let Some(key) = &key {
            self.shared.insert(key.clone(), number);
        }
        let feed = Feed {
            kind: Arc::clone(kind),
            shape,
            request: copied(request),
            key,
            phase: Phase::Lost,
            answer: None,
            listeners: Arc::default(),
            waiting: Vec::new(),
        };
        self.feeds.insert(number, feed);
        if self.connected {
            self.ask(number);
        }
        Ok(number)
    }

    /// Has the upstream asked for what is lost.
    fn ask(&mut self, number: u64) {
        let Some(feed) = self.feeds.get_mut(&number) else { return };
        feed.phase = Phase::Asking;
        self.asking += 1;
        self.orders.asks.push_back((number, feed.request.clone()));
    }

    pub(super) fn leave(&mut self, ticket: Ticket) -> Left {
        let Some(feed) = self.feeds.get_mut(&ticket.feed) else { return Left::Nothing };
        feed.drop_listener(ticket.listener);
        if !feed.listeners.is_empty() {
            return Left::Nothing;
        }
        match feed.phase.clone() {
            Phase::Asking | Phase::Late => {
                // Its answer is waited for, to end it then; nobody joins it any more.
                let key = feed.key.take();
                key.map(|key| self.shared.remove(&key));
                Left::Nothing
            }
            Phase::Open(id) => match self.remove(ticket.feed) {
                Some(feed) => Left::Last(self.ending(ticket.feed, &feed, id)),
                None => Left::Nothing,
            },
            Phase::Lost => {
                self.remove(ticket.feed);
                Left::Nothing
            }
        }
    }

    /// What was under that id has been left.
    fn ending(&mut self, number: u64, feed: &Feed, id: Bytes) -> Ending {
        let key = (feed.shape, id.clone());
        self.forget(&key);
        self.ending.insert(key, number);
        let left = FeedLeft { feed: number, kind: Arc::clone(&feed.kind), id };
        Ending { left, wish: None }
    }

    /// The upstream has answered that a subscription ended; its id may be another's from now on, or is already.
    pub(super) fn over(&mut self, left: &FeedLeft) {
        let key = (self.shape(&left.kind), left.id.clone());
        if self.ending.get(&key) == Some(&left.feed) {
            self.ending.remove(&key);
            self.forget(&key);
        }
    }

    /// Drops what is kept under an id.
    fn forget(&mut self, (shape, id): &(usize, Bytes)) {
        self.held.retain(|held| held.shape != *shape || held.id != *id);
        self.held_bytes = self.held.iter().map(|held| held.notification.text().len()).sum();
    }

    pub(super) fn order(&mut self, ending: Ending) {
        self.orders.ends.push_back(ending);
    }

    /// At most so many of either sort.
    pub(super) fn take_orders(&mut self, asks: usize, ends: usize) -> Vec<Order> {
        let ends = ends.min(self.orders.ends.len());
        let asks = asks.min(self.orders.asks.len());
        let mut orders: Vec<_> = self.orders.ends.drain(..ends).map(Order::End).collect();
        let asks: Vec<_> = self.orders.asks.drain(..asks).collect();
        for (number, request) in asks {
            if self.feeds.get(&number).is_some_and(|feed| feed.listeners.is_empty()) {
                // Its client has gone: the upstream need not hear of it.
                self.remove(number);
                self.less_asking();
            } else {
                orders.push(Order::Ask(number, request));
            }
        }
        orders
    }

    /// One less is in [`Phase::Asking`].
    fn less_asking(&mut self) {
        self.asking -= 1;
        if self.asking == 0 {
            // Whatever they are of, it is nobody's.
            self.held.clear();
            self.held_bytes = 0;
        }
    }

    pub(super) fn notified(&mut self, notification: &Message) -> bool {
        for (shape, known) in self.shapes.iter().enumerate() {
            if known.notification != notification.method() {
                continue;
            }
            let Some(span) = known.id.find(notification) else { continue };
            let key = (shape, notification.text().slice(span.range()));
            if let Some(feed) = self.open.get(&key).and_then(|feed| self.feeds.get(feed)) {
                for (_, listener) in feed.listeners.iter() {
                    listener.notified(notification, span);
                }
                return true;
            }
            if self.ending.contains_key(&key) {
                return false;
            }
            if self.asking > 0 {
                let (shape, id) = key;
                return self.hold(Held { shape, id, notification: notification.clone(), span });
            }
        }
        false
    }

    /// Keeps a notification that comes before the answer that says whose it is.
    fn hold(&mut self, held: Held) -> bool {
        let bytes = self.held_bytes + held.notification.text().len();
        if self.held.len() >= MAX_HELD.0 || bytes > MAX_HELD.1 {
            return false;
        }
        self.held_bytes = bytes;
        self.held.push_back(held);
        true
    }

    pub(super) fn answered(&mut self, number: u64, answer: First) {
        let asked = |feed: &&Feed| matches!(feed.phase, Phase::Asking | Phase::Late);
        let Some(feed) = self.feeds.get(&number).filter(asked) else { return };
        let is_late = feed.phase == Phase::Late;
        let result = answer.as_ref().is_ok_and(|answer| answer.answer() == Answer::Result);
        let id = answer.as_ref().ok().filter(|_| result).and_then(id_of);
        let is_left = feed.listeners.is_empty();
        match (id.map(|id| (feed.shape, id)), answer) {
            (Some(key), Ok(_)) if self.open.contains_key(&key) => {
                let what = "it gave the id of another subscription; `share = true` may help";
                self.ended(number, Err(self.protocol(what)));
            }
            (Some((_, id)), Ok(_)) if is_left => {
                if let Some(feed) = self.remove(number) {
                    let ending = self.ending(number, &feed, id);
                    self.order(ending);
                }
            }
            (Some(key), Ok(answer)) => self.opened(number, key, answer),
            (None, Ok(_)) if result => {
                let what = "the id of its subscription is neither a string nor a number";
                self.ended(number, Err(self.protocol(what)));
            }
            (_, answer) => self.ended(number, answer),
        }
        if !is_late {
            self.less_asking();
        }
    }

    fn opened(&mut self, number: u64, key: (usize, Bytes), answer: Message) {
        let Some(feed) = self.feeds.get_mut(&number) else { return };
        let before = feed.answer.replace(copied(&answer));
        feed.phase = Phase::Open(key.1.clone());
        let waiting = std::mem::take(&mut feed.waiting);
        let listeners = Arc::clone(&feed.listeners);
        if before.is_some() {
            let waits = |listener: u64| waiting.iter().any(|(number, _)| *number == listener);
            listeners.iter().filter(|(number, _)| !waits(*number)).for_each(|(_, l)| l.resumed());
        }
        for (_, first) in waiting {
            let _ = first.send(Ok(answer.clone()));
        }
        let (theirs, rest): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(|held| held.shape == key.0 && held.id == key.1);
        self.held = rest;
        // The upstream gives it anew: what had it before has ended there.
        self.ending.remove(&key);
        self.open.insert(key, number);
        for Held { notification, span, .. } in theirs {
            self.held_bytes -= notification.text().len();
            listeners.iter().for_each(|(_, listener)| listener.notified(&notification, span));
        }
    }

    /// Takes one out that was refused, or could not be asked for; everybody is told.
    fn ended(&mut self, number: u64, answer: First) {
        let Some(mut feed) = self.remove(number) else { return };
        let why = match &answer {
            Ok(_) => "the upstream refuses the subscription".to_owned(),
            Err(error) => error.to_string(),
        };
        let waiting = std::mem::take(&mut feed.waiting);
        for (listener, first) in waiting {
            feed.drop_listener(listener);
            let _ = first.send(match &answer {
                Ok(answer) => Ok(answer.clone()),
                Err(error) => Err(error.again()),
            });
        }
        feed.listeners.iter().for_each(|(_, listener)| listener.ended(&why));
    }

    pub(super) fn late(&mut self, number: u64, error: &CallError) {
        let Some(feed) = self.feeds.get_mut(&number) else { return };
        if feed.phase != Phase::Asking {
            return;
        }
        if let Some(key) = feed.key.take() {
            self.shared.remove(&key);
        }
        for (listener, first) in std::mem::take(&mut feed.waiting) {
            feed.drop_listener(listener);
            let _ = first.send(Err(error.again()));
        }
        let listeners = std::mem::take(&mut feed.listeners);
        feed.phase = Phase::Late;
        listeners.iter().for_each(|(_, listener)| listener.ended(&error.to_string()));
        self.less_asking();
    }

    pub(super) fn lost(&mut self) {
        self.connected = false;
        self.open.clear();
        self.ending.clear();
        self.orders.clear();
        self.held.clear();
        (self.held_bytes, self.asking) = (0, 0);
        // What nobody listens to was only kept to be ended.
        self.feeds.retain(|_, feed| !feed.listeners.is_empty());
        self.feeds.values_mut().for_each(|feed| feed.phase = Phase::Lost);
    }

    pub(super) fn found(&mut self) {
        self.connected = true;
        let mut lost: Vec<u64> = self.feeds.keys().copied().collect();
        // In the order in which they began.
        lost.sort_unstable();
        lost.into_iter().for_each(|number| self.ask(number));
    }

    pub(super) fn failed(&mut self, error: &CallError, gone: bool) {
        let numbers: Vec<u64> = self.feeds.keys().copied().collect();
        for number in numbers {
            let Some(feed) = self.feeds.get_mut(&number) else { continue };
            if gone || feed.answer.is_none() {
                self.ended(number, Err(error.again()));
                continue;
            }
            for (listener, first) in std::mem::take(&mut feed.waiting) {
                feed.drop_listener(listener);
                let _ = first.send(Err(error.again()));
            }
        }
    }

    fn remove(&mut self, number: u64) -> Option<Feed> {
        let feed = self.feeds.remove(&number)?;
        if let Some(key) = &feed.key {
            self.shared.remove(key);
        }
        if let Phase::Open(id) = &feed.phase {
            self.open.remove(&(feed.shape, id.clone()));
        }
        Some(feed)
    }

    /// The place of a kind's shape, of which there are as many as are configured.
    fn shape(&mut self, kind: &FeedKind) -> usize {
        let is_its = |shape: &Shape| shape.notification == kind.notification && shape.id == kind.id;
        self.shapes.iter().position(is_its).unwrap_or_else(|| {
            self.shapes
                .push(Shape { notification: kind.notification.clone(), id: kind.id.clone() });
            self.shapes.len() - 1
        })
    }

    /// Whether nothing is kept.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.feeds.is_empty()
            && self.open.is_empty()
            && self.ending.is_empty()
            && self.shared.is_empty()
            && self.held.is_empty()
            && (self.held_bytes, self.asking) == (0, 0)
    }
}

impl Feed {
    fn drop_listener(&mut self, listener: u64) {
        self.waiting.retain(|(number, _)| *number != listener);
        Arc::make_mut(&mut self.listeners).retain(|(number, _)| *number != listener);
    }
}

/// A message that keeps nothing of the text it stood in, which may have been a large array.
fn copied(message: &Message) -> Message {
    let text = Bytes::copy_from_slice(message.text());
    Message::parse_answer(text, u16::MAX).unwrap_or_else(|_| message.clone())
}

/// What equal subscriptions have in common: method and params, as they are spelt.
fn key_of(shape: usize, request: &Message) -> Bytes {
    let params = request.params().map(|params| compact(&params)).unwrap_or_default();
    format!("{shape} {:?} {}", request.method(), String::from_utf8_lossy(&params)).into()
}

/// The id of a subscription, from the answer to its request: a result that is a string or a number.
fn id_of(answer: &Message) -> Option<Bytes> {
    let result = answer.result()?;
    let is_id = matches!(result.first(), Some(b'"' | b'-' | b'0'..=b'9'));
    // Copied: the answer may be large.
    is_id.then(|| Bytes::copy_from_slice(&result))
}
