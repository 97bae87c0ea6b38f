//! One MCP request of a session: who answers it, under which name, and the way back.

use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use smallvec::SmallVec;

use super::call::{Context, Ended, Target, call};
use super::ledger::Ledger;
use super::lists::{Page, View};
use super::offer::server_info;
use super::reply::Done;
use super::{Backend, Outlet, hub, links, modern};
use crate::exchange::bridge::{self, Recipient};
use crate::exchange::outcome_of;
use crate::fault::{Fault, Outcome, Reason};
use crate::jsonrpc::{Chunks, Id, IdKind, Member, Message, ParamsKind, result_response};
use crate::mcp::{Era, ListKind, ProtocolVersion, To, log_rank, meta, method_spec};
use crate::upstream::{Answered, LinkScope};

/// Serves one request (step 2 to 12). `place`: where it stands in its batch.
pub(super) async fn request(
    cx: &Context,
    message: &Message,
    outlet: &Outlet,
    place: Option<usize>,
) -> Done {
    let Some(id) = message.id() else {
        // Requests have an id; without one there is nobody to answer.
        return Done { status: http::StatusCode::ACCEPTED, body: None, retry_after: None };
    };
    let label = cx.pipeline.metrics().label(message.method());
    let session = (cx.session.era() == Era::Legacy).then_some(&*cx.session);
    let mut ledger = cx.caller.open(label, message, session).at(place);
    let result = match check(message) {
        Ok(()) => serve(cx, message, &id, &mut ledger, outlet).await,
        Err(fault) => Err(Ended::Fault(fault)),
    };
    let (done, outcome) = match result {
        Ok(served) => served,
        Err(Ended::Cancelled) => {
            let done = Done { status: http::StatusCode::OK, body: None, retry_after: None };
            (done, Outcome::Cancelled)
        }
        Err(Ended::Fault(fault) | Ended::HeaderMismatch(fault)) => {
            ledger.failed(&fault);
            let done = Done::fault(Some(&id), &fault, Some(cx.session.era()), cx.null_id());
            (done, fault.reason.outcome())
        }
    };
    ledger.replied(&done);
    ledger.end(outcome);
    done
}

/// The rules of MCP that plain JSON-RPC does not have (MCP digest §2.1, §2.2, §2.5).
pub(super) fn check(message: &Message) -> Result<(), Fault> {
    let invalid = |text: &'static str| Err(Fault::new(Reason::InvalidRequest, text));
    match message.id().map(|id| id.kind()) {
        Some(IdKind::Null) => return invalid("Invalid Request: the id must not be null"),
        Some(IdKind::Fraction) => {
            return invalid("Invalid Request: the id must be a string or an integer");
        }
        Some(IdKind::String | IdKind::Integer) | None => {}
    }
    if message.params_kind() == ParamsKind::Array {
        return invalid("Invalid Request: params must be an object");
    }
    if let Some(member) = message.ambiguous_member() {
        let text = format!("Invalid Request: params.{member} is given twice");
        return Err(Fault::new(Reason::InvalidRequest, text));
    }
    for member in [Member::Name, Member::Uri] {
        if message.member(member).is_some_and(|text| text.starts_with(b"\""))
            && message.member_str(member).is_none()
        {
            return invalid("Invalid Request: a name or uri is no valid Unicode");
        }
    }
    Ok(())
}

/// How a request was served.
pub(super) type Served = Result<(Done, Outcome), Ended>;

