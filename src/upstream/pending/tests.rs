use std::collections::BTreeMap;

use super::*;
use crate::config::UpstreamName;

fn message(text: &str) -> Message {
    Message::parse(Bytes::copy_from_slice(text.as_bytes()), 16).unwrap()
}

fn answer(tag: u64) -> Message {
    message(&format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"tag":{tag}}}}}"#))
}

fn tag_of(reply: &Reply) -> Option<u64> {
    let result = reply.as_ref().ok()?.result()?;
    serde_json::from_slice::<serde_json::Value>(&result).ok()?["tag"].as_u64()
}

fn gone() -> CallError {
    let upstream = UpstreamName::new("u").unwrap();
    CallError::Closed { upstream, written: true, what: "exit status 137".into() }
}

fn open(pending: &Arc<Pending>, caller: u64) -> (Slot, crate::upstream::EventQueue) {
    let (events, received) = crate::upstream::events(1);
    let slot = pending.open(CallerId::of(caller), None, events, Instant::now()).unwrap();
    (slot, received)
}

fn progress(text: &'static str) -> Chunks {
    Chunks::from(Bytes::from_static(text.as_bytes()))
}

fn progress_text(event: CallEvent) -> Bytes {
    match event {
        CallEvent::Progress(chunks) => chunks.into_bytes(),
        other => panic!("{other:?} is no progress"),
    }
}

#[test]
fn fifty_callers_get_each_its_own_answer() {
    let pending = Arc::new(Pending::default());
    let mut calls: Vec<_> = (0..50).map(|caller| open(&pending, caller)).collect();
    for (slot, _) in calls.iter().rev() {
        assert!(pending.settle(slot.id, Ok(answer(slot.id))));
    }
    for (slot, _) in &mut calls {
        assert_eq!(tag_of(&slot.answer.try_recv().unwrap()), Some(slot.id));
    }
    assert_eq!(pending.len(), 0);
}

#[test]
fn a_closed_table_fails_what_waits_and_takes_nothing_more() {
    let pending = Arc::new(Pending::default());
    let (mut slot, _events) = open(&pending, 1);
    pending.fail_all("exit status 137", gone);
    assert!(matches!(slot.answer.try_recv().unwrap(), Err(CallError::Closed { .. })));
    let (events, _received) = crate::upstream::events(1);
    let refused = pending.open(CallerId::of(1), None, events, Instant::now());
    assert_eq!(refused.unwrap_err().as_ref(), "exit status 137");
}

#[test]
fn progress_behind_a_full_queue_is_replaced_by_newer_progress() {
    let pending = Arc::new(Pending::default());
    let (slot, mut events) = open(&pending, 1);
    let inbox = pending.inbox(slot.id).unwrap();
    for text in ["1", "2", "3"] {
        inbox.progress(progress(text), Instant::now());
    }
    assert_eq!(progress_text(events.try_recv().unwrap()), "1");
    // There is room now, but what is held must not be overtaken.
    inbox.progress(progress("4"), Instant::now());
    assert!(events.try_recv().is_err());
    assert!(slot.pulse.holds_progress());
    assert_eq!(slot.pulse.take_progress().unwrap().into_bytes(), "4");
}

