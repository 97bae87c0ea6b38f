//! `/rpc`: plain JSON-RPC 2.0, for routes that are not MCP. Ids and what `echo` gives back
//! keep the client's spelling.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::value::RawValue;
use serde_json::{Number, Value, json};

use super::arithmetic;
use super::http::{self, Body, Refusal, empty, read_json};
use super::message::{
    Envelope, INVALID_REQUEST, NoId, RpcError, Text, is_plain_id, print_error, print_result,
};
use super::topics::{Line, Topics};

/// Messages of one array that are worked on at once.
const PARALLEL: usize = 64;
/// How long `sleep` may be asked to sleep.
const MAX_SLEEP_MS: u64 = 60_000;
/// What `fail` gives when it is not told.
const FAIL_CODE: i64 = -32000;

/// The plain JSON-RPC service.
#[derive(Default)]
pub(super) struct Rpc {
    notifications_seen: AtomicU64,
    /// Subscriptions of connections that can have some.
    pub(super) topics: Topics,
}

/// Answers a request to `/rpc`.
pub(super) async fn respond(rpc: &Rpc, request: Request<Incoming>) -> Response<Body> {
    if request.method() != Method::POST {
        return Refusal::method("POST, OPTIONS").into();
    }
    let media_types = ["application/json", "application/json-rpc", "application/jsonrequest"];
    match read_json(request, &media_types).await {
        Ok(body) => match rpc.answer(&body, None).await {
            Answer { text: Some(text), had_id: true } => http::json(StatusCode::OK, text),
            Answer { text: Some(text), had_id: false } => http::json(StatusCode::BAD_REQUEST, text),
            Answer { text: None, .. } => empty(StatusCode::NO_CONTENT),
        },
        Err(refusal) => refusal.into(),
    }
}

/// What to send back.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    /// `None` when there were only notifications.
    text: Option<String>,
    /// Whether the body held anything to be answered by id; an array always counts.
    had_id: bool,
}

impl Rpc {
    /// Answers what came on a connection that may subscribe.
    pub(super) async fn answer_on(&self, text: &[u8], line: &Line) -> Option<String> {
        self.answer(text, Some(line)).await.text
    }

    async fn answer(&self, body: &[u8], line: Option<&Line>) -> Answer {
        match Text::read(body) {
            Err(why) => Answer { text: Some(print_error(None, NoId::Null, &why)), had_id: false },
            Ok(Text::One(raw)) => {
                let had_id =
                    Envelope::read(raw).is_ok_and(|envelope| usable_id(&envelope).is_some());
                Answer { text: self.answer_one(raw, line).await, had_id }
            }
            Ok(Text::Many(many)) => {
                let mut answers = Vec::with_capacity(many.len());
                for raw in many {
                    answers.push(self.answer_one(raw, line));
                }
                let answers: Vec<_> = stream::iter(answers).buffered(PARALLEL).collect().await;
                let answers: Vec<String> = answers.into_iter().flatten().collect();
                let text = (!answers.is_empty()).then(|| format!("[{}]", answers.join(",")));
                Answer { text, had_id: true }
            }
        }
    }

    /// Answers one message; `None` if it was a notification.
    async fn answer_one(&self, raw: &RawValue, line: Option<&Line>) -> Option<String> {
        let envelope = match Envelope::read(raw) {
            Ok(envelope) => envelope,
            Err(why) => return Some(print_error(None, NoId::Null, &why)),
        };
        let id = usable_id(&envelope);
        let method = match check(&envelope) {
            Ok(method) => method,
            Err(why) => return Some(print_error(id, NoId::Null, &why)),
        };
        let Some(id) = id else {
            // No method here has an effect that would be missed, so counting it is all there is.
            self.notifications_seen.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        Some(match self.run(&method, Params(envelope.params), line).await {
            Ok(result) => print_result(id, &result),
            Err(Failure { error, data: None }) => print_error(Some(id), NoId::Null, &error),
            Err(Failure { error, data: Some(data) }) => print_failure(id, &error, data),
        })
    }

    /// Runs a method; the result is JSON text.
    async fn run<'a>(
        &self,
        method: &str,
        params: Params<'a>,
        line: Option<&Line>,
    ) -> Result<String, Failure<'a>> {
        match method {
            "echo" => Ok(params.0.map_or("null", RawValue::get).to_owned()),
            "sum" => Ok(sum(params)?.to_string()),
            "calculate" => Ok(calculate(params)?.to_string()),
            "sleep" => {
                let ms = params.first("ms")?.as_u64().filter(|ms| *ms <= MAX_SLEEP_MS);
                let ms = ms.ok_or_else(|| {
                    RpcError::params(format!("ms must be an integer from 0 to {MAX_SLEEP_MS}"))
                })?;
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(json!({"slept_ms": ms}).to_string())
            }
            "fail" => Err(fail(params)),
            "notifications_seen" => Ok(self.notifications_seen.load(Ordering::Relaxed).to_string()),
            "demo_publish" => {
                let [topic, value] = params.pick(["topic", "value"])?;
                let topic = topic.map(read).transpose()?.unwrap_or_default();
                let topic = topic.as_str().ok_or_else(|| RpcError::params("topic is missing"))?;
                let value = value.ok_or_else(|| RpcError::params("value is missing"))?;
                Ok(self.topics.publish(topic, value).await.to_string())
            }
            "demo_subscribers" => Ok(self.topics.len().to_string()),
            _ => match line {
                Some(line) => self.run_on(method, params, line),
                None => Err(RpcError::no_method(method).into()),
            },
        }
    }

    /// Runs a method that only connections have on which more than answers can be sent.
    fn run_on<'a>(
        &self,
        method: &str,
        params: Params<'a>,
        line: &Line,
    ) -> Result<String, Failure<'a>> {
        match method {
            "demo_subscribe" => {
                let topic = params.first("topic")?;
                let topic = topic.as_str().ok_or_else(|| RpcError::params("topic is a string"))?;
                let id = self.topics.subscribe(topic.to_owned(), line);
                Ok(json!(id.ok_or_else(|| RpcError::params("too many subscriptions"))?).to_string())
            }
            "demo_unsubscribe" => {
                let id = params.first("subscription")?;
                let id = id.as_str().ok_or_else(|| RpcError::params("subscription is a string"))?;
                Ok(self.topics.unsubscribe(id, line).to_string())
            }
            _ => Err(RpcError::no_method(method).into()),
        }
    }
}