async fn serve<'a>(
    cx: &'a Context,
    message: &Message,
    id: &Id,
    ledger: &mut Ledger<'a>,
    outlet: &Outlet,
) -> Served {
    let spec = match method_spec(message.method()) {
        Some(spec) if spec.eras.has(cx.session.era()) => spec,
        // Tasks of 2025-11-25 have the same names.
        Some(spec) if spec.to != To::OwnerOfTask => return Err(method_not_found()),
        _ => return Box::pin(unknown_method(cx, message, id, ledger, outlet)).await,
    };
    match spec.to {
        To::Gateway => Box::pin(local(cx, message, id, outlet)).await,
        To::Merged(kind) => list(cx, message, id, kind).await,
        To::OwnerOfTool => named(cx, message, id, ledger, outlet, ListKind::Tools).await,
        To::OwnerOfPrompt => named(cx, message, id, ledger, outlet, ListKind::Prompts).await,
        // Boxed: the future of the most frequent request stays small.
        To::OwnerOfUri => Box::pin(located(cx, message, id, ledger, outlet)).await,
        To::OwnerOfRef => Box::pin(completion(cx, message, id, ledger, outlet)).await,
        To::OwnerOfTask => Box::pin(modern::task(cx, message, id, ledger, outlet)).await,
    }
}

/// What the gateway answers alone.
async fn local(cx: &Context, message: &Message, id: &Id, outlet: &Outlet) -> Served {
    match message.method() {
        "server/discover" => {
            let result = modern::discover(&cx.route).await.to_string();
            Ok(ok(result_response(id, result.as_bytes())))
        }
        "subscriptions/listen" => modern::listen(cx, message, id, outlet).await,
        "ping" => Ok(ok(result_response(id, b"{}"))),
        "logging/setLevel" => {
            let rank = message.member_str(Member::Level).and_then(|level| log_rank(&level));
            let Some(rank) = rank else {
                return Err(invalid_params("Invalid params: level is not a log level"));
            };
            cx.session.set_log_rank(rank);
            hub::relay_level(cx);
            Ok(ok(result_response(id, b"{}")))
        }
        "initialize" => Err(Ended::Fault(Fault::new(
            Reason::InvalidRequest,
            "Invalid Request: initialize must not be part of a batch",
        ))),
        // A notification's name with an id.
        _ => Err(method_not_found()),
    }
}

/// A merged list, or one page of it.
async fn list(cx: &Context, message: &Message, id: &Id, kind: ListKind) -> Served {
    if !cx.route.lists.offered(&cx.route, kind, cx.session.era()) {
        return Err(method_not_found());
    }
    let cursor = match message.member(Member::Cursor) {
        Some(text) if &text[..] != b"null" => Some(
            message
                .member_str(Member::Cursor)
                .ok_or_else(|| invalid_params("Invalid params: cursor must be a string"))?,
        ),
        _ => None,
    };
    let page = cx.route.lists.page(cx, kind, cursor.as_deref()).await;
    let Page { text, next, hints, missing } = page.map_err(Ended::Fault)?;
    let mut head = Vec::with_capacity(40 + id.text().len());
    head.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
    head.extend_from_slice(id.text());
    head.extend_from_slice(b",\"result\":");
    let mut tail = Vec::new();
    if let Some(cursor) = next {
        tail.extend_from_slice(b",\"nextCursor\":\"");
        tail.extend_from_slice(cursor.as_bytes());
        tail.push(b'"');
    }
    if cx.session.era() == Era::Modern {
        let scope = if hints.public { "public" } else { "private" };
        let millis = hints.ttl.as_millis();
        let mut meta = json!({ meta::SERVER_INFO: server_info() });
        if !missing.is_empty() {
            meta["trunkline/missingUpstreams"] = missing.into();
        }
        let end = format!(
            r#","resultType":"complete","ttlMs":{millis},"cacheScope":"{scope}","_meta":{meta}"#
        );
        tail.extend_from_slice(end.as_bytes());
    }
    tail.extend_from_slice(b"}}");
    let body = Chunks::from_iter([Bytes::from(head), text, Bytes::from(tail)]);
    Ok((Done::ok(body), Outcome::Ok))
}

