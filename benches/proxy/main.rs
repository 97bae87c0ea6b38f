//! The same load direct, through a minimal passthrough and through the gateway, in one run.
//!
//! `cargo bench --bench proxy [-- --quick] [-- --only NAME]` prints a Markdown table. Rounds are
//! interleaved (direct, passthrough, gateway, direct, …), each target is a process of its own, each
//! answer's id and payload is checked, and one wrong answer fails the run. CPU per request is the
//! user and system time of the target's processes over the requests that completed; it is the
//! figure that other users of the machine disturb least. For latency run it on one core
//! (`taskset -c 0 cargo bench --bench proxy -- --only latency`).
//!
//! The bench profile shares its build with what benches and tests need; to measure another build,
//! give it with `--gateway PATH`.

mod catalog;
mod child;
mod client;
mod fanout;
mod gateway;
mod histogram;
mod limits;
mod load;
mod memory;
mod passthrough;
mod probe;
mod report;
mod scenario;
mod session;
mod socket;
mod stream;
mod stub;
mod usage;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use child::Child;
use gateway::Gateway;
use load::{Plan, Times, Window};
use report::Rows;
use scenario::{SCENARIOS, Scenario, Target};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Direct, passthrough and gateway under the same load.
#[derive(Parser)]
#[command(name = "proxy")]
struct Options {
    /// Two short rounds: figures for a first look only.
    #[arg(long)]
    quick: bool,
    /// Only the scenarios whose name begins so (`memory` are those of idle clients); repeatable.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Leave out a target (`passthrough`, `gateway`); repeatable.
    #[arg(long, value_name = "TARGET")]
    skip: Vec<String>,
    /// Rounds, instead of 5.
    #[arg(long)]
    rounds: Option<usize>,
    /// Seconds of each measured window, instead of 2.
    #[arg(long)]
    seconds: Option<f64>,
    /// Clients at the end of each `memory` scenario, instead of 5,000 or 10,000, and of `fan-out`, instead of 1,000.
    #[arg(long, value_name = "NUMBER")]
    clients: Option<usize>,
    /// The gateway's program, instead of the one of the bench profile.
    #[arg(long, value_name = "PATH")]
    gateway: Option<PathBuf>,
    /// Given by cargo; without it, as under `cargo test`, nothing runs.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only.as_str()))
    }

    fn skips(&self, target: Target) -> bool {
        self.skip.iter().any(|skip| skip == target.name())
    }

    fn rounds(&self) -> usize {
        self.rounds.unwrap_or(if self.quick { 2 } else { 5 })
    }

    /// After how many idle clients memory is read.
    fn steps(&self, usual: [usize; 2]) -> [usize; 2] {
        let quick = if self.quick { [usual[0] / 4, usual[1] / 10] } else { usual };
        match self.clients {
            Some(last) => [quick[0].min(last / 2), last],
            None => quick,
        }
    }

    fn times(&self) -> Times {
        let seconds = self.seconds.unwrap_or(if self.quick { 1.0 } else { 2.0 });
        let warm_up = Duration::from_secs_f64(seconds / 8.0);
        Times { warm_up, measured: Duration::from_secs_f64(seconds) }
    }
}

/// Cores, and so threads of each part.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let ended = match arguments.next().as_deref() {
        Some("role-stub") => stub::run(),
        Some("role-passthrough") => passthrough::run(&arguments.next().unwrap_or_default()),
        _ => compare(&Options::parse()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A target that runs.
struct Running<'a> {
    target: Target,
    child: &'a Child,
    idle: u64,
}

