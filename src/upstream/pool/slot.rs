//! The place of one link in the pool: empty, being opened once for all who wait, or open.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::jsonrpc::Message;
use crate::upstream::http::{HttpLink, ModernLink, SseLink};
use crate::upstream::stdio::StdioLink;
use crate::upstream::ws::WsLink;
use crate::upstream::{CallError, Hello};

/// A link of either transport.
#[derive(Clone, Debug)]
pub(super) enum Link {
    /// A session over Streamable HTTP. A lost one is replaced by another link.
    Http(Arc<HttpLink>),
    /// An upstream without sessions over Streamable HTTP. A lost one is replaced by another link.
    Modern(Arc<ModernLink>),
    /// A session over the older binding to HTTP. A lost one is replaced by another link.
    Sse(Arc<SseLink>),
    /// A connection over WebSocket. A lost one is replaced by another link.
    Ws(Arc<WsLink>),
    /// A child. It is started again behind the same link.
    Stdio(Arc<StdioLink>),
}

impl Link {
    /// Whether calls are made on it, also if only to learn that a child is being started again.
    fn is_usable(&self) -> bool {
        match self {
            Self::Http(link) => link.is_open(),
            Self::Modern(link) => link.is_open(),
            Self::Sse(link) => link.is_open(),
            Self::Ws(link) => link.is_open(),
            Self::Stdio(_) => true,
        }
    }

    /// Whether the other end serves.
    pub(super) fn is_up(&self) -> bool {
        match self {
            Self::Http(link) => link.is_open(),
            Self::Modern(link) => link.is_open(),
            Self::Sse(link) => link.is_open(),
            Self::Ws(link) => link.is_open(),
            Self::Stdio(link) => link.is_open(),
        }
    }

    /// What the upstream said of itself last.
    pub(super) fn hello(&self) -> Arc<Hello> {
        match self {
            Self::Http(link) => link.hello(),
            Self::Modern(link) => link.hello(),
            Self::Sse(link) => link.hello(),
            Self::Ws(link) => link.hello(),
            Self::Stdio(link) => link.hello(),
        }
    }

    /// Sends a notification.
    pub(super) async fn notify(&self, message: &Message) -> Result<(), CallError> {
        match self {
            Self::Http(link) => link.notify(message).await,
            Self::Modern(link) => link.notify(message).await,
            Self::Sse(link) => link.notify(message),
            Self::Ws(link) => link.notify(message),
            Self::Stdio(link) => link.notify(message).await,
        }
    }

    /// For how long it has been there, of one that is a connection and so is lost with it.
    pub(super) fn age(&self) -> Option<Duration> {
        match self {
            Self::Sse(link) => Some(link.age()),
            Self::Ws(link) => Some(link.age()),
            Self::Http(_) | Self::Modern(_) | Self::Stdio(_) => None,
        }
    }

    /// Whether it is kept for updates of resources that nobody calls for.
    pub(super) fn is_watched(&self) -> bool {
        match self {
            Self::Modern(link) => link.is_watched(),
            Self::Ws(link) => link.is_watched(),
            Self::Http(_) | Self::Sse(_) | Self::Stdio(_) => false,
        }
    }

    /// Ends the session or the child.
    pub(super) async fn close(&self) {
        match self {
            Self::Http(link) => link.close().await,
            Self::Modern(link) => link.close(),
            Self::Sse(link) => link.close(),
            Self::Ws(link) => link.close(),
            Self::Stdio(link) => link.close().await,
        }
    }

    /// Wants to hear of updates of a resource; with a session that is asked for by a call.
    pub(super) async fn watch(&self, uri: &str) -> Result<(), CallError> {
        match self {
            Self::Modern(link) => link.watch(uri).await,
            Self::Ws(link) => link.watch(uri).await,
            Self::Stdio(link) => link.watch(uri).await,
            Self::Http(_) | Self::Sse(_) => Ok(()),
        }
    }

    /// Takes [`Link::watch`] back.
    pub(super) fn unwatch(&self, uri: &str) {
        match self {
            Self::Stdio(link) => link.unwatch(uri),
            // The pool knows what is watched there, also on the next link.
            Self::Modern(_) | Self::Http(_) | Self::Sse(_) | Self::Ws(_) => {}
        }
    }

    /// The upstream does not know it any more: nothing is left to end there.
    pub(super) fn abandon(&self) {
        match self {
            Self::Http(link) => link.abandon(),
            Self::Modern(link) => link.close(),
            Self::Sse(link) => link.close(),
            Self::Ws(link) => link.close(),
            Self::Stdio(_) => {}
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Http(one), Self::Http(two)) => Arc::ptr_eq(one, two),
            (Self::Modern(one), Self::Modern(two)) => Arc::ptr_eq(one, two),
            (Self::Sse(one), Self::Sse(two)) => Arc::ptr_eq(one, two),
            (Self::Ws(one), Self::Ws(two)) => Arc::ptr_eq(one, two),
            (Self::Stdio(one), Self::Stdio(two)) => Arc::ptr_eq(one, two),
            (Self::Http(_) | Self::Modern(_) | Self::Sse(_) | Self::Ws(_) | Self::Stdio(_), _) => {
                false
            }
        }
    }
}

