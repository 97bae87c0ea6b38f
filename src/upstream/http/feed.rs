//! What an upstream without sessions tells unasked: one `subscriptions/listen`, kept open as long as the link (MCP digest
//! §14).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};

use super::discover::discover;
use super::link::Unopened;
use super::modern::ModernLink;
use super::stream::pause_of;
use super::subscribed::{Said, Stream, Unheard, subscribe};
use crate::upstream::CallError;
use crate::upstream::link::NoticeKind;
use crate::upstream::subscription::{Heard, Uris, Wanted, agreed, missed, pause};

/// The pause before a stream is opened again, when the upstream does not say.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The longest pause after failures.
const LONGEST_PAUSE: Duration = Duration::from_secs(64);
/// The pause after the upstream refused to be listened to.
const REFUSED_FOR: Duration = Duration::from_secs(600);
/// A stream that lasted this long was no failure.
const STEADY: Duration = Duration::from_secs(5);
/// How long a stream is read on after the one that takes its place was agreed to.
const OVERLAP: Duration = Duration::from_millis(250);
/// How long more may be heard than is watched.
const NARROW_AFTER: Duration = Duration::from_secs(2);

/// How the subscriptions of one link go.
#[derive(Default)]
struct Course {
    /// In a row.
    failures: u32,
    /// Whether changes may have been missed.
    missed: bool,
    /// The resources that were asked for last.
    tried: Uris,
    /// When the next stream is opened, if nothing else happens.
    due: Option<Instant>,
}

impl Course {
    /// Nobody listens for a while.
    fn failed(&mut self, good: bool, first: Duration) {
        self.missed = true;
        self.failures = if good { 0 } else { self.failures.saturating_add(1) };
        self.rest(pause(first, self.failures, LONGEST_PAUSE.max(first)));
    }

    fn rest(&mut self, wait: Duration) {
        self.due = Some(Instant::now() + wait);
    }
}

impl ModernLink {
    /// Listens in the background, where there is anything to hear, until the link is closed.
    pub(super) fn listen(self: &Arc<Self>) {
        if self.offers().is_nothing() {
            return;
        }
        let link = Arc::clone(self);
        self.channel.context.tasks.spawn(async move {
            let stop = link.channel.context.stop.clone();
            stop.run_until_cancelled(link.keep_listening()).await;
        });
    }

    /// Wants to hear of updates of a resource; resolves when the upstream has agreed.
    ///
    /// # Errors
    /// [`CallError::Protocol`] when it does not tell of it, [`CallError::Busy`] when too much is watched, and whatever may
    /// happen to a call.
    pub(in crate::upstream) async fn watch(&self, uri: &str) -> Result<(), CallError> {
        let context = &self.channel.context;
        if !self.offers().updates() {
            return Err(context.protocol("it does not tell of updates of resources"));
        }
        let gone = async {
            context.stop.cancelled().await;
            context.closed(true, "the link was closed")
        };
        agreed(context, &self.watched, uri, self.heard.subscribe(), gone).await
    }

    async fn keep_listening(&self) {
        let mut wanted = self.watched.subscribe();
        let mut open: Option<Stream<'_>> = None;
        let mut course = Course::default();
        loop {
            let want = wanted.borrow_and_update().clone();
            course.due = None;
            course.tried = Arc::clone(&want.uris);
            let next = {
                let mut opening = pin!(self.open_again(&want, course.missed && open.is_none()));
                loop {
                    tokio::select! {
                        biased;
                        next = &mut opening => break next,
                        // What is open is heard until the next one is.
                        () = end_of(&mut open) => {
                            open = None;
                            course.missed = true;
                        }
                    }
                }
            };
            match next {
                Ok(next) => {
                    // What was told on the old one before the new one was agreed to may still be on its way.
                    let _ = timeout(OVERLAP, end_of(&mut open)).await;
                    open = next;
                    if std::mem::take(&mut course.missed) {
                        self.tell_all(&want).await;
                    }
                }
                Err(unheard) => self.failed(unheard, &want, open.as_ref(), &mut course),
            }
            self.wait(&mut wanted, &mut open, &mut course).await;
            if !self.is_open() {
                return;
            }
        }
    }

