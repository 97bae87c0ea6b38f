//! A legacy client behind whose call stands a modern upstream: what the upstream needs to know is asked of the client as
//! real requests, and the call is made again with the answers (MCP digest §20.3).

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::sleep;

use super::Outlet;
use super::call::{Context, Ended, Target, cut_off, run};
use super::collect::withdraw;
use crate::exchange::bridge::{self, InputRequest, InputRequired, Malformed, Unaskable};
use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Id, Message};
use crate::mcp::Era;
use crate::session::Ask;
use crate::upstream::Answered;

/// Most rounds of one call.
pub(super) const MAX_ROUNDS: u32 = 16;
/// How long a person may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(600);
/// The pause before a call is made again that only wanted to be made again; doubled each time.
const AGAIN_AFTER: Duration = Duration::from_millis(250);

/// Why a round ends the call.
enum Over {
    Ended(Ended),
    /// The client cannot or will not tell: what it is told itself.
    Abandoned(String),
}

impl From<Ended> for Over {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

/// Goes on with a call that was answered with `wanted`, until its real answer.
pub(super) async fn go_on(
    cx: &Context,
    message: &Message,
    target: &Target<'_>,
    outlet: &Outlet,
    wanted: Result<InputRequired, Malformed>,
) -> Result<Answered, Ended> {
    let base = edited(message, target);
    let target = Target { edits: SmallVec::new(), ..target.clone() };
    let mut wanted = wanted;
    for round in 0..MAX_ROUNDS {
        let InputRequired { requests, state } =
            wanted.map_err(|error| malformed(&target, error))?;
        let responses = match learn(cx, message, &requests, outlet, round).await {
            Ok(responses) => responses,
            Err(Over::Ended(ended)) => return Err(ended),
            Err(Over::Abandoned(text)) => return abandoned(cx, message, text),
        };
        let again = bridge::retry(&base, &responses, state.as_ref());
        let answered = Box::pin(run(cx, &again, &target, outlet)).await?;
        match bridge::input_required(&answered.message) {
            None => return Ok(answered),
            Some(more) => wanted = more,
        }
    }
    Err(endless(&target))
}

/// The request with the upstream's own name.
pub(super) fn edited(message: &Message, target: &Target<'_>) -> Message {
    let text = message.edited(&target.edits).into_bytes();
    Message::parse(text, u16::MAX).unwrap_or_else(|_| message.clone())
}

/// What an upstream is told to have said wrong.
pub(super) fn malformed(target: &Target<'_>, error: Malformed) -> Ended {
    let upstream = target.backend.upstream.name().as_str();
    let text = format!("upstream {upstream} sent an invalid answer: {error}");
    Ended::Fault(Fault::new(Reason::UpstreamProtocol, text).at(upstream))
}

/// An upstream that never stops asking.
pub(super) fn endless(target: &Target<'_>) -> Ended {
    let upstream = target.backend.upstream.name().as_str();
    let text = format!("upstream {upstream} still asks for input after {MAX_ROUNDS} rounds");
    Ended::Fault(Fault::new(Reason::UpstreamProtocol, text).at(upstream))
}

/// The client's answer to each question.
async fn learn(
    cx: &Context,
    message: &Message,
    requests: &[InputRequest],
    outlet: &Outlet,
    round: u32,
) -> Result<Vec<(String, Bytes)>, Over> {
    let mut open = cx.session.open_call(message.id().unwrap_or_else(|| Id::from_number(0)));
    if requests.is_empty() {
        let pause = AGAIN_AFTER.saturating_mul(1 << round.min(4));
        tokio::select! {
            () = sleep(pause) => return Ok(Vec::new()),
            () = open.cancelled() => return Err(Ended::Cancelled.into()),
            () = cx.pipeline.cut_off() => return Err(Ended::Fault(cut_off(None)).into()),
        }
    }
    let mut asked: Vec<Asked<'_>> = Vec::with_capacity(requests.len());
    for request in requests {
        asked.push(Asked::put(cx, request, outlet).await?);
    }
    let answers = join_all(asked.iter_mut().map(Asked::answer));
    let answers = tokio::select! {
        biased;
        () = open.cancelled() => return Err(Ended::Cancelled.into()),
        () = cx.pipeline.cut_off() => Err(Over::Ended(Ended::Fault(cut_off(None)))),
        answers = answers => answers.into_iter().collect::<Result<Vec<_>, _>>().map_err(Over::Abandoned),
        () = sleep(ANSWER_WITHIN) => Err(Over::Abandoned("The client did not answer in time".into())),
    };
    if answers.is_err() {
        for asked in asked.iter().filter(|asked| !asked.answered) {
            if let Some(ask) = &asked.ask {
                withdraw(outlet, &ask.id()).await;
            }
        }
    }
    answers
}

/// A question that stands, or needs not to be put.
struct Asked<'a> {
    request: &'a InputRequest,
    ask: Option<Ask>,
    answered: bool,
}

impl<'a> Asked<'a> {
    /// Puts a question to the client.
    async fn put(cx: &Context, request: &'a InputRequest, outlet: &Outlet) -> Result<Self, Over> {
        let session = &cx.session;
        let mut asked = Self { request, ask: None, answered: false };
        let question = match bridge::question(session.version(), session.caps(), request) {
            Ok(question) if cx.standing => question,
            Err(Unaskable::Decline) => return Ok(asked),
            Ok(_) | Err(Unaskable::Refuse(_)) => {
                let what = &request.method;
                let text =
                    format!("This needs {what} of the client, which the client does not support");
                return Err(Over::Abandoned(text));
            }
        };
        let Some(ask) = session.open_ask() else {
            return Err(Over::Abandoned("Too many questions to the client are open".into()));
        };
        outlet.send(question.with_id(&ask.id())).await;
        asked.ask = Some(ask);
        Ok(asked)
    }

    async fn answer(&mut self) -> Result<(String, Bytes), String> {
        let key = self.request.key.clone();
        let Some(ask) = &mut self.ask else {
            return Ok((key, Bytes::from_static(br#"{"action":"decline"}"#)));
        };
        let answer = ask.answer().await.ok_or("The client's session has ended")?;
        self.answered = true;
        let response = bridge::input_response(&self.request.method, &answer);
        response.map(|response| (key, response)).map_err(|abandon| abandon.text)
    }
}

/// The end of a call of which the upstream is not told what it wanted to know: for a tool a result that its model can
/// read, else an error.
pub(super) fn abandoned(cx: &Context, message: &Message, text: String) -> Result<Answered, Ended> {
    if message.method() != "tools/call" {
        return Err(Ended::Fault(Fault::new(Reason::Internal, text)));
    }
    let mut result = serde_json::json!({
        "content": [{ "type": "text", "text": text }],
        "isError": true,
    });
    if cx.session.era() == Era::Modern {
        result["resultType"] = "complete".into();
    }
    let text = format!(r#"{{"jsonrpc":"2.0","id":0,"result":{result}}}"#);
    let message = Message::parse_answer(text.into(), u16::MAX)
        .map_err(|_| Ended::Fault(Fault::new(Reason::Internal, "the answer cannot be written")))?;
    Ok(Answered { message, version: cx.session.version() })
}