#[test]
fn a_full_queue_refuses_questions_and_notifications_and_never_blocks() {
    let pending = Arc::new(Pending::default());
    let (slot, _events) = open(&pending, 1);
    let inbox = pending.inbox(slot.id).unwrap();
    let note = message(r#"{"jsonrpc":"2.0","method":"notifications/message"}"#);
    assert!(inbox.notify(note.clone()));
    assert!(!inbox.notify(note.clone()));
    let (ask, _replied) = Ask::new(note);
    assert!(matches!(inbox.ask(ask), Err(TrySendError::Full(()))));
}

#[tokio::test(start_paused = true)]
async fn silence_begins_anew_with_progress_and_stands_still_during_a_question() {
    let second = Duration::from_secs(1);
    let pending = Arc::new(Pending::default());
    let (slot, _events) = open(&pending, 1);
    let begin = Instant::now();
    let inbox = pending.inbox(slot.id).unwrap();
    assert_eq!(slot.pulse.silent_until(10 * second, begin), begin + 10 * second);
    inbox.progress(progress("1"), begin + 3 * second);
    assert_eq!(slot.pulse.silent_until(10 * second, begin), begin + 13 * second);

    let (slot, _events) = open(&pending, 1);
    let (ask, _replied) = Ask::new(message(r#"{"jsonrpc":"2.0","id":1,"method":"roots/list"}"#));
    let asked = pending.inbox(slot.id).unwrap().ask(ask).unwrap();
    let late = begin + 60 * second;
    assert_eq!(slot.pulse.silent_until(10 * second, late), late + 10 * second);
    tokio::time::advance(60 * second).await;
    drop(asked);
    assert_eq!(slot.pulse.silent_until(10 * second, late), Instant::now() + 10 * second);
}

#[test]
fn what_has_no_association_goes_to_the_only_caller_or_to_nobody() {
    let pending = Arc::new(Pending::default());
    let picked = |pick| {
        pending.associate(pick, Instant::now()).map(|inbox| {
            let waits = |id: &u64| Arc::ptr_eq(&pending.inbox(*id).unwrap().pulse, &inbox.pulse);
            (1..10).filter(|id| pending.inbox(*id).is_some()).find(waits).unwrap()
        })
    };
    let _gateway = open(&pending, 0);
    assert_eq!(picked(Pick::Newest), None);
    let first = open(&pending, 7);
    assert_eq!(picked(Pick::Newest), Some(first.0.id));
    let second = open(&pending, 7);
    assert_eq!(picked(Pick::Newest), Some(second.0.id));
    assert_eq!(picked(Pick::Oldest), Some(first.0.id));
    let stranger = open(&pending, 8);
    assert_eq!(picked(Pick::Newest), None);
    assert_eq!(picked(Pick::Oldest), None);
    drop((first, second));
    assert_eq!(picked(Pick::Newest), Some(stranger.0.id));
}

/// SplitMix64: the same steps for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Random calls, answers, duplicates, late answers, answers to ids never minted and hang-ups.
fn simulate(seed: u64) {
    let mut dice = Dice(seed);
    let pending = Arc::new(Pending::default());
    let (mut open_calls, mut answered) = (BTreeMap::new(), BTreeMap::new());
    let mut ended: Vec<u64> = Vec::new();
    let mut last = 0;
    for step in 0..400 {
        let at = format!("seed {seed}, step {step}");
        let any = |calls: &BTreeMap<u64, Slot>, dice: &mut Dice| {
            let nth = dice.below(calls.len().max(1) as u64) as usize;
            calls.keys().nth(nth).copied()
        };
        match dice.below(6) {
            0 | 1 => {
                let (slot, _) = open(&pending, dice.below(3));
                assert!(slot.id > last, "{at}: an id came twice");
                last = slot.id;
                open_calls.insert(slot.id, slot);
            }
            2 => {
                if let Some(id) = any(&open_calls, &mut dice) {
                    assert!(pending.settle(id, Ok(answer(id))), "{at}: call {id} was lost");
                    answered.insert(id, open_calls.remove(&id).unwrap());
                }
            }
            // An answer that comes again, or too late.
            3 => {
                let late = any(&answered, &mut dice).or_else(|| ended.last().copied());
                if let Some(id) = late {
                    assert!(!pending.settle(id, Ok(answer(0))), "{at}: call {id} ended twice");
                }
            }
            4 => assert!(!pending.settle(last + 1 + dice.below(9), Ok(answer(0))), "{at}"),
            _ => {
                if let Some(id) = any(&open_calls, &mut dice) {
                    drop(open_calls.remove(&id));
                    ended.push(id);
                }
            }
        }
        if let Some((id, mut slot)) = answered.pop_first() {
            assert_eq!(tag_of(&slot.answer.try_recv().unwrap()), Some(id), "{at}");
            ended.push(id);
        }
        assert_eq!(pending.len(), open_calls.len(), "{at}");
    }
    pending.fail_all("the end", gone);
    for (id, mut slot) in open_calls {
        assert!(slot.answer.try_recv().unwrap().is_err(), "seed {seed}: call {id} did not end");
    }
    assert_eq!(pending.len(), 0, "seed {seed}");
}

#[test]
fn every_call_ends_once_and_leaves_nothing() {
    for seed in 0..200 {
        simulate(seed);
    }
}

#[test]
fn a_question_goes_to_the_one_of_a_principal_whose_call_does_not_wait_for_an_answer() {
    let pending = Arc::new(Pending::default());
    let open = |number, principal| {
        let (events, received) = crate::upstream::events(4);
        let caller = CallerId::of_principal(number, principal);
        (pending.open(caller, None, events, Instant::now()).unwrap(), received)
    };
    let pick = |pick| pending.associate(pick, Instant::now());
    let question = || {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"elicitation/create","params":{}}"#;
        crate::upstream::call::Ask::new(message(text)).0
    };
    let (_parked, mut first) = open(1, 7);
    let asked = pick(Pick::Newest).unwrap().ask(question()).unwrap();
    let (_running, mut second) = open(2, 7);
    let _more = pick(Pick::Newest).unwrap().ask(question()).unwrap();
    assert!(matches!(second.try_recv(), Ok(CallEvent::Ask(_))), "the first waits itself");
    assert!(matches!(first.try_recv(), Ok(CallEvent::Ask(_))));
    assert!(first.try_recv().is_err());
    assert!(pick(Pick::Oldest).is_none(), "only questions are told apart so");
    drop(asked);
    assert!(pick(Pick::Newest).is_some(), "the second waits, the first runs");
    let (_third, _events) = open(3, 7);
    assert!(pick(Pick::Newest).is_none(), "two run");
    let (_foreign, _events) = open(4, 8);
    assert!(pick(Pick::Newest).is_none(), "another principal is there");
}
