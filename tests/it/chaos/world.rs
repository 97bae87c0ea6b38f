//! What all clients in the chaos know: marks, targets, what others have seen, and what an answer must be.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::upstream::Up;
use crate::client::Http;
use crate::gateway::Gateway;

/// Codes of what may befall a call while its upstream is restarted.
const MISHAPS: [i64; 5] = [-31002, -31003, -31004, -31005, -31006];

/// SplitMix64.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Begins at a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Another one, by this one.
    pub fn part(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Whether it happens, of so many times once.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// What many have seen; the last so many of it.
#[derive(Debug)]
pub struct Pool<T>(Mutex<Vec<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Pool<T> {
    /// Adds one.
    pub fn put(&self, item: T) {
        let mut items = self.0.lock();
        if items.len() >= 64 {
            items.remove(0);
        }
        items.push(item);
    }

    /// One of them.
    pub fn any(&self, rng: &mut Random) -> Option<T> {
        let items = self.0.lock();
        let place = rng.below(items.len().max(1) as u64);
        items.get(usize::try_from(place).unwrap_or(0)).cloned()
    }
}

/// A call that is to be made.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its mark.
    pub mark: String,
    /// Its params, without `_meta`.
    pub params: Value,
    pub upstream: &'static str,
    pub tool: &'static str,
    /// Whether its upstream is left in peace.
    pub calm: bool,
}

/// What the clients share.
pub struct World {
    pub gateway: Gateway,
    pub ups: Vec<Up>,
    /// Ids of questions to sessions.
    pub asks: Pool<Value>,
    /// Ids of events.
    pub events: Pool<String>,
    /// States that clients without sessions were given, and the marks of their calls.
    pub states: Pool<(String, String)>,
    seed: u64,
    /// What each mark stands for.
    plans: Mutex<HashMap<String, String>>,
    counter: AtomicU64,
    over: Mutex<Instant>,
    answers: AtomicUsize,
    errors: AtomicUsize,
}

impl World {
    pub fn new(gateway: Gateway, ups: Vec<Up>, seed: u64) -> Self {
        Self {
            gateway,
            ups,
            asks: Pool::default(),
            events: Pool::default(),
            states: Pool::default(),
            seed,
            plans: Mutex::default(),
            counter: AtomicU64::new(1),
            over: Mutex::new(Instant::now()),
            answers: AtomicUsize::new(0),
            errors: AtomicUsize::new(0),
        }
    }

    /// When everybody goes home.
    pub fn end_after(&self, time: Duration) {
        *self.over.lock() = Instant::now() + time;
    }

    /// Whether it is time to go home.
    pub fn is_over(&self) -> bool {
        Instant::now() >= *self.over.lock()
    }

    pub fn http(&self) -> Http {
        self.gateway.http()
    }

    pub fn up(&self, name: &str) -> &Up {
        self.ups.iter().find(|up| up.name == name).expect("a name of ours")
    }

    /// Waits for up to so many milliseconds.
    pub async fn pause(&self, rng: &mut Random, millis: u64) {
        tokio::time::sleep(Duration::from_millis(rng.below(millis))).await;
    }

    /// A mark that nobody had.
    pub fn mark(&self) -> String {
        format!("mk:{}:{}", self.seed % 600, self.counter.fetch_add(1, Ordering::Relaxed))
    }

    /// A call of some tool of some upstream, by whom. `hang`: it may be one that never answers.
    pub fn plan(&self, rng: &mut Random, hang: bool, who: &str) -> Plan {
        let plan = self.made(rng, hang);
        let shown = format!("{who}: {} {}", plan.params["name"], plan.params["arguments"]);
        self.plans.lock().insert(plan.mark.clone(), shown);
        plan
    }

    /// Fails when a text holds a mark that is not one of its reader.
    pub fn only(&self, text: &str, own: impl Fn(&str) -> bool, reader: &str) {
        let plans = self.plans.lock();
        let foreign = marks(text).filter(|found| !own(found));
        let foreign: Vec<_> = foreign.map(|found| (found, plans.get(found))).collect();
        let reader = plans.get(reader).map_or(reader, String::as_str);
        assert!(foreign.is_empty(), "{reader} got {foreign:?}: {text}");
    }

    fn made(&self, rng: &mut Random, hang: bool) -> Plan {
        let mark = self.mark();
        let ms = rng.below(60);
        if rng.once_in(5) {
            let (tool, params) = match rng.below(4) {
                0 => ("progress", json!({"before": 3, "after": 2, "tag": mark})),
                1 => ("twice", json!({})),
                2 => {
                    let schema = json!({"type": "object"});
                    let asked = json!({"message": mark, "requestedSchema": schema});
                    ("ask", json!({"method": "elicitation/create", "params": asked, "ms": ms}))
                }
                _ => ("wait", json!({"ms": ms, "tag": mark})),
            };
            let params = json!({"name": format!("kid__{tool}"), "arguments": params});
            return Plan { mark, params, upstream: "kid", tool, calm: false };
        }
        let up = &self.ups[usize::try_from(rng.below(4)).unwrap_or(0)];
        let tool = match rng.below(8) {
            0 | 1 => "echo",
            2 | 3 => "report",
            4 => "twice",
            5 if hang => "hang",
            _ => "ask",
        };
        let arguments = json!({"mark": mark, "n": 1 + rng.below(3), "ms": ms});
        let params = json!({"name": format!("{}__{tool}", up.name), "arguments": arguments});
        Plan { mark, params, upstream: up.name, tool, calm: up.calm }
    }

    /// Whether an answer is one to this call. `lenient`: the client did not do its part.
    pub fn check(&self, plan: &Plan, answer: &Value, lenient: bool) {
        let mark = &plan.mark;
        let text = answer.to_string();
        self.only(&text, |found| found == *mark, mark);
        if !answer["error"].is_null() {
            self.errors.fetch_add(1, Ordering::Relaxed);
            let code = answer["error"]["code"].as_i64().unwrap_or(0);
            let fine = lenient || (!plan.calm && MISHAPS.contains(&code));
            assert!(fine, "{plan:?} was answered with {text}");
            return;
        }
        self.answers.fetch_add(1, Ordering::Relaxed);
        let said = answer["result"]["content"][0]["text"].as_str().unwrap_or_default();
        if plan.upstream == "kid" {
            let right = match plan.tool {
                "wait" => said == *mark,
                "twice" => said == "first",
                "progress" => said == "progressed",
                _ => true,
            };
            return assert!(right, "{plan:?} was answered with {text}");
        }
        // Sessions that cannot be asked, or say no, in front of an upstream that has no other way to hear of that.
        if plan.tool == "ask" && answer["result"]["isError"] == true {
            assert!(said.contains("client"), "{plan:?} was answered with {text}");
            return;
        }
        let told: Value = serde_json::from_str(said).unwrap_or_default();
        assert_eq!(told["mark"], mark.as_str(), "{plan:?} was answered with {text}");
        assert_eq!(self.up(plan.upstream).book.runs(mark), 1, "{plan:?} ran");
    }

    /// Says how much there was.
    pub fn report(&self, took: Duration) {
        let (answers, errors) = (&self.answers, &self.errors);
        println!("{answers:?} results and {errors:?} errors in {took:?}");
        let enough = answers.load(Ordering::Relaxed) > errors.load(Ordering::Relaxed);
        assert!(enough, "more errors than results: {answers:?}, {errors:?}");
    }
}

/// The marks in a text.
fn marks(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices("mk:").map(move |(at, _)| {
        let rest = &text[at + 3..];
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != ':').unwrap_or(rest.len());
        &text[at..at + 3 + end]
    })
}

/// The answer to a question, which shows whose it was.
pub fn answer_to(method: &str, mark: &str) -> Value {
    match method {
        "elicitation/create" => json!({"action": "accept", "content": {"tag": mark}}),
        "sampling/createMessage" => {
            let content = json!({"type": "text", "text": mark});
            json!({"role": "assistant", "content": content, "model": "m"})
        }
        _ => json!({"roots": []}),
    }
}
