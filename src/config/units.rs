//! Sizes and durations as text: `"4MiB"`, `"1m 30s"`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest duration that may be configured; far from where adding it to a clock overflows.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// Largest size that may be configured.
const LARGEST: u64 = 1 << 40;

/// Schema of a size.
pub(super) struct Size;

impl JsonSchema for Size {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [
                { "type": "string", "pattern": r"^[0-9.]+ *[kKmMgGtT]?i?[bB]?$|\$\{" },
                { "type": "integer", "minimum": 0 }
            ],
            "examples": ["4MiB"]
        })
    }
}

/// Schema of a duration.
pub(super) struct Span;

impl JsonSchema for Span {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": r"^([0-9.]+ *[a-z]+,? *)+$|\$\{", "examples": ["30s", "1m 30s", "250ms"] })
    }
}

/// Sizes in bytes: `"4MiB"`, or a number.
pub(super) mod size {
    use super::*;

    struct Bytes;

    impl Visitor<'_> for Bytes {
        type Value = usize;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a size such as \"4MiB\", or a number of bytes")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<usize, E> {
            let size: bytesize::ByteSize = text
                .parse()
                .map_err(|_| E::custom(format!("`{text}` is not a size such as \"4MiB\"")))?;
            self.visit_u64(size.as_u64())
        }
        fn visit_i64<E: Error>(self, number: i64) -> Result<usize, E> {
            let number = u64::try_from(number)
                .map_err(|_| E::custom(format!("{number} is not a size: it is negative")))?;
            self.visit_u64(number)
        }
        fn visit_u64<E: Error>(self, number: u64) -> Result<usize, E> {
            if number > LARGEST {
                return Err(E::custom(format!("{number} bytes is more than the limit of 1TiB")));
            }
            usize::try_from(number).map_err(|_| E::custom(format!("{number} bytes is too much")))
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<usize, D::Error> {
        deserializer.deserialize_any(Bytes)
    }

    pub(in super::super) fn serialize<S: Serializer>(
        bytes: &usize,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&show_size(*bytes))
    }
}

/// Sizes that may be absent.
pub(super) mod optional_size {
    use super::*;

    struct Sized(usize);

    impl<'de> Deserialize<'de> for Sized {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            size::deserialize(deserializer).map(Self)
        }
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<usize>, D::Error> {
        Sized::deserialize(deserializer).map(|size| Some(size.0))
    }

    pub(in super::super) fn serialize<S: Serializer>(
        bytes: &Option<usize>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.map(show_size).serialize(serializer)
    }
}

/// Durations: `"30s"`.
pub(super) mod duration {
    use super::*;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        Typed::deserialize(deserializer).map(|typed| typed.0)
    }

    pub(in super::super) fn serialize<S: Serializer>(
        value: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&show_duration(*value))
    }
}

/// Durations that may be absent.
pub(super) mod optional_duration {
    use super::*;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Typed::deserialize(deserializer).map(|typed| Some(typed.0))
    }

    pub(in super::super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.map(show_duration).serialize(serializer)
    }
}

/// Tables of durations.
pub(super) mod durations {
    use super::*;

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, Duration>, D::Error> {
        let typed = BTreeMap::<String, Typed>::deserialize(deserializer)?;
        Ok(typed.into_iter().map(|(key, value)| (key, value.0)).collect())
    }

    pub(in super::super) fn serialize<S: Serializer>(
        value: &BTreeMap<String, Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(value.iter().map(|(key, value)| (key, show_duration(*value))))
    }
}

/// One duration as text.
struct Typed(Duration);

impl<'de> Deserialize<'de> for Typed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Typed;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"30s\"")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Typed, E> {
                parse_duration(text).map(Typed).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let explain = || {
        format!(
            "`{text}` is not a duration such as \"30s\", \"1m 30s\" or \"250ms\" (units: h, m, s, ms)"
        )
    };
    let signed: jiff::SignedDuration = text.parse().map_err(|_| explain())?;
    let duration = Duration::try_from(signed).map_err(|_| explain())?;
    if duration > LONGEST {
        return Err(format!("`{text}` is longer than the limit of 8784h"));
    }
    Ok(duration)
}

/// The text that reads back as the same duration.
pub(super) fn show_duration(duration: Duration) -> String {
    match jiff::SignedDuration::try_from(duration) {
        Ok(signed) => format!("{signed:#}"),
        Err(_) => format!("{}s", duration.as_secs()),
    }
}

/// The text that reads back as the same size, in the largest unit that divides it.
pub(super) fn show_size(bytes: usize) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let exact = |shift: u32| bytes > 0 && bytes.trailing_zeros() >= shift;
    match units.into_iter().find(|(shift, _)| exact(*shift)) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_durations_reads_back() {
        for millis in [0, 1, 250, 1000, 90_000, 1_800_000, 86_400_000, 3_661_001] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(&show_duration(duration)), Ok(duration));
        }
        assert_eq!(show_duration(Duration::from_secs(1800)), "30m");
    }

    #[test]
    fn what_is_shown_of_sizes_reads_back() {
        for bytes in [0, 1, 1000, 1024, 32 << 10, 4 << 20, 3 << 30, (4 << 20) + 1] {
            let read: bytesize::ByteSize = show_size(bytes).parse().unwrap();
            assert_eq!(read.as_u64(), bytes as u64);
        }
        assert_eq!(show_size(4 << 20), "4MiB");
    }

    #[test]
    fn durations_that_would_overflow_a_clock_are_refused() {
        assert!(parse_duration("9999999h").unwrap_err().contains("8784h"));
        assert!(parse_duration("-5s").is_err());
        assert!(parse_duration("30").is_err());
        assert_eq!(parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5400)));
    }
}