/// The id to answer with, if there is a legal one.
fn usable_id<'a>(envelope: &Envelope<'a>) -> Option<&'a RawValue> {
    envelope.id.filter(|id| is_plain_id(id))
}

/// Checks everything about a message but its meaning, and gives its method.
fn check(envelope: &Envelope<'_>) -> Result<String, RpcError> {
    envelope.check_version()?;
    if envelope.id.is_some_and(|id| !is_plain_id(id)) {
        return Err(RpcError::new(INVALID_REQUEST, "id must be a string, a number or null"));
    }
    let structured = |params: &RawValue| params.get().starts_with(['[', '{']);
    if envelope.params.is_some_and(|params| !structured(params) && params.get() != "null") {
        return Err(RpcError::new(INVALID_REQUEST, "params must be an array or an object"));
    }
    envelope.method()
}

/// An error whose `data` may be the client's own text.
struct Failure<'a> {
    error: RpcError,
    data: Option<&'a RawValue>,
}

impl From<RpcError> for Failure<'_> {
    fn from(error: RpcError) -> Self {
        Self { error, data: None }
    }
}

/// Prints an error with `data` as it was written.
fn print_failure(id: &RawValue, error: &RpcError, data: &RawValue) -> String {
    let (code, message, data) = (error.code, json!(error.message), data.get());
    let id = id.get();
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":{code},"message":{message},"data":{data}}}}}"#
    )
}

/// Parameters as they were written.
#[derive(Clone, Copy)]
struct Params<'a>(Option<&'a RawValue>);

impl<'a> Params<'a> {
    /// Parameters by position, or by these names.
    fn pick<const N: usize>(self, names: [&str; N]) -> Result<[Option<&'a RawValue>; N], RpcError> {
        let text = self.0.map_or("[]", RawValue::get);
        let unreadable = |why: serde_json::Error| RpcError::params(why.to_string());
        if text.starts_with('{') {
            // A map by owned names: these may be escaped in the text.
            let named: std::collections::HashMap<String, &RawValue> =
                serde_json::from_str(text).map_err(unreadable)?;
            return Ok(names.map(|name| named.get(name).copied()));
        }
        let text = if text == "null" { "[]" } else { text };
        let listed: Vec<&RawValue> = serde_json::from_str(text).map_err(unreadable)?;
        let mut listed = listed.into_iter();
        Ok(names.map(|_| listed.next()))
    }

    /// The first by position, or the one of this name, as a tree.
    fn first(self, name: &str) -> Result<Value, RpcError> {
        let [value] = self.pick([name])?;
        let value = value.ok_or_else(|| RpcError::params(format!("{name} is missing")))?;
        read(value)
    }
}

fn read(raw: &RawValue) -> Result<Value, RpcError> {
    serde_json::from_str(raw.get()).map_err(|why| RpcError::params(why.to_string()))
}

