use std::time::Duration;

use futures_util::FutureExt;

use super::state::MAX_OPEN;
use super::*;
use crate::mcp::{ClientCaps, ListKind, ProtocolVersion};
use crate::session::{Full, NewSession, Sessions};

fn route() -> RouteName {
    RouteName::new("/mcp").unwrap()
}

fn channel() -> Arc<Channel> {
    Channels::new(1).open(route(), None).unwrap()
}

fn text(text: &'static str) -> Chunks {
    Bytes::from_static(text.as_bytes()).into()
}

fn big() -> Chunks {
    Bytes::from(vec![b'x'; MAX_SENT_BYTES]).into()
}

async fn read(listening: &mut Listening) -> Option<Bytes> {
    listening.next().await.map(Chunks::into_bytes)
}

fn session() -> Arc<Session> {
    let opened = NewSession {
        route: route(),
        principal: None,
        version: ProtocolVersion::V2024_11_05,
        caps: ClientCaps::NONE,
        info: None,
    };
    Sessions::new(1, Duration::from_secs(60)).open(opened).unwrap()
}

#[test]
fn streams_are_bounded_and_found_only_on_their_route_for_their_principal() {
    let channels = Channels::new(1);
    let alice: Arc<str> = "alice".into();
    let channel = channels.open(route(), Some(Arc::clone(&alice))).unwrap();
    assert_eq!(channels.open(route(), None).unwrap_err(), Full::Limit { limit: 1 });
    let token = channel.token().as_str().to_owned();
    assert_eq!(token.len(), 32);
    assert!(channels.find(&token, &route(), Some(&alice)).is_some());
    assert!(channels.find(&token, &route(), None).is_none());
    assert!(channels.find(&token, &route(), Some(&"bob".into())).is_none());
    let other = RouteName::new("/other").unwrap();
    assert!(channels.find(&token, &other, Some(&alice)).is_none());
    channel.close();
    assert!(channels.find(&token, &route(), Some(&alice)).is_none());
    channels.remove(&channel);
    assert!(channels.open(route(), None).is_ok());
}

#[tokio::test]
async fn an_exchange_waits_for_a_slow_reader_and_goes_on_when_it_reads() {
    let channel = channel();
    let mut reader = channel.read();
    assert!(channel.send(big()).await);
    let mut waiting = Box::pin(channel.send(text("next")));
    assert!((&mut waiting).now_or_never().is_none());
    assert!(read(&mut reader).await.is_some());
    assert!(waiting.await);
    for _ in 1..MAX_SENT {
        assert!(channel.send(text("small")).await);
    }
    let mut waiting = Box::pin(channel.send(text("one too many")));
    assert!((&mut waiting).now_or_never().is_none());
    drop(reader);
    assert!(!waiting.await);
}

#[tokio::test]
async fn an_answer_of_any_size_takes_no_room_from_what_belongs_to_no_request() {
    let channel = channel();
    let mut reader = channel.read();
    assert!(channel.send(Bytes::from(vec![b'x'; 2 * MAX_SENT_BYTES]).into()).await);
    channel.tell(&Broadcast::ListChanged(ListKind::Tools));
    channel.tell(&Broadcast::Message(Bytes::from_static(b"log")));
    channel.tell(&Broadcast::ListChanged(ListKind::Tools));
    assert_eq!(read(&mut reader).await.unwrap().len(), 2 * MAX_SENT_BYTES);
    assert!(read(&mut reader).await.unwrap().ends_with(b"tools/list_changed\"}"));
    assert_eq!(read(&mut reader).await.unwrap(), "log");
    channel.tell(&Broadcast::ListChanged(ListKind::Tools));
    channel.close();
    assert!(read(&mut reader).await.unwrap().ends_with(b"tools/list_changed\"}"));
    assert!(read(&mut reader).await.is_none());
}

#[tokio::test]
async fn a_reader_that_is_too_slow_for_what_nobody_can_hold_back_loses_its_stream() {
    for message in [text("x"), big()] {
        let channel = channel();
        let mut reader = channel.read();
        for _ in 0..=MAX_UNREAD {
            channel.put(message.clone());
        }
        channel.closed().await;
        assert!(read(&mut reader).await.is_none());
        assert!(!channel.send(text("late")).await);
    }
}

#[test]
fn an_id_in_use_is_refused_until_its_request_has_ended() {
    let channel = channel();
    let id = |n: u64| Id::from_number(n);
    let first = channel.enter(id(1)).unwrap();
    assert_eq!(channel.enter(id(1)).unwrap_err(), Busy::Duplicate);
    let (batch, used) = channel.enter_batch(vec![id(1), id(2), id(2)]).unwrap();
    assert_eq!(used, [id(1)]);
    assert_eq!(channel.enter(id(2)).unwrap_err(), Busy::Duplicate);
    drop(batch);
    drop(first);
    let again = [channel.enter(id(1)).unwrap(), channel.enter(id(2)).unwrap()];
    drop(again);
    let many: Vec<_> = (0..MAX_OPEN as u64).map(|n| channel.enter(id(n)).unwrap()).collect();
    assert_eq!(channel.enter(id(9999)).unwrap_err(), Busy::Full);
    drop(many);
    assert!(channel.enter(id(9999)).is_ok());
}

#[tokio::test]
async fn cancelling_reaches_the_one_request_and_no_batch() {
    let channel = channel();
    let mut one = channel.enter(Id::from_number(1)).unwrap();
    let mut other = channel.enter(Id::from_number(2)).unwrap();
    let (mut batch, _) = channel.enter_batch(vec![Id::from_number(3)]).unwrap();
    for n in [1, 1, 3, 4] {
        channel.cancel(&Id::from_number(n));
    }
    one.cancelled().await;
    assert!(other.cancelled().now_or_never().is_none());
    assert!(batch.cancelled().now_or_never().is_none());
}

#[tokio::test]
async fn one_that_is_to_finish_closes_behind_its_last_answer() {
    let channel = channel();
    let mut reader = channel.read();
    let open = channel.enter(Id::from_number(1)).unwrap();
    channel.finish();
    assert_eq!(channel.enter(Id::from_number(2)).unwrap_err(), Busy::Ending);
    assert!(channel.send(text("answer")).await);
    drop(open);
    channel.closed().await;
    assert_eq!(read(&mut reader).await.unwrap(), "answer");
    assert!(read(&mut reader).await.is_none());
}

#[tokio::test]
async fn a_session_speaks_behind_its_greeting_and_both_end_together() {
    let (channel, session) = (channel(), session());
    let mut reader = channel.read();
    assert!(channel.start() && !channel.start());
    channel.refused();
    assert!(channel.start(), "after a refusal it may try again");
    session.publish(&Broadcast::ListChanged(ListKind::Prompts));
    assert!(channel.begin(&session, text("hello")));
    session.publish(&Broadcast::Message(Bytes::from_static(b"log")));
    assert_eq!(read(&mut reader).await.unwrap(), "hello");
    assert!(read(&mut reader).await.unwrap().ends_with(b"prompts/list_changed\"}"));
    assert_eq!(read(&mut reader).await.unwrap(), "log");
    assert!(session.idle().is_zero(), "an open stream counts as use");
    session.end();
    assert!(read(&mut reader).await.is_none());
}

#[test]
fn no_session_begins_on_a_stream_that_is_gone_or_when_it_has_ended() {
    let gone = channel();
    drop(gone.read());
    assert!(!gone.begin(&session(), text("hello")));
    let ended = session();
    ended.end();
    assert!(!channel().begin(&ended, text("hello")));
}
