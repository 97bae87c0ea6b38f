//! One session.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::channel::Channel;
use super::links::Links;
use super::track::Track;
use crate::config::RouteName;
use crate::jsonrpc::{Id, Message};
use crate::mcp::{ClientCaps, Era, ListKind, ProtocolVersion};
use crate::telemetry::SessionTag;

/// The unguessable name of a session: 128 random bits in hex.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionId(Arc<str>);

impl SessionId {
    /// A new one.
    pub(super) fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0_u8; 16];
        getrandom::fill(&mut bytes)?;
        Ok(Self(format!("{:032x}", u128::from_be_bytes(bytes)).into()))
    }

    /// No name.
    pub(super) fn none() -> Self {
        static NONE: LazyLock<SessionId> = LazyLock::new(|| SessionId("".into()));
        NONE.clone()
    }

    /// The text, as it stands in the header.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for SessionId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What `initialize` fixed.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// The route it was opened on; it is valid on no other.
    pub route: RouteName,
    /// Who opened it; it is valid for nobody else.
    pub principal: Option<Arc<str>>,
    /// The negotiated revision.
    pub version: ProtocolVersion,
    /// What the client declared.
    pub caps: ClientCaps,
    /// What the client says it is: `clientInfo` as JSON text.
    pub info: Option<Bytes>,
}

/// Most questions to one client at once.
const MAX_ASKS: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Inner {
    log_rank: Option<u8>,
    calls: Vec<(u64, Id, oneshot::Sender<()>)>,
    asks: HashMap<u64, oneshot::Sender<Message>>,
    /// Streams that can be read or resumed, oldest first.
    pub(super) tracks: VecDeque<Arc<Track>>,
    /// Those of them that take what belongs to no request.
    pub(super) standing: Vec<Arc<Track>>,
    /// The one stream of a session of HTTP+SSE, which takes everything.
    pub(super) channel: Option<Arc<Channel>>,
    /// Kinds of lists that changed while there was no standing stream.
    pub(super) missed: Vec<ListKind>,
    /// Links that results showed.
    links: Links,
    pub(super) ended: bool,
}

/// One legacy session.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    tag: SessionTag,
    number: u64,
    opened: NewSession,
    next: AtomicU64,
    /// Milliseconds since `epoch` at the last use.
    used: AtomicU64,
    epoch: Instant,
    in_use: AtomicU32,
    pub(super) inner: Mutex<Inner>,
}

impl Session {
    pub(super) fn new(id: SessionId, number: u64, opened: NewSession) -> Arc<Self> {
        Self::tagged(SessionTag::of(id.as_str()), id, number, opened)
    }

    /// Without a name. All of them have one tag, which is made once: it costs a hash.
    pub(super) fn nameless(number: u64, opened: NewSession) -> Arc<Self> {
        static TAG: LazyLock<SessionTag> = LazyLock::new(|| SessionTag::of(""));
        Self::tagged(*TAG, SessionId::none(), number, opened)
    }

    fn tagged(tag: SessionTag, id: SessionId, number: u64, opened: NewSession) -> Arc<Self> {
        Arc::new(Self {
            tag,
            id,
            number,
            opened,
            next: AtomicU64::new(1),
            used: AtomicU64::new(0),
            epoch: Instant::now(),
            in_use: AtomicU32::new(0),
            inner: Mutex::default(),
        })
    }

    /// Its name.
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Its name in logs.
    pub fn log_tag(&self) -> SessionTag {
        self.tag
    }

    /// Its number: unique in this process, never shown to a client.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The route it belongs to.
    pub fn route(&self) -> &RouteName {
        &self.opened.route
    }

    /// Who it belongs to.
    pub fn principal(&self) -> Option<&Arc<str>> {
        self.opened.principal.as_ref()
    }

    /// The negotiated revision.
    pub fn version(&self) -> ProtocolVersion {
        self.opened.version
    }

    /// What the client declared.
    pub fn caps(&self) -> ClientCaps {
        self.opened.caps
    }

    /// Its era.
    pub fn era(&self) -> Era {
        self.opened.version.era()
    }

    /// What the client says it is: `clientInfo` as JSON text.
    pub fn info(&self) -> Option<&Bytes> {
        self.opened.info.as_ref()
    }

    /// Lowest rank of log messages that the client asked for; `None` until it did.
    pub fn log_rank(&self) -> Option<u8> {
        self.inner.lock().log_rank
    }

    /// Keeps what `logging/setLevel` said.
    pub fn set_log_rank(&self, rank: u8) {
        self.inner.lock().log_rank = Some(rank);
    }

    /// Marks a use.
    pub fn touch(&self) {
        let since = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.used.store(since, Ordering::Relaxed);
    }

    /// How long it has been idle; zero while a call or stream is open.
    pub fn idle(&self) -> Duration {
        if self.in_use.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.epoch
            .elapsed()
            .saturating_sub(Duration::from_millis(self.used.load(Ordering::Relaxed)))
    }

