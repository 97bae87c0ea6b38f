//! The load: a closed loop on a number of connections, every answer checked.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memchr::memmem;

use crate::Result;
use crate::client::Answer;
use crate::histogram::Histogram;
use crate::probe::Expected;
use crate::scenario::{Call, Carrier};
use crate::session::{self, FIRST_ID, Session};
use crate::socket::{SWITCHED, Socket};

/// How long opening all connections may take, and how long the last answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// A call with what its answers must hold.
pub(crate) struct Plan {
    pub(crate) call: Call,
    pub(crate) expected: Expected,
}

/// Lengths of the two parts of a window.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    /// Under load, not yet measured.
    pub(crate) warm_up: Duration,
    /// Measured.
    pub(crate) measured: Duration,
}

/// What was measured.
pub(crate) struct Window {
    pub(crate) took: Duration,
    /// Use of the target's processes.
    pub(crate) cpu: Duration,
    pub(crate) latency: Histogram,
}

const WARM_UP: u8 = 0;
const MEASURED: u8 = 1;
const OVER: u8 = 2;

/// What the threads of a window share.
struct Shared {
    phase: AtomicU8,
    ready: AtomicUsize,
    problem: Mutex<Option<String>>,
}

impl Shared {
    fn report(&self, problem: String) {
        self.lock().get_or_insert(problem);
    }

    fn check(&self) -> Result<()> {
        self.lock().take().map_or(Ok(()), |problem| Err(problem.into()))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.problem.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Opens the connections, loads, and measures; `cpu` says what the target has used so far. Fails
/// at the first wrong answer.
pub(crate) fn run(
    address: SocketAddr,
    plans: &[Plan],
    connections: usize,
    times: Times,
    cpu: impl Fn() -> std::io::Result<Duration>,
) -> Result<Window> {
    let shared = Shared {
        phase: AtomicU8::new(WARM_UP),
        ready: AtomicUsize::new(0),
        problem: Mutex::new(None),
    };
    let shared = &shared;
    let threads = crate::cores().min(connections);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|first| {
                let numbers = (first..connections).step_by(threads);
                scope.spawn(move || work(address, plans, numbers, shared))
            })
            .collect();
        let measured = measure(shared, connections, times, cpu);
        shared.phase.store(OVER, Ordering::Relaxed);
        let mut latency = Histogram::new();
        for worker in workers {
            latency.merge(&worker.join().map_err(|_| "a load thread panicked")??);
        }
        shared.check()?;
        let (took, cpu) = measured?;
        Ok(Window { took, cpu, latency })
    })
}