/// Adds numbers: all parameters by position, or the array `numbers`.
fn sum(params: Params<'_>) -> Result<Number, RpcError> {
    let numbers = match params.0.map(RawValue::get) {
        Some(text) if text.starts_with('{') => params.first("numbers")?,
        Some(_) => params.0.map(read).transpose()?.unwrap_or_default(),
        None => json!([]),
    };
    let not_numbers = || RpcError::params("sum takes numbers: [1,2] or {\"numbers\":[1,2]}");
    let numbers = match &numbers {
        Value::Array(numbers) => numbers.as_slice(),
        Value::Null => &[],
        _ => return Err(not_numbers()),
    };
    if !numbers.iter().all(Value::is_number) {
        return Err(not_numbers());
    }
    // Exact as long as all are integers that fit.
    let exact = numbers.iter().try_fold(0i64, |sum, n| sum.checked_add(n.as_i64()?));
    let float = || Number::from_f64(numbers.iter().filter_map(Value::as_f64).sum());
    exact
        .map(Number::from)
        .or_else(float)
        .ok_or_else(|| RpcError::params("the sum is out of range"))
}

/// Evaluates the expression that is the first parameter, or the one named `expression`.
fn calculate(params: Params<'_>) -> Result<Number, RpcError> {
    /// Up to here, floating point holds every integer.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let expression = params.first("expression")?;
    let expression = expression.as_str();
    let expression = expression.ok_or_else(|| RpcError::params("expression must be a string"))?;
    let value =
        arithmetic::evaluate(expression).map_err(|why| RpcError::params(why.to_string()))?;
    if value.fract() == 0.0 && value.abs() <= EXACT {
        return Ok(Number::from(value as i64));
    }
    Number::from_f64(value).ok_or_else(|| RpcError::params("the value is out of range"))
}

