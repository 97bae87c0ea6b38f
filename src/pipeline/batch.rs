//! A batch: every element takes the path of a single request, side by side, at bounded concurrency and with
//! one deadline; the answers stand in the order of the requests.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use http::StatusCode;

use super::call::{Context, cut_off};
use super::plain::{self, PlainContext, Sorted};
use super::reply::Done;
use super::{Backend, Outlet, Pipeline, Snapshot, legacy, mcp};
use crate::config::ServerConfig;
use crate::exchange::Assembly;
use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Chunks, Element, Kind, NullId, Rejected, error_response};

/// Answers by place; `None`: nothing is owed after all (cancelled).
type Answers = Vec<(usize, Option<Chunks>)>;
type Job = Pin<Box<dyn Future<Output = Answers> + Send>>;

/// A batch of one session.
pub(super) async fn run_mcp(cx: Arc<Context>, elements: Vec<Element>, outlet: Arc<Outlet>) -> Done {
    let server = &cx.snapshot.server;
    let mut assembly = Assembly::new(server.max_batch_answer, cx.null_id());
    let mut jobs: Vec<Job> = Vec::with_capacity(elements.len());
    for element in elements {
        match element {
            Ok(message) if message.kind() == Kind::Notification => {
                let place = assembly.silent();
                let cx = Arc::clone(&cx);
                jobs.push(Box::pin(async move {
                    legacy::notified(&cx, &message, Some(place)).await;
                    Vec::new()
                }));
            }
            Ok(message) => {
                let place = assembly.expect(message.id());
                let (cx, outlet) = (Arc::clone(&cx), Arc::clone(&outlet));
                jobs.push(Box::pin(async move {
                    let done = mcp::request(&cx, &message, &outlet, Some(place)).await;
                    vec![(place, done.body)]
                }));
            }
            Err(rejected) => refuse(&mut assembly, &rejected, cx.null_id()),
        }
    }
    let body = gather(&cx.pipeline, assembly, jobs, server, longest(&cx.route.backends)).await;
    finish(&cx.snapshot, body, StatusCode::ACCEPTED)
}

/// A batch of a plain route.
pub(super) async fn run_plain(cx: Arc<PlainContext>, elements: Vec<Element>) -> Done {
    let server = &cx.snapshot.server;
    let mut assembly = Assembly::new(server.max_batch_answer, NullId::Null);
    let mut jobs: Vec<Job> = Vec::with_capacity(elements.len());
    let mut sorted = Sorted::default();
    for element in elements {
        let message = match element {
            Ok(message) if message.kind() != Kind::Response => message,
            Ok(message) => {
                refuse(&mut assembly, &plain::not_a_request(&message), NullId::Null);
                continue;
            }
            Err(rejected) => {
                refuse(&mut assembly, &rejected, NullId::Null);
                continue;
            }
        };
        let place = match message.kind() {
            Kind::Notification => assembly.silent(),
            _ => assembly.expect(message.id()),
        };
        sorted.add(&cx, place, message);
    }
    for (place, message) in sorted.alone {
        let cx = Arc::clone(&cx);
        jobs.push(Box::pin(async move {
            let done = plain::request(&cx, &message, Some(place)).await;
            vec![(place, done.body)]
        }));
    }
    for array in sorted.arrays {
        let cx = Arc::clone(&cx);
        jobs.push(Box::pin(async move { plain::requests(&cx, &array).await }));
    }
    let longest = cx.route.longest_timeout();
    let body = gather(&cx.pipeline, assembly, jobs, server, longest).await;
    finish(&cx.snapshot, body, StatusCode::NO_CONTENT)
}

/// A batch that is not run: each of its requests is answered with this fault, in at most `max` bytes.
pub(super) fn refuse_all(
    elements: Vec<Element>,
    fault: &Fault,
    max: usize,
    null_id: NullId,
) -> Option<Chunks> {
    let mut assembly = Assembly::new(max, null_id);
    for element in elements {
        match element {
            Ok(message) if message.kind() == Kind::Notification => {
                assembly.silent();
            }
            Ok(message) => {
                assembly.expect(message.id());
            }
            Err(rejected) => refuse(&mut assembly, &rejected, null_id),
        }
    }
    assembly.fill_rest(fault);
    assembly.finish().map(Chunks::from)
}

fn refuse(assembly: &mut Assembly, rejected: &Rejected, null_id: NullId) {
    let id = match rejected {
        Rejected::Invalid { id, .. } => id.clone(),
        _ => None,
    };
    let error = Fault::from(rejected).to_error();
    let answer = error_response(id.as_ref(), &error, null_id);
    let place = assembly.expect(id);
    assembly.fill(place, answer.into());
}

/// The longest that any single call of the route may take without progress.
fn longest(backends: &[Arc<Backend>]) -> Duration {
    backends.iter().map(|backend| backend.longest_timeout()).max().unwrap_or_default()
}

/// Runs the jobs. When the deadline passes, what is not finished is cancelled and says so.
async fn gather(
    pipeline: &Pipeline,
    mut assembly: Assembly,
    jobs: Vec<Job>,
    server: &ServerConfig,
    longest: Duration,
) -> Option<Chunks> {
    let limit = server.batch_timeout.unwrap_or(longest);
    let deadline = Instant::now() + limit;
    let mut running = stream::iter(jobs).buffer_unordered(server.batch_concurrency);
    loop {
        let next = tokio::select! {
            biased;
            next = tokio::time::timeout_at(deadline.into(), running.next()) => next,
            () = pipeline.cut_off() => {
                assembly.fill_rest(&cut_off(None));
                break;
            }
        };
        match next {
            Ok(Some(answers)) => {
                for (place, answer) in answers {
                    match answer {
                        Some(answer) => assembly.fill(place, answer),
                        None => assembly.forget(place),
                    }
                }
            }
            Ok(None) => break,
            Err(_) => {
                let text = format!("the batch took longer than {limit:?}");
                assembly.fill_rest(&Fault::new(Reason::UpstreamTimeout, text));
                break;
            }
        }
    }
    assembly.finish().map(Chunks::from)
}

fn finish(snapshot: &Snapshot, body: Option<Chunks>, silent: StatusCode) -> Done {
    match body {
        // A copy of answers that are counted; those are gone by now.
        Some(body) => Done::ok(snapshot.budget.admit(body.len()).keep(body.into_bytes())),
        None => Done { status: silent, body: None, retry_after: None },
    }
}
