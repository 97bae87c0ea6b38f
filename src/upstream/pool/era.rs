//! In which era an upstream is spoken to, and so which link serves a key.
//!
//! Callers name the era of their client. An upstream that knows it is spoken to in it, any other in the other one; an
//! upstream without sessions needs one link for everybody.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::Upstream;
use super::slot::{Found, Landed, Link, Slot, Visit};
use crate::config::Revision;
use crate::mcp::{ClientCaps, Era, ProtocolVersion};
use crate::upstream::http::{Endpoint, HttpLink, ModernLink, SseLink, Unopened};
use crate::upstream::stdio::StdioLink;
use crate::upstream::subscription::Watched;
use crate::upstream::ws::{Target, WsLink};
use crate::upstream::{CallError, LinkKey, LinkScope};

/// Most slots that are looked at for one link: each opening may find out that the era is the other one.
const MOST_TURNS: usize = 4;

/// A link, and what keeps it from being retired.
pub(super) type Reached = (Visit, Link);

impl Upstream {
    /// The era in which a client of the era `wanted` is served, as far as is known.
    pub(super) fn spoken(&self, wanted: Era) -> Era {
        self.verdict.spoken(wanted, Instant::now())
    }

    /// The era in which the clients of a key are served, as far as is known.
    fn spoken_to(&self, key: &LinkKey) -> Era {
        let now = Instant::now();
        if key.caps.can_be_asked() {
            self.verdict.asks_in(key.era, now)
        } else {
            self.spoken(key.era)
        }
    }