fn compare(options: &Options) -> Result<()> {
    if !options.bench {
        eprintln!("this is a bench: cargo bench --bench proxy");
        return Ok(());
    }
    let stub = Child::role("role-stub", &[])?;
    println!(
        "{}; {} rounds of {:?}; load average before: {}",
        usage::machine(),
        options.rounds(),
        options.times().measured,
        usage::load_average()
    );
    let passthrough = Child::role("role-passthrough", &[stub.address.to_string()])?;
    let gateway = match options.skips(Target::Gateway) {
        false => Some(Gateway::start(options.gateway.as_deref(), stub.address)?),
        true => None,
    };
    // Let what runs at start come to rest before idle memory is read.
    std::thread::sleep(Duration::from_millis(500));
    let mut running = vec![(Target::Direct, &stub)];
    running.extend(
        (!options.skips(Target::Passthrough)).then_some((Target::Passthrough, &passthrough)),
    );
    running.extend(gateway.as_ref().map(|gateway| (Target::Gateway, &gateway.child)));
    let running: Vec<_> = running
        .into_iter()
        .map(|(target, child)| Ok(Running { target, child, idle: usage::rss(child.pid())? }))
        .collect::<Result<_>>()?;

    let mut tables = Vec::new();
    for scenario in SCENARIOS.iter().filter(|scenario| options.wants(scenario.name)) {
        tables.push(measure(scenario, &running, options)?);
        check_stub(stub.address).map_err(|error| format!("{}: {error}", scenario.name))?;
    }
    let mut memory = Vec::new();
    for Running { target, child, idle } in running.iter().skip(1).filter(|_| !tables.is_empty()) {
        memory.push((*target, *idle, usage::rss(child.pid())?));
    }
    let mut growths = Vec::new();
    for (kind, name, about, steps) in memory::KINDS {
        if gateway.is_none() || !options.wants(name) {
            continue;
        }
        let (steps, program) = (options.steps(steps), options.gateway.as_deref());
        let growth = memory::grow((kind, about), steps, program, stub.address);
        growths.push(growth.map_err(|error| format!("{name}: {error}"))?);
        eprintln!("{name}: done");
    }
    let mut fan_out = None;
    if gateway.is_some() && options.wants(fanout::NAME) {
        let clients = options.clients.unwrap_or(if options.quick { 100 } else { 1_000 });
        let told = fanout::measure(options.gateway.as_deref(), stub.address, clients);
        fan_out = Some(told.map_err(|error| format!("{}: {error}", fanout::NAME))?);
        eprintln!("{}: done", fanout::NAME);
    }
    println!("load average after: {}\n", usage::load_average());
    report::print_load(&tables);
    report::print_memory(&memory);
    report::print_growth(&growths);
    report::print_fan_out(fan_out.as_ref());
    Ok(())
}

/// Fails when the stub was sent what no upstream should be sent.
fn check_stub(stub: SocketAddr) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(stub::faults::check(stub))
}

/// The rounds of one scenario.
fn measure(scenario: &Scenario, running: &[Running<'_>], options: &Options) -> Result<Rows> {
    let running: Vec<_> =
        running.iter().filter(|running| scenario.load.suits(running.target)).collect();
    let plans = plans(scenario, &running)?;
    let mut rows = Rows::new(scenario.about);
    for round in 1..=options.rounds() {
        let mut windows: Vec<(Target, Window)> = Vec::new();
        for (Running { target, child, .. }, plans) in running.iter().copied().zip(&plans) {
            let cpu = || usage::cpu(child.pid());
            let window =
                load::run(child.address, plans, scenario.connections, options.times(), cpu)
                    .map_err(|error| format!("{}, {}: {error}", scenario.name, target.name()))?;
            windows.push((*target, window));
        }
        rows.add(&windows);
        eprintln!("{}: round {round}", scenario.name);
    }
    Ok(rows)
}

/// What each target is asked, after its first answers agreed with the direct ones.
fn plans(scenario: &Scenario, running: &[&Running<'_>]) -> Result<Vec<Vec<Plan>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut all: Vec<Vec<Plan>> = Vec::new();
    for Running { target, child, .. } in running {
        let plans = runtime.block_on(probe_all(scenario, *target, child.address, all.first()));
        all.push(plans.map_err(|error| {
            format!("{}, first answer of {}: {error}", scenario.name, target.name())
        })?);
    }
    Ok(all)
}

async fn probe_all(
    scenario: &Scenario,
    target: Target,
    address: SocketAddr,
    direct: Option<&Vec<Plan>>,
) -> Result<Vec<Plan>> {
    let mut plans = Vec::new();
    for (index, call) in scenario.load.calls(target).into_iter().enumerate() {
        let direct = direct.map(|plans| &plans[index].expected);
        let expected = probe::expect(address, &call, direct).await?;
        plans.push(Plan { call, expected });
    }
    Ok(plans)
}
