//! What is to be done at the upstream.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::FeedKind;
use super::table::First;
use crate::jsonrpc::Message;
use crate::upstream::OutCall;

/// Something to be done at the upstream.
#[derive(Debug)]
pub(in crate::upstream::ws) enum Order {
    /// Subscribe, and tell the answer.
    Ask(u64, Message),
    /// End a subscription.
    End(Ending),
}

impl Order {
    /// Whether it subscribes.
    pub(in crate::upstream::ws) fn is_ask(&self) -> bool {
        matches!(self, Self::Ask(..))
    }
}

/// A subscription that nobody listens to any more. Until the upstream has answered that it ended, what comes under its id
/// is nobody's.
#[derive(Clone, Debug)]
pub(in crate::upstream::ws) struct FeedLeft {
    /// Its number.
    pub(super) feed: u64,
    pub(in crate::upstream::ws) kind: Arc<FeedKind>,
    /// The upstream's.
    pub(in crate::upstream::ws) id: Bytes,
}

/// One that is to be ended.
#[derive(Debug)]
pub(in crate::upstream::ws) struct Ending {
    pub(in crate::upstream::ws) left: FeedLeft,
    /// None where it ends without a client's wish.
    pub(in crate::upstream::ws) wish: Option<Wish>,
}

/// A client's request that ends a subscription.
#[derive(Debug)]
pub(in crate::upstream::ws) struct Wish {
    /// With the upstream's id among its edits.
    pub(in crate::upstream::ws) call: Box<OutCall>,
    /// Where the answer is waited for.
    pub(in crate::upstream::ws) answer: oneshot::Sender<First>,
}

/// Orders that wait: ends are not kept waiting by what is slow to be answered.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub(super) asks: VecDeque<(u64, Message)>,
    pub(super) ends: VecDeque<Ending>,
}

impl Orders {
    pub(super) fn clear(&mut self) {
        self.asks.clear();
        self.ends.clear();
    }
}