fn measure(
    shared: &Shared,
    connections: usize,
    times: Times,
    cpu: impl Fn() -> std::io::Result<Duration>,
) -> Result<(Duration, Duration)> {
    let deadline = Instant::now() + PATIENCE;
    while shared.ready.load(Ordering::Relaxed) < connections {
        shared.check()?;
        if Instant::now() > deadline {
            return Err("the connections did not open in time".into());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(times.warm_up);
    let cpu_before = cpu()?;
    let started = Instant::now();
    shared.phase.store(MEASURED, Ordering::Relaxed);
    std::thread::sleep(times.measured);
    shared.phase.store(OVER, Ordering::Relaxed);
    let took = started.elapsed();
    Ok((took, cpu()?.saturating_sub(cpu_before)))
}

/// One thread of the load: a runtime with some of the connections.
fn work(
    address: SocketAddr,
    plans: &[Plan],
    numbers: impl Iterator<Item = usize>,
    shared: &Shared,
) -> Result<Histogram> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let latency = RefCell::new(Histogram::new());
    runtime.block_on(async {
        let loops = numbers.map(|number| {
            let (plan, latency) = (&plans[number % plans.len()], &latency);
            async move {
                let ended = connection(address, plan, number, shared, latency).await;
                if let Err(problem) = ended {
                    shared.report(format!("connection {number}: {problem}"));
                }
            }
        });
        let all = futures_util::future::join_all(loops);
        if tokio::time::timeout(PATIENCE * 3, all).await.is_err() {
            shared.report("answers are missing".to_owned());
        }
    });
    Ok(latency.into_inner())
}

async fn connection(
    address: SocketAddr,
    plan: &Plan,
    number: usize,
    shared: &Shared,
    latency: &RefCell<Histogram>,
) -> Result<()> {
    // No two connections share an id: an answer that went to the wrong one is noticed.
    let first = FIRST_ID + number as u64 * 1_000_000;
    if let Carrier::WebSocket(in_flight) = plan.call.carrier {
        return talk(address, plan, (first, in_flight), shared, latency).await;
    }
    let mut session = Session::open(address, &plan.call).await?;
    let (mut request, id_places) = session.template(&plan.call);
    let mut checker = Checker::new(&plan.expected);
    let mut id = first;
    shared.ready.fetch_add(1, Ordering::Relaxed);
    while shared.phase.load(Ordering::Relaxed) != OVER {
        let ids = id..id + id_places.len() as u64;
        ids.clone().zip(&id_places).for_each(|(id, at)| write_id(&mut request, *at, id));
        let started = Instant::now();
        let answer = session.client.send(&request).await?;
        let took = started.elapsed();
        checker.check(&answer, ids).map_err(|what| {
            let body = String::from_utf8_lossy(&answer.body[..answer.body.len().min(300)]);
            format!("{what} in the answer to {id}: status {}, {body}", answer.status)
        })?;
        if shared.phase.load(Ordering::Relaxed) == MEASURED {
            latency.borrow_mut().record(took);
        }
        id += id_places.len() as u64;
    }
    session.close().await
}

/// Keeps so many calls in flight on one WebSocket; answers come in any order.
async fn talk(
    address: SocketAddr,
    plan: &Plan,
    (first, in_flight): (u64, usize),
    shared: &Shared,
    latency: &RefCell<Histogram>,
) -> Result<()> {
    let mut socket = Socket::open(address, &plan.call.path).await?;
    let text = session::text(&plan.call).into_bytes();
    let at = session::ids(&text)[0];
    let request = |id: u64| {
        let mut text = text.clone();
        write_id(&mut text, at, id);
        String::from_utf8(text).expect("digits and what was text before")
    };
    let mut checker = Checker::new(&plan.expected);
    let mut id = first;
    let mut open: HashMap<u64, Instant> = HashMap::new();
    shared.ready.fetch_add(1, Ordering::Relaxed);
    loop {
        let over = shared.phase.load(Ordering::Relaxed) == OVER;
        while !over && open.len() < in_flight {
            open.insert(id, Instant::now());
            socket.feed(request(id)).await?;
            id += 1;
        }
        if open.is_empty() {
            return socket.close().await;
        }
        socket.flush().await?;
        let mut next = Some(socket.next().await?);
        // What has come together makes room together.
        while let Some(answer) = next {
            let answer = Answer { status: SWITCHED, head: "", body: answer.as_bytes() };
            let answered = checker.id(&answer).ok_or("an answer without a number as its id")?;
            let started = open.remove(&answered).ok_or("an answer to no call in flight")?;
            checker.check(&answer, answered..answered + 1)?;
            if shared.phase.load(Ordering::Relaxed) == MEASURED {
                latency.borrow_mut().record(started.elapsed());
            }
            next = socket.try_next()?;
        }
    }
}

/// Ids of a run have as many digits as [`FIRST_ID`].
fn write_id(text: &mut [u8], at: usize, id: u64) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(id).as_bytes();
    text[at..at + digits.len()].copy_from_slice(digits);
}

/// Compares answers with the expected one: cheaply while they come in the same shape.
struct Checker<'a> {
    status: u16,
    id_key: memmem::Finder<'static>,
    text: &'a [u8],
    /// Where the text was the last time.
    text_at: usize,
}

impl<'a> Checker<'a> {
    fn new(expected: &'a Expected) -> Self {
        let id_key = memmem::Finder::new(b"\"id\":");
        Self { status: expected.status, id_key, text: &expected.text, text_at: 0 }
    }

    /// The first id of an answer.
    fn id(&self, answer: &Answer<'_>) -> Option<u64> {
        let at = self.id_key.find(answer.body)? + b"\"id\":".len();
        number(&answer.body[at..])
    }

    /// The answer must hold these ids, in order, and the text for each.
    fn check(
        &mut self,
        answer: &Answer<'_>,
        ids: std::ops::Range<u64>,
    ) -> std::result::Result<(), &'static str> {
        if answer.status != self.status {
            return Err("another status");
        }
        let mut found = self.id_key.find_iter(answer.body);
        for id in ids.clone() {
            let at = found.next().ok_or("no id")? + b"\"id\":".len();
            if number(&answer.body[at..]) != Some(id) {
                return Err("another id");
            }
        }
        let elements = (ids.end - ids.start) as usize;
        if elements > 1 && memmem::find_iter(answer.body, self.text).count() != elements {
            return Err("another payload");
        }
        let there =
            |at: usize| answer.body.get(at..).is_some_and(|rest| rest.starts_with(self.text));
        if !there(self.text_at) {
            self.text_at = memmem::find(answer.body, self.text).ok_or("another payload")?;
        }
        Ok(())
    }
}

/// The digits at the beginning, as a number.
fn number(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}
