//! Clients without sessions in the chaos: answers to questions come late, twice, with the wrong state, or never.

use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::PARKED;
use super::world::{Plan, Random, World, answer_to};
use crate::mcp::Answer;
use crate::modern::{Modern, read};

/// A client and what it is about to do.
struct Client {
    modern: Modern,
    world: Arc<World>,
}

/// What one request came to.
enum Came {
    /// Its last answer.
    Answer(Answer),
    /// A question.
    Asked { requests: Value, state: String },
}

impl Client {
    async fn post(&self, plan: &Plan, params: Value) -> Came {
        let id = json!(self.modern.id());
        let answer = read(self.modern.open(&id, "tools/call", params).await).await;
        let mark = &plan.mark;
        assert_eq!(answer.json["id"], id, "{plan:?}: {}", answer.text);
        self.world.only(&answer.text, |found| found == *mark, mark);
        for message in &answer.before {
            self.world.only(&message.to_string(), |found| found == *mark, mark);
            assert!(message.get("id").is_none(), "{mark} got {message}");
            let token = &message["params"]["progressToken"];
            assert!(token.is_null() || token == mark.as_str(), "{mark} got {message}");
        }
        let result = &answer.json["result"];
        if result["resultType"] != "input_required" {
            return Came::Answer(answer);
        }
        let state = result["requestState"].as_str().expect("a state").to_owned();
        self.world.states.put((mark.clone(), state.clone()));
        Came::Asked { requests: result["inputRequests"].clone(), state }
    }

    /// Makes a call and answers what it asks.
    async fn call(&self, rng: &mut Random) {
        let plan = self.world.plan(rng, false, "modern");
        let mut params = plan.params.clone();
        params["_meta"] = json!({"progressToken": plan.mark});
        let mut came = self.post(&plan, params.clone()).await;
        let mut lenient = false;
        for _ in 0..16 {
            let (requests, state) = match came {
                Came::Answer(answer) => return self.world.check(&plan, &answer.json, lenient),
                Came::Asked { requests, state } => (requests, state),
            };
            let asked = Instant::now();
            let retry = retry(&params, &requests, &state, &plan.mark);
            let next = self.go_on(rng, &plan, retry, &mut lenient).await;
            // A call that waited too long, on a machine that has much else to do, is given up.
            lenient |= asked.elapsed() > PARKED / 2;
            let Some(next) = next else { return };
            came = next;
        }
        panic!("{plan:?} asks without end");
    }

    /// Answers a question, in one way or another. `None`: it comes to nothing.
    async fn go_on(
        &self,
        rng: &mut Random,
        plan: &Plan,
        mut retry: Value,
        lenient: &mut bool,
    ) -> Option<Came> {
        match rng.below(24) {
            // Never.
            0 => return None,
            // Too late, where the call itself waits.
            1 => {
                tokio::time::sleep(PARKED + PARKED / 4).await;
                *lenient |= waits(plan);
            }
            2 | 3 => self.world.pause(rng, 300).await,
            // Somebody else's state, or one that was changed.
            4..=6 => {
                let mut wrong = retry.clone();
                wrong["requestState"] = match self.world.states.any(rng) {
                    Some((mark, state)) if rng.once_in(2) && mark != plan.mark => json!(state),
                    _ => json!(tampered(rng, retry["requestState"].as_str().unwrap_or_default())),
                };
                match self.post(plan, wrong).await {
                    Came::Answer(answer) => assert_eq!(answer.code(), -32602, "{}", answer.text),
                    Came::Asked { .. } => panic!("{plan:?}: a wrong state was taken"),
                }
            }
            // Twice at once: a call that waits is found once.
            7..=9 => {
                let (a, b) =
                    tokio::join!(self.post(plan, retry.clone()), self.post(plan, retry.clone()));
                let lost = |came: &Came| matches!(came, Came::Answer(answer) if answer.json["error"]["code"] == -32602);
                let parked = waits(plan);
                assert!(!parked || lost(&a) || lost(&b), "{plan:?}: taken twice");
                assert!(parked || (!lost(&a) && !lost(&b)), "{plan:?}: refused");
                *lenient |= lost(&a) && lost(&b);
                return Some(if lost(&a) { b } else { a });
            }
            // With nothing, or more than was asked for.
            10 => retry["inputResponses"] = json!({}),
            11 => retry["inputResponses"]["more"] = json!({"action": "accept"}),
            // Hangs up on its own answer, and comes again.
            12 => {
                let time = std::time::Duration::from_millis(rng.below(30));
                let _ = tokio::time::timeout(time, self.post(plan, retry.clone())).await;
                *lenient = true;
            }
            _ => {}
        }
        Some(self.post(plan, retry).await)
    }

