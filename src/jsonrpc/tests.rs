//! Tests of the room.

use bytes::Bytes;

use super::*;

const DEPTH: u16 = 64;
const LIMITS: Limits = Limits { max_depth: DEPTH, max_batch: 10 };

fn parse(text: &str) -> Result<Message, Rejected> {
    Message::parse(Bytes::copy_from_slice(text.as_bytes()), DEPTH)
}

fn message(text: &str) -> Message {
    parse(text).unwrap_or_else(|rejected| panic!("{text}: {rejected}"))
}

fn answer(text: &str) -> Message {
    Message::parse_answer(Bytes::copy_from_slice(text.as_bytes()), DEPTH)
        .unwrap_or_else(|rejected| panic!("{text}: {rejected}"))
}

fn batch(text: &str) -> Vec<Element> {
    match parse_body(Bytes::copy_from_slice(text.as_bytes()), &LIMITS).unwrap() {
        Body::Batch(elements) => elements,
        Body::One(message) => panic!("{message:?}"),
    }
}

fn body_rejected(text: &str) -> Rejected {
    parse_body(Bytes::copy_from_slice(text.as_bytes()), &LIMITS).unwrap_err()
}

/// The id and the reason of a text that is JSON but no message.
fn invalid(text: &str) -> (Option<String>, &'static str) {
    invalid_of(&parse(text).unwrap_err())
}

fn invalid_of(rejected: &Rejected) -> (Option<String>, &'static str) {
    match rejected {
        Rejected::Invalid { id, reason } => {
            (id.as_ref().map(|id| String::from_utf8(id.text().to_vec()).unwrap()), reason)
        }
        other => panic!("{other:?}"),
    }
}

fn is_syntax(text: impl Into<Vec<u8>>) -> bool {
    matches!(Message::parse(Bytes::from(text.into()), DEPTH), Err(Rejected::Syntax { .. }))
}

