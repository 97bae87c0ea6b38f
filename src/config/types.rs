//! Typed values of the configuration file.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, IntoDeserializer, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::mcp::ProtocolVersion;
use crate::net::Place;

/// One value or a list of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OneOrMany<T>(pub Vec<T>);

impl<T: JsonSchema> JsonSchema for OneOrMany<T> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        format!("OneOrMany_{}", T::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<T>();
        let many = generator.subschema_for::<Vec<T>>();
        json_schema!({ "anyOf": [one, many] })
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMany<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = OneOrMany<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("one text or a list of texts")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(OneOrMany(vec![T::deserialize(text.into_deserializer())?]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let mut many = Vec::new();
                while let Some(one) = list.next_element()? {
                    many.push(one);
                }
                Ok(OneOrMany(many))
            }
        }
        deserializer.deserialize_any(Either(PhantomData))
    }
}

impl<T: Serialize> Serialize for OneOrMany<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }
}

/// Name of an upstream: letters, digits, `_` and `-`, at most 32 characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[schemars(transparent)]
pub struct UpstreamName(
    #[schemars(with = "String", regex(pattern = "^[A-Za-z0-9_-]{1,32}$"))] Arc<str>,
);

/// Name of a route: its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, JsonSchema)]
#[schemars(transparent)]
pub struct RouteName(#[schemars(with = "String", regex(pattern = "^/[^?#%{}]*$"))] Arc<str>);

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
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(&text).map_err(Error::custom)
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

/// A value that never shows in logs or errors; it is serialized as `***`.
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

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

/// `revision` of an upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Revision {
    /// Found out.
    #[default]
    Auto,
    /// Always this one.
    Pinned(ProtocolVersion),
}

impl Revision {
    fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Pinned(version) => version.as_str(),
        }
    }

    fn words() -> impl Iterator<Item = &'static str> {
        std::iter::once("auto").chain(ProtocolVersion::ALL.map(ProtocolVersion::as_str))
    }
}

impl JsonSchema for Revision {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Revision".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": Self::words().collect::<Vec<_>>() })
    }
}

impl Serialize for Revision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Revision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "auto" {
            return Ok(Self::Auto);
        }
        ProtocolVersion::parse(&text).map(Self::Pinned).ok_or_else(|| {
            let words: Vec<_> = Self::words().map(|word| format!("`{word}`")).collect();
            Error::custom(format!("`{text}` is not one of {}", words.join(", ")))
        })
    }
}

pub(super) fn yes() -> bool {
    true
}

/// One address to listen on.
pub(super) mod address {
    use super::*;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<SocketAddr, D::Error> {
        Address::deserialize(deserializer).map(|address| address.0)
    }

    pub(in super::super) fn serialize<S: Serializer>(
        address: &SocketAddr,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        address.serialize(serializer)
    }
}

/// One place to listen at or several.
pub(super) mod places {
    use super::*;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<OneOrMany<Place>, D::Error> {
        let many = OneOrMany::<String>::deserialize(deserializer)?;
        let places: Result<Vec<_>, _> = many.0.iter().map(|text| text.parse()).collect();
        places.map(OneOrMany).map_err(Error::custom)
    }

    pub(in super::super) fn serialize<S: Serializer>(
        places: &OneOrMany<Place>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        OneOrMany(places.0.iter().map(Place::to_string).collect::<Vec<_>>()).serialize(serializer)
    }
}

/// Permissions of a file, as `chmod` takes them: `"660"`.
pub(super) mod mode {
    use super::*;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.trim_start_matches("0o");
        let legal = (1..=4).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
        let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| legal && *mode <= 0o777);
        mode.ok_or_else(|| {
            Error::custom(format!("`{text}` is no mode of a file, such as \"600\" or \"0660\""))
        })
    }

    pub(in super::super) fn serialize<S: Serializer>(
        mode: &u32,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{mode:03o}"))
    }
}

struct Address(SocketAddr);

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|_| {
            Error::custom(format!("`{text}` is not IP:PORT, such as \"127.0.0.1:8808\""))
        })
    }
}

/// Address of a server.
pub(super) mod optional_url {
    use super::*;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<url::Url>, D::Error> {
        url_of(&String::deserialize(deserializer)?).map(Some)
    }

    pub(in super::super) fn serialize<S: Serializer>(
        url: &Option<url::Url>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        url.serialize(serializer)
    }
}

/// A list of URLs.
pub(super) mod urls {
    use super::*;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<url::Url>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| url_of(text)).collect()
    }

    pub(in super::super) fn serialize<S: Serializer>(
        urls: &[url::Url],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        urls.serialize(serializer)
    }
}

fn url_of<E: Error>(text: &str) -> Result<url::Url, E> {
    text.parse().map_err(|cause: url::ParseError| {
        E::custom(format!("not a URL such as \"http://127.0.0.1:3001/mcp\": {cause}"))
    })
}
