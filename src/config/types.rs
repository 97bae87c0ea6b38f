//! Typed values of the configuration file.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use crate::mcp::ProtocolVersion;

/// One value or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMany<T>(pub Vec<T>);

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("OneOrMany_{}", T::schema_name()).into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        let one = generator.subschema_for::<T>();
        let many = generator.subschema_for::<Vec<T>>();
        schemars::json_schema!({ "anyOf": [one, many] })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either<T> {
            One(T),
            Many(Vec<T>),
        }
        Ok(Self(match Either::deserialize(deserializer)? {
            Either::One(one) => vec![one],
            Either::Many(many) => many,
        }))
    }
}

/// Name of an upstream: letters, digits, `_` and `-`, at most 32 characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[serde(transparent)]
pub struct UpstreamName(#[schemars(with = "String")] Arc<str>);

/// Name of a route: its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[serde(transparent)]
pub struct RouteName(#[schemars(with = "String")] Arc<str>);

macro_rules! name {
    ($type:ident) => {
        impl $type {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl Borrow<str> for $type {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}
name!(UpstreamName);
name!(RouteName);

impl UpstreamName {
    /// Checks the text.
    pub fn new(text: &str) -> Result<Self, String> {
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if text.is_empty() || text.len() > 32 || !text.chars().all(legal) {
            return Err(format!(
                "upstream name `{text}` must be 1 to 32 letters, digits, `_` or `-`"
            ));
        }
        Ok(Self(text.into()))
    }
}

impl RouteName {
    /// Checks the text.
    pub fn new(text: &str) -> Result<Self, String> {
        let legal = |c: char| c.is_ascii_graphic() && !"?#%{}".contains(c);
        if !text.starts_with('/') || !text.chars().all(legal) {
            return Err(format!("path `{text}` must begin with `/` and hold no query or escapes"));
        }
        Ok(Self(text.into()))
    }
}

/// A value that never shows in logs or errors.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// The value, where it is used.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// `revision` of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema)]
#[schemars(with = "String")]
pub enum Revision {
    /// Found out.
    #[default]
    Auto,
    /// Always this one.
    Pinned(#[schemars(skip)] ProtocolVersion),
}

impl<'de> Deserialize<'de> for Revision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "auto" {
            return Ok(Self::Auto);
        }
        ProtocolVersion::parse(&text).map(Self::Pinned).ok_or_else(|| {
            serde::de::Error::custom(format!("revision `{text}` is neither `auto` nor a revision"))
        })
    }
}

pub(super) fn yes() -> bool {
    true
}

/// Sizes: `"4MiB"`, or a number of bytes.
pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    let size = bytesize::ByteSize::deserialize(deserializer)?;
    usize::try_from(size.as_u64()).map_err(serde::de::Error::custom)
}

/// Durations: `"30s"`, `"1m 30s"`, `"250ms"`.
pub(super) fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

pub(super) fn optional_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

pub(super) fn durations<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, Duration>, D::Error> {
    BTreeMap::<String, String>::deserialize(deserializer)?
        .into_iter()
        .map(|(key, text)| Ok((key, parse_duration(&text).map_err(serde::de::Error::custom)?)))
        .collect()
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let explain = || format!("`{text}` is not a duration such as \"30s\" or \"1m 30s\"");
    let signed: jiff::SignedDuration = text.parse().map_err(|_| explain())?;
    Duration::try_from(signed).map_err(|_| explain())
}
