//! Where the methods of one pattern of a plain route go, and under which limits.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{UpstreamName, units};

/// Which of several upstreams is asked first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Balance {
    /// The first that can be reached.
    #[default]
    Order,
    /// Each in its turn.
    RoundRobin,
    /// The one with the fewest calls in flight.
    LeastRequests,
}

/// What stands behind a pattern in `methods`: the name of an upstream, a list of names, or a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodConfig {
    /// The upstreams, in order.
    pub upstreams: Vec<UpstreamName>,
    /// Which of them is asked first, when that is configured.
    pub balance: Option<Balance>,
    /// How long one call may take, over all upstreams that are tried; without it, as the upstreams say.
    pub timeout: Option<Duration>,
    /// Largest request.
    pub max_body: Option<usize>,
    /// Running it twice does what running it once does, so that it may be tried again elsewhere.
    pub idempotent: bool,
}

/// The table form.
#[derive(Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "MethodConfig")]
struct Table {
    /// The upstreams, in order.
    upstreams: Vec<UpstreamName>,
    /// Which of them is asked first: `order` (the first that can be reached), `round_robin` or `least_requests`. Default:
    /// `order`, and `round_robin` for the replicas of one upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    balance: Option<Balance>,
    /// How long one call may take, over all upstreams that are tried; without it, as the upstreams say.
    #[serde(default, with = "units::optional_duration", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<units::Span>")]
    timeout: Option<Duration>,
    /// Largest request.
    #[serde(default, with = "units::optional_size", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<units::Size>")]
    max_body: Option<usize>,
    /// Running it twice does what running it once does, so that it may be tried again on the next upstream.
    #[serde(default, skip_serializing_if = "is_default")]
    idempotent: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl MethodConfig {
    /// Calls go to these, in order; nothing else is set.
    pub fn to(upstreams: Vec<UpstreamName>) -> Self {
        Self { upstreams, ..Self::default() }
    }

    /// Which of them is asked first. One upstream is a choice only among its replicas, which are equal.
    pub fn balance(&self) -> Balance {
        let default = if self.upstreams.len() == 1 { Balance::RoundRobin } else { Balance::Order };
        self.balance.unwrap_or(default)
    }
}

impl From<Table> for MethodConfig {
    fn from(table: Table) -> Self {
        let Table { upstreams, balance, timeout, max_body, idempotent } = table;
        Self { upstreams, balance, timeout, max_body, idempotent }
    }
}

impl<'de> Deserialize<'de> for MethodConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = MethodConfig;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an upstream, a list of names, or a table with `upstreams`")
            }
            fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
                let name = UpstreamName::new(name).map_err(E::custom)?;
                Ok(MethodConfig::to(vec![name]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut upstreams = Vec::new();
                while let Some(name) = list.next_element()? {
                    upstreams.push(name);
                }
                Ok(MethodConfig::to(upstreams))
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Table::deserialize(MapAccessDeserializer::new(map)).map(MethodConfig::from)
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl Serialize for MethodConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { upstreams, balance, timeout, max_body, idempotent } = self.clone();
        let table = Table { upstreams, balance, timeout, max_body, idempotent };
        if *self != Self::to(self.upstreams.clone()) {
            return table.serialize(serializer);
        }
        match self.upstreams.as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

impl JsonSchema for MethodConfig {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "MethodTarget".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<UpstreamName>();
        let many = generator.subschema_for::<Vec<UpstreamName>>();
        let table = generator.subschema_for::<Table>();
        json_schema!({ "anyOf": [one, many, table] })
    }
}
