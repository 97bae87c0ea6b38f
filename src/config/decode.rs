//! From the tree of a [`Document`] to typed values, with errors that know where they happened.

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::document::{Document, KeyPath};
use super::problem;

/// Reads a value of type `T` from the whole document, leaving out what was dropped from it.
pub(super) fn decode<T: de::DeserializeOwned>(document: &Document<'_>) -> Result<T, Fault> {
    let root = Node { document, path: KeyPath::root(), value: Value::Table(document.root()) };
    T::deserialize(root)
}

/// The first thing that is wrong.
#[derive(Debug)]
pub(super) struct Fault {
    /// Where; always set once the error left the tree.
    pub(super) at: KeyPath,
    /// What.
    pub(super) kind: FaultKind,
    located: bool,
    of_key: bool,
}

/// What is wrong with a value.
#[derive(Debug)]
pub(super) enum FaultKind {
    /// The key itself is not known, or not legal.
    UnknownKey {
        /// The keys there are.
        known: &'static [&'static str],
    },
    /// A key is not there that must be.
    MissingKey(&'static str),
    /// The value is of another type.
    WrongType {
        /// What stands there.
        found: String,
        /// What should.
        expected: String,
    },
    /// The value is a word that means nothing here.
    UnknownWord {
        /// What stands there.
        found: String,
        /// What may stand there.
        known: &'static [&'static str],
    },
    /// What the type of the value says.
    Other(String),
}

impl Fault {
    fn new(kind: FaultKind) -> Self {
        Self { at: KeyPath::root(), kind, located: false, of_key: false }
    }

    fn or_at(mut self, path: &KeyPath) -> Self {
        if !self.located {
            self.at = path.clone();
            self.located = true;
        }
        self
    }

    /// Whether the key is wrong rather than its value.
    pub(super) fn is_of_key(&self) -> bool {
        self.of_key
    }
}

impl std::error::Error for Fault {}

/// What is wrong, which key of which table, and what would be right.
impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = self.at.last_key();
        let section = self.at.section();
        match &self.kind {
            FaultKind::UnknownKey { known } => {
                let hint = problem::hint(key, known.iter().copied(), "known keys");
                write!(f, "unknown key `{key}`{section}{hint}")
            }
            FaultKind::MissingKey(missing) => {
                write!(f, "{} needs the key `{missing}`", self.at.header())
            }
            FaultKind::WrongType { found, expected } => {
                write!(f, "`{key}`{section} must be {expected}, not {found}")
            }
            FaultKind::UnknownWord { found, known } => {
                let words: Vec<_> = known.iter().map(|word| format!("`{word}`")).collect();
                let words = words.join(" or ");
                write!(f, "`{key}`{section} must be {words}, not `{found}`")?;
                match problem::nearest(found, known.iter().copied()) {
                    Some(word) => write!(f, "; did you mean `{word}`?"),
                    None => Ok(()),
                }
            }
            FaultKind::Other(text) => write!(f, "`{key}`{section}: {text}"),
        }
    }
}

impl de::Error for Fault {
    fn custom<T: std::fmt::Display>(text: T) -> Self {
        Self::new(FaultKind::Other(text.to_string()))
    }
    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(FaultKind::WrongType { found: describe(found), expected: plain(expected) })
    }
    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }
    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        Self::new(FaultKind::UnknownWord { found: found.to_owned(), known })
    }
    fn unknown_field(_: &str, known: &'static [&'static str]) -> Self {
        Self::new(FaultKind::UnknownKey { known })
    }
    fn missing_field(key: &'static str) -> Self {
        Self::new(FaultKind::MissingKey(key))
    }
}

fn describe(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => number.to_string(),
        Unexpected::Str(text) => format!("the text {text:?}"),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a table".to_owned(),
        other => other.to_string(),
    }
}

/// What serde's derive expects, in the words of the file.
fn plain(expected: &dyn Expected) -> String {
    let text = expected.to_string();
    match text.as_str() {
        "usize" | "u64" | "u32" => "a whole number".to_owned(),
        "u16" => format!("a whole number up to {}", u16::MAX),
        "a boolean" => "true or false".to_owned(),
        "a string" | "path string" => "a text in quotes".to_owned(),
        "a sequence" => "a list".to_owned(),
        "a map" => "a table".to_owned(),
        table if table.starts_with("struct ") => "a table".to_owned(),
        _ => text,
    }
}

/// A value of the tree on its way to a type.
#[derive(Clone)]
struct Node<'d> {
    document: &'d Document<'d>,
    path: KeyPath,
    value: Value<'d>,
}