/// Row 8 and following: the ids that are echoed as they stand.
#[test]
fn legal_ids_are_kept_byte_for_byte() {
    let ids = [
        ("null", IdKind::Null),
        ("1.5", IdKind::Fraction),
        ("1.0", IdKind::Fraction),
        ("1e3", IdKind::Fraction),
        ("1E3", IdKind::Fraction),
        ("-1", IdKind::Integer),
        ("0", IdKind::Integer),
        ("9007199254740993", IdKind::Integer),
        ("9223372036854775808", IdKind::Integer),
        ("18446744073709551616", IdKind::Integer),
        ("123456789012345678901234567890", IdKind::Integer),
        (r#""""#, IdKind::String),
        (r#""\u0041""#, IdKind::String),
        (r#""\ud800""#, IdKind::String),
        (r#""1e3""#, IdKind::String),
    ];
    for (id, kind) in ids {
        let message = message(&format!(r#"{{"jsonrpc":"2.0","id": {id} ,"method":"m"}}"#));
        assert_eq!(message.kind(), Kind::Request, "{id}");
        assert_eq!(message.id().unwrap().text(), id, "{id}");
        assert_eq!(message.id().unwrap().kind(), kind, "{id}");
        let other = message.with_id(&Id::from_number(7)).into_bytes();
        assert_eq!(other, r#"{"jsonrpc":"2.0","id": 7 ,"method":"m"}"#);
    }
}

#[test]
fn ids_of_other_types_are_refused_without_an_id() {
    for id in ["true", "false", "{}", "[]", "[1]"] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
        assert_eq!(invalid(&text).0, None, "{id}");
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#);
        assert_eq!(invalid(&text).0, None, "{id}");
    }
}

#[test]
fn a_message_without_an_id_is_a_notification() {
    let message = message(r#"{"jsonrpc":"2.0","method":"a/b","params":[1]}"#);
    assert_eq!(message.kind(), Kind::Notification);
    assert_eq!(message.id(), None);
    assert_eq!(message.id_span(), None);
    assert_eq!(message.method(), "a/b");
    assert_eq!(message.params_kind(), ParamsKind::Array);
    assert_eq!(message.with_id(&Id::from_number(1)).into_bytes(), message.text());
}

#[test]
fn a_wrong_version_is_refused_with_the_id() {
    for version in [
        "",
        r#""jsonrpc":"1.0","#,
        r#""jsonrpc":2.0,"#,
        r#""jsonrpc":null,"#,
        r#""jsonrpc":"2.00","#,
    ] {
        let text = format!(r#"{{{version}"id":"a","method":"m"}}"#);
        assert_eq!(invalid(&text).0.as_deref(), Some(r#""a""#), "{version}");
        let text = format!(r#"{{{version}"method":"m"}}"#);
        assert_eq!(invalid(&text).0, None, "{version}");
    }
    assert!(message(r#"{"jsonrpc":"\u0032.0","id":1,"method":"m"}"#).version_ok());
}

#[test]
fn a_method_that_is_no_text_is_refused_with_the_id() {
    let cases = [
        ("", "method is missing"),
        (r#","method":1"#, "method is not a string"),
        (r#","method":null"#, "method is not a string"),
        (r#","method":["m"]"#, "method is not a string"),
        (r#","method":"""#, "method is empty"),
        (r#","method":"\ud800""#, "method is not valid Unicode"),
        (r#","method":"a\udc00b""#, "method is not valid Unicode"),
    ];
    for (method, reason) in cases {
        let text = format!(r#"{{"jsonrpc":"2.0","id":5{method}}}"#);
        assert_eq!(invalid(&text), (Some("5".into()), reason), "{text}");
    }
}

#[test]
fn scalar_params_are_refused_and_null_counts_as_absent() {
    for params in ["1", "true", "false", r#""a""#] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"m","params":{params}}}"#);
        assert_eq!(invalid(&text).0.as_deref(), Some("5"), "{params}");
    }
    let null = message(r#"{"jsonrpc":"2.0","id":5,"method":"m","params":null}"#);
    assert_eq!(null.params_kind(), ParamsKind::Null);
    let absent = message(r#"{"jsonrpc":"2.0","id":5,"method":"m"}"#);
    assert_eq!((absent.params_kind(), absent.params()), (ParamsKind::Absent, None));
}

#[test]
fn keys_and_method_are_compared_decoded() {
    let message = message(
        r#"{"json\u0072pc":"2.0","\u0069d":4,"m\u0065thod":"tools\/c\u0061ll","p\u0061rams":{"n\u0061me":"\u0061\ud83d\ude00","\u005fmeta":{"progress\u0054oken":1}}}"#,
    );
    assert_eq!(message.kind(), Kind::Request);
    assert_eq!(message.id().unwrap().text(), "4");
    assert_eq!(message.method(), "tools/call");
    assert_eq!(message.member_str(Member::Name).unwrap(), "a\u{1f600}");
    assert_eq!(message.member(Member::MetaProgressToken).unwrap(), "1");
}

#[test]
fn a_nul_escape_does_not_end_a_method() {
    assert_eq!(message(r#"{"jsonrpc":"2.0","method":"a\u0000b"}"#).method(), "a\0b");
}

#[test]
fn envelope_members_twice_are_refused() {
    let members = [
        ("jsonrpc", r#""2.0""#, Some("5")),
        ("id", "5", None),
        ("method", r#""m""#, Some("5")),
        ("params", "{}", Some("5")),
        ("result", "1", Some("5")),
        ("error", "null", Some("5")),
    ];
    for (name, value, id) in members {
        for key in [name.to_owned(), format!("\\u00{:02x}{}", name.as_bytes()[0], &name[1..])] {
            let text = format!(
                r#"{{"jsonrpc":"2.0","id":5,"method":"m","params":{{}},"result":1,"error":null,"{key}":{value}}}"#
            );
            let (got, reason) = invalid(&text);
            assert_eq!(got.as_deref(), id, "{text}");
            assert!(reason.starts_with(name), "{reason}");
        }
    }
}

#[test]
fn envelope_members_in_other_case_are_refused() {
    for key in [
        "JSONRPC",
        "Id",
        "Method",
        "PARAMS",
        "resulT",
        "Error",
        "j\u{17f}onrpc",
        "re\\u017fult",
        "param\u{17f}",
    ] {
        let text = format!(r#"{{"jsonrpc":"2.0","id":5,"method":"m","{key}":1}}"#);
        let alias = parse(&text);
        assert!(matches!(alias, Err(Rejected::Invalid { .. })), "{key}");
    }
    let (id, _) = invalid(r#"{"jsonrpc":"2.0","id":5,"ID":6,"method":"m"}"#);
    assert_eq!(id, None);
    let (id, _) = invalid(r#"{"jsonrpc":"2.0","id":5,"Method":"m","method":"m"}"#);
    assert_eq!(id.as_deref(), Some("5"));
}

#[test]
fn unknown_members_are_ignored_and_kept() {
    let text =
        r#"{"jsonrpc":"2.0","x":[{"id":9}],"id":1,"method":"m","params":{"b":1,"a":2},"ids":0}"#;
    let message = message(text);
    assert_eq!(message.id().unwrap().text(), "1");
    assert_eq!(message.text(), text);
    assert_eq!(message.params().unwrap(), r#"{"b":1,"a":2}"#);
    let other = message.with_id(&Id::from_number(20)).into_bytes();
    assert_eq!(other, text.replace(r#""id":1"#, r#""id":20"#));
}

#[test]
fn every_member_is_found_where_it_stands() {
    let text = r#" {"method":"tools/call","params":{ "name" : "n" ,"uri":"u","cursor":"c",
        "arguments":{"name":"not this","_meta":{"progressToken":0}},
        "_meta":{"progressToken":"t","io.modelcontextprotocol/protocolVersion":"2026-07-28",
            "io.modelcontextprotocol/clientCapabilities":{"name":1},
            "io.modelcontextprotocol/clientInfo":{"name":"i"},
            "io.modelcontextprotocol/logLevel":"info","traceparent":"00-1"},
        "progressToken":7,"requestId":"r","level":"l","taskId":"k","requestState":"s",
        "inputResponses":[],"protocolVersion":"v","capabilities":{},"clientInfo":{"a":1},
        "ref":{"type":"ref/prompt","name":"rn","uri":"ru"}},
        "jsonrpc":"2.0","id":3} "#;
    let message = message(text);
    let expected = [
        (Member::Name, r#""n""#),
        (Member::Uri, r#""u""#),
        (Member::Cursor, r#""c""#),
        (Member::Arguments, r#"{"name":"not this","_meta":{"progressToken":0}}"#),
        (Member::ProgressToken, "7"),
        (Member::RequestId, r#""r""#),
        (Member::Level, r#""l""#),
        (Member::TaskId, r#""k""#),
        (Member::RequestState, r#""s""#),
        (Member::InputResponses, "[]"),
        (Member::ProtocolVersion, r#""v""#),
        (Member::Capabilities, "{}"),
        (Member::ClientInfo, r#"{"a":1}"#),
        (Member::Ref, r#"{"type":"ref/prompt","name":"rn","uri":"ru"}"#),
        (Member::RefName, r#""rn""#),
        (Member::RefUri, r#""ru""#),
        (Member::MetaProgressToken, r#""t""#),
        (Member::MetaProtocolVersion, r#""2026-07-28""#),
        (Member::MetaClientCapabilities, r#"{"name":1}"#),
        (Member::MetaClientInfo, r#"{"name":"i"}"#),
        (Member::MetaLogLevel, r#""info""#),
        (Member::MetaTraceparent, r#""00-1""#),
    ];
    for (member, value) in expected {
        assert_eq!(message.member(member).unwrap(), value, "{member:?}");
    }
    assert!(message.member(Member::Meta).unwrap().starts_with(br#"{"progressToken":"t","#));
    assert_eq!(message.ambiguous_member(), None);
    assert_eq!(message.member(Member::IsError), None);
    assert_eq!(message.text(), text.trim());
}

#[test]
fn members_of_answers_are_found() {
    let result = message(
        r#"{"jsonrpc":"2.0","id":1,"result":{"isError":true,"nextCursor":"x","resultType":"complete","content":[{"isError":0}]}}"#,
    );
    assert_eq!(result.kind(), Kind::Response);
    assert_eq!(result.method(), "");
    assert_eq!(result.member(Member::IsError).unwrap(), "true");
    assert_eq!(result.member_str(Member::NextCursor).unwrap(), "x");
    assert_eq!(result.member_str(Member::ResultType).unwrap(), "complete");
    assert_eq!(result.member_str(Member::IsError), None);
    let error = message(
        r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no","data":{"code":1.10}}}"#,
    );
    assert_eq!(error.member(Member::ErrorCode).unwrap(), "-32601");
    assert_eq!(error.error().unwrap(), r#"{"code":-32601,"message":"no","data":{"code":1.10}}"#);
}

#[test]
fn routed_members_twice_or_in_other_case_are_told() {
    let cases = [
        (r#""name":"a","name":"b""#, Some("name")),
        (r#""name":"a","n\u0061me":"b""#, Some("name")),
        (r#""name":"a","Name":"b""#, Some("name")),
        (r#""NAME":"b","name":"a""#, Some("name")),
        (r#""Name":"b""#, None),
        (r#""uri":"a","x":1,"URI":"b""#, Some("uri")),
        (r#""_meta":{},"_meta":{}"#, Some("_meta")),
        (r#""arguments":{},"arguments":1"#, Some("arguments")),
        (r#""cursor":1,"cursor":1"#, Some("cursor")),
        (r#""taskId":1,"taskId":1"#, Some("taskId")),
        (r#""requestState":1,"requestState":1"#, Some("requestState")),
        (r#""inputResponses":1,"inputResponses":1"#, Some("inputResponses")),
        (r#""ref":{"name":1,"name":2}"#, Some("name")),
        (r#""_meta":{"progressToken":1,"progressToken":2}"#, Some("progressToken")),
        (r#""x":1,"x":1,"arguments":{"name":1,"name":2}"#, None),
        (r#""name":"a","arguments":{"Name":1,"name":1}"#, None),
    ];
    for (params, ambiguous) in cases {
        let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{{{params}}}}}"#);
        assert_eq!(message(&text).ambiguous_member(), ambiguous, "{text}");
    }
}

#[test]
fn of_a_member_that_stands_twice_the_last_counts() {
    let message = message(
        r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"name":"a","_meta":{"progressToken":1},"_meta":{"traceparent":"t"},"name":"b"}}"#,
    );
    assert_eq!(message.member_str(Member::Name).unwrap(), "b");
    assert_eq!(message.member(Member::MetaProgressToken), None);
    assert_eq!(message.member_str(Member::MetaTraceparent).unwrap(), "t");
}

#[test]
fn lone_surrogates_are_raw_text_below_the_envelope_but_no_string() {
    let message =
        message(r#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"name":"\ud800","k":"\udfff"}}"#);
    assert_eq!(message.member(Member::Name).unwrap(), r#""\ud800""#);
    assert_eq!(message.member_str(Member::Name), None);
}

/// Rows 24, 25 and 47.
#[test]
fn what_an_answer_carries_is_told() {
    let cases = [
        (r#""result":1"#, Answer::Result),
        (r#""result":null"#, Answer::Result),
        (r#""result":1,"error":null"#, Answer::Result),
        (r#""result":null,"error":null"#, Answer::Result),
        (r#""error":{}"#, Answer::Error),
        (r#""result":null,"error":{}"#, Answer::Error),
        (r#""error":"text""#, Answer::Error),
        (r#""result":1,"error":{}"#, Answer::Both),
        (r#""error":null"#, Answer::Neither),
        (r#""x":1"#, Answer::Neither),
    ];
    for (members, carried) in cases {
        let message = answer(&format!(r#"{{"jsonrpc":"2.0","id":1,{members}}}"#));
        assert_eq!(message.kind(), Kind::Response, "{members}");
        assert_eq!(message.answer(), carried, "{members}");
        assert_eq!(message.error_is_object(), members.contains("{}"), "{members}");
    }
}

#[test]
fn upstream_texts_are_answers_whatever_their_shape() {
    let odd = answer(r#"{"id":[1],"method":null,"result":1}"#);
    assert_eq!((odd.kind(), odd.id(), odd.version_ok()), (Kind::Response, None, false));
    assert_eq!(answer("{}").answer(), Answer::Neither);
    let asked = answer(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#);
    assert_eq!((asked.kind(), asked.method()), (Kind::Request, "ping"));
    let told = answer(r#"{"jsonrpc":"2.0","method":"notifications/progress"}"#);
    assert_eq!(told.kind(), Kind::Notification);
    let twice =
        Message::parse_answer(Bytes::from_static(b"{\"id\":1,\"result\":1,\"result\":2}"), DEPTH);
    assert_eq!(invalid_of(&twice.unwrap_err()).0.as_deref(), Some("1"));
}

#[test]
fn upstream_batches_are_judged_like_answers() {
    let text = Bytes::from_static(br#"[{"id":1,"result":1},{"id":2},5]"#);
    let Body::Batch(elements) = parse_answers(text, &LIMITS).unwrap() else { panic!("one") };
    assert_eq!(elements[0].as_ref().unwrap().answer(), Answer::Result);
    assert_eq!(elements[1].as_ref().unwrap().answer(), Answer::Neither);
    assert!(elements[2].is_err());
}

/// Rows 1 to 4.
#[test]
fn batches_keep_their_order_and_judge_each_element() {
    assert_eq!(body_rejected(" [ ] "), Rejected::EmptyBatch);
    assert_eq!(batch("[1]").len(), 1);
    assert!(batch("[1,2,3]").iter().all(|one| invalid_of(one.as_ref().unwrap_err()).0.is_none()));
    assert_eq!(batch(r#"[[{"jsonrpc":"2.0","method":"m","id":1}]]"#).len(), 1);
    let text = r#"
        [ {"jsonrpc":"2.0","method":"sum","params":[1,2,4],"id":"1"} ,
          {"jsonrpc":"2.0","method":"notify_hello","params":[7]},
          {"foo":"boo"},
          {"jsonrpc":"1.0","method":"x","id":"5"},
          {"jsonrpc":"2.0","method":"get","params":{"name":"myself"},"id":"9"}
        ] "#;
    let elements = batch(text);
    assert_eq!(elements.len(), 5);
    let first = elements[0].as_ref().unwrap();
    assert_eq!((first.kind(), first.method()), (Kind::Request, "sum"));
    assert_eq!(first.text(), r#"{"jsonrpc":"2.0","method":"sum","params":[1,2,4],"id":"1"}"#);
    assert_eq!(elements[1].as_ref().unwrap().kind(), Kind::Notification);
    assert_eq!(invalid_of(elements[2].as_ref().unwrap_err()).0, None);
    assert_eq!(invalid_of(elements[3].as_ref().unwrap_err()).0.as_deref(), Some(r#""5""#));
    let last = elements[4].as_ref().unwrap();
    assert_eq!(last.member_str(Member::Name).unwrap(), "myself");
    assert_eq!(last.id().unwrap().text(), r#""9""#);
}

#[test]
fn elements_share_the_text_of_the_body() {
    let body = Bytes::from(r#"[{"jsonrpc":"2.0","method":"m","id":1}]"#.to_owned());
    let start = body.as_ptr() as usize;
    let Body::Batch(elements) = parse_body(body, &LIMITS).unwrap() else { panic!("one") };
    assert_eq!(elements[0].as_ref().unwrap().text().as_ptr() as usize, start + 1);
}

#[test]
fn a_batch_over_the_limit_is_refused_before_the_next_element() {
    let ten = format!("[{}]", ["1"; 10].join(","));
    assert_eq!(batch(&ten).len(), 10);
    let more = format!("[{},1]", ["1"; 10].join(","));
    assert_eq!(body_rejected(&more), Rejected::BatchTooLarge { limit: 10 });
    let broken_before = format!("[x{},1]", ["1"; 10].join(","));
    assert!(matches!(body_rejected(&broken_before), Rejected::Syntax { .. }));
}

/// Rows 33 to 38.
#[test]
fn broken_texts_are_syntax_errors() {
    let broken = [
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "{]",
        "[}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{,}",
        "{\"a\":1 \"b\":2}",
        "{1:2}",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":-}",
        "{\"a\":1.}",
        "{\"a\":.5}",
        "{\"a\":1e}",
        "{\"a\":1e+}",
        "{\"a\":+1}",
        "{\"a\":0x1}",
        "{\"a\":NaN}",
        "{\"a\":Infinity}",
        "{\"a\":tru}",
        "{\"a\":nul}",
        "{\"a\":True}",
        "{\"a\":\"\n\"}",
        "{\"a\":\"\t\"}",
        "{\"a\":\"\0\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":\"\\u12g4\"}",
        "{\"a\":\"\\u123\"}",
        "{\"a\":\"",
        "{\"a\":\"\\",
        "{\"a\":\"\\\"}",
        "{} x",
        "{}{}",
        "{},",
        "[{}",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[1]]",
        "{\"a\":[1,[2,{\"b\":[}]]}",
        "\u{feff}\u{feff}{}",
        "\u{a0}{}",
        "// a\n{}",
        "{\"a\":1}\0",
        "\0",
        "nul",
        "-",
        "\"a",
    ];
    for text in broken {
        assert!(is_syntax(text), "{text:?}");
        assert!(matches!(body_rejected(text), Rejected::Syntax { .. }), "{text:?}");
    }
    let element = r#"[{"jsonrpc":"2.0","method":"m","id":1},{"jsonrpc":"2.0","method"]"#;
    assert!(matches!(body_rejected(element), Rejected::Syntax { .. }));
    assert_eq!(body_rejected("{\"a\":x}"), Rejected::Syntax { offset: 5 });
}

#[test]
fn a_syntax_error_goes_before_an_invalid_envelope() {
    assert!(is_syntax(r#"{"id":true,"id":1,"method":"#));
}

#[test]
fn json_that_is_no_object_is_invalid() {
    for text in ["5", "null", "\"a\"", "true", " -1.5e3 ", "[]", "[1]"] {
        assert_eq!(invalid(text), (None, "not an object"), "{text}");
    }
    for text in ["5", "null", "\"a\""] {
        assert_eq!(invalid_of(&body_rejected(text)), (None, "not an object"), "{text}");
    }
}

#[test]
fn white_space_and_one_mark_around_a_text_are_skipped() {
    let text = "\u{feff} \r\n\t {\"jsonrpc\" :\r\"2.0\",\n\"method\":\t\"m\" } \r\n ";
    let message = message(text);
    assert_eq!(message.method(), "m");
    assert_eq!(message.text(), "{\"jsonrpc\" :\r\"2.0\",\n\"method\":\t\"m\" }");
    let Body::Batch(elements) = parse_body(Bytes::from("\u{feff} [1] "), &LIMITS).unwrap() else {
        panic!("one")
    };
    assert_eq!(elements.len(), 1);
}

#[test]
fn bytes_that_are_no_utf_8_are_syntax_errors_wherever_they_stand() {
    let text = br#"{"jsonrpc":"2.0","id":1,"method":"m","params":{"x":"?"}}"#;
    assert!(Message::parse(Bytes::from_static(text), DEPTH).is_ok());
    let at = text.iter().position(|&byte| byte == b'?').unwrap();
    for bad in [0x80, 0xC0, 0xED, 0xF5, 0xFF] {
        let mut text = text.to_vec();
        text[at] = bad;
        assert_eq!(
            Message::parse(Bytes::from(text), DEPTH).unwrap_err(),
            Rejected::Syntax { offset: at }
        );
    }
}

/// Row 43.
#[test]
fn depth_is_limited_without_recursion() {
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{open}{close}}}"#)
    };
    assert!(parse(&nested(63)).is_ok());
    assert_eq!(parse(&nested(64)).unwrap_err(), Rejected::TooDeep { limit: 64 });
    assert_eq!(parse(&nested(100_000)).unwrap_err(), Rejected::TooDeep { limit: 64 });
    let most = Message::parse(Bytes::from(nested(60_000)), u16::MAX).unwrap();
    assert_eq!(most.params().unwrap().len(), 120_000);
    let objects = format!("{}1{}", r#"{"_meta":"#.repeat(100_000), "}".repeat(100_000));
    let text = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"m","params":{objects}}}"#);
    assert_eq!(parse(&text).unwrap_err(), Rejected::TooDeep { limit: 64 });
    assert_eq!(parse(&"[".repeat(100_000)).unwrap_err(), Rejected::TooDeep { limit: 64 });
}

#[test]
fn the_depth_of_a_batch_counts_from_each_element() {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let limits = Limits { max_depth: 2, max_batch: 3 };
    let body = |text: String| parse_body(Bytes::from(text), &limits);
    assert!(matches!(body(format!("[{}]", nested(2))), Ok(Body::Batch(_))));
    assert_eq!(body(format!("[{}]", nested(3))).unwrap_err(), Rejected::TooDeep { limit: 2 });
    assert!(Message::parse(Bytes::from_static(br#"{"jsonrpc":"2.0","method":"m"}"#), 1).is_ok());
    let two = Bytes::from_static(br#"{"jsonrpc":"2.0","method":"m","params":{}}"#);
    assert!(Message::parse(two, 1).is_err());
}

#[test]
fn strings_of_every_length_are_walked_to_their_end() {
    for length in 0..600 {
        for tail in ["", "\\n", "\\\\", "\\\"", "\\u00e9x", "\u{e9}"] {
            let value = format!("\"{}{tail}\"", "x".repeat(length));
            let text = format!(r#"{{"jsonrpc":"2.0","id":{value},"method":"m"}}"#);
            assert_eq!(message(&text).id().unwrap().text(), &value);
            let control = text.replace(&value, &format!("\"{}\u{1f}{tail}\"", "x".repeat(length)));
            assert!(is_syntax(control), "{length} {tail}");
        }
    }
}

/// Rows 44 to 46.
#[test]
fn edits_leave_every_other_byte_alone() {
    let text = r#"{"id":1,"jsonrpc":"2.0","result":{"z":1.10,"a":-0,"n":1e2,"big":123456789012345678901234567890}}"#;
    let message = message(text);
    let result = message.with_id(&Id::from_text(Bytes::from_static(b"\"\\u0041\""))).into_bytes();
    assert_eq!(result, text.replacen('1', "\"\\u0041\"", 1));
}

#[test]
fn messages_of_ours_are_messages() {
    let request = Message::request("a\"b", Some(br#"{"name":"x"}"#));
    assert_eq!((request.kind(), request.method()), (Kind::Request, "a\"b"));
    assert_eq!(request.member_str(Member::Name).unwrap(), "x");
    assert_eq!(
        request.with_id(&Id::from_number(12)).into_bytes(),
        r#"{"jsonrpc":"2.0","id":12,"method":"a\"b","params":{"name":"x"}}"#
    );
    let notification = Message::notification("notifications/initialized", None);
    assert_eq!(notification.kind(), Kind::Notification);
    assert_eq!(notification.text(), r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#);
}

#[test]
fn answers_of_ours_are_escaped_json() {
    let id = Id::from_text(Bytes::from_static(b"1.0"));
    assert_eq!(result_response(&id, b"{}"), r#"{"jsonrpc":"2.0","id":1.0,"result":{}}"#);
    let error = ErrorObject {
        code: -32601,
        message: "no \"such\"\nmethod".into(),
        data: Some(Bytes::from_static(br#"{"reason":"x"}"#)),
    };
    let object = r#"{"code":-32601,"message":"no \"such\"\nmethod","data":{"reason":"x"}}"#;
    assert_eq!(error.to_text(), object);
    assert_eq!(
        error_response(Some(&id), &error, NullId::Omit),
        format!(r#"{{"jsonrpc":"2.0","id":1.0,"error":{object}}}"#)
    );
    assert_eq!(
        error_response(None, &error, NullId::Null),
        format!(r#"{{"jsonrpc":"2.0","id":null,"error":{object}}}"#)
    );
    assert_eq!(
        error_response(None, &error, NullId::Omit),
        format!(r#"{{"jsonrpc":"2.0","error":{object}}}"#)
    );
}

#[test]
fn ids_of_ours_are_read_back_and_others_are_not() {
    assert_eq!(Id::from_number(u64::MAX).as_number(), Some(u64::MAX));
    for text in ["\"1\"", "1.0", "-1", "18446744073709551616", "null"] {
        assert_eq!(Id::from_text(Bytes::from_static(text.as_bytes())).as_number(), None, "{text}");
    }
}