/// A tool or prompt of one upstream.
async fn named<'a>(
    cx: &'a Context,
    message: &Message,
    id: &Id,
    ledger: &mut Ledger<'a>,
    outlet: &Outlet,
    kind: ListKind,
) -> Served {
    let name = message
        .member_str(Member::Name)
        .ok_or_else(|| invalid_params("Invalid params: name must be a string"))?;
    let mut view = cx.route.lists.for_name(cx, kind, &name).await;
    let mut target = owned(cx, message, &view, &name, kind);
    if target.is_none()
        && let Some(newer) = cx.route.lists.renewed(cx, kind).await
    {
        target = owned(cx, message, &newer, &name, kind);
        view = newer;
    }
    let target = target.or_else(|| passes(cx, &view, &name, kind));
    let target = target.ok_or_else(|| unknown(cx, &view, &name, kind))?;
    if let (Some(given), Some(params)) = (&cx.repeated, &target.params) {
        modern::params(message, params, given).map_err(Ended::Fault)?;
    }
    let upstream =
        cx.route.backends.iter().position(|backend| Arc::ptr_eq(backend, target.backend));
    let wrapped = target.wrapped;
    let answer = match call(cx, message, target, ledger, outlet).await {
        Err(Ended::HeaderMismatch(fault)) => {
            // What is known of the tool is old: once more by what its upstream lists now.
            let Some(upstream) = upstream else { return Err(Ended::Fault(fault)) };
            cx.route.lists.invalidate(upstream, kind);
            let view = cx.route.lists.renewed(cx, kind).await;
            let target = view.and_then(|view| owned(cx, message, &view, &name, kind));
            let target = target.ok_or(Ended::Fault(fault))?;
            call(cx, message, target, ledger, outlet).await?
        }
        answer => answer?,
    };
    if let (Some(upstream), true) = (upstream, cx.route.backends.len() > 1) {
        links::remember(cx, &answer.message, upstream);
    }
    Ok(restored(cx, message, id, &answer, wrapped))
}

/// A name that nobody owns. It may be that of an upstream which has not said yet what it lists: nobody knows.
fn unknown(cx: &Context, view: &View, name: &str, kind: ListKind) -> Ended {
    if let Some(backend) = view.unheard(&cx.route, name) {
        let upstream = backend.upstream.name().as_str();
        let text = format!("upstream {upstream} has not said yet which {} it has", kind.as_str());
        return Ended::Fault(Fault::new(Reason::UpstreamUnavailable, text).at(upstream));
    }
    let what = if kind == ListKind::Tools { "tool" } else { "prompt" };
    let fault = Fault::new(Reason::InvalidParams, format!("Unknown {what}"));
    Ended::Fault(fault.with(what, Value::from(name).to_string()))
}

fn owned<'a>(
    cx: &'a Context,
    message: &Message,
    view: &View,
    name: &str,
    kind: ListKind,
) -> Option<Target<'a>> {
    let origin = view.merged.owner(name)?;
    let backend = &cx.route.backends[origin.upstream];
    let mut edits = SmallVec::new();
    if let (Some(own), Some(span)) = (&origin.rewrite, message.member_span(Member::Name)) {
        edits.push((span, own.clone()));
    }
    let tool = kind == ListKind::Tools;
    Some(Target {
        backend,
        edits,
        timeout: if tool { backend.tool_timeout(&origin.own) } else { backend.config().timeout },
        tool: view.tools.get(origin.index).cloned(),
        params: origin.params.clone(),
        wrapped: Some(origin.wrapped),
    })
}

/// With one upstream under its own names, what is in no list goes there all the same: it knows best.
fn passes<'a>(cx: &'a Context, view: &View, name: &str, kind: ListKind) -> Option<Target<'a>> {
    let backend = cx.route.transparent()?;
    if cx.route.naming != crate::catalog::Naming::Own {
        return None;
    }
    let mut target = Target::plain(backend);
    if kind == ListKind::Tools {
        let renamed = backend.upkeep.rename.contains_key(name);
        if renamed || !backend.upkeep.offers(name) {
            return None;
        }
        target.timeout = backend.tool_timeout(name);
        target.tool = Some(Arc::clone(&view.other));
    }
    Some(target)
}

