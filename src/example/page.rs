//! Lists in pages.

use serde_json::{Value, json};

use super::message::RpcError;

/// Cuts out the page that `params.cursor` names and wraps it as the result of a list method.
/// `member` is the result's member; `list` keeps the cursors of one list from being used on another.
pub(super) fn cut(
    list: &str,
    member: &str,
    mut entries: Vec<Value>,
    params: &Value,
    size: usize,
) -> Result<Value, RpcError> {
    let start = match params.get("cursor") {
        None | Some(Value::Null) => 0,
        Some(cursor) => read(list, cursor, entries.len())?,
    };
    let mut page = entries.split_off(start);
    let rest = page.len() > size;
    page.truncate(size);
    let mut result = json!({});
    result[member] = Value::Array(page);
    if rest {
        result["nextCursor"] = json!(print(list, start + size));
    }
    Ok(result)
}

/// A cursor holds `+` and `=`, as base64 ones do, which careless clients spoil on the way.
fn print(list: &str, start: usize) -> String {
    format!("{list}+{start}==")
}

fn read(list: &str, cursor: &Value, length: usize) -> Result<usize, RpcError> {
    let start = cursor.as_str().and_then(|text| {
        let digits = text.strip_prefix(list)?.strip_prefix('+')?.strip_suffix("==")?;
        digits.parse::<usize>().ok().filter(|start| *start <= length)
    });
    start.ok_or_else(|| RpcError::params(format!("invalid cursor: {cursor}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(count: usize) -> Vec<Value> {
        (0..count).map(|n| json!(n)).collect()
    }

    #[test]
    fn following_the_cursors_gives_every_entry_once() {
        let mut params = json!({});
        let mut seen = Vec::new();
        loop {
            let page = cut("tools", "tools", entries(25), &params, 10).unwrap();
            seen.extend(page["tools"].as_array().unwrap().clone());
            let Some(cursor) = page.get("nextCursor") else { break };
            params = json!({"cursor": cursor});
        }
        assert_eq!(seen, entries(25));
    }

    #[test]
    fn a_full_last_page_has_no_cursor() {
        let page = cut("tools", "tools", entries(10), &json!({}), 10).unwrap();
        assert_eq!(page.get("nextCursor"), None);
    }

    #[test]
    fn a_cursor_that_is_not_ours_is_refused() {
        for cursor in [json!(""), json!("x"), json!("prompts+10=="), json!("tools+99=="), json!(5)]
        {
            let params = json!({"cursor": cursor});
            assert_eq!(
                cut("tools", "tools", entries(25), &params, 10).unwrap_err().code,
                crate::example::message::INVALID_PARAMS,
            );
        }
    }
}
