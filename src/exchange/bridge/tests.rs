//! Tests of answers; what is asked is tested beside it.

use bytes::Bytes;
use serde_json::Value;

use super::*;
use crate::fault::Outcome;
use crate::jsonrpc::Id;
use crate::mcp::ClientCaps;
use crate::mcp::ProtocolVersion::*;

fn parsed(text: &str) -> Message {
    Message::parse_answer(Bytes::copy_from_slice(text.as_bytes()), 64).expect("a message")
}

/// An answer with that result.
fn result(result: &str) -> Message {
    parsed(&format!(r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#))
}

fn error(error: &str) -> Message {
    parsed(&format!(r#"{{"jsonrpc":"2.0","id":7,"error":{error}}}"#))
}

fn client(version: ProtocolVersion, method: &str) -> Recipient<'_> {
    Recipient { version, caps: ClientCaps::NONE, method, uri: None, wrapped: None }
}

fn id() -> Id {
    Id::from_text(Bytes::from_static(b"\"c\""))
}

/// The answer as text, and how it counts.
fn bridged(to: &Recipient<'_>, from: ProtocolVersion, message: &Message) -> (String, Bridged) {
    let bridged = answer(to, from, message, &id());
    let text = bridged.text.clone().into_bytes();
    Message::parse(text.clone(), 64).expect("a message");
    (String::from_utf8(text.to_vec()).expect("UTF-8"), bridged)
}

/// The result that the recipient gets.
fn got(to: &Recipient<'_>, from: ProtocolVersion, given: &str) -> String {
    let (text, _) = bridged(to, from, &result(given));
    let result = text.strip_prefix(r#"{"jsonrpc":"2.0","id":"c","result":"#);
    result.and_then(|text| text.strip_suffix('}')).unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// The error that the recipient gets.
fn got_error(to: &Recipient<'_>, from: ProtocolVersion, given: &str) -> (String, Bridged) {
    let (text, bridged) = bridged(to, from, &error(given));
    let error = text.strip_prefix(r#"{"jsonrpc":"2.0","id":"c","error":"#);
    let error = error.and_then(|text| text.strip_suffix('}'));
    (error.unwrap_or_else(|| panic!("{text}")).to_owned(), bridged)
}

#[test]
fn progress_loses_its_message_on_the_way_to_the_first_revision_only() {
    let text = r#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"message":"m","progress":1.10}}"#;
    let chunks = Chunks::from(Bytes::from_static(text.as_bytes()));
    for version in &ProtocolVersion::ALL[1..] {
        assert_eq!(progress(*version, chunks.clone()).into_bytes(), text);
    }
    let bare = progress(V2024_11_05, chunks).into_bytes();
    assert_eq!(bare, text.replace(r#""message":"m","#, ""));
    let none = Chunks::from(Bytes::from_static(b"{\"params\":{\"progress\":1}}"));
    assert_eq!(progress(V2024_11_05, none).into_bytes(), "{\"params\":{\"progress\":1}}");
}

#[test]
fn the_status_goes_by_the_code() {
    assert_eq!(modern_status(None), 200);
    assert_eq!(modern_status(Some(-32601)), 404);
    for code in [-32020, -32021, -32022, -32700, -32600] {
        assert_eq!(modern_status(Some(code)), 400, "{code}");
    }
    for code in [-32602, -32603, -32002, -31001, 1] {
        assert_eq!(modern_status(Some(code)), 200, "{code}");
    }
}

#[test]
fn between_equal_revisions_nothing_but_the_id_changes() {
    let odd = r#" { "content" : [{"type":"audio","data":"x"},{"type":"resource_link"}], "structuredContent":[1.10], "ttlMs": 3,"x":1e400 } "#;
    for version in ProtocolVersion::ALL {
        for method in ["tools/call", "prompts/get", "resources/read", "x/y"] {
            let text = parsed(&format!(r#"{{ "id" : 7,"result":{odd},"jsonrpc":"2.0" }}"#));
            let (text, bridged) = bridged(&client(version, method), version, &text);
            assert_eq!(text, format!(r#"{{ "id" : "c","result":{odd},"jsonrpc":"2.0" }}"#));
            assert_eq!((bridged.outcome, bridged.code), (Outcome::Ok, None));
        }
    }
}

#[test]
fn legacy_clients_get_nothing_that_only_the_modern_era_has() {
    let given = r#"{"resultType":"complete","a":1.10,"ttlMs":5,"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"s"},"k":2},"cacheScope":"public"}"#;
    for version in &ProtocolVersion::ALL[..4] {
        let to = client(*version, "resources/read");
        assert_eq!(got(&to, V2026_07_28, given), r#"{"a":1.10,"_meta":{"k":2}}"#);
    }
    let to = client(V2025_06_18, "logging/setLevel");
    let only = r#"{"_meta":{"io.modelcontextprotocol/serverInfo":{}}, "resultType" : "complete" }"#;
    assert_eq!(got(&to, V2026_07_28, only), "{ }");
    assert_eq!(got(&to, V2026_07_28, r#"{"result\u0054ype":"complete"}"#), "{}");
    assert_eq!(got(&to, V2026_07_28, r#"{"_meta":{"k":"io"}}"#), r#"{"_meta":{"k":"io"}}"#);
    // What is no object has nothing to take out.
    assert_eq!(got(&to, V2026_07_28, "5"), "5");
}

#[test]
fn modern_clients_get_a_complete_result_with_hints_where_they_are_due() {
    let to = client(V2026_07_28, "tools/call");
    assert_eq!(
        got(&to, V2025_11_25, r#"{ "content":[1.10],"x":null}"#),
        r#"{"resultType":"complete", "content":[1.10],"x":null}"#
    );
    assert_eq!(
        got(&to, V2025_06_18, r#"{"structuredContent":{"content":[]}}"#),
        r#"{"resultType":"complete","content":[],"structuredContent":{"content":[]}}"#
    );
    let to = client(V2026_07_28, "resources/read");
    assert_eq!(
        got(&to, V2024_11_05, r#"{"contents":[],"ttlMs":9}"#),
        r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","contents":[]}"#
    );
    let to = client(V2026_07_28, "completion/complete");
    assert_eq!(got(&to, V2025_11_25, "{}"), r#"{"resultType":"complete"}"#);
    assert_eq!(got(&to, V2025_11_25, "[]"), "[]");
}

#[test]
fn a_legacy_result_is_complete_whatever_it_says() {
    let to = client(V2026_07_28, "prompts/get");
    let given = result(r#"{"resultType":"input_required","requestState":"x"}"#);
    let (text, bridged) = bridged(&to, V2025_11_25, &given);
    assert!(text.contains(r#"{"resultType":"complete","requestState":"x"}"#), "{text}");
    assert_eq!(bridged.outcome, Outcome::Ok);
}

#[test]
fn result_types_reach_only_those_who_know_them() {
    let types = ["complete", "input_required", "task", "x/other"];
    let passes = |to: &Recipient<'_>| {
        types.map(|kind| {
            let given = result(&format!(r#"{{"resultType":"{kind}"}}"#));
            let (text, bridged) = bridged(to, V2026_07_28, &given);
            let failed = bridged.code == Some(-32603);
            assert_eq!(failed, bridged.outcome == Outcome::Protocol);
            assert_eq!(failed, text.contains("\"error\""));
            !failed
        })
    };
    let plain = client(V2026_07_28, "tools/call");
    let caps = br#"{"extensions":{"io.modelcontextprotocol/tasks":{}}}"#;
    let tasks = Recipient { caps: ClientCaps::parse(caps), ..plain };
    assert_eq!(passes(&plain), [true, true, false, false]);
    assert_eq!(passes(&tasks), [true, true, true, false]);
    assert_eq!(passes(&client(V2026_07_28, "tools/list")), [true, false, false, false]);
    assert_eq!(passes(&client(V2025_11_25, "tools/call")), [true, false, false, false]);
    let number = result(r#"{"resultType":5}"#);
    assert_eq!(bridged(&plain, V2026_07_28, &number).1.code, Some(-32603));
    let asks = result(r#"{"resultType":"input_required","requestState":"s"}"#);
    assert_eq!(bridged(&plain, V2026_07_28, &asks).1.outcome, Outcome::InputRequired);
    // The state of a task is a complete result, though examples show otherwise.
    let state = Recipient { method: "tasks/get", ..tasks };
    let given = r#"{"resultType":"task","status":"working"}"#;
    assert_eq!(got(&state, V2026_07_28, given), given.replace("\"task\"", "\"complete\""));
}

#[test]
fn structured_content_that_is_no_object_is_wrapped_for_legacy_clients() {
    let given = r#"{"content":[],"structuredContent":[ 1.10,2 ],"resultType":"complete"}"#;
    for version in &ProtocolVersion::ALL[..4] {
        let to = client(*version, "tools/call");
        assert_eq!(
            got(&to, V2026_07_28, given),
            r#"{"content":[{"type":"text","text":"[ 1.10,2 ]"}],"structuredContent":{"result":[ 1.10,2 ]}}"#
        );
    }
    let to = client(V2025_11_25, "tools/call");
    // `null` is a value. The text is there already, in other words.
    let given = r#"{"structuredContent":null,"content":[{"type":"text","text":" null\n"}]}"#;
    let expected = given.replace(":null,", r#":{"result":null},"#);
    assert_eq!(got(&to, V2026_07_28, given), expected);
    let given =
        r#"{"content":[{"type":"text","text":"[1,{\"a\":2}]"}],"structuredContent":[1, {"a":2}]}"#;
    assert_eq!(got(&to, V2026_07_28, given).matches("\"type\"").count(), 1);
    // Without any content there is one afterwards.
    assert_eq!(
        got(&to, V2026_07_28, r#"{"structuredContent":"a\"b"}"#),
        r#"{"content":[{"type":"text","text":"\"a\\\"b\""}],"structuredContent":{"result":"a\"b"}}"#
    );
    assert_eq!(got(&to, V2026_07_28, "{}"), r#"{"content":[]}"#);
}

#[test]
fn structured_content_is_wrapped_as_its_schema_was() {
    let object = r#"{"content":[{"type":"text","text":"{\"a\":1}"}],"structuredContent":{"a":1}}"#;
    let wrapped = object.replace(r#":{"a":1}}"#, r#":{"result":{"a":1}}}"#);
    for (told, expected) in [(None, object), (Some(false), object), (Some(true), &*wrapped)] {
        let to = Recipient { wrapped: told, ..client(V2025_11_25, "tools/call") };
        assert_eq!(got(&to, V2026_07_28, object), expected);
        // A legacy upstream with such a schema breaks its rules, but its clients know the schema wrapped.
        assert_eq!(got(&to, V2025_06_18, object), expected);
        let modern = Recipient { version: V2026_07_28, ..to };
        assert_eq!(got(&modern, V2026_07_28, object), object);
    }
    let to = client(V2025_11_25, "tools/call");
    let list = r#"{"content":[],"structuredContent":[1]}"#;
    assert_eq!(got(&to, V2025_06_18, list), list);
}

#[test]
fn clients_that_know_no_structured_content_get_it_as_text() {
    let given = r#"{"content":[{"type":"text","text":"done"}],"structuredContent":{"n":1.10}}"#;
    for from in [V2025_06_18, V2025_11_25, V2026_07_28] {
        for to in [V2024_11_05, V2025_03_26] {
            assert_eq!(
                got(&client(to, "tools/call"), from, given),
                r#"{"content":[{"type":"text","text":"done"},{"type":"text","text":"{\"n\":1.10}"}],"structuredContent":{"n":1.10}}"#
            );
        }
        assert_eq!(got(&client(V2025_06_18, "tools/call"), from, given), given);
    }
}

const LINK: &str = r#"{"type":"resource_link","uri":"file:///q3","name":"q3","title":"Report","size":1,"annotations":{"priority":0.10}}"#;
const LINK_TEXT: &str =
    r#"{"text":"Report: file:///q3","type":"text","annotations":{"priority":0.10}}"#;
const AUDIO: &str =
    r#"{"type":"audio","data":"UklGRg==","mimeType":"audio/wav","_meta":{"x":1.0}}"#;
const AUDIO_RESOURCE: &str = r#"{"resource":{"uri":"trunkline:audio/1","mimeType":"audio/wav","blob":"UklGRg=="},"type":"resource","_meta":{"x":1.0}}"#;

#[test]
fn blocks_that_a_client_does_not_know_become_others() {
    let given = |link: &str, audio: &str| format!(r#"{{"content":[{link}, {audio} ],"x":1}}"#);
    for from in [V2025_06_18, V2025_11_25, V2026_07_28] {
        for (to, link, audio) in [
            (V2024_11_05, LINK_TEXT, AUDIO_RESOURCE),
            (V2025_03_26, LINK_TEXT, AUDIO),
            (V2025_06_18, LINK, AUDIO),
            (V2025_11_25, LINK, AUDIO),
        ] {
            let text = got(&client(to, "tools/call"), from, &given(LINK, AUDIO));
            assert_eq!(text, given(link, audio), "{from} to {to}");
        }
    }
    let unknown = r#"{"content":[{"type":"hologram","uri":"x"},5,{"type":"audio"}]}"#;
    assert_eq!(got(&client(V2024_11_05, "tools/call"), V2026_07_28, unknown), unknown);
}

#[test]
fn blocks_of_prompts_are_projected_too() {
    let given = |audio: &str| {
        format!(
            r#"{{"messages":[{{"role":"user","content":{LINK}}},{{"role":"user","content":{audio}}}]}}"#
        )
    };
    let text = got(&client(V2024_11_05, "prompts/get"), V2025_11_25, &given(AUDIO));
    assert_eq!(text, given(AUDIO_RESOURCE).replace(LINK, LINK_TEXT));
    // Elsewhere such words mean nothing.
    let text = got(&client(V2024_11_05, "x/y"), V2025_11_25, &given(AUDIO));
    assert_eq!(text, given(AUDIO));
}

#[test]
fn a_link_without_title_still_reads() {
    let given = r#"{"content":[{"type":"resource_link","uri":"a:b","description":"It is."},{"type":"resource_link"}]}"#;
    assert_eq!(
        got(&client(V2025_03_26, "tools/call"), V2025_06_18, given),
        r#"{"content":[{"text":"a:b\nIt is.","type":"text"},{"type":"resource_link"}]}"#
    );
}

#[test]
fn tool_errors_stay_tool_errors() {
    let given = result(r#"{"content":[],"isError":true}"#);
    for (to, from) in [(V2026_07_28, V2025_06_18), (V2025_06_18, V2026_07_28)] {
        let (_, bridged) = bridged(&client(to, "tools/call"), from, &given);
        assert_eq!((bridged.outcome, bridged.code), (Outcome::ToolError, None));
    }
}

#[test]
fn errors_of_no_special_meaning_pass_as_they_are() {
    for code in [-32602, -32603, -32601, -32000, -31004, 17] {
        let given = format!(r#"{{ "message":"m" ,"code": {code}, "data":{{"n":1.10}} }}"#);
        for to in ProtocolVersion::ALL {
            for from in ProtocolVersion::ALL {
                let (text, bridged) = got_error(&client(to, "tools/call"), from, &given);
                assert_eq!(text, given);
                assert_eq!(bridged.outcome, Outcome::RpcError);
                assert_eq!(bridged.code, Some(code));
            }
        }
    }
}

#[test]
fn a_missing_resource_is_told_in_the_words_of_the_era() {
    let modern = |uri| Recipient { uri, ..client(V2026_07_28, "resources/read") };
    for (given, expected) in [
        (
            r#"{"code":-32002,"message":"m"}"#,
            r#"{"data":{"uri":"f:\"x"},"code":-32602,"message":"m"}"#,
        ),
        (
            r#"{"code":-32002,"message":"m","data":{}}"#,
            r#"{"code":-32602,"message":"m","data":{"uri":"f:\"x"}}"#,
        ),
        (
            r#"{"code":-32002,"message":"m","data":{"n":1.10}}"#,
            r#"{"code":-32602,"message":"m","data":{"uri":"f:\"x","n":1.10}}"#,
        ),
        (
            r#"{"code":-32002,"message":"m","data":{"uri":"own"}}"#,
            r#"{"code":-32602,"message":"m","data":{"uri":"own"}}"#,
        ),
        (
            r#"{"code":-32002,"message":"m","data":null}"#,
            r#"{"data":{"uri":"f:\"x"},"code":-32602,"message":"m"}"#,
        ),
        (
            r#"{"code":-32002,"message":"m","data":"d"}"#,
            r#"{"code":-32602,"message":"m","data":"d"}"#,
        ),
    ] {
        let (text, bridged) = got_error(&modern(Some("f:\"x")), V2025_11_25, given);
        assert_eq!(text, expected);
        assert_eq!(bridged.code, Some(-32602));
        let legacy = client(V2025_03_26, "resources/read");
        assert_eq!(got_error(&legacy, V2025_11_25, given).0, given);
    }
    let bare = r#"{"code":-32002,"message":"m"}"#;
    assert_eq!(got_error(&modern(None), V2025_11_25, bare).0, bare.replace("002", "602"));
}

const VISIT: &str = r#"{"code":-32042,"message":"Sign in first","data":{"elicitations":[{"mode":"url","message":"Open","url":"https://a/?x=1","elicitationId":"e"},{"url":"https://b"},7]}}"#;

#[test]
fn pages_to_visit_are_told_to_clients_that_cannot_be_asked() {
    let (text, _) = got_error(&client(V2025_11_25, "tools/call"), V2025_11_25, VISIT);
    assert_eq!(text, VISIT);
    for version in &ProtocolVersion::ALL[..3] {
        let (text, tool) = bridged(&client(*version, "tools/call"), V2025_11_25, &error(VISIT));
        assert_eq!(
            text,
            r#"{"jsonrpc":"2.0","id":"c","result":{"content":[{"type":"text","text":"Sign in first\nOpen: https://a/?x=1\nhttps://b"}],"isError":true}}"#
        );
        assert_eq!((tool.outcome, tool.code), (Outcome::ToolError, None));
        let (text, _) = got_error(&client(*version, "prompts/get"), V2025_11_25, VISIT);
        assert_eq!(text, VISIT.replace("-32042", "-32603"));
    }
    // Modern servers must not use the code.
    let (text, _) = got_error(&client(V2026_07_28, "tools/call"), V2025_11_25, VISIT);
    assert_eq!(text, VISIT.replace("-32042", "-32603"));
}

#[test]
fn a_missing_capability_is_told_to_whom_it_concerns() {
    let given = r#"{"code":-32021,"message":"No","data":{"requiredCapabilities":{"elicitation":{"url":{}}}}}"#;
    let (text, tool) = bridged(&client(V2025_11_25, "tools/call"), V2026_07_28, &error(given));
    assert_eq!(tool.outcome, Outcome::ToolError);
    let text: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(text["result"]["isError"], true);
    assert_eq!(
        text["result"]["content"][0]["text"],
        "No\nThis needs capabilities that the client did not declare: {\"elicitation\":{\"url\":{}}}"
    );
    let (text, _) = got_error(&client(V2025_11_25, "prompts/get"), V2026_07_28, given);
    assert_eq!(text, given.replace("-32021", "-32603"));
    let lacks = client(V2026_07_28, "tools/call");
    assert_eq!(got_error(&lacks, V2026_07_28, given).0, given);
    let form = Recipient { caps: ClientCaps::parse(br#"{"elicitation":{}}"#), ..lacks };
    assert_eq!(got_error(&form, V2026_07_28, given).0, given);
    let url = Recipient { caps: ClientCaps::parse(br#"{"elicitation":{"url":{}}}"#), ..lacks };
    assert_eq!(got_error(&url, V2026_07_28, given).1.code, Some(-32603));
}

#[test]
fn odd_answers_pass_as_they_are() {
    for text in [
        r#"{"jsonrpc":"2.0","id":7}"#,
        r#"{"jsonrpc":"2.0","id":7,"result":1,"error":{"code":1}}"#,
        r#"{"jsonrpc":"2.0","id":7,"error":"broken"}"#,
    ] {
        for to in ProtocolVersion::ALL {
            let bridged = answer(&client(to, "tools/call"), V2025_11_25, &parsed(text), &id());
            assert_eq!(bridged.text.into_bytes(), text.replace('7', "\"c\""));
            assert_ne!(bridged.outcome, Outcome::Ok);
        }
    }
}
