//! Messages that belong to no running request.

use bytes::Bytes;

use crate::mcp::ListKind;

/// A message that belongs to no running request.
#[derive(Clone, Debug)]
pub enum Broadcast {
    /// A list changed; the same kind waiting twice is one.
    ListChanged(ListKind),
    /// A subscribed resource changed; the same text waiting twice is one.
    Updated(Bytes),
    /// Anything else.
    Message(Bytes),
}

impl Broadcast {
    /// The message.
    pub(super) fn text(&self) -> Bytes {
        match self {
            Self::ListChanged(kind) => Bytes::from_static(match kind {
                ListKind::Tools => {
                    br#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#
                }
                ListKind::Prompts => {
                    br#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#
                }
                ListKind::Resources | ListKind::Templates => {
                    br#"{"jsonrpc":"2.0","method":"notifications/resources/list_changed"}"#
                }
            }),
            Self::Updated(text) | Self::Message(text) => text.clone(),
        }
    }

    /// Whether the same message waiting twice says no more than once.
    pub(super) fn merges(&self) -> bool {
        !matches!(self, Self::Message(_))
    }
}
