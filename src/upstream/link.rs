//! What an MCP link is to the rest of the gateway, whatever its transport.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use smallvec::SmallVec;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::backoff::Backoff;
use super::call::{CallerId, Client, OutCall};
use super::judge::{Invalid, Judged};
use super::verdict::Verdict;
use super::{CallError, Events};
use crate::config::{Revision, UpstreamConfig, UpstreamName};
use crate::jsonrpc::{Answer, Member, Message, RawObject};
use crate::mcp::{ClientCaps, Era, ListKind, ProtocolVersion, ServerCaps, meta};
use crate::telemetry::UpstreamMetrics;

/// Deepest nesting of a message from an upstream.
pub(super) const MAX_DEPTH: u16 = 512;

/// Which link of the pool (MCP digest §19.6): who shares it, and what was declared on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinkKey {
    /// Who shares it.
    pub scope: LinkScope,
    /// The client capabilities declared at its `initialize`.
    pub caps: ClientCaps,
    /// The era of the client: the upstream is spoken to in the same one if it knows it, else in the other.
    pub era: Era,
}

/// Who shares a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkScope {
    /// Everybody.
    Shared,
    /// One principal.
    Principal(Arc<str>),
    /// Every client that has neither a name nor a session (2026-07-28 without identity).
    Anonymous,
    /// One client session (or sessionless exchange), by its number.
    Session(u64),
}

/// What the upstream said at `initialize`, or to `server/discover`.
#[derive(Clone, Debug)]
pub struct Hello {
    /// The negotiated revision.
    pub version: ProtocolVersion,
    /// Its capabilities, as far as the gateway acts on them.
    pub caps: ServerCaps,
    /// `instructions`, decoded.
    pub instructions: Option<String>,
    /// `serverInfo` as JSON text.
    pub info: Bytes,
}

/// Something a link has to say that belongs to no call.
#[derive(Debug)]
pub struct Notice {
    /// Whose link.
    pub upstream: UpstreamName,
    /// Which link.
    pub link: LinkKey,
    /// What.
    pub kind: NoticeKind,
}

/// The kinds of [`Notice`].
#[derive(Debug)]
pub enum NoticeKind {
    /// The link is up: for the first time, or again after a lost session or a restarted child (log level
    /// and subscriptions must be set again, lists may have changed).
    Opened,
    /// The link went down (child died, connection refused at re-open).
    Lost,
    /// `notifications/…/list_changed`. `resources` stands for templates too.
    ListChanged(ListKind),
    /// `notifications/resources/updated`.
    ResourceUpdated(Message),
    /// `notifications/message` that belongs to no call for certain.
    Log(Message),
}

/// How a link reports: tags notices with its key. Never blocks the link: when the queue is full, list changes
/// are kept and merged, anything else is dropped and counted.
#[derive(Clone, Debug)]
pub(crate) struct Inlet {
    pub(super) upstream: UpstreamName,
    pub(super) link: LinkKey,
    pub(super) notices: mpsc::Sender<Notice>,
}

impl Inlet {
    /// Reports; waits while the queue is full.
    pub(crate) async fn send(&self, kind: NoticeKind) {
        let _ = self.notices.send(self.notice(kind)).await;
    }

    /// Reports without waiting; `false` when the queue is full or closed.
    pub(crate) fn try_send(&self, kind: NoticeKind) -> bool {
        self.notices.try_send(self.notice(kind)).is_ok()
    }

    /// The notice with the key of this link.
    pub(super) fn notice(&self, kind: NoticeKind) -> Notice {
        Notice { upstream: self.upstream.clone(), link: self.link.clone(), kind }
    }
}

/// What a link is opened with. Whether a link is used, and since when not, is counted by the pool.
#[derive(Clone, Debug)]
pub(super) struct LinkContext {
    /// Whose link.
    pub(super) name: UpstreamName,
    /// The configuration of the upstream.
    pub(super) config: Arc<UpstreamConfig>,
    /// The metrics of the upstream.
    pub(super) metrics: Arc<UpstreamMetrics>,
    /// Where notices go; `inlet.link` is the key of the link.
    pub(super) inlet: Inlet,
    /// What is declared at `initialize`.
    pub(super) caps: ClientCaps,
    /// Owns every task that is spawned.
    pub(super) tasks: TaskTracker,
    /// Ends the link, whatever it does.
    pub(super) stop: CancellationToken,
    /// Which eras the upstream speaks; one for all links of the upstream.
    pub(super) verdict: Arc<Verdict>,
    /// When a child may be started again; one for all links of the upstream.
    pub(super) backoff: Arc<Backoff>,
}

