//! The load: a closed loop on a number of connections, every answer checked.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use memchr::memmem;

use crate::Result;
use crate::client::Answer;
use crate::histogram::Histogram;
use crate::probe::Expected;
use crate::scenario::Call;
use crate::session::{FIRST_ID, Session};

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
    let mut session = Session::open(address, &plan.call).await?;
    let (mut request, id_at) = session.template(&plan.call);
    let mut checker = Checker::new(&plan.expected);
    let mut digits = itoa::Buffer::new();
    // No two connections share an id: an answer that went to the wrong one is noticed.
    let mut id = FIRST_ID + number as u64 * 1_000_000;
    shared.ready.fetch_add(1, Ordering::Relaxed);
    while shared.phase.load(Ordering::Relaxed) != OVER {
        let id_text = digits.format(id).as_bytes();
        request[id_at..id_at + id_text.len()].copy_from_slice(id_text);
        let started = Instant::now();
        let answer = session.client.send(&request).await?;
        let took = started.elapsed();
        checker.check(&answer, id_text).map_err(|what| {
            let body = String::from_utf8_lossy(&answer.body[..answer.body.len().min(300)]);
            format!("{what} in the answer to {id}: status {}, {body}", answer.status)
        })?;
        if shared.phase.load(Ordering::Relaxed) == MEASURED {
            latency.borrow_mut().record(took);
        }
        id += 1;
    }
    session.close().await
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

    fn check(&mut self, answer: &Answer<'_>, id: &[u8]) -> std::result::Result<(), &'static str> {
        if answer.status != self.status {
            return Err("another status");
        }
        let at = self.id_key.find(answer.body).ok_or("no id")? + b"\"id\":".len();
        let rest = &answer.body[at..];
        if !rest.starts_with(id) || rest.get(id.len()).is_some_and(u8::is_ascii_digit) {
            return Err("another id");
        }
        let there =
            |at: usize| answer.body.get(at..).is_some_and(|rest| rest.starts_with(self.text));
        if !there(self.text_at) {
            self.text_at = memmem::find(answer.body, self.text).ok_or("another payload")?;
        }
        Ok(())
    }
}
