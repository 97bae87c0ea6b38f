//! What the gateway does with each MCP method.

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
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct MethodSpec {
    /// The method; also its metric label.
    pub name: &'static str,
    /// Who answers it.
    pub to: To,
}

impl MethodSpec {
    const fn new(name: &'static str, to: To) -> Self {
        Self { name, to }
    }
}

/// Client requests and notifications of the legacy era (MCP digest §18). Any other method passes through
/// where the route has one upstream, and is "method not found" where it has many.
#[rustfmt::skip]
pub static METHODS: &[MethodSpec] = &[
    //              name                           to
    MethodSpec::new("tools/call",                  To::OwnerOfTool),
    MethodSpec::new("tools/list",                  To::Merged(Kind::Tools)),
    MethodSpec::new("resources/read",              To::OwnerOfUri),
    MethodSpec::new("resources/list",              To::Merged(Kind::Resources)),
    MethodSpec::new("resources/templates/list",    To::Merged(Kind::Templates)),
    MethodSpec::new("resources/subscribe",         To::OwnerOfUri),
    MethodSpec::new("resources/unsubscribe",       To::OwnerOfUri),
    MethodSpec::new("prompts/get",                 To::OwnerOfPrompt),
    MethodSpec::new("prompts/list",                To::Merged(Kind::Prompts)),
    MethodSpec::new("completion/complete",         To::OwnerOfRef),
    MethodSpec::new("logging/setLevel",            To::Gateway),
    MethodSpec::new("initialize",                  To::Gateway),
    MethodSpec::new("ping",                        To::Gateway),
    MethodSpec::new("notifications/initialized",   To::Gateway),
    MethodSpec::new("notifications/cancelled",     To::Gateway),
    MethodSpec::new("notifications/progress",      To::Gateway),
    MethodSpec::new("notifications/roots/list_changed", To::Gateway),
];

/// The row of a method; `None` when the gateway does not know it.
pub fn method_spec(method: &str) -> Option<&'static MethodSpec> {
    METHODS.iter().find(|spec| spec.name == method)
}