    /// Hangs up in the middle.
    async fn leave(&self, rng: &mut Random) {
        let plan = self.world.plan(rng, true, "modern, leaves");
        let mut params = plan.params.clone();
        params["_meta"] = json!({"progressToken": plan.mark});
        let time = std::time::Duration::from_millis(rng.below(250));
        if let Ok(Came::Answer(answer)) = tokio::time::timeout(time, self.post(&plan, params)).await
        {
            self.world.check(&plan, &answer.json, false);
        }
    }

    /// Batches are not of this revision.
    async fn batch(&self, rng: &mut Random) {
        let plan = self.world.plan(rng, false, "modern");
        let body = self.modern.body(&json!(1), "tools/call", plan.params.clone());
        let headers = self.modern.headers(&body);
        let reply = self.modern.send(&headers, &format!("[{body}]")).await.whole().await;
        assert_eq!((reply.status, reply.code()), (400, -32600), "{}", reply.text());
    }
}

/// Whether a call waits at its upstream for what it asked.
fn waits(plan: &Plan) -> bool {
    matches!(plan.upstream, "old" | "quiet" | "kid")
}

/// A retry with the answer to each question.
fn retry(params: &Value, requests: &Value, state: &str, mark: &str) -> Value {
    let mut retry = params.clone();
    retry["requestState"] = json!(state);
    retry["inputResponses"] = json!({});
    for (key, request) in requests.as_object().into_iter().flatten() {
        let method = request["method"].as_str().unwrap_or_default();
        retry["inputResponses"][key] = answer_to(method, mark);
    }
    retry
}

/// A state with one letter changed.
fn tampered(rng: &mut Random, state: &str) -> String {
    let place = usize::try_from(rng.below(state.len().max(1) as u64)).unwrap_or(0);
    // The last letter may hold bits that mean nothing.
    let place = place.min(state.len().saturating_sub(2));
    let letters = state.char_indices().map(|(at, letter)| match (at == place, letter) {
        (true, 'A') => 'B',
        (true, _) => 'A',
        (false, letter) => letter,
    });
    letters.collect()
}

/// One request after the other.
pub async fn requests(world: Arc<World>, mut rng: Random) {
    let caps = json!({"elicitation": {}, "sampling": {}});
    let client = Client { modern: Modern::new(world.http(), caps), world: Arc::clone(&world) };
    while !world.is_over() {
        match rng.below(10) {
            0 | 1 => client.leave(&mut rng).await,
            2 => client.batch(&mut rng).await,
            _ => client.call(&mut rng).await,
        }
    }
}

/// Listens, and stops listening.
pub async fn listener(world: Arc<World>, mut rng: Random) {
    let client = Modern::new(world.http(), json!({}));
    while !world.is_over() {
        let filter = json!({"toolsListChanged": true, "promptsListChanged": true});
        let (mut stream, _, _) = client.listen(filter).await;
        let time = std::time::Duration::from_millis(rng.below(400));
        if let Ok(Some(event)) = tokio::time::timeout(time, stream.block()).await {
            world.only(&event.data, |_| false, "a listener");
        }
    }
}
