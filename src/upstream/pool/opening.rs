//! Coming by a link: once for all who wait, in a task of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::slot::{Flight, Found, Landed, Link, Slot, Visit};
use super::{MAX_LINKS, Upstream};
use crate::mcp::{ClientCaps, Era};
use crate::upstream::http::{Endpoint, Plain};
use crate::upstream::link::{Inlet, LinkContext};
use crate::upstream::stdio::Process;
use crate::upstream::ws::{self, Target};
use crate::upstream::{CallError, LinkKey, LinkScope, NoticeKind};

/// The key of what is no link of any client.
const NOBODY: LinkKey =
    LinkKey { scope: LinkScope::Shared, caps: ClientCaps::NONE, era: Era::Legacy };

impl Upstream {
    /// Begins to use the slot of a key.
    pub(super) fn visit(self: &Arc<Self>, key: &LinkKey) -> Result<Visit, CallError> {
        if let Some(slot) = self.links.get(key) {
            return Ok(Visit::begin(&slot));
        }
        self.check_open()?;
        if self.links.len() >= MAX_LINKS && !self.evict() {
            return Err(CallError::Busy { upstream: self.name.clone() });
        }
        self.begin();
        if let LinkScope::Session(session) = key.scope {
            let mut keys = self.sessions.entry(session).or_default();
            if !keys.contains(key) {
                keys.push(key.clone());
            }
        }
        let slot = self.links.entry(key.clone()).or_default();
        Ok(Visit::begin(&slot))
    }

    /// What was found in a slot, opened if it is not; waits no longer than `limit`, then it is `None`.
    pub(super) async fn landed(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        key: &LinkKey,
        found: Found,
        limit: Duration,
    ) -> Option<Landed> {
        let flight = match found {
            Found::Open(link) => return Some(Landed::Open(link)),
            Found::Opening(flight) => flight,
            Found::Yours(sender, flight) => {
                self.take_off(slot, key, sender);
                flight
            }
        };
        let landed = timeout(limit, landing(flight)).await.ok()?;
        Some(landed.unwrap_or_else(|| {
            Landed::Failed(Arc::new(self.unreachable("opening it was interrupted")))
        }))
    }

    /// Opens a link in a task of its own: no caller's hanging up interrupts it for the others.
    fn take_off(
        self: &Arc<Self>,
        slot: &Arc<Slot>,
        key: &LinkKey,
        sender: watch::Sender<Option<Landed>>,
    ) {
        let (upstream, slot, key) = (Arc::clone(self), Arc::clone(slot), key.clone());
        self.deps.tasks.spawn(async move {
            let landed = tokio::select! {
                () = upstream.stop.cancelled() => {
                    Landed::Failed(Arc::new(upstream.unreachable("it is being stopped")))
                }
                landed = upstream.open(&key) => landed,
            };
            upstream.arrive(&slot, &key, landed, sender).await;
        });
    }

    /// Notes what an opening came to, tells those who wait, and reports it.
    pub(super) async fn arrive(
        &self,
        slot: &Slot,
        key: &LinkKey,
        landed: Landed,
        sender: watch::Sender<Option<Landed>>,
    ) {
        if let Some(notice) = self.land(slot, landed, sender).await {
            self.inlet(key).send(notice).await;
        }
    }

    /// Notes what an opening came to, and tells those who wait. What is returned is to be reported.
    async fn land(
        &self,
        slot: &Slot,
        landed: Landed,
        sender: watch::Sender<Option<Landed>>,
    ) -> Option<NoticeKind> {
        let wanted = slot.land(&landed);
        if let (Landed::Open(link), false) = (&landed, wanted) {
            link.close().await;
        }
        let notice = match &landed {
            Landed::Open(link) => {
                self.known.note(link.hello());
                self.reached();
                self.hold.clear();
                slot.was_open(true);
                // A child says so itself, each time that it serves again.
                (!matches!(link, Link::Stdio(_))).then_some(NoticeKind::Opened)
            }
            Landed::Elsewhere => slot.was_open(false).then_some(NoticeKind::Lost),
            Landed::Failed(error) => {
                self.failed(error);
                self.hold.note(error, Instant::now());
                slot.was_open(false).then_some(NoticeKind::Lost)
            }
        };
        sender.send_replace(Some(landed));
        notice.filter(|_| wanted)
    }

