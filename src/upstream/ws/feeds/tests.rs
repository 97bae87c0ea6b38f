//! The table, by single cases and by a simulation with an upstream that takes its time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::table::{First, Joined, Left, Table, Ticket};
use super::{Ending, FeedKind, Listener, Order};
use crate::config::UpstreamName;
use crate::jsonrpc::{Message, ParamsPath, Span};
use crate::upstream::CallError;

/// Writes down what it hears.
#[derive(Debug, Default)]
struct Ear(Mutex<Vec<String>>);

impl Ear {
    fn heard(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Listener for Ear {
    fn notified(&self, notification: &Message, id: Span) {
        let text = notification.edited(&[(id, "\"mine\"".into())]).into_bytes();
        let message: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(message["params"]["subscription"], "mine");
        self.0.lock().push(message["params"]["result"].to_string());
    }

    fn resumed(&self) {
        self.0.lock().push("resumed".to_owned());
    }

    fn ended(&self, _why: &str) {
        self.0.lock().push("ended".to_owned());
    }
}

fn kind(share: bool) -> Arc<FeedKind> {
    Arc::new(FeedKind {
        notification: "eth_subscription".to_owned(),
        unsubscribe: "eth_unsubscribe".to_owned(),
        id: ParamsPath::parse("params.subscription").expect("a path"),
        share,
    })
}

fn table() -> Table {
    let mut table = Table::new(UpstreamName::new("node").expect("a name"));
    table.found();
    table
}

fn message(text: &str) -> Message {
    Message::parse_answer(text.to_owned().into(), 64).expect("a message")
}

fn request(params: &str) -> Message {
    message(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"eth_subscribe","params":{params}}}"#))
}

fn news(id: &str, value: u64) -> Message {
    let params = format!(r#"{{"result":{value},"subscription":{id}}}"#);
    message(&format!(r#"{{"jsonrpc":"2.0","method":"eth_subscription","params":{params}}}"#))
}

fn given(result: &str) -> First {
    Ok(message(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{result}}}"#)))
}

/// Subscribes somebody; where answers arrive.
fn join(table: &mut Table, share: bool, params: &str) -> (Ticket, Joined, Arc<Ear>) {
    let ear = Arc::new(Ear::default());
    let listener = Arc::clone(&ear) as Arc<dyn Listener>;
    let (ticket, joined) =
        table.subscribe(&kind(share), &request(params), listener).expect("there is room");
    (ticket, joined, ear)
}

/// The subscriptions that the table wants asked for.
fn asked(table: &mut Table) -> Vec<u64> {
    let orders = table.take_orders(usize::MAX, usize::MAX).into_iter();
    orders
        .filter_map(|order| if let Order::Ask(feed, _) = order { Some(feed) } else { None })
        .collect()
}

/// The upstream ends that subscription, as the only thing that is ordered.
fn end(table: &mut Table, right: &str) {
    match &table.take_orders(9, 9)[..] {
        [Order::End(ending)] if ending.left.id == right => table.over(&ending.left),
        other => panic!("{other:?}"),
    }
}

/// What somebody who waits was told.
fn told(joined: &mut Joined) -> First {
    let Joined::Waits(first) = joined else { panic!("{joined:?}") };
    first.try_recv().expect("an answer")
}

#[test]
fn notifications_go_by_their_id_and_those_before_it_is_known_are_kept_in_order() {
    let mut table = table();
    let (_, mut one, first) = join(&mut table, false, "[\"a\"]");
    let (_, mut two, second) = join(&mut table, false, "[\"a\"]");
    let feeds = asked(&mut table);
    assert!(table.notified(&news("\"0x2\"", 1)));
    table.answered(feeds[0], given("\"0x1\""));
    assert!(told(&mut one).is_ok());
    assert!(table.notified(&news("\"0x1\"", 2)));
    assert!(table.notified(&news("\"0x2\"", 3)));
    assert!(second.heard().is_empty());
    table.answered(feeds[1], given("\"0x2\""));
    assert!(told(&mut two).is_ok());
    assert!(table.notified(&news("\"0x2\"", 4)));
    assert_eq!(
        (first.heard(), second.heard()),
        (vec!["2".into()], vec!["1".into(), "3".into(), "4".into()])
    );
    // Of nobody, since nothing is asked for any more; and a number is not a string.
    assert!(!table.notified(&news("\"0x3\"", 5)));
    assert!(!table.notified(&news("1", 5)));
    assert!(!table.notified(&message(
        r#"{"jsonrpc":"2.0","method":"other","params":{"subscription":"0x1"}}"#
    )));
    assert!(
        !table.notified(&message(r#"{"jsonrpc":"2.0","method":"eth_subscription","params":[]}"#))
    );
}

#[test]
fn what_is_kept_is_bounded() {
    let mut table = table();
    let (_, _waits, ear) = join(&mut table, false, "[]");
    let feed = asked(&mut table)[0];
    let kept = (0..3000).filter(|value| table.notified(&news("7", *value))).count();
    assert_eq!(kept, 1024);
    table.answered(feed, given("7"));
    assert_eq!(ear.heard().len(), 1024);
}

#[test]
fn equal_subscriptions_are_one_where_that_is_wanted() {
    let mut table = table();
    let (a, mut one, first) = join(&mut table, true, r#"["logs", {"a": 1.0}]"#);
    let (b, mut two, second) = join(&mut table, true, r#"["logs",{"a":1.0}]"#);
    let (_, _other, _) = join(&mut table, true, r#"["logs",{"a":1}]"#);
    let feeds = asked(&mut table);
    assert_eq!(feeds.len(), 2, "numbers that are spelt otherwise are something else");
    table.answered(feeds[0], given("1"));
    assert!(told(&mut one).is_ok() && told(&mut two).is_ok());
    let (c, joined, third) = join(&mut table, true, r#"["logs",{"a":1.0}]"#);
    assert!(matches!(joined, Joined::Open(_)) && asked(&mut table).is_empty());
    table.notified(&news("1", 5));
    for ear in [&first, &second, &third] {
        assert_eq!(ear.heard(), ["5"]);
    }
    assert!(matches!(table.leave(b), Left::Nothing));
    assert!(matches!(table.leave(a), Left::Nothing));
    table.notified(&news("1", 6));
    assert_eq!((first.heard().len(), third.heard()), (0, vec!["6".to_owned()]));
    assert!(matches!(table.leave(c), Left::Last(ending) if ending.left.id == "1"));
    assert!(matches!(table.leave(c), Left::Nothing), "nobody leaves twice");
}

#[test]
fn refusals_and_ids_that_are_none_are_told_and_leave_nothing() {
    let mut table = table();
    let error = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"no such topic"}}"#;
    for (answer, right) in [
        (Ok(message(error)), "no such topic"),
        (given("true"), "neither a string nor a number"),
        (given("null"), "neither a string nor a number"),
        (given("[1]"), "neither a string nor a number"),
        (
            Err(CallError::Busy { upstream: UpstreamName::new("node").expect("a name") }),
            "overloaded",
        ),
    ] {
        let (_, mut joined, ear) = join(&mut table, true, "[]");
        let feed = asked(&mut table)[0];
        table.answered(feed, answer);
        let told = match told(&mut joined) {
            Ok(answer) => String::from_utf8_lossy(answer.text()).into_owned(),
            Err(error) => error.to_string(),
        };
        assert!(told.contains(right), "{told}");
        assert!(ear.heard().is_empty() && table.is_empty(), "{told}");
    }
    let (_, _, _) = join(&mut table, false, "[]");
    let (_, mut twice, _) = join(&mut table, false, "[]");
    let feeds = asked(&mut table);
    table.answered(feeds[0], given("1"));
    table.answered(feeds[1], given("1"));
    assert!(matches!(told(&mut twice), Err(CallError::Protocol { .. })));
}

#[test]
fn after_a_lost_connection_everything_is_asked_for_again_under_new_ids() {
    let mut table = table();
    let (ticket, mut joined, ear) = join(&mut table, false, "[\"x\"]");
    let (left, _, _) = join(&mut table, false, "[\"y\"]");
    let feeds = asked(&mut table);
    table.answered(feeds[0], given("\"old\""));
    told(&mut joined).expect("it is open");
    table.lost();
    assert!(matches!(table.leave(left), Left::Nothing));
    assert!(!table.notified(&news("\"old\"", 1)));
    table.found();
    let Some(Order::Ask(feed, request)) = table.take_orders(9, 9).pop() else {
        panic!("not asked")
    };
    assert_eq!(request.params().as_deref(), Some(&b"[\"x\"]"[..]));
    assert!(table.notified(&news("\"new\"", 2)));
    table.answered(feed, given("\"new\""));
    assert_eq!(ear.heard(), ["resumed", "2"]);
    assert!(!table.notified(&news("\"old\"", 3)));
    table.lost();
    table.found();
    let feed = asked(&mut table)[0];
    table.answered(
        feed,
        Ok(message(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"no"}}"#)),
    );
    assert_eq!(ear.heard(), ["ended"]);
    assert!(matches!(table.leave(ticket), Left::Nothing) && table.is_empty());
}

#[test]
fn without_a_connection_only_first_answers_are_given_up_until_all_is() {
    let mut table = table();
    let (_, mut joined, ear) = join(&mut table, false, "[]");
    let feed = asked(&mut table)[0];
    table.answered(feed, given("1"));
    told(&mut joined).expect("it is open");
    table.lost();
    let (_, mut fresh, _) = join(&mut table, false, "[]");
    let error = CallError::Busy { upstream: UpstreamName::new("node").expect("a name") };
    table.failed(&error, false);
    assert!(told(&mut fresh).is_err() && ear.heard().is_empty());
    table.failed(&error, true);
    assert_eq!(ear.heard(), ["ended"]);
    assert!(table.is_empty());
}

#[test]
fn an_answer_that_comes_when_nobody_waits_any_more_is_ended_at_the_upstream() {
    let mut table = table();
    let (ticket, _, _) = join(&mut table, true, "[]");
    let feed = asked(&mut table)[0];
    table.leave(ticket);
    let (_, mut late, ear) = join(&mut table, true, "[]");
    let next = asked(&mut table)[0];
    assert_ne!(feed, next, "nobody joins what is about to end");
    table.answered(feed, given("1"));
    end(&mut table, "1");
    let error = CallError::Busy { upstream: UpstreamName::new("node").expect("a name") };
    table.late(next, &error);
    assert!(told(&mut late).is_err() && ear.heard().is_empty());
    table.answered(next, given("2"));
    end(&mut table, "2");
    assert!(table.is_empty());
}

#[test]
fn what_comes_under_an_id_that_is_being_ended_is_not_for_whom_gets_the_id_anew() {
    let mut table = table();
    let (ticket, _, first) = join(&mut table, false, "[]");
    let feed = asked(&mut table)[0];
    table.answered(feed, given("1"));
    let (_, _, second) = join(&mut table, false, "[]");
    let feed = asked(&mut table)[0];
    let Left::Last(ending) = table.leave(ticket) else { panic!("it was the last") };
    assert!(!table.notified(&news("1", 1)), "it was of the one that left");
    table.order(ending);
    end(&mut table, "1");
    assert!(table.notified(&news("1", 2)));
    table.answered(feed, given("1"));
    assert_eq!((first.heard(), second.heard()), (Vec::new(), vec!["2".to_owned()]));
}

#[test]
fn an_answer_to_an_end_does_not_touch_who_has_the_id_since() {
    let mut table = table();
    let (ticket, _, _) = join(&mut table, false, "[]");
    let (_, _, ear) = join(&mut table, false, "[]");
    let feeds = asked(&mut table);
    table.answered(feeds[0], given("1"));
    let Left::Last(ending) = table.leave(ticket) else { panic!("it was the last") };
    // An upstream that answers in any order.
    table.answered(feeds[1], given("1"));
    table.order(ending);
    end(&mut table, "1");
    assert!(table.notified(&news("1", 1)));
    assert_eq!(ear.heard(), ["1"]);
}

#[test]
fn what_is_kept_of_one_whose_answer_nobody_waits_for_is_not_for_the_next() {
    let mut table = table();
    let (ticket, _, _) = join(&mut table, false, "[]");
    let (_, _, ear) = join(&mut table, false, "[]");
    let feeds = asked(&mut table);
    assert!(table.notified(&news("1", 1)));
    table.leave(ticket);
    table.answered(feeds[0], given("1"));
    end(&mut table, "1");
    table.answered(feeds[1], given("1"));
    assert!(ear.heard().is_empty());
}

#[test]
fn what_the_upstream_does_not_answer_in_time_keeps_nobody_from_subscribing() {
    let mut table = table();
    let listener = || Arc::new(Ear::default()) as Arc<dyn Listener>;
    let error = CallError::Busy { upstream: UpstreamName::new("node").expect("a name") };
    for _ in 0..1024 {
        let _ = join(&mut table, false, "[]");
    }
    assert!(table.subscribe(&kind(false), &request("[]"), listener()).is_err());
    for feed in asked(&mut table) {
        table.late(feed, &error);
    }
    // Nobody is asked for that it could be of.
    assert!(!table.notified(&news("1", 1)));
    let (ticket, _, _) = join(&mut table, false, "[]");
    // Its client goes before the upstream was asked.
    table.leave(ticket);
    assert!(asked(&mut table).is_empty() && !table.notified(&news("1", 1)));
}

/// Something that happens.
#[derive(Clone, Debug)]
enum Step {
    Join {
        topic: u8,
        share: bool,
    },
    Leave(usize),
    /// The upstream tells of a topic.
    Publish(u8),
    /// The upstream works on the oldest order.
    Work,
    /// The answer to the oldest order that was worked on arrives.
    Answer,
    Cut,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..3u8, any::<bool>()).prop_map(|(topic, share)| Step::Join { topic, share }),
        2 => any::<usize>().prop_map(Step::Leave),
        4 => (0..3u8).prop_map(Step::Publish),
        4 => Just(Step::Work),
        4 => Just(Step::Answer),
        1 => Just(Step::Cut),
    ]
}

/// The other end: subscriptions by id, and answers on their way. It gives the lowest id that is free.
#[derive(Default)]
struct Upstream {
    open: BTreeMap<u64, u8>,
    orders: VecDeque<Order>,
    answers: VecDeque<Reply>,
}

/// An answer on its way.
enum Reply {
    /// To the subscription of that number, with that id.
    Given(u64, u64),
    Ended(Ending),
}

impl Upstream {
    fn work(&mut self, table: &mut Table) {
        self.orders.extend(table.take_orders(usize::MAX, usize::MAX));
        match self.orders.pop_front() {
            Some(Order::Ask(feed, request)) => {
                let free = (1..).find(|id| !self.open.contains_key(id)).expect("a free id");
                let params: Value =
                    serde_json::from_slice(&request.params().expect("params")).expect("JSON");
                let topic = params[0].as_u64().expect("a topic") as u8;
                self.open.insert(free, topic);
                self.answers.push_back(Reply::Given(feed, free));
            }
            Some(Order::End(ending)) => {
                let id = std::str::from_utf8(&ending.left.id).expect("UTF-8");
                let id = id.parse().expect("a number");
                assert!(self.open.remove(&id).is_some(), "only what is open is ended, and once");
                self.answers.push_back(Reply::Ended(ending));
            }
            None => {}
        }
    }

    fn answer(&mut self, table: &mut Table) {
        match self.answers.pop_front() {
            Some(Reply::Given(feed, id)) => table.answered(feed, given(&id.to_string())),
            Some(Reply::Ended(ending)) => table.over(&ending.left),
            None => {}
        }
    }
}

/// One who listens, and what it must have heard.
struct Client {
    ticket: Ticket,
    joined: Joined,
    ear: Arc<Ear>,
    topic: u8,
}

impl Client {
    fn is_answered(&mut self) -> bool {
        if let Joined::Waits(first) = &mut self.joined
            && let Ok(answer) = first.try_recv()
        {
            self.joined = Joined::Open(answer.expect("nothing is refused"));
        }
        matches!(self.joined, Joined::Open(_))
    }

    /// Values only rise, and are those of its topic.
    fn check(&self) {
        let heard = self.ear.0.lock().clone();
        let values: Vec<u64> = heard.iter().filter_map(|text| text.parse().ok()).collect();
        assert!(values.is_sorted_by(|a, b| a < b), "{heard:?}");
        assert!(values.iter().all(|value| (value % 3) as u8 == self.topic), "{heard:?}");
    }
}

proptest! {
    #[test]
    fn everybody_hears_what_is_theirs_in_order_and_nothing_is_left(
        steps in prop::collection::vec(any_step(), 0..80),
    ) {
        let mut table = table();
        let mut upstream = Upstream::default();
        let mut clients: Vec<Client> = Vec::new();
        let mut value = 0;
        for step in steps {
            match step {
                Step::Join { topic, share } => {
                    let (ticket, joined, ear) = join(&mut table, share, &format!("[{topic}]"));
                    clients.push(Client { ticket, joined, ear, topic });
                }
                Step::Leave(which) if !clients.is_empty() => {
                    let client = clients.swap_remove(which % clients.len());
                    if let Left::Last(ending) = table.leave(client.ticket) {
                        table.order(ending);
                    }
                    client.ear.heard();
                    prop_assert!(client.ear.heard().is_empty());
                }
                Step::Leave(_) => {}
                Step::Publish(topic) => {
                    // Each value names its topic.
                    value += 3;
                    let value = value - value % 3 + u64::from(topic);
                    let ids: BTreeSet<u64> = upstream.open.iter().filter(|(_, t)| **t == topic).map(|(id, _)| *id).collect();
                    for id in ids {
                        table.notified(&news(&id.to_string(), value));
                    }
                    let unanswered: BTreeSet<u64> = upstream.answers.iter().filter_map(|reply| if let Reply::Given(_, id) = reply { Some(*id) } else { None }).collect();
                    let live = upstream.open.iter().filter(|(id, t)| **t == topic && !unanswered.contains(*id)).count();
                    for client in clients.iter_mut().filter(|client| client.topic == topic) {
                        if client.is_answered() && live > 0 && upstream.answers.is_empty() && upstream.orders.is_empty() {
                            let heard = client.ear.0.lock().clone();
                            let last = heard.iter().rev().find(|text| *text != "resumed");
                            if let Some(last) = last {
                                prop_assert!(last.parse::<u64>().expect("a value") <= value);
                            }
                        }
                    }
                }
                Step::Work => upstream.work(&mut table),
                Step::Answer => upstream.answer(&mut table),
                Step::Cut => {
                    table.lost();
                    upstream.open.clear();
                    upstream.orders.clear();
                    upstream.answers.clear();
                    table.found();
                }
            }
            clients.iter().for_each(Client::check);
        }
        // Everything settles: then each hears the next value of its topic exactly once.
        for _ in 0..400 {
            upstream.work(&mut table);
            upstream.answer(&mut table);
        }
        for client in &mut clients {
            prop_assert!(client.is_answered());
            client.ear.heard();
        }
        for (id, topic) in upstream.open.clone() {
            table.notified(&news(&id.to_string(), u64::from(topic) + 3_000_000));
        }
        for client in clients {
            prop_assert_eq!(client.ear.heard(), [json!(u64::from(client.topic) + 3_000_000).to_string()]);
            if let Left::Last(ending) = table.leave(client.ticket) {
                table.order(ending);
            }
        }
        for _ in 0..400 {
            upstream.work(&mut table);
            upstream.answer(&mut table);
        }
        prop_assert!(upstream.open.is_empty(), "nothing is left at the upstream");
        prop_assert!(table.is_empty());
    }
}