    /// Resolves when a stream is to be opened.
    async fn wait(
        &self,
        wanted: &mut tokio::sync::watch::Receiver<Wanted>,
        open: &mut Option<Stream<'_>>,
        course: &mut Course,
    ) {
        loop {
            let due = course.due;
            tokio::select! {
                biased;
                changed = wanted.changed() => {
                    let want = wanted.borrow_and_update().clone();
                    let asked = open.as_ref().map_or(&course.tried, |stream| &stream.asked);
                    if changed.is_err() || !want.uris.is_subset(asked) {
                        course.failures = 0;
                        return wanted.mark_changed();
                    }
                    // All of it is heard already, or was refused.
                    let narrower = want.uris != *asked;
                    self.heard.send_modify(|heard| heard.number = Some(want.number));
                    if open.is_some() {
                        course.due = None;
                        if narrower {
                            course.rest(NARROW_AFTER);
                        }
                    }
                }
                () = end_of(open) => {
                    let Some(ended) = open.take() else { return };
                    let good = ended.heard || ended.began.elapsed() >= STEADY;
                    course.failed(good, pause_of(ended.retry, AGAIN_AFTER));
                }
                () = at(due) => return,
            }
        }
    }

    /// Notes that no stream was opened, and when to try again.
    fn failed(
        &self,
        unheard: Unheard,
        want: &Wanted,
        open: Option<&Stream<'_>>,
        course: &mut Course,
    ) {
        let missed = course.missed || open.is_none();
        let error = match unheard {
            Unheard::Refused(error) => {
                course.rest(REFUSED_FOR);
                error
            }
            Unheard::Failed(error) => {
                let wait = match &error {
                    CallError::Status { retry_after, .. } => retry_after.unwrap_or_default(),
                    _ => Duration::ZERO,
                };
                course.failed(false, AGAIN_AFTER.max(wait));
                error
            }
        };
        course.missed = missed;
        tracing::debug!(upstream = %self.channel.context.name, %error, "nobody listens");
        let uris = open.map(|_| self.heard.borrow().uris.clone()).unwrap_or_default();
        self.heard.send_replace(Heard {
            number: Some(want.number),
            uris,
            why: Some(Arc::new(error)),
        });
    }

    /// Opens one stream. After a break the upstream may be another version: it is asked what it can do first.
    async fn open_again(&self, want: &Wanted, afresh: bool) -> Result<Option<Stream<'_>>, Unheard> {
        if afresh {
            match discover(&self.channel).await {
                Ok(discovered) => self.learn(discovered),
                Err(Unopened::Refused(error)) => {
                    // The next call finds out what it speaks.
                    self.close();
                    self.channel.context.inlet.try_send(NoticeKind::Lost);
                    return Err(Unheard::Refused(error));
                }
                Err(Unopened::Failed(error)) => return Err(Unheard::Failed(error)),
            }
        }
        let offers = self.offers();
        if offers.lists().next().is_none() && want.uris.is_empty() {
            self.heard.send_replace(Heard { number: Some(want.number), ..Heard::default() });
            return Ok(None);
        }
        let (stream, uris) = subscribe(&self.channel, offers, want).await?;
        self.heard.send_replace(Heard { number: Some(want.number), uris, why: None });
        Ok(Some(stream))
    }

    /// Whatever is told may have changed while nobody listened.
    async fn tell_all(&self, want: &Wanted) {
        let inlet = &self.channel.context.inlet;
        inlet.send(NoticeKind::Opened).await;
        for kind in missed(&want.uris) {
            inlet.send(kind).await;
        }
    }
}

/// Resolves at an instant, if there is one.
async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Resolves when a stream ends that is there. Cancel safe.
async fn end_of(open: &mut Option<Stream<'_>>) {
    let Some(stream) = open else { return std::future::pending().await };
    while let Said::Acknowledged(_) = stream.next().await {}
}
