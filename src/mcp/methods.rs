//! What the gateway does with each MCP method.

use super::Era;
use crate::jsonrpc::Member;

/// The four lists that are merged over upstreams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// `tools/list`
    Tools,
    /// `prompts/list`
    Prompts,
    /// `resources/list`
    Resources,
    /// `resources/templates/list`
    Templates,
}

impl Kind {
    /// Every list.
    pub const ALL: [Self; 4] = [Self::Tools, Self::Prompts, Self::Resources, Self::Templates];

    /// The method that asks for the list.
    pub fn method(self) -> &'static str {
        match self {
            Self::Tools => "tools/list",
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// The notification that says that the list has changed. Templates change with resources.
    pub fn changed(self) -> &'static str {
        match self {
            Self::Tools => "notifications/tools/list_changed",
            Self::Prompts => "notifications/prompts/list_changed",
            Self::Resources | Self::Templates => "notifications/resources/list_changed",
        }
    }

    /// The member of the result that holds the items.
    pub fn member(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// The member of an item that names it.
    pub fn key(self) -> &'static str {
        match self {
            Self::Tools | Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// The label value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tools => "tools",
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "templates",
        }
    }
}

/// Who answers a method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// The gateway itself.
    Gateway,
    /// The merged list of all upstreams.
    Merged(Kind),
    /// The upstream that owns `params.name` (a tool).
    OwnerOfTool,
    /// The upstream that owns `params.name` (a prompt).
    OwnerOfPrompt,
    /// The upstream that owns `params.uri`.
    OwnerOfUri,
    /// The upstream that owns `params.ref`.
    OwnerOfRef,
    /// The upstream that owns `params.taskId`.
    OwnerOfTask,
}

/// In which eras a method stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eras {
    /// In both.
    Both,
    /// Up to 2025-11-25.
    Legacy,
    /// From 2026-07-28 on.
    Modern,
}

impl Eras {
    /// Whether that era is one of them.
    pub fn has(self, era: Era) -> bool {
        match self {
            Self::Both => true,
            Self::Legacy => era == Era::Legacy,
            Self::Modern => era == Era::Modern,
        }
    }
}

/// The member of `params` that `Mcp-Name` repeats (MCP digest §8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// The method has no such header.
    Nothing,
    /// `params.name`
    Name,
    /// `params.uri`
    Uri,
    /// `params.taskId`
    TaskId,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct MethodSpec {
    /// The method; also its metric label.
    pub name: &'static str,
    /// Who answers it.
    pub to: To,
    /// In which eras it stands.
    pub eras: Eras,
    /// What `Mcp-Name` repeats.
    pub named: Named,
}

impl MethodSpec {
    const fn new(name: &'static str, to: To, eras: Eras, named: Named) -> Self {
        Self { name, to, eras, named }
    }
}

/// Client requests and notifications (MCP digest §18). Any other method passes through
/// where the route has one upstream, and is "method not found" where it has many.
#[rustfmt::skip]
pub static METHODS: &[MethodSpec] = &[
    //              name                           to                          eras          Mcp-Name
    MethodSpec::new("tools/call",                  To::OwnerOfTool,             Eras::Both,   Named::Name),
    MethodSpec::new("tools/list",                  To::Merged(Kind::Tools),     Eras::Both,   Named::Nothing),
    MethodSpec::new("resources/read",              To::OwnerOfUri,              Eras::Both,   Named::Uri),
    MethodSpec::new("resources/list",              To::Merged(Kind::Resources), Eras::Both,   Named::Nothing),
    MethodSpec::new("resources/templates/list",    To::Merged(Kind::Templates), Eras::Both,   Named::Nothing),
    MethodSpec::new("resources/subscribe",         To::OwnerOfUri,              Eras::Legacy, Named::Nothing),
    MethodSpec::new("resources/unsubscribe",       To::OwnerOfUri,              Eras::Legacy, Named::Nothing),
    MethodSpec::new("prompts/get",                 To::OwnerOfPrompt,           Eras::Both,   Named::Name),
    MethodSpec::new("prompts/list",                To::Merged(Kind::Prompts),   Eras::Both,   Named::Nothing),
    MethodSpec::new("completion/complete",         To::OwnerOfRef,              Eras::Both,   Named::Nothing),
    MethodSpec::new("server/discover",             To::Gateway,                 Eras::Modern, Named::Nothing),
    MethodSpec::new("subscriptions/listen",        To::Gateway,                 Eras::Modern, Named::Nothing),
    MethodSpec::new("tasks/get",                   To::OwnerOfTask,             Eras::Modern, Named::TaskId),
    MethodSpec::new("tasks/update",                To::OwnerOfTask,             Eras::Modern, Named::TaskId),
    MethodSpec::new("tasks/cancel",                To::OwnerOfTask,             Eras::Modern, Named::TaskId),
    MethodSpec::new("logging/setLevel",            To::Gateway,                 Eras::Legacy, Named::Nothing),
    MethodSpec::new("initialize",                  To::Gateway,                 Eras::Legacy, Named::Nothing),
    MethodSpec::new("ping",                        To::Gateway,                 Eras::Legacy, Named::Nothing),
    MethodSpec::new("notifications/initialized",   To::Gateway,                 Eras::Legacy, Named::Nothing),
    MethodSpec::new("notifications/cancelled",     To::Gateway,                 Eras::Both,   Named::Nothing),
    MethodSpec::new("notifications/progress",      To::Gateway,                 Eras::Legacy, Named::Nothing),
    MethodSpec::new("notifications/roots/list_changed", To::Gateway,            Eras::Legacy, Named::Nothing),
];

/// The row of a method; `None` when the gateway does not know it.
pub fn method_spec(method: &str) -> Option<&'static MethodSpec> {
    METHODS.iter().find(|spec| spec.name == method)
}

impl Named {
    /// The member itself.
    pub fn member(self) -> Option<Member> {
        match self {
            Self::Nothing => None,
            Self::Name => Some(Member::Name),
            Self::Uri => Some(Member::Uri),
            Self::TaskId => Some(Member::TaskId),
        }
    }
}
