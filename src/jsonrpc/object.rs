//! One object taken apart: its members as they were written, for the few that are changed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Chunks;
use super::error::push_string;

/// The members of one object, one level deep: names decoded, values as JSON text.
///
/// Only for objects of which members are added, replaced or removed. Values are shared with what was received, in the order
/// that they had; of a name that stands there twice the last value counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawObject {
    members: Vec<(Box<str>, Bytes)>,
}

impl RawObject {
    /// Takes the text of an object apart; `None` when it is no object.
    pub fn parse(text: &Bytes) -> Option<Self> {
        struct Members<'a>(&'a Bytes);
        impl<'de> Visitor<'de> for Members<'_> {
            type Value = Vec<(Box<str>, Bytes)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members: Self::Value = Vec::new();
                // Where each name stands, once there are so many that looking through all would take long.
                let mut index: HashMap<Box<str>, usize> = HashMap::new();
                while let Some(name) = map.next_key::<Cow<'de, str>>()? {
                    let raw: &'de RawValue = map.next_value()?;
                    let value = self.0.slice_ref(raw.get().as_bytes());
                    if members.len() == INDEXED && index.is_empty() {
                        let names = members.iter().map(|(name, _)| name.clone());
                        index = names.zip(0..).collect();
                    }
                    let known = if members.len() < INDEXED {
                        members.iter().position(|(known, _)| **known == *name)
                    } else {
                        index.get(&*name).copied()
                    };
                    if let Some(place) = known {
                        members[place].1 = value;
                        continue;
                    }
                    if members.len() >= INDEXED {
                        index.insert(name.clone().into(), members.len());
                    }
                    members.push((name.into(), value));
                }
                Ok(members)
            }
        }
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let members = deserializer.deserialize_map(Members(text)).ok()?;
        deserializer.end().ok()?;
        Some(Self { members })
    }

    /// The value of a member.
    pub fn get(&self, name: &str) -> Option<&Bytes> {
        self.members.iter().find(|(known, _)| **known == *name).map(|(_, value)| value)
    }

    /// The value of a member that is a string.
    pub fn get_str(&self, name: &str) -> Option<String> {
        serde_json::from_slice(self.get(name)?).ok()
    }

    /// Puts a member in place of the one of that name, else at the end. `value` is JSON text.
    pub fn set(&mut self, name: &str, value: impl Into<Bytes>) {
        let value = value.into();
        match self.members.iter_mut().find(|(known, _)| **known == *name) {
            Some((_, known)) => *known = value,
            None => self.members.push((name.into(), value)),
        }
    }

    /// Takes a member out.
    pub fn remove(&mut self, name: &str) -> Option<Bytes> {
        let place = self.members.iter().position(|(known, _)| **known == *name)?;
        Some(self.members.remove(place).1)
    }

    /// Keeps the members for which `keep` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&str, &Bytes) -> bool) {
        self.members.retain(|(name, value)| keep(name, value));
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Bytes)> {
        self.members.iter().map(|(name, value)| (&**name, value))
    }

    /// How many members it has.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The text of the object; large values are not copied.
    pub fn to_chunks(&self) -> Chunks {
        let mut slices = Vec::with_capacity(2 * self.members.len() + 1);
        let mut open = vec![b'{'];
        for (place, (name, value)) in self.members.iter().enumerate() {
            if place > 0 {
                open.push(b',');
            }
            push_string(&mut open, name);
            open.push(b':');
            if value.len() < SHARED {
                open.extend_from_slice(value);
            } else {
                slices.push(Bytes::from(std::mem::take(&mut open)));
                slices.push(value.clone());
            }
        }
        open.push(b'}');
        slices.push(Bytes::from(open));
        Chunks::from_iter(slices)
    }

    /// The text of the object.
    pub fn to_bytes(&self) -> Bytes {
        self.to_chunks().into_bytes()
    }
}