/// A resource of one upstream, or a subscription to it.
async fn located<'a>(
    cx: &'a Context,
    message: &Message,
    id: &Id,
    ledger: &mut Ledger<'a>,
    outlet: &Outlet,
) -> Served {
    let uri = message
        .member_str(Member::Uri)
        .ok_or_else(|| invalid_params("Invalid params: uri must be a string"))?;
    let method = message.method();
    if method == "resources/unsubscribe" {
        // The owner is who was subscribed to: the resource need not be listed any more.
        return match hub::unsubscribe(cx, &uri) {
            Some(backend) => {
                let answer = call(cx, message, Target::plain(backend), ledger, outlet).await?;
                Ok(restored(cx, message, id, &answer, None))
            }
            None => Ok(ok(result_response(id, b"{}"))),
        };
    }
    let Some(upstream) = cx.route.lists.uri_owner(cx, &uri).await else {
        let uri = Value::from(&*uri).to_string();
        let fault = Fault::new(Reason::InvalidParams, "Unknown resource").with("uri", uri);
        return Err(Ended::Fault(fault));
    };
    let target = Target::plain(&cx.route.backends[upstream]);
    if method != "resources/subscribe" {
        let answer = call(cx, message, target, ledger, outlet).await?;
        return Ok(restored(cx, message, id, &answer, None));
    }
    // Which link it is shows when it is open.
    let upstream = &target.backend.upstream;
    upstream
        .hello(&cx.link(target.backend))
        .await
        .map_err(|error| Ended::Fault(error.to_fault()))?;
    let Some(mut subscribing) = hub::subscribe(cx, target.backend, &uri) else {
        return Err(invalid_params(
            "this session has too many subscriptions, or the uri is too long",
        ));
    };
    if subscribing.is_known() {
        return Ok(ok(result_response(id, b"{}")));
    }
    if let Some(link) = subscribing.modern() {
        // There is nothing to subscribe with but the listen request of the link.
        ledger.goes_to(target.backend.upstream.name());
        let link = link.clone();
        subscribing.ask();
        let watched = target.backend.upstream.watch(&link, &uri).await;
        watched.map_err(|error| Ended::Fault(error.to_fault()))?;
        subscribing.confirm();
        return Ok(ok(result_response(id, b"{}")));
    }
    subscribing.ask();
    let answer = call(cx, message, target, ledger, outlet).await?;
    if outcome_of(&answer.message) == Outcome::Ok {
        subscribing.confirm();
    } else {
        subscribing.refused();
    }
    Ok(restored(cx, message, id, &answer, None))
}

/// Completion of an argument of a prompt or a variable of a template.
async fn completion<'a>(
    cx: &'a Context,
    message: &Message,
    id: &Id,
    ledger: &mut Ledger<'a>,
    outlet: &Outlet,
) -> Served {
    if !cx.route.lists.completes(&cx.route, cx.session.era()) {
        return Err(method_not_found());
    }
    let mut edits = SmallVec::new();
    let upstream = if let Some(uri) = message.member_str(Member::RefUri) {
        cx.route.lists.template_owner(cx, &uri).await
    } else if let Some(name) = message.member_str(Member::RefName) {
        let view = cx.route.lists.for_name(cx, ListKind::Prompts, &name).await;
        view.merged.owner(&name).map(|origin| {
            if let (Some(own), Some(span)) = (&origin.rewrite, message.member_span(Member::RefName))
            {
                edits.push((span, own.clone()));
            }
            origin.upstream
        })
    } else {
        return Err(invalid_params("Invalid params: ref names neither a prompt nor a resource"));
    };
    let upstream = match (upstream, cx.route.transparent()) {
        (Some(upstream), _) => upstream,
        (None, Some(_)) => 0,
        (None, None) => {
            return Err(invalid_params("Invalid params: ref names nothing that is offered here"));
        }
    };
    let backend = &cx.route.backends[upstream];
    if backend.upstream.known(cx.session.era()).is_some_and(|hello| !hello.caps.completions) {
        return Ok(ok(result_response(id, &nothing_completed(cx))));
    }
    let target = Target { edits, ..Target::plain(backend) };
    let answer = call(cx, message, target, ledger, outlet).await?;
    let code = answer.message.member(Member::ErrorCode);
    if answer.version < ProtocolVersion::V2025_03_26 && code.as_deref() == Some(b"-32601") {
        return Ok(ok(result_response(id, &nothing_completed(cx))));
    }
    Ok(restored(cx, message, id, &answer, None))
}

