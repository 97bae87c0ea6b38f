//! Clients with sessions in the chaos: calls, questions, batches, hang-ups with and without coming back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::EVIL;
use super::world::{Plan, Random, World, answer_to};
use crate::client::Streaming;
use crate::legacy_sse::Older;
use crate::mcp::{Mcp, NEWEST, request};

/// How far a request is followed; after so many events something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follow {
    /// To its answer.
    Whole,
    /// Its connection is closed, and it is resumed.
    Resume(u64),
    /// Its connection is closed.
    Leave(u64),
    /// It is cancelled.
    Cancel(u64),
}

/// A session in use.
struct Session {
    mcp: Mcp,
    world: Arc<World>,
    /// The marks of its calls.
    marks: Mutex<HashSet<String>>,
}

/// A request that is followed.
struct Followed<'a> {
    session: &'a Session,
    plan: &'a Plan,
    id: &'a Value,
    answer: Option<Value>,
    /// Its client did not do its part.
    lenient: bool,
}

impl Session {
    async fn open(world: &Arc<World>, capabilities: Value) -> Arc<Self> {
        let mcp = Mcp::open_at(world.http(), "/mcp", NEWEST, capabilities).await;
        Arc::new(Self { mcp, world: Arc::clone(world), marks: Mutex::default() })
    }

    fn plan(&self, rng: &mut Random, hang: bool) -> Plan {
        let who = format!("session {}", &self.mcp.session[..6]);
        let plan = self.world.plan(rng, hang, &who);
        self.marks.lock().insert(plan.mark.clone());
        plan
    }

    /// Makes one call and follows it.
    async fn call(&self, rng: &mut Random, follow: Follow, id: &Value) {
        let plan = self.plan(rng, matches!(follow, Follow::Leave(_) | Follow::Cancel(_)));
        // Of a call that says nothing, there is nothing to wait for.
        let follow = match (plan.tool, follow) {
            ("hang", Follow::Leave(_)) => Follow::Leave(0),
            ("hang", Follow::Cancel(_)) => Follow::Cancel(0),
            _ => follow,
        };
        let mut params = plan.params.clone();
        if !rng.once_in(4) {
            params["_meta"] = json!({"progressToken": plan.mark});
        }
        let stream = self.mcp.open_post(&request(id, "tools/call", &params)).await;
        assert_eq!(stream.status, 200, "{plan:?}");
        let lenient = matches!(follow, Follow::Cancel(_));
        let mut followed = Followed { session: self, plan: &plan, id, answer: None, lenient };
        if stream.is_sse() {
            self.follow(rng, stream, follow, &mut followed).await;
        } else {
            followed.take(&String::from_utf8_lossy(&stream.whole().await.body));
        }
        if let Some(answer) = &followed.answer {
            self.world.check(&plan, answer, followed.lenient);
        }
    }

    /// Reads what belongs to a request, to the end or as far as is wanted.
    async fn follow(
        &self,
        rng: &mut Random,
        mut stream: Streaming,
        follow: Follow,
        of: &mut Followed<'_>,
    ) {
        let (mut seen, mut last) = (HashSet::new(), None);
        let (mut count, mut resumed) = (0, false);
        while let Some(event) = stream.next_block().await {
            if event.comment {
                continue;
            }
            if let Some(id) = event.id {
                assert!(seen.insert(id.clone()), "{:?}: event {id} came twice", of.plan);
                self.world.events.put(id.clone());
                last = Some(id);
            }
            if !event.data.is_empty()
                && let Some(question) = of.take(&event.data)
            {
                self.reply(rng, &question, of).await;
            }
            count += 1;
            match (follow, &last) {
                (Follow::Leave(most), _) if count > most => return,
                (Follow::Cancel(most), _) if count == most + 1 => {
                    self.mcp.cancel(of.id.clone()).await;
                }
                (Follow::Resume(most), Some(last)) if count > most && !resumed => {
                    drop(stream);
                    self.world.pause(rng, 200).await;
                    resumed = true;
                    stream = self.resume(last).await;
                }
                _ => {}
            }
        }
        let answered = of.answer.is_some() || of.lenient;
        assert!(answered, "{:?} ({follow:?}): a stream without an answer, {seen:?}", of.plan);
    }

    async fn resume(&self, last: &str) -> Streaming {
        let mut headers = self.mcp.headers();
        headers.push(("last-event-id", last));
        let stream = self.world.http().open("GET", "/mcp", &headers, "").await;
        assert_eq!(stream.status, 200);
        stream
    }

