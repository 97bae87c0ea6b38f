//! The JSON Schema of the file, for editors.

use serde_json::{Map, Value};

use super::Config;

/// JSON Schema (2020-12) of the configuration, pretty-printed.
pub fn schema() -> String {
    format!("{:#}", tree())
}

fn tree() -> Value {
    let settings = schemars::generate::SchemaSettings::draft2020_12();
    let schema = settings.into_generator().into_root_schema_for::<Config>();
    let mut tree = schema.to_value();
    polish(&mut tree);
    if let Some(root) = tree.as_object_mut() {
        root.insert("title".to_owned(), "Configuration of trunkline".into());
    }
    tree
}

/// Takes out what only Rust and JSON know: TOML has no null, and doc comments break their lines.
fn polish(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(polish),
        Value::Object(schema) => {
            without_null(schema);
            words(schema);
            schema.values_mut().for_each(polish);
        }
        _ => {}
    }
}

fn without_null(schema: &mut Map<String, Value>) {
    // The defaults of whole sections repeat those of their keys.
    if schema.get("default").is_some_and(|default| default.is_null() || default.is_object()) {
        schema.shift_remove("default");
    }
    if let Some(Value::Array(types)) = schema.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_mut_slice() {
            let only = only.take();
            schema.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(choices)) = schema.get_mut("anyOf") {
        choices.retain(|choice| choice.get("type").is_none_or(|name| name != "null"));
        if let [Value::Object(only)] = choices.as_mut_slice() {
            let only = std::mem::take(only);
            schema.shift_remove("anyOf");
            only.into_iter().for_each(|(key, value)| {
                schema.entry(key).or_insert(value);
            });
        }
    }
}

fn words(schema: &mut Map<String, Value>) {
    let Some(Value::String(text)) = schema.get_mut("description") else { return };
    *text = text.replace('\n', " ");
    // `[server]` and the like are what a table is called rather than what it is for.
    if let Some(title) = text.strip_prefix('`').filter(|rest| rest.starts_with('[')) {
        let (title, rest) = title.split_once('`').unwrap_or((title, ""));
        let (title, rest) = (title.to_owned(), rest.trim_start_matches([';', ':', ' ']).to_owned());
        schema.insert("title".to_owned(), title.into());
        match rest.is_empty() {
            true => schema.shift_remove("description"),
            false => schema.insert("description".to_owned(), rest.into()),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn each(value: &Value, see: &mut dyn FnMut(&Map<String, Value>)) {
        match value {
            Value::Array(list) => list.iter().for_each(|value| each(value, see)),
            Value::Object(schema) => {
                see(schema);
                schema.values().for_each(|value| each(value, see));
            }
            _ => {}
        }
    }

    #[test]
    fn every_key_is_described_and_no_other_is_allowed() {
        let mut tables = 0;
        each(&tree(), &mut |schema| {
            let Some(Value::Object(keys)) = schema.get("properties") else { return };
            tables += 1;
            assert_eq!(schema.get("additionalProperties"), Some(&Value::Bool(false)));
            for (key, about) in keys {
                assert!(about.get("description").is_some_and(Value::is_string), "{key}");
            }
        });
        assert!(tables >= 8, "{tables}");
    }

    #[test]
    fn nothing_in_it_is_null() {
        let text = schema();
        assert!(!text.contains("null"), "{text}");
        assert!(text.contains("https://json-schema.org/draft/2020-12/schema"));
        let tree = tree();
        assert_eq!(tree["$defs"]["ServerConfig"]["title"], "[server]");
        assert_eq!(
            tree["$defs"]["UpstreamConfig"]["properties"]["isolation"]["$ref"],
            "#/$defs/Isolation"
        );
        assert_eq!(tree["$defs"]["UpstreamConfig"]["properties"]["timeout"]["default"], "30s");
    }
}