/// From this many members on, names are looked up by hash.
const INDEXED: usize = 64;

/// Values from this length on are not copied.
const SHARED: usize = 4 * 1024;

/// The elements of an array as JSON text; `None` when it is no array.
pub fn raw_elements(text: &Bytes) -> Option<Vec<Bytes>> {
    let elements: Vec<&RawValue> = serde_json::from_slice(text).ok()?;
    Some(elements.into_iter().map(|raw| text.slice_ref(raw.get().as_bytes())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &'static str) -> RawObject {
        RawObject::parse(&Bytes::from_static(text.as_bytes())).expect("an object")
    }

    fn text(object: &RawObject) -> String {
        String::from_utf8(object.to_bytes().to_vec()).expect("UTF-8")
    }

    #[test]
    fn values_keep_their_bytes_and_their_order() {
        let mut o = object(r#" { "b" : 1.10 , "a\u0061":{"x": [ 1e400 ]}, "c":null } "#);
        assert_eq!(o.get("aa").map(|v| &v[..]), Some(&br#"{"x": [ 1e400 ]}"#[..]));
        assert_eq!(text(&o), r#"{"b":1.10,"aa":{"x": [ 1e400 ]},"c":null}"#);
        assert_eq!(o.remove("b").as_deref(), Some(&b"1.10"[..]));
        o.set("c", &b"true"[..]);
        o.set("d\n", &b"\"x\""[..]);
        assert_eq!(text(&o), r#"{"aa":{"x": [ 1e400 ]},"c":true,"d\n":"x"}"#);
        assert_eq!(o.get_str("d\n").as_deref(), Some("x"));
        assert_eq!((o.get_str("c"), o.get("nothing"), o.len()), (None, None, 3));
    }

    #[test]
    fn of_a_name_given_twice_the_last_value_counts() {
        assert_eq!(text(&object(r#"{"a":1,"b":2,"a":3}"#)), r#"{"a":3,"b":2}"#);
    }

    #[test]
    fn objects_of_many_members_are_taken_apart_like_small_ones() {
        let member = |place: usize, value: usize| format!("\"m{place}\":{value}");
        let count = 3 * INDEXED;
        let mut members: Vec<_> = (0..count).map(|place| member(place, place)).collect();
        let twice = [0, INDEXED - 1, INDEXED, count - 1];
        members.extend(twice.map(|place| member(place, 7)));
        let o = RawObject::parse(&format!("{{{}}}", members.join(",")).into()).expect("an object");
        members.truncate(count);
        twice.into_iter().for_each(|place| members[place] = member(place, 7));
        assert_eq!(text(&o), format!("{{{}}}", members.join(",")));
    }

    #[test]
    fn large_values_are_not_copied() {
        let long = format!(r#"{{"a":"{}","b":1}}"#, "x".repeat(SHARED));
        let long = Bytes::from(long);
        let chunks = RawObject::parse(&long).expect("an object").to_chunks();
        assert!(chunks.slices().iter().any(|slice| {
            let range = long.as_ptr_range();
            range.contains(&slice.as_ptr())
        }));
        assert_eq!(chunks.into_bytes(), long);
    }

    #[test]
    fn what_is_no_object_is_told() {
        for text in ["[]", "1", "", "{", "{}x", "null", r#""{}""#] {
            assert_eq!(RawObject::parse(&Bytes::from_static(text.as_bytes())), None, "{text}");
        }
        assert!(object("{}").is_empty());
        assert_eq!(text(&object("{}")), "{}");
    }

    #[test]
    fn arrays_are_taken_apart() {
        let elements = raw_elements(&Bytes::from_static(b"[1.0, {\"a\":[]} ,null]"));
        let elements = elements.expect("an array");
        assert_eq!(elements, [&b"1.0"[..], b"{\"a\":[]}", b"null"]);
        assert_eq!(raw_elements(&Bytes::from_static(b"{}")), None);
    }
}
