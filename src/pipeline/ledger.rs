//! The end of an exchange: counted and written down once, whatever happened.

use std::sync::Arc;
use std::time::{Duration, Instant};

use http::HeaderName;

use super::Inbound;
use super::reply::Done;
use crate::config::{Payloads, RouteName, UpstreamName};
use crate::fault::{Fault, Outcome};
use crate::jsonrpc::{Member, Message};
use crate::net::Peer;
use crate::session::Session;
use crate::telemetry::{
    AccessLine, Direction, MethodLabel, Metrics, PayloadLine, RequestId, RouteMetrics, TraceId,
    TraceParent,
};

const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Who asks, on which route: the same for every element of a batch.
#[derive(Debug)]
pub(super) struct Caller {
    metrics: Arc<RouteMetrics>,
    route: RouteName,
    payloads: Payloads,
    peer: Peer,
    request_id: RequestId,
    trace_id: TraceId,
}

impl Caller {
    /// From what came in.
    pub(super) fn of(inbound: &Inbound) -> Self {
        let traceparent = inbound.headers.get(&TRACEPARENT).and_then(|header| header.to_str().ok());
        let caller = Self {
            metrics: Arc::clone(inbound.route.metrics()),
            route: inbound.route.name().clone(),
            payloads: inbound.snapshot.payloads,
            peer: inbound.peer,
            request_id: RequestId::next(),
            trace_id: TraceId::of(traceparent),
        };
        caller.log_text(Direction::In, &inbound.payload);
        caller
    }

    /// Where it came from.
    pub(super) fn peer(&self) -> Peer {
        self.peer
    }

    /// An exchange begins.
    pub(super) fn open<'a>(
        &'a self,
        method: MethodLabel,
        message: &'a Message,
        session: Option<&'a Session>,
    ) -> Ledger<'a> {
        self.metrics.in_flight.inc();
        Ledger {
            caller: self,
            method,
            message: Some(message),
            session,
            upstream: None,
            batch_index: None,
            error_code: None,
            bytes_out: 0,
            started: Instant::now(),
            upstream_took: Duration::ZERO,
            ended: false,
        }
    }

    /// Something came that is no request, and was refused.
    pub(super) fn refused(&self, metrics: &Metrics, fault: &Fault) {
        self.metrics.in_flight.inc();
        let ledger = Ledger {
            caller: self,
            method: metrics.label("other"),
            message: None,
            session: None,
            upstream: None,
            batch_index: None,
            error_code: Some(fault.reason.code()),
            bytes_out: 0,
            started: Instant::now(),
            upstream_took: Duration::ZERO,
            ended: false,
        };
        ledger.end(fault.reason.outcome());
    }

    fn log_text(&self, direction: Direction, text: &[u8]) {
        let route = Some(self.route.as_str());
        let request_id = self.request_id;
        PayloadLine { direction, route, upstream: None, request_id, text }.write(self.payloads);
    }
}

/// What is known of one exchange; ended by [`Ledger::end`], or as cancelled when it is dropped.
#[derive(Debug)]
pub(super) struct Ledger<'a> {
    caller: &'a Caller,
    method: MethodLabel,
    message: Option<&'a Message>,
    session: Option<&'a Session>,
    upstream: Option<&'a UpstreamName>,
    batch_index: Option<usize>,
    error_code: Option<i64>,
    bytes_out: usize,
    started: Instant,
    upstream_took: Duration,
    ended: bool,
}

impl<'a> Ledger<'a> {
    /// Its method as metrics name it.
    pub(super) fn method(&self) -> MethodLabel {
        self.method
    }

    /// It is an element of a batch.
    pub(super) fn at(mut self, batch_index: Option<usize>) -> Self {
        self.batch_index = batch_index;
        self
    }

    /// It goes to this upstream.
    pub(super) fn goes_to(&mut self, upstream: &'a UpstreamName) {
        self.upstream = Some(upstream);
    }

    /// Time spent waiting for an upstream.
    pub(super) fn waited(&mut self, took: Duration) {
        self.upstream_took += took;
    }

    /// The upstream's answer.
    pub(super) fn answered(&mut self, answer: &Message) {
        let code = answer.member(Member::ErrorCode);
        self.error_code = code.and_then(|code| std::str::from_utf8(&code).ok()?.parse().ok());
    }

    /// The gateway's own answer.
    pub(super) fn failed(&mut self, fault: &Fault) {
        self.error_code = Some(fault.reason.code());
    }

    /// What goes to the client.
    pub(super) fn replied(&mut self, done: &Done) {
        let Some(body) = &done.body else { return };
        self.bytes_out = body.len();
        if self.caller.payloads != Payloads::Off {
            self.caller.log_text(Direction::Out, &body.clone().into_bytes());
        }
    }

    /// What went to the client in pieces.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.bytes_out = bytes;
    }

    /// It has ended.
    pub(super) fn end(mut self, outcome: Outcome) {
        self.finish(outcome);
    }

    fn finish(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let took = self.started.elapsed();
        let metrics = &self.caller.metrics;
        metrics.in_flight.dec();
        metrics.exchange_ended(self.method, outcome, took, self.upstream_took);
        if AccessLine::enabled() {
            self.line(outcome, took);
        }
    }

    fn line(&self, outcome: Outcome, took: Duration) {
        let method = self.message.map_or("", Message::method);
        let tool = match self.message {
            Some(message) if method == "tools/call" => message.member_str(Member::Name),
            _ => None,
        };
        let traced = self
            .message
            .and_then(|message| message.member_str(Member::MetaTraceparent))
            .and_then(|text| TraceParent::parse(&text))
            .map(|parent| parent.trace_id);
        AccessLine {
            route: self.caller.route.as_str(),
            method,
            tool: tool.as_deref(),
            upstream: self.upstream.map(UpstreamName::as_str),
            outcome,
            took,
            upstream_took: self.upstream_took,
            session: self.session.map(Session::log_tag),
            request_id: self.caller.request_id,
            trace_id: traced.unwrap_or(self.caller.trace_id),
            client: Some(self.caller.peer),
            bytes_in: self.message.map_or(0, |message| message.text().len() as u64),
            bytes_out: self.bytes_out as u64,
            batch_index: self.batch_index,
            error_code: self.error_code,
        }
        .write();
    }
}

impl Drop for Ledger<'_> {
    fn drop(&mut self) {
        self.finish(Outcome::Cancelled);
    }
}