/// What opening a link came to, for everybody who waits for it.
#[derive(Clone, Debug)]
pub(super) enum Landed {
    /// It is open.
    Open(Link),
    /// The upstream is spoken to in the other era: over the link of another slot.
    Elsewhere,
    /// It was not opened.
    Failed(Arc<CallError>),
}

/// Arrives once; the sender is gone when the opening was interrupted.
pub(super) type Flight = watch::Receiver<Option<Landed>>;

/// What stands in a slot.
#[derive(Debug, Default)]
enum Content {
    #[default]
    Empty,
    Opening(Flight),
    Open(Link),
}

/// How a link is come by.
pub(super) enum Found {
    /// It is there.
    Open(Link),
    /// It is being opened.
    Opening(Flight),
    /// The finder opens it and tells the sender; the others wait for the flight.
    Yours(watch::Sender<Option<Landed>>, Flight),
}

/// The place of one link, with what is known of its use.
#[derive(Debug, Default)]
pub(super) struct Slot {
    content: RwLock<Content>,
    /// Its session ended: whatever is still being opened is closed at once.
    ended: AtomicBool,
    /// Whether a link was open here and has not been reported lost.
    known_open: AtomicBool,
    /// Calls that use it now.
    active: AtomicUsize,
    /// When the last one ended, in milliseconds of [`millis`].
    last_used: AtomicU64,
}

impl Slot {
    /// The link, or how to come by it. One finder opens it, whoever comes meanwhile waits for the same outcome.
    pub(super) fn find(&self) -> Found {
        if let Content::Open(link) = &*self.content.read()
            && link.is_usable()
        {
            return Found::Open(link.clone());
        }
        let mut content = self.content.write();
        match &*content {
            Content::Open(link) if link.is_usable() => return Found::Open(link.clone()),
            // A flight whose sender is gone will not land.
            Content::Opening(flight) if flight.has_changed().is_ok() => {
                return Found::Opening(flight.clone());
            }
            Content::Open(_) | Content::Opening(_) | Content::Empty => {}
        }
        let (sender, flight) = watch::channel(None);
        *content = Content::Opening(flight.clone());
        Found::Yours(sender, flight)
    }

    /// The link, when it is open.
    pub(super) fn open_link(&self) -> Option<Link> {
        match &*self.content.read() {
            Content::Open(link) => Some(link.clone()),
            Content::Opening(_) | Content::Empty => None,
        }
    }

    /// Whether it is being opened.
    pub(super) fn is_opening(&self) -> bool {
        matches!(&*self.content.read(), Content::Opening(flight) if flight.has_changed().is_ok())
    }

    /// Notes the outcome of an opening. `false` when the link is not wanted any more.
    pub(super) fn land(&self, landed: &Landed) -> bool {
        let mut content = self.content.write();
        let wanted = !self.ended.load(Ordering::Acquire);
        *content = match landed {
            Landed::Open(link) if wanted => Content::Open(link.clone()),
            Landed::Open(_) | Landed::Elsewhere | Landed::Failed(_) => Content::Empty,
        };
        wanted
    }

    /// Whether a link was open here before; from now on `open` is.
    pub(super) fn was_open(&self, open: bool) -> bool {
        self.known_open.swap(open, Ordering::AcqRel)
    }

    /// Empties it, if that link is still there.
    pub(super) fn lose(&self, lost: &Link) {
        let mut content = self.content.write();
        if matches!(&*content, Content::Open(link) if link.is(lost)) {
            *content = Content::Empty;
        }
    }

    /// Takes the link out for good.
    pub(super) fn end(&self) -> Option<Link> {
        let mut content = self.content.write();
        self.ended.store(true, Ordering::Release);
        match std::mem::take(&mut *content) {
            Content::Open(link) => Some(link),
            opening @ Content::Opening(_) => {
                *content = opening;
                None
            }
            Content::Empty => None,
        }
    }

    /// For how long nobody has used it; `None` while somebody does.
    pub(super) fn unused_for(&self) -> Option<Duration> {
        let unused = self.active.load(Ordering::Acquire) == 0 && !self.is_opening();
        let since = self.last_used.load(Ordering::Relaxed);
        unused.then(|| Duration::from_millis(millis().saturating_sub(since)))
    }
}

/// A use of a slot: it is not swept meanwhile.
#[derive(Debug)]
pub(super) struct Visit {
    pub(super) slot: Arc<Slot>,
}

impl Visit {
    /// Begins one; called while the table of slots is locked, so that the sweeper sees it.
    pub(super) fn begin(slot: &Arc<Slot>) -> Self {
        slot.active.fetch_add(1, Ordering::AcqRel);
        Self { slot: Arc::clone(slot) }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.slot.last_used.store(millis(), Ordering::Relaxed);
        self.slot.active.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Milliseconds since the first use.
fn millis() -> u64 {
    static BEGINNING: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGINNING.elapsed().as_millis()).unwrap_or(u64::MAX)
}