impl LinkContext {
    /// Our `initialize`: the pinned or our newest legacy revision, the capabilities, our name.
    pub(super) fn initialize(&self) -> Message {
        let version = match self.config.revision {
            Revision::Pinned(version) if version.era() == Era::Legacy => version,
            Revision::Pinned(_) | Revision::Auto => ProtocolVersion::NEWEST_LEGACY,
        };
        let params = serde_json::json!({
            "protocolVersion": version.as_str(),
            "capabilities": self.caps.to_json(),
            "clientInfo": our_name(),
        });
        Message::request("initialize", Some(params.to_string().as_bytes()))
    }

    /// A request of the gateway's own, with whatever a modern upstream is told of the one who asks.
    pub(super) fn own_call(&self, message: Message, limit: Duration) -> OutCall {
        OutCall {
            message,
            edits: SmallVec::new(),
            caller: CallerId::GATEWAY,
            client: Client { info: Some(our_name().to_string().into()), ..Client::default() },
            params: None,
            timeout: limit,
            max_timeout: limit,
            events: Events::closed(),
        }
    }

    /// Reads the answer to [`LinkContext::initialize`]. Any legacy revision is accepted (MCP digest §4.2).
    pub(super) fn read_hello(&self, answer: &Message) -> Result<Hello, CallError> {
        if answer.answer() != Answer::Result {
            let code = answer.member(Member::ErrorCode);
            let code = code.as_deref().map_or("without code".into(), String::from_utf8_lossy);
            return Err(self.protocol(format!("initialize was refused with error {code}")));
        }
        let result = answer.result().unwrap_or_default();
        Hello::parse(&result).map_err(|what| self.protocol(what))
    }

    /// [`CallError::Connect`] of this upstream.
    pub(super) fn connect(&self, what: impl Into<String>, source: Option<io::Error>) -> CallError {
        CallError::Connect { upstream: self.name.clone(), what: what.into(), source }
    }

    /// [`CallError::Closed`] of this upstream.
    pub(super) fn closed(&self, written: bool, what: impl Into<String>) -> CallError {
        CallError::Closed { upstream: self.name.clone(), written, what: what.into() }
    }

    /// [`CallError::Timeout`] of this upstream.
    pub(super) fn timeout(&self, after: Duration) -> CallError {
        CallError::Timeout { upstream: self.name.clone(), after }
    }

    /// The verdict on an answer as the outcome of its call.
    pub(super) fn settled(&self, judged: Result<Judged, Invalid>) -> Result<Message, CallError> {
        match judged {
            Ok(Judged::Answer(answer)) => Ok(answer),
            Ok(Judged::Mended(answer)) => {
                self.metrics.stray.inc();
                Ok(answer)
            }
            Ok(Judged::Foreign) => Err(self.protocol("its answer has another id")),
            Err(Invalid { what, upstream_error }) => {
                Err(CallError::Protocol { upstream: self.name.clone(), what, upstream_error })
            }
        }
    }

    /// [`CallError::Protocol`] of this upstream.
    pub(super) fn protocol(&self, what: impl Into<String>) -> CallError {
        CallError::Protocol { upstream: self.name.clone(), what: what.into(), upstream_error: None }
    }
}

/// The gateway as an `Implementation`.
fn our_name() -> serde_json::Value {
    serde_json::json!({ "name": "trunkline", "version": env!("CARGO_PKG_VERSION") })
}

/// `InitializeResult` as far as the gateway reads it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct InitializeResult<'a> {
    protocol_version: String,
    #[serde(default)]
    capabilities: serde_json::Value,
    #[serde(borrow)]
    server_info: Option<&'a RawValue>,
    instructions: Option<String>,
}

/// `DiscoverResult` as far as the gateway reads it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DiscoverResult<'a> {
    supported_versions: Vec<String>,
    #[serde(default)]
    capabilities: serde_json::Value,
    #[serde(borrow)]
    server_info: Option<&'a RawValue>,
    instructions: Option<String>,
    #[serde(rename = "_meta", default)]
    meta: serde_json::Value,
}