/// The result of completing what an upstream has no values for.
fn nothing_completed(cx: &Context) -> Bytes {
    Bytes::from_static(match cx.session.era() {
        Era::Legacy => br#"{"completion":{"values":[],"total":0,"hasMore":false}}"#,
        Era::Modern => {
            br#"{"resultType":"complete","completion":{"values":[],"total":0,"hasMore":false}}"#
        }
    })
}

/// A method that the gateway does not know: it passes where there is one upstream.
async fn unknown_method<'a>(
    cx: &'a Context,
    message: &Message,
    id: &Id,
    ledger: &mut Ledger<'a>,
    outlet: &Outlet,
) -> Served {
    match cx.route.transparent() {
        Some(backend) if !message.method().starts_with("rpc.") => {
            if message.method().starts_with("tasks/") && !owns_tasks(cx, backend).await? {
                return Err(method_not_found());
            }
            let answer = call(cx, message, Target::plain(backend), ledger, outlet).await?;
            Ok(restored(cx, message, id, &answer, None))
        }
        _ => Err(method_not_found()),
    }
}

/// Whether all tasks behind the client's link are its own: those of 2025-11-25 belong to the session that began them.
/// Those of a modern upstream are told apart by ids that a client can only have sealed.
async fn owns_tasks(cx: &Context, backend: &Backend) -> Result<bool, Ended> {
    let link = cx.link(backend);
    if cx.session.era() == Era::Modern || link.scope == LinkScope::Shared {
        return Ok(false);
    }
    let hello = backend.upstream.hello(&link).await.map_err(|error| Ended::from(&error))?;
    Ok(hello.version.era() == Era::Legacy)
}

const METHOD_NOT_FOUND: i64 = -32601;

/// The status of an upstream's own answer to a modern client (MCP digest §6.2).
fn modern_status(method: &str, code: Option<i64>) -> StatusCode {
    // A method that is offered here is there, whatever its upstream means.
    if code == Some(METHOD_NOT_FOUND) && method_spec(method).is_some() {
        return StatusCode::OK;
    }
    StatusCode::from_u16(bridge::modern_status(code)).unwrap_or(StatusCode::OK)
}

/// The upstream's answer under the client's id, in the client's revision.
pub(super) fn restored(
    cx: &Context,
    message: &Message,
    id: &Id,
    answer: &Answered,
    wrapped: Option<bool>,
) -> (Done, Outcome) {
    let uri = message.member_str(Member::Uri);
    let to = Recipient {
        version: cx.session.version(),
        caps: cx.session.caps(),
        method: message.method(),
        uri: uri.as_deref(),
        wrapped,
    };
    let bridged = bridge::answer(&to, answer.version, &answer.message, id);
    let mut done = Done::ok(bridged.text);
    if cx.session.era() == Era::Modern {
        done.status = modern_status(message.method(), bridged.code);
    }
    (done, bridged.outcome)
}

fn ok(body: Bytes) -> (Done, Outcome) {
    (Done::ok(body), Outcome::Ok)
}

/// -32602.
pub(super) fn invalid_params(text: &'static str) -> Ended {
    Ended::Fault(Fault::new(Reason::InvalidParams, text))
}

fn method_not_found() -> Ended {
    Ended::Fault(Fault::new(Reason::MethodNotFound, "Method not found"))
}
