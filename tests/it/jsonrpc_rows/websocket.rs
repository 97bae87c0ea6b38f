//! The same table over WebSocket: each row alone and inside a batch, all on one connection.

use tokio_tungstenite::tungstenite::Message;

use super::{Error, GOOD, MESSAGES, Nothing, RawValue, Result, TEXTS, serve};
use crate::ws_client::Ws;

fn good(text: &str) {
    Result("\"good\"", "[\"fine\"]").check("", GOOD, text);
}

#[tokio::test]
async fn every_row_gets_its_answer_over_websocket() {
    let (gateway, _node, _other) = serve().await;
    let mut ws = Ws::open(&gateway, "/rpc").await;
    for (row, message, want) in MESSAGES {
        ws.say(*message).await;
        if !matches!(want, Nothing) {
            want.check(row, message, &ws.hear().await);
        }
        // Nothing else came of it, and the connection goes on.
        ws.say(GOOD).await;
        good(&ws.hear().await);
    }
}

#[tokio::test]
async fn every_row_gets_its_answer_inside_a_batch_over_websocket() {
    let (gateway, _node, _other) = serve().await;
    let mut ws = Ws::open(&gateway, "/rpc").await;
    for (row, message, want) in MESSAGES {
        ws.say(format!("[{message},{GOOD}]")).await;
        let answer = ws.hear().await;
        let items: Vec<Box<RawValue>> = serde_json::from_str(&answer)
            .unwrap_or_else(|error| panic!("row {row}: no array ({error}): {answer}"));
        let (last, items) = items.split_last().expect("one at least");
        good(last.get());
        match (want, items) {
            (Nothing, []) => {}
            (Nothing, _) => panic!("row {row}: {message} gave {answer}"),
            (want, [item]) => want.check(row, message, item.get()),
            _ => panic!("row {row}: {message} gave {answer}"),
        }
    }
}

#[tokio::test]
async fn rows_55_and_56_what_is_no_message_leaves_a_websocket_open() {
    let (gateway, node, _other) = serve().await;
    let mut ws = Ws::open(&gateway, "/rpc").await;
    for (row, text, code) in TEXTS {
        let shown = String::from_utf8_lossy(text).into_owned();
        // As binary, since a text that is not UTF-8 is against the rules of WebSocket, and ends it.
        ws.send(Message::binary(*text)).await;
        Error("null", *code).check(row, &shown, &ws.hear().await);
        if std::str::from_utf8(text).is_ok() {
            ws.say(shown.clone()).await;
            Error("null", *code).check(row, &shown, &ws.hear().await);
        }
    }
    assert_eq!(node.requests().len(), 0, "nothing of it reaches an upstream");
    ws.say(format!("\u{feff}{GOOD}")).await;
    good(&ws.hear().await);
}
