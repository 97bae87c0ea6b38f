//! Finding out which era a server speaks, and greeting it in that one (MCP digest §4.5).

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::super::{CallError, Hello};
use super::channel::{Channel, OnHangUp};
use super::listen::Offers;
use crate::config::Revision;
use crate::jsonrpc::{Answer, Member, Message};
use crate::mcp::{Era, ProtocolVersion};

/// The error of a server that does not speak the revision of a request (MCP 2026-07-28).
const UNSUPPORTED_VERSION: i64 = -32022;

/// What a greeting came to.
type Greeted = Result<Hello, CallError>;

impl Channel {
    /// Greets the server in the era of the client whose link it is, and where it does not know that one, in the other.
    /// `wary`: a server like this one ended over `server/discover`, so that comes last.
    ///
    /// # Errors
    /// [`CallError::Protocol`] when it refused every greeting, and whatever may happen to a call.
    pub(in crate::upstream) async fn greet(
        &self,
        limit: Duration,
        wary: bool,
    ) -> Result<Hello, CallError> {
        let plan = self.ctx.verdict.plan(self.ctx.inlet.link.era, Instant::now());
        let hello = match (self.ctx.config.revision, plan.first()) {
            (Revision::Pinned(version), _) => match version.era() {
                Era::Legacy => self.initialize(limit).await?,
                Era::Modern => self.discover(limit).await?,
            },
            (Revision::Auto, Some(Era::Modern)) if !wary => {
                // An upstream that was found to speak nothing else is given more time.
                let patience = if plan.contains(&Era::Legacy) {
                    self.ctx.config.probe_timeout
                } else {
                    self.ctx.config.probe_timeout.max(limit / 2)
                };
                self.probe(patience, limit).await?
            }
            (Revision::Auto, _) => self.initialize_first(limit, wary).await?,
        };
        let _ = self.version.set(hello.version);
        Ok(hello)
    }

    /// Greets a server that cannot but have sessions.
    pub(in crate::upstream) async fn greet_legacy(
        &self,
        limit: Duration,
    ) -> Result<Hello, CallError> {
        let hello = self.initialize(limit).await?;
        let _ = self.version.set(hello.version);
        Ok(hello)
    }

    /// Whether `server/discover` was sent as the first of all, and nothing came back.
    pub(in crate::upstream) fn is_probing(&self) -> bool {
        self.probing.load(Ordering::Acquire)
    }

    /// Nothing precedes `initialize`: servers built on older `rmcp` exit on anything else.
    async fn initialize_first(&self, limit: Duration, wary: bool) -> Result<Hello, CallError> {
        let verdict = &self.ctx.verdict;
        let refused = match self.initialize(limit).await {
            Ok(hello) => {
                verdict.found(Era::Legacy);
                if wary {
                    verdict.refused(Era::Modern, Instant::now());
                }
                return Ok(hello);
            }
            Err(error @ CallError::Protocol { .. }) => error,
            Err(error) => return Err(error),
        };
        match self.discover(self.ctx.config.probe_timeout).await {
            Ok(hello) => {
                verdict.refused(Era::Legacy, Instant::now());
                verdict.found(Era::Modern);
                Ok(hello)
            }
            Err(error) => {
                tracing::debug!(upstream = %self.ctx.name, %error, "no other era either");
                Err(refused)
            }
        }
    }

    /// `server/discover`, and `initialize` when it is refused, or not answered for as long as `patience`.
    async fn probe(&self, patience: Duration, limit: Duration) -> Result<Hello, CallError> {
        let verdict = &self.ctx.verdict;
        self.probing.store(true, Ordering::Release);
        let mut discover = pin!(self.discover(limit));
        match timeout(patience, &mut discover).await {
            Ok(Ok(hello)) => {
                self.probing.store(false, Ordering::Release);
                verdict.found(Era::Modern);
                Ok(hello)
            }
            Ok(Err(CallError::Protocol { .. })) => {
                self.probing.store(false, Ordering::Release);
                verdict.refused(Era::Modern, Instant::now());
                let hello = self.initialize(limit).await?;
                verdict.found(Era::Legacy);
                Ok(hello)
            }
            Ok(Err(error)) => Err(error),
            Err(_) => self.await_both(discover, limit).await,
        }
    }

