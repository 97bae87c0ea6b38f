//! The body of `/readyz`.

use serde_json::{Map, Value, json};

/// What an upstream is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpstreamState {
    /// It can be called.
    Up,
    /// It cannot.
    Down,
    /// Its child is starting, or its first connection is being made.
    Starting,
    /// Nothing has asked for it yet.
    Idle,
}

impl UpstreamState {
    /// The word in the body.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Starting => "starting",
            Self::Idle => "idle",
        }
    }
}

/// One upstream in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamReadiness {
    /// Its name.
    pub name: String,
    /// What it is doing.
    pub state: UpstreamState,
    /// Why, for the operator: the last error. No secrets.
    pub detail: Option<String>,
    /// How many tools it offers, once that is known.
    pub tools: Option<usize>,
}

/// Whether the gateway takes work, and what stands behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The gateway takes no new work. Upstreams have no say in this: one that is down would take all the others
    /// with it (DESIGN §4, Health).
    pub draining: bool,
    /// Every configured upstream.
    pub upstreams: Vec<UpstreamReadiness>,
}

impl Readiness {
    /// `{"status":…,"upstreams":{NAME:{"state":…,"detail"?:…,"tools"?:…}}}`
    pub(super) fn to_json(&self) -> String {
        let upstreams: Map<String, Value> = self
            .upstreams
            .iter()
            .map(|upstream| (upstream.name.clone(), upstream.to_json()))
            .collect();
        let status = if self.draining { "draining" } else { "ready" };
        format!("{:#}\n", json!({ "status": status, "upstreams": upstreams }))
    }
}

impl UpstreamReadiness {
    fn to_json(&self) -> Value {
        let mut members = Map::new();
        members.insert("state".into(), self.state.as_str().into());
        if let Some(detail) = &self.detail {
            members.insert("detail".into(), detail.as_str().into());
        }
        if let Some(tools) = self.tools {
            members.insert("tools".into(), tools.into());
        }
        Value::Object(members)
    }
}