/// What a node is.
#[derive(Clone, Copy)]
enum Value<'d> {
    Table(&'d DeTable<'d>),
    Other(&'d DeValue<'d>),
}

impl<'d> From<&'d Spanned<DeValue<'d>>> for Value<'d> {
    fn from(value: &'d Spanned<DeValue<'d>>) -> Self {
        match value.get_ref() {
            DeValue::Table(table) => Self::Table(table),
            other => Self::Other(other),
        }
    }
}

impl<'d> Node<'d> {
    fn entries(&self, table: &'d DeTable<'d>) -> Entries<'d> {
        Entries { node: self.clone(), rest: Box::new(table.iter()), value: None }
    }

    fn elements(&self, list: &'d DeArray<'d>) -> Elements<'d> {
        Elements { node: self.clone(), list, next: 0 }
    }

    fn visit<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Fault> {
        let other = match self.value {
            Value::Table(table) => return visitor.visit_map(self.entries(table)),
            Value::Other(other) => other,
        };
        match other {
            DeValue::Table(table) => visitor.visit_map(self.entries(table)),
            DeValue::Array(list) => visitor.visit_seq(self.elements(list)),
            DeValue::String(text) => visitor.visit_str(text),
            DeValue::Boolean(value) => visitor.visit_bool(*value),
            DeValue::Datetime(time) => visitor.visit_string(time.to_string()),
            DeValue::Float(number) => match number.as_str().parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => Err(de::Error::custom(format!("`{number}` is not a number"))),
            },
            DeValue::Integer(number) => {
                match i64::from_str_radix(number.as_str(), number.radix()) {
                    Ok(number) => visitor.visit_i64(number),
                    Err(_) => Err(de::Error::custom(format!("{number} is too large a number"))),
                }
            }
        }
    }
}

impl<'d> Deserializer<'d> for Node<'d> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Fault> {
        let path = self.path.clone();
        self.visit(visitor).map_err(|fault| fault.or_at(&path))
    }

    /// Absent keys never come here, so there is always something.
    fn deserialize_option<V: Visitor<'d>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'d>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    /// Every enum of the configuration is a set of words.
    fn deserialize_enum<V: Visitor<'d>>(
        self,
        name: &'static str,
        known: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let word = match self.value {
            Value::Other(DeValue::String(word)) => word,
            _ => {
                let words: Vec<_> = known.iter().map(|word| format!("`{word}`")).collect();
                let fault = self.visit(Words(words.join(" or ")));
                return Err(fault.err().unwrap_or_else(|| de::Error::custom("not a word")));
            }
        };
        let word: StrDeserializer<'_, Fault> = word.as_ref().into_deserializer();
        word.deserialize_enum(name, known, visitor)
    }

    forward_to_deserialize_any! {
        <W: Visitor<'d>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}

/// Takes nothing, and says which words it wanted.
struct Words(String);

impl Visitor<'_> for Words {
    type Value = ();
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The entries of a table, without those that were dropped.
struct Entries<'d> {
    node: Node<'d>,
    rest: Box<
        dyn Iterator<Item = (&'d Spanned<toml::de::DeString<'d>>, &'d Spanned<DeValue<'d>>)> + 'd,
    >,
    value: Option<Node<'d>>,
}

impl<'d> MapAccess<'d> for Entries<'d> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'d>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        let document = self.node.document;
        for (name, value) in self.rest.by_ref() {
            let path = self.node.path.key(name.get_ref().as_ref());
            if document.is_dropped(&path) {
                continue;
            }
            let key: StrDeserializer<'_, Fault> = name.get_ref().as_ref().into_deserializer();
            let key = seed
                .deserialize(key)
                .map_err(|fault: Fault| Fault { of_key: true, ..fault.or_at(&path) })?;
            self.value = Some(Node { document, path, value: value.into() });
            return Ok(Some(key));
        }
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'d>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        let Some(node) = self.value.take() else {
            return Err(de::Error::custom("a value was asked for before its key"));
        };
        let path = node.path.clone();
        seed.deserialize(node).map_err(|fault| fault.or_at(&path))
    }
}

/// The elements of a list, without those that were dropped.
struct Elements<'d> {
    node: Node<'d>,
    list: &'d DeArray<'d>,
    next: usize,
}

impl<'d> SeqAccess<'d> for Elements<'d> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'d>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let document = self.node.document;
        while let Some(value) = self.list.get(self.next) {
            let path = self.node.path.index(self.next);
            self.next += 1;
            if document.is_dropped(&path) {
                continue;
            }
            let node = Node { document, path: path.clone(), value: value.into() };
            return seed.deserialize(node).map(Some).map_err(|fault| fault.or_at(&path));
        }
        Ok(None)
    }
}