    /// Answers a question: once, twice, with an error, or not at all.
    async fn reply(&self, rng: &mut Random, question: &Value, of: &mut Followed<'_>) {
        let (ask, mark) = (&question["id"], &of.plan.mark);
        self.world.asks.put(ask.clone());
        let params = &question["params"];
        let shown =
            params["message"].as_str().or(params["messages"][0]["content"]["text"].as_str());
        let method = question["method"].as_str().unwrap_or_default();
        let right = answer_to(method, shown.unwrap_or(EVIL));
        let right = json!({"jsonrpc": "2.0", "id": ask, "result": right});
        let error = json!({"code": -1, "message": "no"});
        let refusal = json!({"jsonrpc": "2.0", "id": ask, "error": error});
        if rng.once_in(4) {
            self.world.pause(rng, 150).await;
        }
        let posts = match rng.below(10) {
            // By its id: it has to be the only one.
            0 if of.id.as_u64().is_none_or(|id| id >= 1_000) => {
                of.lenient = true;
                return self.mcp.cancel(of.id.clone()).await;
            }
            1 => vec![&right, &right],
            2 => vec![&refusal],
            3 => vec![&right, &refusal],
            _ => vec![&right],
        };
        for post in posts {
            let reply = self.mcp.post(&post.to_string()).await;
            assert!(matches!(reply.status, 202 | 400), "{mark}: {}", reply.text());
        }
    }

    /// Calls in one array, and a ping.
    async fn batch(&self, rng: &mut Random) {
        let plans: Vec<_> = (0..2 + rng.below(3))
            .map(|_| {
                loop {
                    let plan = self.plan(rng, false);
                    // Nobody could be asked on an answer that is one JSON text.
                    if plan.tool != "ask" {
                        break plan;
                    }
                }
            })
            .collect();
        let calls =
            plans.iter().enumerate().map(|(n, plan)| request(n, "tools/call", &plan.params));
        let ping = request("\"ping\"", "ping", &json!({}));
        let bodies: Vec<_> = calls.chain([ping]).collect();
        let answer = self.mcp.exchange(&format!("[{}]", bodies.join(","))).await;
        let answers = answer.json.as_array().expect("an array");
        assert_eq!(answers.len(), bodies.len(), "{}", answer.text);
        for (n, (plan, answer)) in plans.iter().zip(answers).enumerate() {
            assert_eq!(answer["id"], n, "{answer}");
            self.world.check(plan, answer, false);
        }
        assert_eq!(answers[plans.len()]["result"], json!({}));
    }

    /// One thing after the other.
    async fn lane(self: Arc<Self>, mut rng: Random, first: u64, steps: u64) {
        for n in 0..steps {
            // All lanes begin with the same ids.
            let id = if rng.once_in(3) { json!(n) } else { json!(first + n) };
            let most = rng.below(4);
            match rng.below(8) {
                0 => self.call(&mut rng, Follow::Resume(most), &id).await,
                1 => self.call(&mut rng, Follow::Leave(most), &id).await,
                // By its id: it has to be the only one.
                2 => {
                    let id = json!(format!("only-{}", first + n));
                    self.call(&mut rng, Follow::Cancel(most), &id).await;
                }
                3 => self.batch(&mut rng).await,
                _ => self.call(&mut rng, Follow::Whole, &id).await,
            }
        }
    }

    /// Keeps a stream of no request open; now and then it breaks and is resumed.
    async fn listen(self: Arc<Self>, mut rng: Random) {
        let mut stream = self.mcp.stream().await;
        let (mut seen, mut last) = (HashSet::new(), None::<String>);
        loop {
            let time = Duration::from_millis(100 + rng.below(400));
            match tokio::time::timeout(time, stream.block()).await {
                Ok(None) => return,
                Ok(Some(event)) => {
                    let marks = self.marks.lock();
                    let own = |mark: &str| marks.contains(mark);
                    self.world.only(&event.data, own, &self.mcp.session[..6]);
                    drop(marks);
                    if let Some(id) = event.id {
                        assert!(seen.insert(id.clone()), "event {id} came twice");
                        last = Some(id);
                    }
                }
                Err(_) => {
                    let mut headers = self.mcp.headers();
                    headers.extend(last.as_deref().map(|last| ("last-event-id", last)));
                    drop(stream);
                    stream = self.world.http().open("GET", "/mcp", &headers, "").await;
                    // The session may have ended meanwhile.
                    if stream.status == 404 {
                        return;
                    }
                }
            }
        }
    }
}

