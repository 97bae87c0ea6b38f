//! The members below the envelope that the gateway reads.

/// Members below the envelope whose place the scanner remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Member {
    /// `params.name`
    Name,
    /// `params.uri`
    Uri,
    /// `params.cursor`
    Cursor,
    /// `params.arguments`
    Arguments,
    /// `params._meta`
    Meta,
    /// `params.progressToken` (of `notifications/progress`)
    ProgressToken,
    /// `params.requestId` (of `notifications/cancelled`)
    RequestId,
    /// `params.level`
    Level,
    /// `params.taskId`
    TaskId,
    /// `params.task` (2025-11-25)
    Task,
    /// `params.requestState`
    RequestState,
    /// `params.inputResponses`
    InputResponses,
    /// `params.protocolVersion` (of `initialize`)
    ProtocolVersion,
    /// `params.capabilities` (of `initialize`)
    Capabilities,
    /// `params.clientInfo` (of `initialize`)
    ClientInfo,
    /// `params.ref`
    Ref,
    /// `params.ref.name`
    RefName,
    /// `params.ref.uri`
    RefUri,
    /// `params._meta.progressToken`
    MetaProgressToken,
    /// `params._meta["io.modelcontextprotocol/protocolVersion"]`
    MetaProtocolVersion,
    /// `params._meta["io.modelcontextprotocol/clientCapabilities"]`
    MetaClientCapabilities,
    /// `params._meta["io.modelcontextprotocol/clientInfo"]`
    MetaClientInfo,
    /// `params._meta["io.modelcontextprotocol/logLevel"]`
    MetaLogLevel,
    /// `params._meta.traceparent`
    MetaTraceparent,
    /// `result.isError`
    IsError,
    /// `result.nextCursor`
    NextCursor,
    /// `result.resultType`
    ResultType,
    /// `error.code`
    ErrorCode,
}

impl Member {
    /// How many there are.
    pub const COUNT: usize = Self::ErrorCode as usize + 1;

    /// The noted object that this member stands in, when it is itself a [`Member`].
    pub(super) fn parent(self) -> Option<Self> {
        match self {
            Self::RefName | Self::RefUri => Some(Self::Ref),
            Self::MetaProgressToken
            | Self::MetaProtocolVersion
            | Self::MetaClientCapabilities
            | Self::MetaClientInfo
            | Self::MetaLogLevel
            | Self::MetaTraceparent => Some(Self::Meta),
            _ => None,
        }
    }

    /// Whether it stands in `params`, at any depth.
    pub(super) fn in_params(self) -> bool {
        !matches!(self, Self::IsError | Self::NextCursor | Self::ResultType | Self::ErrorCode)
    }

    /// The member's own name.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Name | Self::RefName => "name",
            Self::Uri | Self::RefUri => "uri",
            Self::Cursor => "cursor",
            Self::Arguments => "arguments",
            Self::Meta => "_meta",
            Self::ProgressToken | Self::MetaProgressToken => "progressToken",
            Self::RequestId => "requestId",
            Self::Level => "level",
            Self::TaskId => "taskId",
            Self::Task => "task",
            Self::RequestState => "requestState",
            Self::InputResponses => "inputResponses",
            Self::ProtocolVersion => "protocolVersion",
            Self::Capabilities => "capabilities",
            Self::ClientInfo => "clientInfo",
            Self::Ref => "ref",
            Self::MetaProtocolVersion => "io.modelcontextprotocol/protocolVersion",
            Self::MetaClientCapabilities => "io.modelcontextprotocol/clientCapabilities",
            Self::MetaClientInfo => "io.modelcontextprotocol/clientInfo",
            Self::MetaLogLevel => "io.modelcontextprotocol/logLevel",
            Self::MetaTraceparent => "traceparent",
            Self::IsError => "isError",
            Self::NextCursor => "nextCursor",
            Self::ResultType => "resultType",
            Self::ErrorCode => "code",
        }
    }
}