/// The error that the parameters `code`, `message` and `data` ask for.
fn fail(params: Params<'_>) -> Failure<'_> {
    let [code, message, data] = match params.pick(["code", "message", "data"]) {
        Ok(picked) => picked,
        Err(why) => return why.into(),
    };
    let code = code.and_then(|code| serde_json::from_str(code.get()).ok()).unwrap_or(FAIL_CODE);
    let message = message.and_then(|text| serde_json::from_str::<String>(text.get()).ok());
    let message = message.unwrap_or_else(|| "failed as asked".to_owned());
    let own_data = data.is_none().then(|| json!({"asked": true}));
    Failure { error: RpcError { code, message, data: own_data }, data }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(body: &str) -> String {
        Rpc::default().answer(body.as_bytes(), None).await.text.unwrap_or_default()
    }

    /// The result of a method, or its error's code.
    async fn call(method: &str, params: &str) -> Result<String, i64> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#);
        let answer: Value = serde_json::from_str(&ask(&body).await).unwrap();
        match answer["error"]["code"].as_i64() {
            Some(code) => Err(code),
            None => Ok(answer["result"].to_string()),
        }
    }

    #[tokio::test]
    async fn methods_take_parameters_by_position_and_by_name() {
        assert_eq!(call("sum", "[1,2,3.5]").await, Ok("6.5".into()));
        assert_eq!(call("sum", r#"{"numbers":[1,2]}"#).await, Ok("3".into()));
        assert_eq!(call("sum", "[]").await, Ok("0".into()));
        assert_eq!(call("sum", r#"["1"]"#).await, Err(-32602));
        assert_eq!(call("calculate", r#"["2*(3+4)"]"#).await, Ok("14".into()));
        assert_eq!(call("calculate", r#"{"expression":"7/2"}"#).await, Ok("3.5".into()));
        assert_eq!(call("calculate", r#"["1/0"]"#).await, Err(-32602));
        assert_eq!(call("calculate", "[]").await, Err(-32602));
        assert_eq!(call("sleep", "[0]").await, Ok(r#"{"slept_ms":0}"#.into()));
        assert_eq!(call("sleep", r#"{"ms":0}"#).await, Ok(r#"{"slept_ms":0}"#.into()));
        assert_eq!(call("sleep", "[60001]").await, Err(-32602));
        assert_eq!(call("fail", "[]").await, Err(-32000));
        assert_eq!(call("fail", r#"{"code":-5}"#).await, Err(-5));
        assert_eq!(call("nothing", "[]").await, Err(-32601));
        assert_eq!(call("rpc.list", "[]").await, Err(-32601));
    }

    #[tokio::test]
    async fn ids_echoed_params_and_error_data_keep_their_spelling() {
        for id in [
            "1.0",
            "1e3",
            "-1",
            "null",
            "\"\"",
            "\"\\u0041\"",
            "\"\\ud800\"",
            "1.5",
            "123456789012345678901234567890",
        ] {
            let body =
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"echo","params":[1.10,-0]}}"#);
            let answer = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":[1.10,-0]}}"#);
            assert_eq!(ask(&body).await, answer);
        }
        let body = r#"{"jsonrpc":"2.0","id":1,"method":"fail","params":{"code":7,"message":"m","data":1e2}}"#;
        let answer = r#"{"jsonrpc":"2.0","id":1,"error":{"code":7,"message":"m","data":1e2}}"#;
        assert_eq!(ask(body).await, answer);
    }

    #[tokio::test]
    async fn an_invalid_message_is_answered_by_its_id_or_by_null() {
        let rows = [
            (r#"{"jsonrpc":"2.0","id":true,"method":"echo"}"#, "null", -32600),
            (r#"{"jsonrpc":"2.0","id":{},"method":"echo"}"#, "null", -32600),
            (r#"{"jsonrpc":"1.0","id":4,"method":"echo"}"#, "4", -32600),
            (r#"{"id":4,"method":"echo"}"#, "4", -32600),
            (r#"{"jsonrpc":2.0,"id":4,"method":"echo"}"#, "4", -32600),
            (r#"{"jsonrpc":"2.0","id":4}"#, "4", -32600),
            (r#"{"jsonrpc":"2.0","id":4,"method":""}"#, "4", -32600),
            (r#"{"jsonrpc":"2.0","id":4,"method":1}"#, "4", -32600),
            (r#"{"jsonrpc":"2.0","id":4,"method":"echo","params":5}"#, "4", -32600),
            (r#"{"jsonrpc":"2.0","id":4,"id":5,"method":"echo"}"#, "null", -32600),
            ("[]", "null", -32600),
            ("5", "null", -32600),
            ("", "null", -32700),
            ("{", "null", -32700),
            (r#"{"jsonrpc":"2.0","id":4,"method":"echo"} x"#, "null", -32700),
        ];
        for (body, id, code) in rows {
            let answer: Value = serde_json::from_str(&ask(body).await).unwrap();
            assert_eq!(answer["id"].to_string(), id, "{body}");
            assert_eq!(answer["error"]["code"], code, "{body}");
        }
    }

    #[tokio::test]
    async fn escaped_member_names_and_methods_mean_what_they_spell() {
        let body = "{\"jsonrpc\":\"2.0\",\"\\u0069d\":9,\"method\":\"\\u0065cho\",\"params\":null}";
        assert_eq!(ask(body).await, r#"{"jsonrpc":"2.0","id":9,"result":null}"#);
        assert_eq!(
            ask("\u{feff} {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"echo\"}\r\n").await,
            r#"{"jsonrpc":"2.0","id":1,"result":null}"#
        );
    }

    #[tokio::test]
    async fn a_batch_answers_every_request_and_every_invalid_element_in_order() {
        let batch = r#"[
            {"jsonrpc":"2.0","method":"sum","params":[1,2,4],"id":"1"},
            {"jsonrpc":"2.0","method":"notify_hello","params":[7]},
            {"foo":"boo"},
            {"jsonrpc":"2.0","method":"foo.get","params":{"name":"myself"},"id":"5"},
            [{}],
            {"jsonrpc":"2.0","method":"echo","id":"1"}
        ]"#;
        let answers: Value = serde_json::from_str(&ask(batch).await).unwrap();
        let ids: Vec<String> =
            answers.as_array().unwrap().iter().map(|one| one["id"].to_string()).collect();
        assert_eq!(ids, ["\"1\"", "null", "\"5\"", "null", "\"1\""]);
        assert_eq!(answers[0]["result"], 7);
        assert_eq!(answers[2]["error"]["code"], -32601);
        assert_eq!(answers[3]["error"]["code"], -32600);
    }

    #[tokio::test(start_paused = true)]
    async fn the_messages_of_a_batch_run_at_the_same_time() {
        let one = r#"{"jsonrpc":"2.0","method":"sleep","params":[1000],"id":1}"#;
        let started = tokio::time::Instant::now();
        ask(&format!("[{}]", [one; 20].join(","))).await;
        assert_eq!(started.elapsed().as_secs(), 1);
    }

    #[tokio::test]
    async fn notifications_are_counted_and_not_answered() {
        let rpc = Rpc::default();
        let silent = Answer { text: None, had_id: false };
        let one = r#"{"jsonrpc":"2.0","method":"nothing"}"#;
        assert_eq!(rpc.answer(one.as_bytes(), None).await, silent);
        assert_eq!(rpc.answer(format!("[{one},{one}]").as_bytes(), None).await.text, None);
        let body = r#"{"jsonrpc":"2.0","method":"notifications_seen","id":1}"#;
        let answer = rpc.answer(body.as_bytes(), None).await.text.unwrap();
        assert_eq!(answer, r#"{"jsonrpc":"2.0","id":1,"result":3}"#);
    }

    #[tokio::test]
    async fn deep_nesting_is_echoed_and_harms_nothing() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"echo","params":{deep}}}"#);
        assert!(ask(&body).await.contains(&deep));
        let body = body.replace("echo", "sum");
        assert!(ask(&body).await.contains("-32602"));
    }
}