    /// The key of the link that serves `key`, as far as is known.
    pub(super) fn place_now<'a>(&self, key: &'a LinkKey) -> Cow<'a, LinkKey> {
        self.place(key, self.spoken_to(key))
    }

    /// The key of the link that serves `key` in that era.
    pub(super) fn place<'a>(&self, key: &'a LinkKey, era: Era) -> Cow<'a, LinkKey> {
        let place = match era {
            Era::Legacy => {
                let caps = key.caps.of_a_session();
                if key.era == era && key.caps == caps {
                    return Cow::Borrowed(key);
                }
                LinkKey { scope: key.scope.clone(), caps, era }
            }
            Era::Modern => {
                // Only who is told to keep children apart does so: they share no more than their service identity.
                let apart = self.is_child() && self.config.isolation.is_some();
                let scope = if apart { key.scope.clone() } else { LinkScope::Shared };
                LinkKey { scope, caps: ClientCaps::NONE, era }
            }
        };
        Cow::Owned(place)
    }

    /// Whether it is a child that is spoken to over its pipes.
    pub(super) fn is_child(&self) -> bool {
        self.config.url.is_none() && self.config.command.is_some()
    }

    /// The link that serves a key, opened if it is not; waits no longer than `limit`.
    pub(super) async fn reach(
        self: &Arc<Self>,
        key: &LinkKey,
        limit: Duration,
    ) -> Result<Reached, CallError> {
        let era = self.spoken_to(key);
        let place = self.place(key, era);
        let visit = self.visit(&place)?;
        match visit.slot.find() {
            Found::Open(link) => Ok((visit, link)),
            found => Box::pin(self.come_by(key, era, (visit, found), limit)).await,
        }
    }

    /// Waits for a link. Where its opening finds out that the upstream is spoken to in the other era, that one's is
    /// next.
    async fn come_by(
        self: &Arc<Self>,
        key: &LinkKey,
        mut era: Era,
        first: (Visit, Found),
        limit: Duration,
    ) -> Result<Reached, CallError> {
        let began = Instant::now();
        let (mut visit, mut found) = first;
        for _ in 0..MOST_TURNS {
            let place = self.place(key, era);
            let left = limit.saturating_sub(began.elapsed());
            match self.landed(&visit.slot, &place, found, left).await {
                Some(Landed::Open(link)) => return Ok((visit, link)),
                Some(Landed::Failed(error)) => return Err(error.again()),
                Some(Landed::Elsewhere) => {}
                None => {
                    return Err(CallError::Timeout { upstream: self.name.clone(), after: limit });
                }
            }
            era = era.other();
            visit = self.visit(&self.place(key, era))?;
            found = visit.slot.find();
        }
        Err(self.unreachable("it changes how it is spoken to"))
    }

    /// Opens the link with that key. That of the other era is opened where the upstream has none of this one.
    pub(super) async fn open(self: &Arc<Self>, place: &LinkKey) -> Landed {
        match self.try_open(place).await {
            Ok(Some(link)) => {
                self.verdict.found(place.era);
                Landed::Open(link)
            }
            Ok(None) => Landed::Elsewhere,
            Err(error) => {
                // What comes back may be another version.
                self.verdict.forget();
                Landed::Failed(Arc::new(error))
            }
        }
    }

    /// `None` when the upstream does not speak in the era of the key.
    async fn try_open(self: &Arc<Self>, place: &LinkKey) -> Result<Option<Link>, CallError> {
        if let Some(error) = self.hold.refusal(Instant::now()) {
            return Err(error);
        }
        if self.is_child() {
            return self.open_child(place).await;
        }
        if let Some(target) = self.ws_target().await? {
            return self.open_connection(place, &target).await;
        }
        let (endpoint, _) = self.dialled().await?;
        match place.era {
            Era::Legacy => self.open_session(place, endpoint).await,
            Era::Modern => self.open_modern(place, endpoint).await,
        }
    }

    /// A child finds out itself how it is spoken to.
    async fn open_child(self: &Arc<Self>, place: &LinkKey) -> Result<Option<Link>, CallError> {
        let link = match StdioLink::open(self.context(place)).await {
            Ok(link) => link,
            Err(error) if place.era == Era::Modern && self.has_sessions() => {
                // Some bear no second child beside the first, which serves well.
                tracing::debug!(upstream = %self.name, %error, "it was not found out what it speaks");
                self.verdict.refused(Era::Modern, Instant::now());
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let era = link.hello().version.era();
        if era == place.era {
            return Ok(Some(Link::Stdio(link)));
        }
        // Another key, with other capabilities: this child was started only to find out.
        link.close().await;
        self.verdict.refused(place.era, Instant::now());
        Ok(None)
    }

    /// Who is spoken to over WebSocket is asked on the connection which era it speaks, like a child.
    async fn open_connection(
        self: &Arc<Self>,
        place: &LinkKey,
        target: &Target,
    ) -> Result<Option<Link>, CallError> {
        let link = WsLink::open(self.context(place), target, self.watched()).await?;
        if link.hello().version.era() == place.era {
            return Ok(Some(Link::Ws(link)));
        }
        // Another key, with other capabilities.
        link.close();
        self.verdict.refused(place.era, Instant::now());
        Ok(None)
    }

    async fn open_modern(
        self: &Arc<Self>,
        place: &LinkKey,
        endpoint: &Arc<Endpoint>,
    ) -> Result<Option<Link>, CallError> {
        match ModernLink::open(self.context(place), Arc::clone(endpoint), self.watched()).await {
            Ok(link) => Ok(Some(Link::Modern(link))),
            Err(Unopened::Refused(error)) if self.may_be_other() => {
                tracing::debug!(upstream = %self.name, %error, "it wants sessions");
                self.verdict.refused(Era::Modern, Instant::now());
                Ok(None)
            }
            Err(unopened) => Err(unopened.into_error()),
        }
    }

    /// `initialize`; where that is refused, it is asked whether it speaks without, and for a stream of the older binding to
    /// HTTP. Only when it does, the refusal counts.
    async fn open_session(
        self: &Arc<Self>,
        place: &LinkKey,
        endpoint: &Arc<Endpoint>,
    ) -> Result<Option<Link>, CallError> {
        let older_first = self.begins_with_a_stream();
        if older_first && let Some(link) = self.open_stream(place, endpoint).await? {
            return Ok(Some(link));
        }
        let error = match HttpLink::open(self.context(place), Arc::clone(endpoint)).await {
            Ok(link) if !link.has_session() && self.can_ask_otherwise(place) => {
                tracing::debug!(upstream = %self.name, "without a session it could ask nothing");
                link.close().await;
                self.verdict.asks_nothing();
                return Ok(None);
            }
            Ok(link) => return Ok(Some(Link::Http(link))),
            Err(Unopened::Refused(error)) => error,
            Err(unopened) => return Err(unopened.into_error()),
        };
        if self.has_modern() {
            self.verdict.refused(Era::Legacy, Instant::now());
            return Ok(None);
        }
        if self.may_be_other() {
            let modern = self.place(place, Era::Modern).into_owned();
            match ModernLink::open(self.context(&modern), Arc::clone(endpoint), self.watched())
                .await
            {
                Ok(link) => {
                    tracing::debug!(upstream = %self.name, %error, "it wants no sessions");
                    self.verdict.found(Era::Modern);
                    self.verdict.refused(Era::Legacy, Instant::now());
                    self.adopt(&modern, Link::Modern(link)).await;
                    return Ok(None);
                }
                Err(Unopened::Refused(_)) => {}
                Err(Unopened::Failed(error)) => return Err(error),
            }
        }
        // What answers as JSON-RPC has it would not do so for want of a stream.
        let no_rpc = matches!(error, CallError::Status { .. });
        if no_rpc
            && !older_first
            && let Some(link) = self.open_stream(place, endpoint).await?
        {
            return Ok(Some(link));
        }
        Err(error)
    }

    /// Whether the older binding to HTTP is tried before the newer one.
    fn begins_with_a_stream(&self) -> bool {
        let pinned = self.config.revision == Revision::Pinned(ProtocolVersion::V2024_11_05);
        pinned || self.older.load(Ordering::Relaxed)
    }

    /// Opens a session of the older binding to HTTP; `None` when there is none.
    async fn open_stream(
        &self,
        place: &LinkKey,
        endpoint: &Arc<Endpoint>,
    ) -> Result<Option<Link>, CallError> {
        let opened = SseLink::open(self.context(place), Arc::clone(endpoint)).await;
        self.older.store(opened.is_ok(), Ordering::Relaxed);
        match opened {
            Ok(link) => Ok(Some(Link::Sse(link))),
            Err(Unopened::Refused(error)) => {
                tracing::debug!(upstream = %self.name, %error, "it offers no stream");
                Ok(None)
            }
            Err(unopened) => Err(unopened.into_error()),
        }
    }

    /// Puts a link that was opened in the course of another opening where it belongs.
    async fn adopt(self: &Arc<Self>, place: &LinkKey, link: Link) {
        match self.visit(place).map(|visit| (visit.slot.find(), visit)) {
            Ok((Found::Yours(sender, _), visit)) => {
                self.arrive(&visit.slot, place, Landed::Open(link), sender).await;
            }
            // Somebody else has opened one.
            Ok(_) | Err(_) => link.close().await,
        }
    }

    fn watched(&self) -> Arc<Watched> {
        Arc::clone(&self.watched)
    }

    /// Whether a session is up, so that it may be spoken to in that era.
    fn has_sessions(&self) -> bool {
        self.may_be_other() && self.is_up_in(Era::Legacy)
    }

    /// Whether it is spoken to without sessions already.
    fn has_modern(&self) -> bool {
        self.may_be_other() && self.verdict.speaks(Era::Modern) && self.is_up_in(Era::Modern)
    }

    fn is_up_in(&self, era: Era) -> bool {
        let is_up = |link: Link| link.is_up();
        let up = |slot: &Slot| slot.open_link().is_some_and(is_up);
        self.links.iter().any(|slot| slot.key().era == era && up(&slot))
    }

    /// Whether the clients of a link may be asked something, and the upstream could do so in its other era.
    fn can_ask_otherwise(&self, place: &LinkKey) -> bool {
        self.may_be_other() && place.caps.can_be_asked() && self.verdict.speaks(Era::Modern)
    }

    /// Whether the configuration leaves it to the upstream how it is spoken to.
    fn may_be_other(&self) -> bool {
        self.config.revision == Revision::Auto
    }
}
