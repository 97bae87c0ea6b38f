//! What an MCP link is to the rest of the gateway, whatever its transport.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::config::UpstreamName;
use crate::jsonrpc::Message;
use crate::mcp::{ClientCaps, ListKind, ProtocolVersion, ServerCaps};

/// Which link of the pool (MCP digest §19.6): who shares it, and what was declared on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinkKey {
    /// Who shares it.
    pub scope: LinkScope,
    /// The client capabilities declared at its `initialize`.
    pub caps: ClientCaps,
}

/// Who shares a link.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkScope {
    /// Everybody.
    Shared,
    /// One principal.
    Principal(Arc<str>),
    /// One client session (or sessionless exchange), by its number.
    Session(u64),
}

/// What the upstream said at `initialize`.
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
        let notice = Notice { upstream: self.upstream.clone(), link: self.link.clone(), kind };
        let _ = self.notices.send(notice).await;
    }

    /// Reports without waiting; `false` when the queue is full or closed.
    pub(crate) fn try_send(&self, kind: NoticeKind) -> bool {
        let notice = Notice { upstream: self.upstream.clone(), link: self.link.clone(), kind };
        self.notices.try_send(notice).is_ok()
    }
}
