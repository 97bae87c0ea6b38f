//! One notification of an upstream to many clients: each has subscribed over a WebSocket of its own, and all share one
//! subscription at the upstream.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::client::Client;
use crate::gateway::Gateway;
use crate::socket::Socket;
use crate::{Result, limits, usage};

/// As given to `--only`.
pub(crate) const NAME: &str = "fan-out";
/// How long all clients may take to hear of one event.
const PATIENCE: Duration = Duration::from_secs(20);
/// Events before it is measured.
const WARM_UP: u64 = 10;
/// Events that are measured.
const EVENTS: u64 = 100;
/// Descriptors of a process beside those of its clients.
const BESIDE: u64 = 500;

/// What was measured.
pub(crate) struct FanOut {
    pub(crate) clients: usize,
    /// Use of the gateway for each notification that a client got.
    pub(crate) cpu: Duration,
    /// From the event to the last client, one for each event.
    pub(crate) took: Vec<Duration>,
}

#[derive(Default)]
struct Heard {
    notifications: Cell<u64>,
    more: Notify,
    problem: RefCell<Option<String>>,
}

/// Subscribes so many clients at a fresh gateway and lets things happen. Fails at a wrong or a missing notification.
pub(crate) fn measure(program: Option<&Path>, stub: SocketAddr, clients: usize) -> Result<FanOut> {
    limits::files(clients as u64 + BESIDE)?;
    let gateway = Gateway::start(program, stub)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let heard = Rc::new(Heard::default());
        for number in 0..clients {
            let (socket, id) = subscribe(gateway.child.address, number).await?;
            let heard = Rc::clone(&heard);
            tokio::task::spawn_local(async move {
                if let Err(problem) = listen(socket, &id, &heard).await {
                    heard.problem.borrow_mut().get_or_insert(format!("client {number}: {problem}"));
                    heard.more.notify_one();
                }
            });
        }
        let mut control = Client::connect(stub).await?;
        let mut took = Vec::new();
        let mut before = Duration::ZERO;
        for event in 1..=WARM_UP + EVENTS {
            let began = Instant::now();
            emit(&mut control, stub).await?;
            let all = hear(&heard, event * clients as u64);
            tokio::time::timeout(PATIENCE, all)
                .await
                .map_err(|_| "notifications are missing")??;
            if event > WARM_UP {
                took.push(began.elapsed());
            } else {
                before = usage::cpu(gateway.child.pid())?;
            }
        }
        let cpu = usage::cpu(gateway.child.pid())?.saturating_sub(before);
        let delivered = u32::try_from(EVENTS * clients as u64)?;
        Ok(FanOut { clients, cpu: cpu / delivered, took })
    })
}

/// A client, and the text by which it knows its notifications.
async fn subscribe(address: SocketAddr, number: usize) -> Result<(Socket, String)> {
    let mut socket = Socket::open(address, "/ws").await?;
    let request = format!(
        r#"{{"jsonrpc":"2.0","id":{number},"method":"demo_subscribe","params":["events"]}}"#
    );
    socket.send(request).await?;
    let answer: serde_json::Value = serde_json::from_str(&socket.next().await?)?;
    match answer.get("result") {
        Some(id) if answer["id"] == number => Ok((socket, format!(r#""subscription":{id}"#))),
        _ => Err(format!("demo_subscribe was answered with {answer}").into()),
    }
}

async fn listen(mut socket: Socket, id: &str, heard: &Heard) -> Result<()> {
    let mut last = 0;
    loop {
        let text = socket.next().await?;
        let message: serde_json::Value = serde_json::from_str(&text)?;
        let number = message["params"]["result"]["number"].as_u64().unwrap_or_default();
        if !text.contains(id) || (last > 0 && number != last + 1) {
            return Err(format!("after event {last}: {text}").into());
        }
        last = number;
        heard.notifications.set(heard.notifications.get() + 1);
        heard.more.notify_one();
    }
}

async fn emit(control: &mut Client, stub: SocketAddr) -> Result<()> {
    let request = format!("POST /emit HTTP/1.1\r\nHost: {stub}\r\nContent-Length: 0\r\n\r\n");
    match control.send(request.as_bytes()).await?.status {
        204 => Ok(()),
        status => Err(format!("the stub answered /emit with {status}").into()),
    }
}

/// Waits for so many notifications.
async fn hear(heard: &Heard, all: u64) -> Result<()> {
    while heard.notifications.get() < all {
        if let Some(problem) = heard.problem.borrow_mut().take() {
            return Err(problem.into());
        }
        heard.more.notified().await;
    }
    Ok(())
}