    /// A number that is used once in this session.
    pub(super) fn mint(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Tells event ids of this session from those of others.
    pub(super) fn tag(&self) -> u32 {
        u32::from_str_radix(self.id.0.get(..8).unwrap_or_default(), 16)
            .unwrap_or_default()
            .reverse_bits()
    }

    /// Something begins to use it.
    pub(super) fn enter(&self) {
        self.in_use.fetch_add(1, Ordering::Relaxed);
    }

    /// Something has ended to use it.
    pub(super) fn leave(&self) {
        self.in_use.fetch_sub(1, Ordering::Relaxed);
        self.touch();
    }

    /// Registers a request, so that the client can cancel it. Two requests under one id are both served.
    pub fn open_call(self: &Arc<Self>, id: Id) -> OpenCall {
        // Nobody can name a nameless session, so nobody cancels or ends what it has open.
        if self.id.0.is_empty() {
            return OpenCall(None);
        }
        let (cancel, cancelled) = oneshot::channel();
        let number = self.mint();
        self.enter();
        let mut inner = self.inner.lock();
        if !inner.ended {
            inner.calls.push((number, id, cancel));
        }
        drop(inner);
        OpenCall(Some(Registered { session: Arc::clone(self), number, cancelled }))
    }

    /// The client cancels every request that it has open under this id; `false` if there is none.
    pub fn cancel(&self, id: &Id) -> bool {
        let mut inner = self.inner.lock();
        let before = inner.calls.len();
        let (cancelled, open) =
            std::mem::take(&mut inner.calls).into_iter().partition(|(_, open, _)| open == id);
        inner.calls = open;
        let found = inner.calls.len() < before;
        drop(inner);
        let cancelled: Vec<(u64, Id, oneshot::Sender<()>)> = cancelled;
        for (_, _, cancel) in cancelled {
            let _ = cancel.send(());
        }
        found
    }

    /// Mints the id of a question to the client; `None` when too many are open.
    pub fn open_ask(self: &Arc<Self>) -> Option<Ask> {
        let (reply, answer) = oneshot::channel();
        let number = self.mint();
        let mut inner = self.inner.lock();
        if inner.ended || inner.asks.len() >= MAX_ASKS {
            return None;
        }
        inner.asks.insert(number, reply);
        drop(inner);
        Some(Ask { session: Arc::clone(self), number, answer })
    }

    /// The client answered; `false` if nobody asked, or no longer waits.
    pub fn settle(&self, answer: Message) -> bool {
        let number = answer.id().and_then(|id| id.as_number());
        let waiter = number.and_then(|number| self.inner.lock().asks.remove(&number));
        waiter.is_some_and(|waiter| waiter.send(answer).is_ok())
    }

    /// Remembers which upstream showed a link to this URI.
    pub fn saw_link(&self, uri: &str, upstream: usize) {
        self.inner.lock().links.saw(uri, upstream);
    }

    /// The upstream that showed a link to this URI.
    pub fn link_owner(&self, uri: &str) -> Option<usize> {
        self.inner.lock().links.owner(uri)
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.inner.lock().ended
    }

    /// Ends it: streams close, open calls are cancelled, open questions fail.
    pub(super) fn end(&self) {
        let mut inner = self.inner.lock();
        inner.ended = true;
        let streams = std::mem::take(&mut inner.tracks);
        let channel = inner.channel.take();
        inner.standing.clear();
        let calls = std::mem::take(&mut inner.calls);
        let asks = std::mem::take(&mut inner.asks);
        drop(inner);
        for stream in streams {
            stream.close();
        }
        if let Some(channel) = channel {
            channel.close();
        }
        drop((calls, asks));
    }
}

/// A request that is being served; dropping it forgets it.
#[derive(Debug)]
pub struct OpenCall(Option<Registered>);

#[derive(Debug)]
struct Registered {
    session: Arc<Session>,
    number: u64,
    cancelled: oneshot::Receiver<()>,
}

impl OpenCall {
    /// Returns when the client cancelled, or the session ended.
    pub async fn cancelled(&mut self) {
        match &mut self.0 {
            Some(registered) => {
                let _ = (&mut registered.cancelled).await;
            }
            None => std::future::pending().await,
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.session.inner.lock().calls.retain(|(number, _, _)| *number != self.number);
        self.session.leave();
    }
}

/// A question to the client; dropping it forgets it.
#[derive(Debug)]
pub struct Ask {
    session: Arc<Session>,
    number: u64,
    answer: oneshot::Receiver<Message>,
}

impl Ask {
    /// The id to ask under.
    pub fn id(&self) -> Id {
        Id::from_number(self.number)
    }

    /// The client's answer; `None` when the session ended.
    pub async fn answer(&mut self) -> Option<Message> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        self.session.inner.lock().asks.remove(&self.number);
    }
}