impl Hello {
    /// Reads a `DiscoverResult`; says what is wrong with it. The server's name stands in `_meta`, in servers from before
    /// the release at the top.
    pub(super) fn discovered(result: &[u8]) -> Result<Self, String> {
        if result.first() != Some(&b'{') {
            return Err("the result of server/discover is no object".to_owned());
        }
        let result: DiscoverResult<'_> = serde_json::from_slice(result)
            .map_err(|error| format!("the result of server/discover cannot be read: {error}"))?;
        let version = ProtocolVersion::NEWEST_MODERN;
        if !result.supported_versions.iter().any(|name| name == version.as_str()) {
            return Err(
                "it supports no revision without sessions that the gateway knows".to_owned()
            );
        }
        let info = match result.meta.get(meta::SERVER_INFO) {
            Some(info) => info.to_string().into(),
            None => {
                let info = result.server_info.map_or("{}", RawValue::get);
                Bytes::copy_from_slice(info.as_bytes())
            }
        };
        Ok(Self {
            version,
            caps: ServerCaps::parse(&result.capabilities),
            instructions: result.instructions,
            info,
        })
    }

    /// Reads an `InitializeResult`; says what is wrong with it.
    fn parse(result: &[u8]) -> Result<Self, String> {
        if result.first() != Some(&b'{') {
            return Err("the result of initialize is no object".to_owned());
        }
        let result: InitializeResult<'_> = serde_json::from_slice(result)
            .map_err(|error| format!("the result of initialize cannot be read: {error}"))?;
        let version = ProtocolVersion::parse(&result.protocol_version)
            .filter(|version| version.era() == Era::Legacy)
            .ok_or("it negotiates a revision that the gateway does not know")?;
        let info = result.server_info.map_or("{}", RawValue::get);
        let mut caps = ServerCaps::parse(&result.capabilities);
        // There was no capability for it yet: who can complete shows when it is asked (MCP digest §9.5).
        caps.completions |= version < ProtocolVersion::V2025_03_26;
        Ok(Self {
            version,
            caps,
            instructions: result.instructions,
            info: Bytes::copy_from_slice(info.as_bytes()),
        })
    }
}

/// A notification without the id of the subscription that it came by, which means nothing beyond this hop.
fn of_no_subscription(message: &Message) -> Message {
    let place = message.member_span(Member::Meta).zip(message.member(Member::Meta));
    let stripped = place.and_then(|(span, text)| {
        let mut meta = RawObject::parse(&text)?;
        meta.remove(meta::SUBSCRIPTION_ID)?;
        let text = message.edited(&[(span, meta.to_bytes())]).into_bytes();
        Message::parse_answer(text, MAX_DEPTH).ok()
    });
    stripped.unwrap_or_else(|| message.clone())
}

impl NoticeKind {
    /// The notice that a notification without a call is; `None` for any other message.
    pub(super) fn of(message: &Message) -> Option<Self> {
        Some(match message.method() {
            "notifications/tools/list_changed" => Self::ListChanged(ListKind::Tools),
            "notifications/prompts/list_changed" => Self::ListChanged(ListKind::Prompts),
            "notifications/resources/list_changed" => Self::ListChanged(ListKind::Resources),
            "notifications/resources/updated" => Self::ResourceUpdated(of_no_subscription(message)),
            "notifications/message" => Self::Log(message.clone()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_discover_result_says_who_the_upstream_is_and_what_it_can_do() {
        let hello = Hello::discovered(br#"{"resultType":"complete","supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{"tools":{"listChanged":true},"resources":{"subscribe":true}},"instructions":"Drive \u0041","ttlMs":1,"cacheScope":"public","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"drive"}}}"#).expect("a hello");
        assert_eq!(hello.version, ProtocolVersion::V2026_07_28);
        assert!(hello.caps.tools && hello.caps.subscribe && !hello.caps.prompts);
        assert_eq!(hello.instructions.as_deref(), Some("Drive A"));
        assert_eq!(hello.info, r#"{"name":"drive"}"#);
        let early = r#"{"supportedVersions":["2026-07-28"],"serverInfo":{"name":"early"}}"#;
        let hello = Hello::discovered(early.as_bytes()).expect("a hello");
        assert_eq!(hello.info, r#"{"name":"early"}"#);
    }

    #[test]
    fn a_result_without_our_revision_is_no_discover_result() {
        for text in ["{}", "[]", "null", r#"{"supportedVersions":["2025-11-25","2031-01-01"]}"#] {
            assert!(Hello::discovered(text.as_bytes()).is_err(), "{text}");
        }
    }
}