    /// What is dialled over HTTP; its child, if it has one, is started and waited for.
    pub(super) async fn dialled(self: &Arc<Self>) -> Result<&(Arc<Endpoint>, Plain), CallError> {
        let http = self.http.as_ref().map_err(|what| self.unreachable(what))?;
        self.started().await?;
        Ok(http)
    }

    /// Where WebSocket connections lead, if that is what is spoken; the child, if there is one, is started and waited for.
    pub(super) async fn ws_target(self: &Arc<Self>) -> Result<Option<Arc<Target>>, CallError> {
        let Some(ws) = &self.ws else { return Ok(None) };
        let target = ws.target.as_ref().map_err(|what| self.unreachable(what))?;
        self.started().await?;
        Ok(Some(Arc::clone(target)))
    }

    /// The connections of plain JSON-RPC over WebSocket, if that is what is spoken.
    pub(super) async fn ws_plain(self: &Arc<Self>) -> Result<Option<&ws::Plain>, CallError> {
        let Some(target) = self.ws_target().await? else { return Ok(None) };
        let made = || ws::Plain::new(&self.context(&NOBODY), &target);
        Ok(self.ws.as_ref().map(|ws| ws.plain.get_or_init(made)))
    }

    /// Looks after what is used; the child, if there is one, is started and waited for.
    async fn started(self: &Arc<Self>) -> Result<(), CallError> {
        self.check_open()?;
        self.begin();
        if let Some(command) = &self.config.command {
            let start = || Process::start(self.context(&NOBODY), command.clone());
            self.process.get_or_init(start).ready().await?;
        }
        Ok(())
    }

    pub(super) fn context(&self, key: &LinkKey) -> LinkContext {
        LinkContext {
            name: self.name.clone(),
            config: Arc::clone(&self.config),
            metrics: Arc::clone(&self.deps.metrics),
            inlet: self.inlet(key),
            caps: key.caps,
            tasks: self.deps.tasks.clone(),
            stop: self.stop.child_token(),
            verdict: Arc::clone(&self.verdict),
            backoff: Arc::clone(&self.backoff),
        }
    }

    fn inlet(&self, key: &LinkKey) -> Inlet {
        let (upstream, link) = (self.name.clone(), key.clone());
        Inlet { upstream, link, notices: self.notices.clone() }
    }

    fn check_open(&self) -> Result<(), CallError> {
        let closing = self.closing.load(Ordering::Acquire);
        if closing { Err(self.unreachable("it is being stopped")) } else { Ok(()) }
    }

    pub(super) fn unreachable(&self, what: &str) -> CallError {
        CallError::Connect { upstream: self.name.clone(), what: what.to_owned(), source: None }
    }
}

/// Waits for the outcome of an opening.
async fn landing(mut flight: Flight) -> Option<Landed> {
    flight.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone())
}

/// The wait that an upstream asked for when it refused to open a link (C117): until then none is opened.
#[derive(Debug, Default)]
pub(super) struct Hold(Mutex<Option<(Instant, CallError)>>);

impl Hold {
    /// The refusal, with what is left of the wait.
    pub(super) fn refusal(&self, now: Instant) -> Option<CallError> {
        let hold = self.0.lock();
        let (until, error) = hold.as_ref()?;
        let left = until.checked_duration_since(now).filter(|left| !left.is_zero())?;
        let mut error = error.again();
        if let CallError::Status { retry_after, .. } = &mut error {
            *retry_after = Some(left);
        }
        Some(error)
    }

    /// Notes a failure, if it says how long to wait.
    fn note(&self, error: &CallError, now: Instant) {
        if let CallError::Status { retry_after: Some(wait), .. } = error {
            *self.0.lock() = Some((now + *wait, error.again()));
        }
    }

    fn clear(&self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::UpstreamName;

    #[test]
    fn no_link_is_opened_before_the_upstream_wants_it() {
        let (hold, now) = (Hold::default(), Instant::now());
        let upstream = UpstreamName::new("u").expect("a name");
        let second = Duration::from_secs(1);
        let refusal =
            |wait| CallError::Status { upstream: upstream.clone(), status: 429, retry_after: wait };
        hold.note(&refusal(None), now);
        assert!(hold.refusal(now).is_none());
        hold.note(&refusal(Some(3 * second)), now);
        let left = hold.refusal(now + second);
        assert!(
            matches!(left, Some(CallError::Status { retry_after: Some(left), .. }) if left == 2 * second)
        );
        assert!(hold.refusal(now + 3 * second).is_none());
        hold.clear();
        assert!(hold.refusal(now).is_none());
    }
}