impl Followed<'_> {
    /// Takes one message; a question comes back.
    fn take(&mut self, data: &str) -> Option<Value> {
        let mark = &self.plan.mark;
        // Of what a child says beside its answers it is known whose it is, not about which of his calls.
        let kid = self.plan.upstream == "kid" && data.contains("\"method\"");
        let own =
            |found: &str| found == *mark || (kid && self.session.marks.lock().contains(found));
        self.session.world.only(data, own, mark);
        let message: Value = serde_json::from_str(data)
            .unwrap_or_else(|error| panic!("{mark} got no JSON ({error}): {data:?}"));
        if message.get("method").is_some() {
            let token = &message["params"]["progressToken"];
            assert!(token.is_null() || token == mark.as_str(), "{mark} got {data}");
            assert!(self.answer.is_none(), "{mark} got more after its answer: {data}");
            return message.get("id").is_some().then_some(message);
        }
        assert_eq!(message["id"], *self.id, "{mark} got {data}");
        assert!(self.answer.is_none(), "{mark} got a second answer: {data}");
        self.answer = Some(message);
        None
    }
}

/// One session after the other, each in several hands.
pub async fn sessions(world: Arc<World>, mut rng: Random) {
    while !world.is_over() {
        let session = Session::open(&world, json!({"elicitation": {}, "sampling": {}})).await;
        let listening = tokio::spawn(Arc::clone(&session).listen(rng.part()));
        let lanes = (0..3).map(|lane| {
            let steps = 1 + rng.below(6);
            tokio::spawn(Arc::clone(&session).lane(rng.part(), (lane + 1) * 1_000, steps))
        });
        for lane in lanes.collect::<Vec<_>>() {
            lane.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()));
        }
        // What somebody has left still runs.
        assert_eq!(session.mcp.delete().await, 204);
        listening.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()));
    }
}

/// A session that tries what belongs to others. It is never asked anything itself.
pub async fn thief(world: Arc<World>, mut rng: Random) {
    let session = Session::open(&world, json!({})).await;
    while !world.is_over() {
        if let Some(ask) = world.asks.any(&mut rng) {
            let stolen = answer_to("elicitation/create", EVIL);
            let body = json!({"jsonrpc": "2.0", "id": ask, "result": stolen});
            let reply = session.mcp.post(&body.to_string()).await;
            assert!(matches!(reply.status, 202 | 400), "{}", reply.text());
            session.mcp.cancel(json!(rng.below(6))).await;
        }
        if let Some(event) = world.events.any(&mut rng) {
            let mut stream = session.resume(&event).await;
            while let Ok(Some(event)) =
                tokio::time::timeout(Duration::from_millis(40), stream.block()).await
            {
                let marks = session.marks.lock();
                world.only(&event.data, |mark| marks.contains(mark), "the thief");
            }
        }
        let plan = session.plan(&mut rng, false);
        let answer = session.mcp.exchange(&request(1, "tools/call", &plan.params)).await;
        world.check(&plan, &answer.json, false);
    }
    assert_eq!(session.mcp.delete().await, 204);
}

/// Sessions of HTTP+SSE, one after the other; some break off.
pub async fn streams(world: Arc<World>, mut rng: Random) {
    while !world.is_over() {
        let mut older =
            Older::open_with(&world.gateway, "2024-11-05", json!({"sampling": {}})).await;
        let mut plans = HashMap::new();
        for _ in 0..1 + rng.below(5) {
            let mut plan = world.plan(&mut rng, false, "HTTP+SSE");
            plan.params["_meta"] = json!({"progressToken": plan.mark});
            let id = older.begin("tools/call", &plan.params).await;
            plans.insert(id, plan);
        }
        let all: HashSet<_> = plans.values().map(|plan| plan.mark.clone()).collect();
        let patience = if rng.once_in(3) { rng.below(8) } else { 1_000 };
        for _ in 0..patience {
            if plans.is_empty() {
                break;
            }
            let message = older.next().await;
            world.only(&message.to_string(), |mark| all.contains(mark), "a stream");
            match (message.get("method"), &message["id"]) {
                (None, id) => {
                    let id = id.as_u64().expect("an id of ours");
                    let plan = plans.remove(&id);
                    let plan = plan.unwrap_or_else(|| panic!("a second answer: {message}"));
                    world.check(&plan, &message, false);
                }
                (Some(_), Value::Null) => {}
                (Some(method), ask) => {
                    // The question shows whose it is.
                    let text = message["params"]["messages"][0]["content"]["text"].as_str();
                    let told = answer_to(method.as_str().unwrap_or_default(), text.unwrap_or(EVIL));
                    older.answer(ask, told).await;
                }
            }
        }
    }
}
