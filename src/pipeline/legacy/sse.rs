//! HTTP+SSE (MCP 2024-11-05, transports): a client opens a stream, POSTs what it has to say under the stream's token,
//! and finds every answer, notification and question on the stream. One stream is one session; the revision is
//! whichever `initialize` negotiates.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::LEGACY;
use super::arrival::{Arrival, Taken};
use crate::fault::{Fault, Reason};
use crate::jsonrpc::{Body, Kind, NullId, parse_body};
use crate::pipeline::entry::{is_modern, refused, spelled};
use crate::pipeline::ledger::Caller;
use crate::pipeline::reply::Reply;
use crate::pipeline::work::Work;
use crate::pipeline::{Inbound, McpRoute, Pipeline, Spot};
use crate::session::Channel;

/// GET: opens a stream and says where to POST.
pub(in crate::pipeline) fn connect(
    pipeline: &Arc<Pipeline>,
    route: &Arc<McpRoute>,
    inbound: &Inbound,
    slashed: bool,
) -> Reply {
    let unavailable = |text: String| {
        let mut fault = Fault::new(Reason::Overloaded, text);
        fault.retry_after = Some(Duration::from_secs(1));
        // Not in the manner of the legacy era: there is no stream yet, and SDKs look at the status alone.
        Reply::fault(None, &fault, None, NullId::Null)
    };
    let opened = match pipeline.sessions.full() {
        Some(full) => Err(full),
        None => pipeline.channels.open(route.name.clone(), None),
    };
    let channel = match opened {
        Ok(channel) => channel,
        Err(full) => return unavailable(full.to_string()),
    };
    // Opened beside the end of all others, it would hold up the drain.
    if pipeline.is_draining() {
        pipeline.channels.remove(&channel);
        return unavailable("the gateway is shutting down".to_owned());
    }
    let stream = channel.read();
    let patience = inbound.snapshot.server.session_idle_timeout;
    pipeline.tasks.spawn(watch(Arc::clone(pipeline), Arc::clone(&channel), patience));
    Reply::Channel {
        stream,
        endpoint: endpoint(inbound, channel.token().as_str(), slashed),
        metrics: Arc::clone(&route.metrics),
    }
}

/// Where the client is to POST. A reference relative to where it asked is right whatever a proxy puts in front of the
/// path, for clients that follow RFC 3986 §5; below a known `public_url` it is a path that suits all.
fn endpoint(inbound: &Inbound, token: &str, slashed: bool) -> String {
    let path = match &inbound.snapshot.server.public_url {
        Some(url) => {
            let own = Spot::Messages.below(inbound.route.name().as_str());
            format!("{}{own}", url.path().trim_end_matches('/'))
        }
        None if slashed => "../message".to_owned(),
        None => "message".to_owned(),
    };
    format!("{path}?session={token}")
}

/// Waits for the end of a stream, and ends its session with it. A client that never says who it is is not waited for
/// longer than an unused session.
async fn watch(pipeline: Arc<Pipeline>, channel: Arc<Channel>, patience: Duration) {
    let silent = async {
        tokio::time::sleep(patience).await;
        if channel.session().is_some() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = channel.closed() => {}
        () = silent => channel.close(),
    }
    pipeline.channels.remove(&channel);
    if let Some(session) = channel.session() {
        pipeline.end_session(&session);
    }
}

/// A POST to the stream of a token. It is acknowledged at once; what is no request, and so owes no answer on the stream,
/// is refused as it is on the route's own path.
pub(in crate::pipeline) fn deliver(
    pipeline: &Arc<Pipeline>,
    route: &Arc<McpRoute>,
    inbound: Inbound,
    token: Option<&str>,
) -> Reply {
    let refuse = |reason, text| {
        let fault = Fault::new(reason, text);
        Caller::of(&inbound).refused(pipeline.metrics(), &fault);
        Reply::fault(None, &fault, LEGACY, spelled(&inbound))
    };
    let Some(token) = token else {
        let text = "Bad Request: the query names no session; POST where the endpoint event said";
        return refuse(Reason::InvalidRequest, text);
    };
    let Some(channel) = pipeline.channels.find(token, &route.name, None) else {
        return refuse(Reason::SessionNotFound, "Session not found; open a new stream");
    };
    let body = match parse_body(inbound.payload.clone(), &inbound.snapshot.limits) {
        Ok(body) => body,
        Err(rejected) => {
            Caller::of(&inbound).refused(pipeline.metrics(), &Fault::from(&rejected));
            return refused(&rejected, spelled(&inbound));
        }
    };
    let arrival = Arrival { pipeline, route, inbound: &inbound, channel: &channel };
    let taken = match body {
        Body::One(message) if message.kind() != Kind::Response && is_modern(&message) => {
            let text = "Invalid Request: HTTP+SSE is served up to revision 2025-11-25; POST to the route itself";
            arrival.refuse(&message, &Fault::new(Reason::InvalidRequest, text))
        }
        Body::One(message) => arrival.one(message),
        Body::Batch(elements) => arrival.many(elements),
    };
    match taken {
        Taken::Nothing => {}
        Taken::Refused(reply) => return reply,
        Taken::Work(work) => attend(pipeline, channel, work),
    }
    Reply::empty(StatusCode::ACCEPTED)
}

/// Sees work through, beside the POST that began it. It ends with the stream.
fn attend(pipeline: &Pipeline, channel: Arc<Channel>, mut work: Work) {
    let cutting = pipeline.cutting.clone();
    pipeline.tasks.spawn(async move {
        let mut cutting = pin!(cutting.cancelled());
        let worked = std::future::poll_fn(|cx| {
            // Polled again, the exchange sees that it is cut off.
            let _ = cutting.as_mut().poll(cx);
            work.as_mut().poll(cx)
        });
        tokio::select! {
            // Polled first, so that it has begun, and is counted, whatever ends it.
            biased;
            () = worked => {}
            () = channel.closed() => {}
        }
    });
}