    /// `initialize` behind an unanswered `server/discover`. A server that starts slowly reads both at once: its late answer
    /// counts if the other one is a refusal.
    async fn await_both(
        &self,
        mut discover: Pin<&mut impl Future<Output = Greeted>>,
        limit: Duration,
    ) -> Greeted {
        let patience = self.ctx.config.probe_timeout;
        let late = |_| Err(self.ctx.timeout(patience));
        let mut initialize = pin!(self.initialize(limit));
        let (modern, legacy) = tokio::select! {
            biased;
            modern = &mut discover => {
                self.probing.store(false, Ordering::Release);
                let legacy = match modern {
                    Ok(_) => timeout(patience, initialize).await.unwrap_or_else(late),
                    Err(_) => initialize.await,
                };
                (modern, legacy)
            }
            legacy = &mut initialize => {
                let modern = match legacy {
                    Err(CallError::Protocol { .. }) => {
                        timeout(patience, discover).await.unwrap_or_else(late)
                    }
                    Ok(_) | Err(_) => Err(self.ctx.timeout(patience)),
                };
                (modern, legacy)
            }
        };
        let (verdict, now) = (&self.ctx.verdict, Instant::now());
        match (modern, legacy) {
            (Ok(_), Ok(hello)) => {
                // It speaks both: the next one will be asked again.
                verdict.found(Era::Modern);
                verdict.found(Era::Legacy);
                Ok(hello)
            }
            (Ok(hello), Err(_)) => {
                self.probing.store(false, Ordering::Release);
                verdict.found(Era::Modern);
                verdict.refused(Era::Legacy, now);
                Ok(hello)
            }
            (Err(_), Ok(hello)) => {
                verdict.refused(Era::Modern, now);
                verdict.found(Era::Legacy);
                Ok(hello)
            }
            (Err(_), Err(error)) => Err(error),
        }
    }

    /// `initialize`, the answer, `notifications/initialized` (MCP 2025-11-25, lifecycle).
    async fn initialize(&self, limit: Duration) -> Result<Hello, CallError> {
        let call = self.ctx.own_call(self.ctx.initialize(), limit);
        // It must not be cancelled (MCP 2025-11-25, cancellation).
        let version = ProtocolVersion::NEWEST_LEGACY;
        let answer = self.round_trip(call, version, OnHangUp::Forget).await?;
        let hello = self.ctx.read_hello(&answer)?;
        self.notify(&Message::notification("notifications/initialized", None))?;
        Ok(hello)
    }

    /// `server/discover` and the answer (MCP 2026-07-28, discovery).
    async fn discover(&self, limit: Duration) -> Result<Hello, CallError> {
        let version = ProtocolVersion::NEWEST_MODERN;
        let mut again = true;
        loop {
            let call = self.ctx.own_call(Message::request("server/discover", None), limit);
            let answer = self.round_trip(call, version, OnHangUp::Forget).await?;
            if std::mem::take(&mut again) && wants_this_revision(&answer) {
                continue;
            }
            if answer.answer() != Answer::Result {
                let code = answer.member(Member::ErrorCode);
                let code = code.as_deref().map_or("without code".into(), String::from_utf8_lossy);
                let what = format!("server/discover was refused with error {code}");
                return Err(self.ctx.protocol(what));
            }
            let result = answer.result().unwrap_or_default();
            let hello = Hello::discovered(&result).map_err(|what| self.ctx.protocol(what))?;
            let _ = self.offers.set(Offers::parse(&result));
            return Ok(hello);
        }
    }
}

/// Whether a refusal names as supported just the revision that it was asked in.
fn wants_this_revision(answer: &Message) -> bool {
    #[derive(serde::Deserialize)]
    struct Refusal {
        code: i64,
        data: Option<Supported>,
    }
    #[derive(serde::Deserialize)]
    struct Supported {
        supported: Vec<String>,
    }
    if answer.answer() != Answer::Error {
        return false;
    }
    let refusal = serde_json::from_slice::<Refusal>(&answer.error().unwrap_or_default());
    let Ok(Refusal { code: UNSUPPORTED_VERSION, data: Some(data) }) = refusal else { return false };
    data.supported.iter().any(|known| known == ProtocolVersion::NEWEST_MODERN.as_str())
}
